"""The device on which a run's networks are computed: the CPU, or a graphics card."""

import math
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import pairwise
from typing import Literal

import torch
from torch.backends import mkldnn as onednn

from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from flame_rl.system.machine import ONE_BLAS_THREAD
from flame_rl.wire.inputs import observation_inputs
from flame_rl.wire.messages import EnvironmentSpec

# Weights of the hidden layers from which on they count as very large: two of 2,048 units.
_VERY_LARGE = 1 << 22
# The smallest of the sizes in torch's documentation with which cuBLAS and cuDNN give the same bits
# each time, for products and for recurrent layers.
_CUBLAS_WORKSPACE = ":16:8"
# Where new networks compute; None: on the CPU. A context variable, so that algorithms need not pass
# the device on to their networks.
NETWORK_DEVICE: ContextVar[torch.device | None] = ContextVar("device", default=None)
# The threads of a process share torch's generator and most of its settings.
_ONE_AT_A_TIME = threading.RLock()
# One of those in an update may have it, and none of them survives a fork.
os.register_at_fork(after_in_child=_ONE_AT_A_TIME._at_fork_reinit)


def choose_device(config: TrainConfig, spec: EnvironmentSpec) -> Literal["cpu", "cuda"]:
    """The device that `--device` stands for. Raises UsageError for a card that is not found."""
    wanted, there = config.execution.device, torch.cuda.is_available
    if wanted == "auto":
        return "cuda" if _prefers_card(config, spec) and there() else "cpu"
    if wanted == "cuda" and not there():
        cause = "this machine has none, or its driver does not answer"
        if not torch.backends.cuda.is_built():
            cause = f"torch {torch.__version__} is a build without CUDA"
        raise UsageError(
            f"--device: torch finds no graphics card: {cause}. Leave the flag out; a run begun on "
            "a card goes on without one by --device cpu, with other results from there on"
        )
    return wanted


def _prefers_card(config: TrainConfig, spec: EnvironmentSpec) -> bool:
    """Whether `auto` takes a graphics card: for convolutions, for recurrent layers, and for very
    large dense ones. With small ones a minibatch is computed before a card has got it."""
    experiment = config.experiment
    pictures = any(each.picture for each in observation_inputs(spec.observation_space))
    inputs = spec.observation_dim * experiment.frame_stack
    weights = sum(map(math.prod, pairwise((inputs, *experiment.hidden_sizes))))
    return pictures or experiment.memory != "none" or weights >= _VERY_LARGE


def device_of(name: str) -> torch.device | None:
    """The graphics card for its name, "cuda"; None for the CPU."""
    if name != "cuda":
        return None
    # It is read when the card is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", _CUBLAS_WORKSPACE)
    return torch.device(name)


@contextmanager
def reproducible(name: str, seed: int | None = None) -> Iterator[None]:
    """Within the block new networks compute on the device, and torch has the settings on which bits
    depend, whatever the program has set around it: gradients, float32 throughout, tensors on the
    CPU unless they are moved, one thread, and on a graphics card the same bits each time. Other
    threads of the process wait for its end. `seed`: of torch's random numbers in the block; None:
    they must not be drawn, and UsageError is raised if they were."""
    with _ONE_AT_A_TIME, ONE_BLAS_THREAD, ExitStack() as settings:
        changes = [
            (NETWORK_DEVICE.set, NETWORK_DEVICE.get(), device_of(name)),
            (torch.set_num_threads, torch.get_num_threads(), 1),
            (torch.set_default_dtype, torch.get_default_dtype(), torch.float32),
            (torch.set_float32_matmul_precision, torch.get_float32_matmul_precision(), "highest"),
            # Which computes recurrent layers; its `flags` sets what else there is to set.
            (partial(setattr, onednn, "enabled"), onednn.enabled, True),
        ]
        settings.enter_context(torch.inference_mode(False))  # which turns gradients on, too
        settings.enter_context(torch.autocast("cpu", enabled=False))
        # A context slows every function of torch down; torch 2.6 does not tell of an outer one.
        if torch.empty(0).device.type != "cpu":
            settings.enter_context(torch.device("cpu"))
        if name == "cuda":
            mode = torch.get_deterministic_debug_mode()
            changes.append((torch.set_deterministic_debug_mode, mode, "error"))
            settings.enter_context(torch.autocast(name, enabled=False))
            same = {"benchmark": False, "deterministic": True, "allow_tf32": False}
            settings.enter_context(torch.backends.cudnn.flags(enabled=True, **same))
        for change, earlier, own in changes:
            settings.callback(change, earlier)
            change(own)
        before = torch.get_rng_state()
        settings.callback(torch.set_rng_state, before)
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        yield
        if seed is None and not torch.equal(before, torch.get_rng_state()):
            raise UsageError(
                "model.py, a loss of your own or another thread draws random numbers of torch, as "
                "dropout does: the same seed would give other results; leave it out"
            )
