"""The value network trained in a process of its own: the same numbers as here."""

from __future__ import annotations

import gc
import os
import signal
import struct
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from torch import nn

from flame_rl.actor.worker.process import ChildProcess
from flame_rl.learner.on_policy import value_process
from flame_rl.learner.on_policy.value_epochs import ValueEpochs, fit
from flame_rl.learner.on_policy.value_process import ValueProcess
from flame_rl.learner.training.choose import network_of
from flame_rl.learner.training.trained import TrainedNetwork
from flame_rl.modules.layers import Activation, Dense, LayerNorm
from flame_rl.modules.networks import ValueNetwork
from flame_rl.system.machine import available_cores
from flame_rl.system.signals import stoppable
from flame_rl.wire import packing
from tests.helpers import ROOT
from tests.learners import ON_POLICY, learner_of, random_episodes

pytestmark = pytest.mark.skipif(available_cores() == 1, reason="there is one core")


def trained_network() -> TrainedNetwork:
    """A value network with every kind of layer."""
    torch.manual_seed(0)
    layers = [
        *(Dense(3, 8), LayerNorm(8), Activation("relu")),
        *(Dense(8, 12), LayerNorm(12), Activation("silu"), Dense(12, 5), Activation("tanh")),
        Dense(5, 1),
    ]
    network = ValueNetwork((nn.Identity(), nn.Identity()), layers)
    network.scale.fill_(2.0)
    return TrainedNetwork(network, network_of)


def epochs_of(seed: int, steps: int = 300, minibatches: int = 4) -> ValueEpochs:
    rng = np.random.default_rng(seed)
    return ValueEpochs(
        inputs=rng.standard_normal((steps + 5, 3)).astype(np.float32),
        rows=np.arange(steps),
        targets=rng.standard_normal(steps).astype(np.float32),
        orders=np.stack([rng.permutation(steps) for _ in range(3)]),
        minibatches=minibatches,
        scale=2.0,
        learning_rate=0.01,
        max_grad_norm=0.5,
    )


def begun(process: ValueProcess, trained: TrainedNetwork, epochs: ValueEpochs) -> None:
    """Begin as soon as the process has started."""
    until = time.monotonic() + 600
    while not process.begin(trained.adam, epochs):
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def _small_batches_are_worth_it(monkeypatch):
    monkeypatch.setattr(value_process, "_LEAST_STEPS", 1)


