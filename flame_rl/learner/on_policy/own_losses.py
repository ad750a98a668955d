"""Losses that the user writes in torch, none of which is sent to actors: auxiliary ones of the
layers that policy and values share, and one in place of an algorithm's loss of the policy.

An auxiliary loss is a module with output layers of its own, trained and saved with the network; a
policy's loss is a function.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from flame_rl.learner.on_policy.losses import policy_numbers
from flame_rl.learner.rewards import import_function, raised_by
from flame_rl.learner.training.autograd import torch_loss
from flame_rl.learner.training.network import Loss, LossResult, Samples
from flame_rl.modules.networks import SharedNetwork, inputs_of
from flame_rl.settings.algorithms import OnPolicySettings, loss_name
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import EnvironmentSpec


def add_auxiliary(network: SharedNetwork, names: Sequence[str], spec: EnvironmentSpec) -> None:
    """Make the modules of the auxiliary losses, "module:class" each, called with the width of the
    last shared layer and `spec`, and add them to the network. Raises UsageError if one cannot be
    made, or is not float32."""
    features = network.policy.network[-1].in_features
    for name in names:
        make = import_function("auxiliary", name)
        try:
            module = make(features, spec)
        except (Exception, SystemExit) as error:
            raise raised_by(f"--auxiliary: {name}", error) from error
        if not isinstance(module, nn.Module):
            raise UsageError(
                f"--auxiliary: {name} made {type(module).__name__}; it must be a torch module, "
                "whose `forward(features, samples)` gives a loss for each step"
            )
        for entry, tensor in module.state_dict().items():
            if tensor.dtype != torch.float32:
                raise UsageError(
                    f"--auxiliary: {entry} of {name} is {tensor.dtype}; make it float32"
                )
        network.auxiliary[f"{loss_name(name)}_loss"] = module


def every_output(network: SharedNetwork, samples: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """The network's outputs, and the losses of each auxiliary module, float32 [B] each.

    Samples have "inputs", which are observations, "actions", and with auxiliary losses the columns
    of `Batch.transitions`.
    """
    policy = network.policy
    inputs = policy.preprocess(*inputs_of(samples))
    features = network.features(inputs)
    outputs = network.of_features(features, samples)
    if not network.auxiliary:
        return outputs
    following = policy.normalizer(samples["next_observations"])
    seen = samples | {"observations": inputs, "next_observations": following}
    losses = (
        loss_of_steps(f"--auxiliary: {name}", module, (features,), seen, features.shape[:-1])
        for name, module in network.auxiliary.items()
    )
    return (*outputs, *losses)


def own_policy_loss(settings: OnPolicySettings) -> Loss | None:
    """The loss of --policy-loss with the entropy bonus; None without the flag. Raises UsageError if
    it cannot be imported, in the loss as `loss_of_steps` does, and if it has no gradient."""
    if settings.policy_loss is None:
        return None
    title, c = f"--policy-loss: {settings.policy_loss}", settings.entropy_coefficient
    function = import_function("policy_loss", settings.policy_loss)

    @torch_loss
    def of_function(seen: dict[str, Tensor], *outputs: Tensor) -> Tensor:
        return loss_of_steps(title, function, outputs, seen, outputs[0].shape)

    def loss(samples: Samples, log_probs: np.ndarray, entropies: np.ndarray) -> LossResult:
        # Advantages have the importance weights already.
        seen = {name: column for name, column in samples.items() if name != "weights"}
        try:
            numbers, (slope, of_entropies) = of_function(seen, log_probs, entropies)
        except RuntimeError as error:
            raise raised_by(title, error) from error
        total = numbers["loss"] - c * entropies
        gradients = slope, of_entropies - c
        return policy_numbers(total, samples, log_probs, entropies), gradients

    return loss


def loss_of_steps(
    title: str,
    function: Callable[..., Tensor],
    outputs: tuple[Tensor, ...],
    samples: dict[str, Tensor],
    shape: torch.Size,
) -> Tensor:
    """The user's loss of each step, float32 in this shape, given outputs of the network and what
    happened in the steps; see docs/losses.md. Raises UsageError, which begins with the title, if
    the function raises an exception, changes a sample, or returns something else."""
    versions = {name: tensor._version for name, tensor in samples.items()}
    try:
        loss = function(*outputs, dict(samples))
    except (Exception, SystemExit) as error:
        raise raised_by(title, error) from error
    for column, version in versions.items():
        if samples[column]._version != version:
            raise UsageError(
                f"{title} changed samples[{column!r}] in place, from which the other losses learn; "
                "change a copy, by `clone`"
            )
    if not isinstance(loss, Tensor) or loss.dtype != torch.float32 or loss.shape != shape:
        made = f"{loss.dtype} of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else loss
        raise UsageError(
            f"{title} returned {made!s:.200}; it must return one loss for each step, torch.float32 "
            f"of shape {tuple(shape)}"
        )
    if torch.is_grad_enabled() and not loss.requires_grad:
        raise UsageError(
            f"{title} returned losses that do not depend on the network's outputs; leave out "
            "`detach` and `no_grad`"
        )
    return loss
