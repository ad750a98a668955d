"""Train the value network in a process of its own, while the policy trains in this one.

Threads would not do: between NumPy's operations they wait for Python's lock, and a small minibatch
has many. Both processes call `fit` with the same numbers, so that the result does not depend on
where it was computed; where there is no such process, this one trains it.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
import weakref
from typing import Any, BinaryIO

import numpy as np

from flame_rl.actor.worker.frames import Wait, enlarge, read_frame, ready, write_frame
from flame_rl.actor.worker.process import ChildProcess
from flame_rl.learner.on_policy.value_epochs import ValueEpochs, fit
from flame_rl.learner.training.adam import Adam
from flame_rl.nets.by_hand import NetworkByHand, placed_layers
from flame_rl.nets.heads import ValueOutput
from flame_rl.system.machine import available_cores
from flame_rl.system.signals import end_if_stopped
from flame_rl.wire import packing

# Sending a smaller batch takes longer than training on it here.
_LEAST_STEPS = 1000
_KEPT_BYTES = 1 << 24
# What the pipe holds, so that a batch goes out before the other process has read all of it.
_PIPE_BYTES = 1 << 20
# What the process may take: this in its first update, then ten times the longest so far.
_FIRST_SECONDS = 60.0
_LEAST_SECONDS = 10.0


class ValueProcess:
    """The other process. It starts with the first batch that is large enough, and ends with this
    object; if it dies before, hangs or answers with nonsense, training goes on without it."""

    def __init__(self, network: NetworkByHand) -> None:
        """`network` is the value network."""
        self._layers = network.describe()
        self._parameters = network.parameters
        self._child: ChildProcess | None = None
        self._ready = False
        self._gone = False
        # Whether an answer is still to be read.
        self._asked = False
        self._sent: np.ndarray | None = None
        self._began = 0.0
        self._longest: float | None = None

    def begin(self, adam: Adam, epochs: ValueEpochs) -> bool:
        """Begin to train; returns False where that is not worth it or not possible, and `finish`
        must not be called."""
        self._began = time.monotonic()
        if self._gone or len(epochs.rows) < _LEAST_STEPS or available_cores() == 1:
            return False
        try:
            if not self._is_ready():
                return False
            if self._asked:  # an update that was given up
                self._read()
            if self._sent is not epochs.inputs:
                self._write("inputs", {}, {"inputs": epochs.inputs})
                self._sent = epochs.inputs
            numbers = {
                "minibatches": epochs.minibatches,
                "scale": epochs.scale,
                "learning_rate": epochs.learning_rate,
                "max_grad_norm": epochs.max_grad_norm,
            }
            arrays = {name: getattr(epochs, name) for name in ("rows", "targets", "orders")}
            self._write("epochs", numbers, arrays | _state_of(adam))
        except Exception:
            self._give_up()
            return False
        self._asked = True
        return True

    def finish(self, adam: Adam) -> float | None:
        """Wait for what `begin` began, and set the network's parameters and `adam` to the result.

        Returns:
            What `fit` returns; None if the other process is gone, and nothing has changed.
        """
        try:
            header, arrays = self._read()
            loss = float(header["loss"])
            _set_state(adam, arrays)
        except Exception:
            self._give_up()
            return None
        self._longest = max(self._longest or 0.0, time.monotonic() - self._began)
        return loss

    def _is_ready(self) -> bool:
        """Whether the process can train; starts it first."""
        if self._child is None:
            self._child = ChildProcess(__name__)
            weakref.finalize(self, self._child.end)
            for pipe in (self._child.questions, self._child.answers):
                os.set_blocking(pipe.fileno(), False)
            enlarge(self._child.questions, _PIPE_BYTES)
            self._write("network", {"layers": self._layers, "parameters": self._parameters}, {})
        if not self._ready and ready(self._child.answers, select.POLLIN, 0):
            read_frame(self._child.answers, self._waiting(), most_bytes=0)
            self._ready = True
        return self._ready

    def _write(self, kind: str, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        frame = packing.pack_buffers(kind, header, arrays)
        write_frame(self._child.questions, frame, self._waiting())

    def _read(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        # Parameters and both sums of Adam, float32 each, and a header.
        most_bytes = 12 * self._parameters + packing.MAX_HEADER_BYTES
        answer, _ = read_frame(self._child.answers, self._waiting(), most_bytes)
        self._asked = False
        return packing.unpack(answer, "trained")

    def _waiting(self) -> Wait:
        """Waits for the process as long as it may take from now on."""
        seconds = _FIRST_SECONDS
        if self._longest is not None:
            seconds = max(_LEAST_SECONDS, 10 * self._longest)
        limit = time.monotonic() + seconds

        def wait(pipe: BinaryIO, event: int) -> None:
            while not ready(pipe, event, min(0.1, limit - time.monotonic())):
                end_if_stopped()
                if time.monotonic() >= limit:
                    raise TimeoutError

        return wait

    def _give_up(self) -> None:
        if self._child is not None:
            self._child.end()
        self._gone = True


def _state_of(adam: Adam) -> dict[str, np.ndarray]:
    return {"parameters": adam.parameters, **adam.state_dict()}


def _set_state(adam: Adam, state: dict[str, np.ndarray]) -> None:
    """The inverse of `_state_of`; the parameters stay where they are. Raises KeyError or ValueError
    if it does not fit, and changes nothing."""
    for name, array in _state_of(adam).items():
        if (state[name].shape, state[name].dtype) != (array.shape, array.dtype):
            raise ValueError(f"{name}: {state[name].shape} of {state[name].dtype}")
    adam.parameters[:] = state["parameters"]
    adam.load_state_dict(state)


def main(questions_fd: int, answers_fd: int) -> None:
    """What the process does until the pipe of the questions closes."""
    questions: BinaryIO = os.fdopen(questions_fd, "rb", buffering=0)
    answers: BinaryIO = os.fdopen(answers_fd, "wb", buffering=0)
    header, _ = packing.unpack(read_frame(questions)[0], "network")
    adam = Adam(np.zeros(header["parameters"], np.float32))
    layers = placed_layers(header["layers"], adam.parameters)
    scale = np.ones((), np.float32)
    network = NetworkByHand(layers, ValueOutput(scale))
    write_frame(answers, b"")  # it is ready
    # The C library keeps freed memory up to the size of the largest piece that was freed; what it
    # does not keep comes from the kernel each time, which takes longer than the arithmetic.
    np.empty(_KEPT_BYTES, np.uint8)
    inputs = None
    while True:
        frame, _ = read_frame(questions)
        if packing.message_type(frame) == "inputs":
            inputs = packing.unpack(frame, "inputs")[1]["inputs"]
            continue
        header, arrays = packing.unpack(frame, "epochs")
        _set_state(adam, arrays)
        scale[...] = header["scale"]
        epochs = ValueEpochs(
            inputs,
            **{name: arrays[name] for name in ("rows", "targets", "orders")},
            **{name: value for name, value in header.items() if name != "type"},
        )
        result = {"loss": fit(network, adam, epochs)}
        write_frame(answers, packing.pack_buffers("trained", result, _state_of(adam)))


if __name__ == "__main__":
    # The learner refuses what is not finite; it is gone when the pipe is.
    with np.errstate(all="ignore"), contextlib.suppress(OSError):
        main(*map(int, sys.argv[1:]))
