"""The demonstrations of a run: that they stay the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from flame_rl.learner.state import arrays_digest
from flame_rl.settings.experiment import Experiment
from flame_rl.system.errors import UsageError
from flame_rl.wire.masks import ACTION_MASKS
from flame_rl.wire.messages import Episodes


class Demonstrations:
    """Whole episodes that somebody has played before the run.

    They are read when they are first needed: who evaluates a run needs none. Checkpoints hold
    nothing of them; config.json has the digest of their content, whatever kind of file it is in.
    """

    def __init__(
        self, experiment: Experiment, read: Callable[[], Episodes], needs_masks: bool = False
    ) -> None:
        """`experiment` names them, with the digest if the run has begun; `read` reads them, and
        raises UsageError; `needs_masks` says whether masks of actions must be there, too."""
        self._experiment, self._read, self._needs_masks = experiment, read, needs_masks

    @cached_property
    def episodes(self) -> Episodes:
        """The episodes, with the rewards that are learned from. Raises UsageError if they cannot be
        read, do not fit the environment, or are not those with which the run began."""
        source, expected = self._experiment.demonstrations, self._experiment.demonstrations_digest
        try:
            episodes = self._read()
            if self._needs_masks and ACTION_MASKS not in episodes.columns:
                raise UsageError(
                    f"{ACTION_MASKS}: missing; targets need them: record them, or --no-action-mask"
                )
            if expected is not None and (found := episodes_digest(episodes)) != expected:
                raise UsageError(
                    f"not what the run began with: the digest is {found[:12]}…, and config.json "
                    f"has {expected[:12]}…; put the same file back, or begin a new run"
                )
        except UsageError as error:
            raise UsageError(f"--demonstrations: {source}: {error}") from error
        return episodes

    @property
    def digest(self) -> str:
        """SHA-256 of the episodes, in hexadecimal. Raises UsageError as `episodes` does."""
        return self._experiment.demonstrations_digest or episodes_digest(self.episodes)

    @property
    def notice(self) -> str:
        """What they are, in words. Raises UsageError as `episodes` does."""
        episodes = self.episodes
        returns = [episode.rewards.sum() for episode in episodes]
        return (
            f"Demonstrations: {len(episodes):,} episodes of {episodes.steps:,} steps, mean return "
            f"{np.mean(returns):.1f}"
        )


def episodes_digest(episodes: Episodes) -> str:
    """SHA-256 in hexadecimal over lengths, ends and columns of episodes."""
    columns = {f"column {name}": array for name, array in episodes.columns.items()}
    ends = {"lengths": episodes.lengths, "terminated": episodes.terminated}
    return arrays_digest(ends | columns)
