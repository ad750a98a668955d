"""Limit the KL divergence of an update."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from flame_rl.learner.on_policy.actor_critic import Computed
from flame_rl.learner.on_policy.batch import Batch
from flame_rl.learner.on_policy.losses import kl_terms
from flame_rl.learner.training.flat import state_of
from flame_rl.learner.training.network import Network, Samples
from flame_rl.learner.training.slices import outputs
from flame_rl.learner.training.trained import TrainedNetwork

if TYPE_CHECKING:
    from torch import nn

# An update whose divergence is too large after this number of halvings is undone.
_HALVINGS = 40


def shrink_until_close(
    policy: TrainedNetwork | Computed,
    before: dict[str, np.ndarray],
    batch: Batch,
    samples: Samples,
    max_kl: float,
) -> dict[str, float]:
    """Shorten the update of the policy, its normalisation included, until its KL divergence from
    the policy before it is at most `max_kl`; if it never is, undo the update.

    To end the epochs where a minibatch exceeds the limit is not enough: a minibatch estimates the
    divergence from its own steps, before its own gradient step.

    Args:
        policy: after the update; values in the same module are shortened with it.
        before: its state before the update; see `copy_state`.
        batch: all steps that were collected.
        samples: the same; see `policy_samples`.
        max_kl: in nats.

    Returns:
        "kl", and "update_scale": 1 for the whole update, 0 if it was undone.
    """
    after = copy_state(policy.module)
    for halvings in range(_HALVINGS + 1):
        # The divergence grows with the square of the update.
        scale = 0.5 ** (halvings / 2)
        if halvings:
            between = {name: interpolate(before[name], after[name], scale) for name in after}
            state_of(policy.module).load_state_dict(between)
        log_ratio = log_probs_of(policy.network, samples) - batch.log_probs
        kl = float(kl_terms(log_ratio, batch.importance_weights).mean())
        if kl <= max_kl:
            return {"kl": kl, "update_scale": scale}
    if not math.isfinite(kl):  # not undone in silence: the learner must refuse the update
        return {"kl": kl, "update_scale": scale}
    state_of(policy.module).load_state_dict(before)
    return {"kl": 0.0, "update_scale": 0.0}


def policy_samples(batch: Batch) -> Samples:
    """The steps as samples for a policy: "inputs", [N, ...], not yet prepared for a network, and
    `Batch.for_policy`; with "time" where a network remembers."""
    # `take` is several times as fast as indexing.
    inputs = batch.network_inputs.take(batch.rows, axis=0)
    samples = {"inputs": inputs, **batch.for_policy}
    return samples if batch.time is None else samples | {"time": batch.time}


def log_probs_of(policy: Network, samples: Samples) -> np.ndarray:
    """Log-probabilities of the actions of `policy_samples` under any policy, float32 [N]."""
    result, _ = outputs(policy, samples, prepared=False)
    return result


def copy_state(module: nn.Module) -> dict[str, np.ndarray]:
    """Copies of the module's parameters and buffers, by name."""
    return {name: array.copy() for name, array in state_of(module).state_dict().items()}


def interpolate(before: np.ndarray, after: np.ndarray, share: float) -> np.ndarray:
    """before + share (after - before), as exact as torch.lerp: from the nearer end, and with one
    rounding after the difference, whose product with a float32 float64 holds exactly."""
    share = np.float32(share)
    near, factor = (before, share) if share < 0.5 else (after, share - np.float32(1))
    return np.asarray(np.float64(factor) * (after - before) + near, before.dtype)
