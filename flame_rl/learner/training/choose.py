"""Choose how a network is differentiated: over whole sequences if it has a memory, otherwise by
hand where that is sure to be the same; and by torch wherever the CPU does not compute it.

Sure means that the module consists of layers that modules.py knows, and that a comparison with
autograd agrees, with weights that are far from those of a new network, whose outputs are near 0: a
module that somebody changed in model.py goes through torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
import torch
from torch import Tensor, nn

from flame_rl.learner.training.autograd import Apply, AutogradNetwork
from flame_rl.learner.training.modules import UnknownLayerError, network_by_hand
from flame_rl.learner.training.sequences import SequenceNetwork, remembers
from flame_rl.nets.by_hand import NetworkByHand
from flame_rl.nets.continuous import GaussianHead
from flame_rl.nets.discrete import CategoricalHead, FactoredHead
from flame_rl.nets.heads import RawOutput, ValueOutput
from flame_rl.nets.network import Network, Samples

_CHECK_ROWS = 64
# Relative to the greatest number; float32 rounds at 6e-8 per operation.
_TOLERANCE = 1e-4
# A context variable, so that algorithms need not pass the device on to their networks.
_DEVICE: ContextVar[torch.device | None] = ContextVar("device", default=None)


@contextmanager
def computing_on(device: torch.device | None) -> Iterator[None]:
    """Networks that are chosen within the block are computed on this device, and none of them by
    hand; None: on the CPU."""
    token = _DEVICE.set(device)
    try:
        yield
    finally:
        _DEVICE.reset(token)


def policy_network(module: nn.Module) -> Network:
    """A policy as in model.py: its outputs are log-probabilities of "actions", and entropies."""

    def apply(m: nn.Module, samples: dict[str, Tensor]) -> tuple[Tensor, ...]:
        return m.log_prob_and_entropy(samples["inputs"], samples["actions"])

    plain = _by_torch(module, apply)
    if not _may_be_by_hand(plain):
        return plain
    snapshot = module.snapshot()
    last, head = snapshot.layers[-1], snapshot.head
    rng = np.random.default_rng(0)
    # A Gaussian whose standard deviation is something else goes through torch.
    if head.kind == "gaussian" and hasattr(module, "log_std"):
        width = module.log_std.numel()
        actions = rng.standard_normal((_CHECK_ROWS, width)).astype(np.float32)
        output = GaussianHead(width, module.log_std.detach().numpy())
        return _chosen(plain, module, output, {"actions": actions}, module.log_std)
    if head.kind == "factored":
        choices = head.arrays["choices"]
        actions = rng.integers(0, choices, (_CHECK_ROWS, len(choices)), np.int32)
        output = FactoredHead(int(choices.sum()), choices)
        return _chosen(plain, module, output, {"actions": actions})
    if head.kind == "categorical" and last.kind == "dense":
        width = len(last.arrays["bias"])
        actions = rng.integers(0, width, _CHECK_ROWS, np.int32)
        return _chosen(plain, module, CategoricalHead(width), {"actions": actions})
    return plain


def value_network(module: nn.Module) -> Network:
    """A value network as in model.py: its output is the values."""
    return _chosen(_by_torch(module, _of_inputs), module, ValueOutput(module.scale.numpy()), {})


def shared_network(module: nn.Module) -> Network:
    """A `SharedNetwork` as in model.py: its outputs are those of a policy, then of a value network,
    then the losses of auxiliary modules."""

    def apply(m: nn.Module, samples: dict[str, Tensor]) -> tuple[Tensor, ...]:
        return m.every_output(samples)

    return _by_torch(module, apply)


def raw_network(module: nn.Module) -> Network:
    """A module of observations alone, such as action values or a deterministic policy: its output
    as it is, [B, outputs]."""
    return _chosen(_by_torch(module, _of_inputs), module, RawOutput(), {})


def critic_network(module: nn.Module, observation_dim: int) -> Network:
    """A critic as in model.py: "inputs" are observations and actions side by side, [B, D + A]; its
    output is the values, [B, 1]."""

    def apply(m: nn.Module, samples: dict[str, Tensor]) -> tuple[Tensor, ...]:
        inputs = samples["inputs"]
        return (m(inputs[:, :observation_dim], inputs[:, observation_dim:])[:, None],)

    return _chosen(_by_torch(module, apply), module, RawOutput(), {})


def _of_inputs(module: nn.Module, samples: dict[str, Tensor]) -> tuple[Tensor, ...]:
    return (module(samples["inputs"]),)


def _by_torch(module: nn.Module, apply: Apply) -> Network:
    kind = SequenceNetwork if remembers(module) else AutogradNetwork
    return kind(module, apply, _DEVICE.get())


def _may_be_by_hand(plain: Network) -> bool:
    return _DEVICE.get() is None and not plain.remembers


def _chosen(
    plain: Network, module: nn.Module, output: RawOutput, columns: Samples, *learned: Tensor
) -> Network:
    """The module by hand, with that output and its parameters, if that can be made and agrees with
    `plain` for samples with these columns; else `plain`."""
    if not _may_be_by_hand(plain):
        return plain
    try:
        quick = network_by_hand(module, output, *learned)
    except UnknownLayerError:
        return plain
    rng = np.random.default_rng(0)
    observations = rng.standard_normal((_CHECK_ROWS, quick.input_dim)).astype(np.float32)
    with _far_from_new(module):
        agree = _agree(plain, quick, observations, columns)
    return quick if agree else plain


@contextmanager
def _far_from_new(module: nn.Module) -> Iterator[None]:
    """Within the block, random numbers are added to the module's parameters and buffers."""
    parameters = list(module.parameters())
    buffers = [buffer for buffer in module.buffers() if buffer.is_floating_point()]
    before = [number.detach().clone() for number in (*parameters, *buffers)]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in parameters:
            # Less for more inputs, so that outputs stay moderate.
            inputs = parameter.shape[-1] if parameter.ndim > 1 else 1
            parameter += torch.randn(parameter.shape, generator=generator) / (2 * math.sqrt(inputs))
        for buffer in buffers:
            # Scales are positive.
            buffer += 0.5 + torch.rand(buffer.shape, generator=generator)
    try:
        yield
    finally:
        with torch.no_grad():
            for number, old in zip((*parameters, *buffers), before, strict=True):
                number.copy_(old)


def _agree(
    plain: Network, quick: NetworkByHand, observations: np.ndarray, columns: Samples
) -> bool:
    """Whether outputs and gradients are the same but for float32's rounding.

    Args:
        plain, quick: compared.
        observations: float32 [B, D].
        columns: what else the samples have.
    """
    results = []
    for network in (plain, quick):
        samples = columns | {"inputs": network.prepare(observations)}
        outputs = network.outputs(samples)
        # Any slopes will do; each row and each output has its own.
        rng = np.random.default_rng(1)
        slopes = [rng.standard_normal(output.shape).astype(np.float32) for output in outputs]
        gradient = np.zeros(quick.parameters, np.float32)
        forward = network.forward(samples)
        forward.to_parameters(tuple(slopes), gradient)
        results.append((*outputs, gradient))
    return all(
        np.abs(ours - theirs).max() <= _TOLERANCE * np.abs(theirs).max()
        for theirs, ours in zip(*results, strict=True)
    )
