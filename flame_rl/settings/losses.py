"""Settings of a network that learns from a sum of losses; see learner/training/losses.py."""

from __future__ import annotations

import re

from flame_rl.settings.checks import refuse
from flame_rl.system.errors import UsageError

# The losses that every shared network has.
OWN = ("policy", "value")


def check_losses(auxiliary: tuple[str, ...], weights: tuple[float, ...], shared: bool) -> None:
    """Raise UsageError unless each auxiliary loss, "module:class", has a name of its own, a weight,
    and `shared` layers to be a loss of."""
    for function in auxiliary:
        if not all(function.rpartition(":")[::2]):
            refuse("auxiliary", "a module and a class, as in prediction:NextObservation", function)
    names = [*OWN, *map(loss_name, auxiliary)]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--auxiliary: two losses have the name {name}; rename a class")
    if auxiliary and not shared:
        raise UsageError(
            "--auxiliary: these are losses of the shared layers; add --shared-torso True"
        )
    if len(weights) != len(auxiliary):
        raise UsageError(
            f"--auxiliary-weights: {len(weights)} weights for {len(auxiliary)} losses; give one "
            "for each of --auxiliary"
        )


def loss_name(function: str) -> str:
    """The name of the loss module:function in metrics.csv: prediction:NextObservation is
    next_observation."""
    name = function.rpartition(":")[2]
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
