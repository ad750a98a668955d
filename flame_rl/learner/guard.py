"""Updates that would do harm do not happen: no NaN stays behind, and no step goes too far."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from flame_rl.learner.batch import Batch
from flame_rl.learner.networks import Networks, kl_terms
from flame_rl.system.errors import RunError

# After so many halvings nothing of the step is left to see.
_HALVINGS = 10
_REMEDY = (
    "The weights are as they were before this update. Likely causes: a learning rate that is too "
    "large (try a tenth), or rewards or observations of enormous size (scale them in the "
    "environment)"
)


class Stateful(Protocol):
    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...


@contextmanager
def refused_unless_finite(learner: Stateful) -> Iterator[dict[str, float]]:
    """Around an update: afterwards all state is finite, or as it was before.

    Args:
        learner: whose state the block changes.

    Yields:
        A dictionary, for the block to put numbers in that must be finite.

    Raises:
        RunError: one of them, or part of the state after the update, is NaN or infinite.
    """
    before = {name: tensor.clone() for name, tensor in learner.state_dict().items()}
    scalars: dict[str, float] = {}
    yield scalars
    wrong = [
        f"the {name.replace('_', ' ')} is {value}"
        for name, value in scalars.items()
        if not math.isfinite(value)
    ]
    wrong += [
        f"{name} became NaN or infinite"
        for name, tensor in learner.state_dict().items()
        if not torch.isfinite(tensor).all()
    ]
    if wrong:
        learner.load_state_dict(before)
        raise RunError(f"the update was refused: {wrong[0]}. {_REMEDY}")


def shrink_until_close(networks: Networks, before: Tensor, batch: Batch, max_kl: float) -> float:
    """Halve the policy's way from `before` until it is no further than `max_kl` from the policy
    that collected; returns how far it is then.

    Minibatches see only their own steps, and the last step of a pass is seen by none of them.

    Args:
        networks: after the update.
        before: the policy's parameters, flat, that collected.
        batch: what it collected.
        max_kl: in nats.
    """
    way = networks.policy_adam.values() - before
    for halvings in range(_HALVINGS + 1):
        if halvings:
            networks.policy_adam.set_values(before + way * 0.5**halvings)
        log_probs = networks.log_probs(batch.observations, batch.rows, batch.actions)
        kl = kl_terms(log_probs, batch.log_probs).mean().item()
        if kl <= max_kl:
            break
    return kl
