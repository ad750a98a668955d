"""Auxiliary losses of the layers that policy and values share.

Each is a torch module that the user writes, with output layers of its own. It is trained and saved
with the network, and never sent to actors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from flame_rl.learner.rewards import import_function, raised_by
from flame_rl.modules.networks import SharedNetwork, inputs_of
from flame_rl.settings.algorithms import loss_name
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import EnvironmentSpec


def add_auxiliary(network: SharedNetwork, names: Sequence[str], spec: EnvironmentSpec) -> None:
    """Make the modules of the auxiliary losses, "module:class" each, and add them to the network.
    Raises UsageError as `make_auxiliary` does."""
    features = network.policy.network[-1].in_features
    for name in names:
        network.auxiliary[f"{loss_name(name)}_loss"] = make_auxiliary(name, features, spec)


def every_output(network: SharedNetwork, samples: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """The network's outputs, and the losses of each auxiliary module, float32 [B] each.

    Samples have "inputs", which are observations, "actions", and with auxiliary losses the columns
    of `Batch.outcomes`.
    """
    policy = network.policy
    inputs = policy.preprocess(*inputs_of(samples))
    features = network.features(inputs)
    outputs = network.of_features(features, samples)
    if not network.auxiliary:
        return outputs
    following = policy.normalizer(samples["next_observations"])
    seen = samples | {"observations": inputs, "next_observations": following}
    losses = (loss_of_steps(*item, features, seen) for item in network.auxiliary.items())
    return (*outputs, *losses)


def make_auxiliary(name: str, features: int, spec: EnvironmentSpec) -> nn.Module:
    """The module of an auxiliary loss: "module:class", called with F = `features`, the width of the
    last shared layer, and `spec`. Raises UsageError if it cannot be made, or is not float32."""
    make = import_function("auxiliary", name)
    try:
        module = make(features, spec)
    except (Exception, SystemExit) as error:
        raise raised_by(f"--auxiliary: {name}", error) from error
    if not isinstance(module, nn.Module):
        raise UsageError(
            f"--auxiliary: {name} made {type(module).__name__}; it must be a torch module, whose "
            "`forward(features, samples)` gives a loss for each step"
        )
    for entry, tensor in module.state_dict().items():
        if tensor.dtype != torch.float32:
            raise UsageError(f"--auxiliary: {entry} of {name} is {tensor.dtype}; make it float32")
    return module


def loss_of_steps(
    name: str, module: nn.Module, features: Tensor, samples: dict[str, Tensor]
) -> Tensor:
    """The losses of a module that `make_auxiliary` made, float32 [B], given features, float32
    [B, F], and what happened in the steps; see docs/losses.md. Raises UsageError if it raises an
    exception, changes a sample, or returns something else."""
    versions = {name: tensor._version for name, tensor in samples.items()}
    try:
        loss = module(features, dict(samples))
    except (Exception, SystemExit) as error:
        raise raised_by(f"--auxiliary: {name}", error) from error
    for column, version in versions.items():
        if samples[column]._version != version:
            raise UsageError(
                f"--auxiliary: {name} changed samples[{column!r}] in place, from which the other "
                "losses learn; change a copy, by `clone`"
            )
    wanted = features.shape[:-1]
    if not isinstance(loss, Tensor) or loss.dtype != torch.float32 or loss.shape != wanted:
        made = f"{loss.dtype} of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else loss
        raise UsageError(
            f"--auxiliary: {name} returned {made!s:.200}; it must return one loss for each step, "
            f"torch.float32 of shape {tuple(wanted)}"
        )
    if torch.is_grad_enabled() and not loss.requires_grad:
        raise UsageError(
            f"--auxiliary: {name} returned losses that do not depend on the features; leave out "
            "`detach` and `no_grad`"
        )
    return loss
