"""Settings of REINFORCE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from flame_rl.settings.checks import Count, MaxKL, Span
from flame_rl.settings.groups import SMALL_ACTIONS, OnPolicy
from flame_rl.system.errors import UsageError


@dataclass(frozen=True)
class ReinforceSettings(OnPolicy):
    """Settings of REINFORCE (Williams 1992), with a baseline."""

    learner = "flame_rl.learner.algorithms.reinforce:reinforce"
    presets: ClassVar = {
        # CartPole is small, and its rewards are free of noise: larger steps are safe.
        "CartPole-v1": {"learning_rate": 3e-3, "value_learning_rate": 3e-3, "max_kl": 0.04},
        # Learns as much as with five value epochs, in half of the seconds of an update.
        "HalfCheetah-v5": {"value_epochs": 1},
        # One value epoch is enough: its returns are soon predicted.
        "Ant-v5": SMALL_ACTIONS | {"value_epochs": 1},
    }

    # Without PPO's ratio, a policy that moves far in one epoch collapses; this limit stops few
    # good updates.
    max_kl: MaxKL = 0.1

    baseline: Literal["none", "leave-one-out", "value"] = "value"
    """Baseline subtracted from the returns: nothing, the mean return of the other episodes at the
    same time step, or a value network."""

    value_epochs: Annotated[Count, Span(1, 10, log=True)] = 5
    """Epochs of the value network over each batch; the policy makes one, and so do both with
    --shared-torso."""

    @property
    def trains_values(self) -> bool:
        """Whether the baseline is a value network."""
        return self.baseline == "value"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shared_torso and not self.trains_values:
            raise UsageError(
                f"--shared-torso: --baseline {self.baseline} has no value network to share layers "
                "with; add --baseline value"
            )