def test_the_same_bits_there_and_here():
    here, there = trained_network(), trained_network()
    process = ValueProcess(there.network)
    for number in range(4):  # inputs are sent once for two updates
        epochs = epochs_of(number // 2)
        before = there.adam.parameters.copy()
        begun(process, there, epochs)
        np.testing.assert_array_equal(there.adam.parameters, before)
        loss = process.finish(there.adam)
        assert loss == fit(here.network, here.adam, epochs)
        np.testing.assert_array_equal(there.adam.parameters, here.adam.parameters)
        assert (there.adam.parameters != before).any()
    for name, array in here.adam.state_dict().items():
        np.testing.assert_array_equal(there.adam.state_dict()[name], array)


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_whole_updates_have_the_same_bits(algorithm, monkeypatch):
    options = {"algorithm": algorithm, "epochs": 3, "value_epochs": 2, "hidden_sizes": (16, 16)}
    here = learner_of(True, **options)
    here.algorithm.networks.training.elsewhere = None
    there = learner_of(True, **options)
    networks = there.algorithm.networks
    begun(networks.training.elsewhere, networks.value, epochs_of(0))  # and given up
    losses = []

    def finish(self, adam):
        losses.append(original(self, adam))
        return losses[-1]

    original = ValueProcess.finish
    monkeypatch.setattr(ValueProcess, "finish", finish)
    for _ in range(3):
        assert there.update(random_episodes(True)) == here.update(random_episodes(True))
    assert len(losses) >= 3 and None not in losses
    assert there.weights_digest() == here.weights_digest()


def test_a_killed_process_is_done_without():
    here, there = trained_network(), trained_network()
    process, epochs = ValueProcess(there.network), epochs_of(0)
    begun(process, there, epochs)
    process._child.kill()
    process._child.wait()
    before = there.adam.parameters.copy()
    # It may have answered before; nothing has changed if not.
    loss = process.finish(there.adam)
    if loss is None:
        np.testing.assert_array_equal(there.adam.parameters, before)
        loss = fit(there.network, there.adam, epochs)
    assert loss == fit(here.network, here.adam, epochs)
    np.testing.assert_array_equal(there.adam.parameters, here.adam.parameters)
    while process.begin(there.adam, epochs):  # it is noticed at the latest by the next answer
        process.finish(there.adam)
    assert not process.begin(there.adam, epochs)


GARBAGE = packing.pack("trained", {"loss": 1.0}, {"parameters": np.zeros(3, np.float32)})
ANSWERS = {
    "stopped": None,
    "stop": None,
    "8 GB": struct.pack("<QQ", 8 << 30, 0),
    "half": struct.pack("<QQ", 100, 0) + b"x",
    "no message": struct.pack("<QQ", 7, 0) + b"garbage",
    "another message": struct.pack("<QQ", len(GARBAGE), 0) + GARBAGE,
}


@pytest.mark.parametrize("fault", ANSWERS)
def test_a_process_that_does_not_answer_is_done_without(fault, monkeypatch):
    """Stopped, without an end of the wait but the event that asks to stop, or with nonsense."""
    monkeypatch.setattr(value_process, "_FIRST_SECONDS", 3600.0 if fault == "stop" else 1.0)
    here, there = trained_network(), trained_network()
    process, epochs = ValueProcess(there.network), epochs_of(0)
    with monkeypatch.context() as patient:
        patient.setattr(value_process, "_FIRST_SECONDS", 60.0)
        begun(process, there, epochs_of(1))
        assert process.finish(there.adam) == fit(here.network, here.adam, epochs_of(1))
    process._longest = None
    os.kill(process._child.pid, signal.SIGSTOP)
    assert process.begin(there.adam, epochs)
    if ANSWERS[fault] is not None:
        readable, writable = os.pipe()
        os.write(writable, ANSWERS[fault])
        os.set_blocking(readable, False)
        os.dup2(readable, process._child.answers.fileno())
    stop = threading.Event()
    if fault == "stop":
        threading.Timer(0.3, stop.set).start()
    before = there.adam.parameters.copy()
    with stoppable(stop):
        assert process.finish(there.adam) is None
    np.testing.assert_array_equal(there.adam.parameters, before)
    assert fit(there.network, there.adam, epochs) == fit(here.network, here.adam, epochs)
    np.testing.assert_array_equal(there.adam.parameters, here.adam.parameters)
    assert not process.begin(there.adam, epochs)


def test_a_process_that_reads_nothing_is_done_without(monkeypatch):
    trained = trained_network()
    process = ValueProcess(trained.network)
    begun(process, trained, epochs_of(0))
    assert process.finish(trained.adam) is not None
    monkeypatch.setattr(value_process, "_LEAST_SECONDS", 0.2)
    process._longest = 0.0
    os.kill(process._child.pid, signal.SIGSTOP)
    assert not process.begin(trained.adam, epochs_of(1, steps=200_000))


def test_a_process_that_cannot_start_is_done_without(monkeypatch):
    def no_process(*_, **__):
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(ChildProcess, "__init__", no_process)
    trained = trained_network()
    process = ValueProcess(trained.network)
    assert not process.begin(trained.adam, epochs_of(0))
    assert not process.begin(trained.adam, epochs_of(0))


def test_what_was_given_up_is_not_taken_for_an_answer():
    here, there = trained_network(), trained_network()
    process = ValueProcess(there.network)
    begun(process, there, epochs_of(1))
    begun(process, there, epochs_of(2))
    assert process.finish(there.adam) == fit(here.network, here.adam, epochs_of(2))
    np.testing.assert_array_equal(there.adam.parameters, here.adam.parameters)


def test_it_ends_with_its_owner():
    trained = trained_network()
    process = ValueProcess(trained.network)
    begun(process, trained, epochs_of(0))
    pid = process._child.pid
    os.kill(pid, 0)
    del process
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_it_ends_when_its_parent_is_killed():
    script = (
        "import os, signal, time\n"
        "from tests.learner.test_value_process import *\n"
        "value_process._LEAST_STEPS = 1\n"
        "trained = trained_network()\n"
        "process = ValueProcess(trained.network)\n"
        "begun(process, trained, epochs_of(0))\n"
        "print(process._child.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    pid, until = int(done.stdout), time.monotonic() + 300
    while os.path.exists(f"/proc/{pid}") and "Z" not in state_of(pid):  # noqa: PTH110
        assert time.monotonic() < until
        time.sleep(0.05)


def state_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_it_needs_no_torch():
    script = (
        "import flame_rl.learner.on_policy.value_process, sys; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)
