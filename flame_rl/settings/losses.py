"""Settings of a network that learns from a sum of losses; see flame_rl/learner/losses.py."""

from __future__ import annotations

import re
from typing import Protocol

from flame_rl.settings.checks import refuse

# The losses that every shared network has.
OWN = ("policy", "value")


class WithLosses(Protocol):
    """What `check_losses` reads: `auxiliary` has "module:class" for each auxiliary loss."""

    shared_torso: bool
    auxiliary: tuple[str, ...]
    auxiliary_weights: tuple[float, ...]


def check_losses(settings: WithLosses) -> None:
    """Raise UsageError unless each auxiliary loss has a name of its own, a weight, and layers to be
    a loss of."""
    given, weights = settings.auxiliary, settings.auxiliary_weights
    for function in given:
        if not all(function.rpartition(":")[::2]):
            refuse("auxiliary", "a module and a class, as in prediction:NextObservation", function)
    names = [*OWN, *map(loss_name, given)]
    for name in names:
        if names.count(name) > 1:
            refuse("auxiliary", f"{name} names two losses; rename a class, in", " ".join(given))
    if given and not settings.shared_torso:
        refuse("auxiliary", "with --shared-torso, whose layers they are losses of", " ".join(given))
    if len(weights) != len(given):
        expected = f"one for each of --auxiliary, so {len(given)}"
        refuse("auxiliary_weights", expected, f"{len(weights)}: {' '.join(map(str, weights))}")


def loss_name(function: str) -> str:
    """The name of the loss module:function in metrics.csv: prediction:NextObservation is
    next_observation."""
    name = function.rpartition(":")[2]
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
