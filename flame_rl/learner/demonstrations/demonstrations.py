"""The demonstrations of a run: where they are, and that they stay the same."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path

import numpy as np

from flame_rl.learner.demonstrations.conversion import arrays_of, episodes_of
from flame_rl.learner.demonstrations.minari_dataset import read_minari
from flame_rl.learner.demonstrations.npz import read_npz, write_npz
from flame_rl.learner.demonstrations.replayed import episodes_of_run
from flame_rl.learner.rewards import Rewards
from flame_rl.settings.experiment import Experiment
from flame_rl.system.errors import UsageError
from flame_rl.system.files import why_refused
from flame_rl.wire.masks import ACTION_MASKS
from flame_rl.wire.messages import EnvironmentSpec, Episodes

_SUFFIX = ".npz"


class Demonstrations:
    """Whole episodes that somebody has played before the run.

    They are read when they are first needed: who evaluates a run needs none. Checkpoints hold
    nothing of them; config.json has the digest of their content, whatever kind of file it is in.
    """

    def __init__(
        self,
        experiment: Experiment,
        spec: EnvironmentSpec,
        rewards: Rewards,
        needs_masks: bool = False,
    ) -> None:
        """
        Args:
            experiment: names them in `demonstrations`; with the digest, if the run has begun.
            spec: of the environment.
            rewards: makes of the rewards those that are learned from.
            needs_masks: whether the environment's masks must be there, too.
        """
        self._experiment, self._spec, self._rewards = experiment, spec, rewards
        self._needs_masks = needs_masks and spec.masked

    @cached_property
    def episodes(self) -> Episodes:
        """The episodes, with the rewards that are learned from.

        Raises:
            UsageError: they cannot be read, do not fit the environment, or are not those with which
                the run began.
        """
        source, expected = self._experiment.demonstrations, self._experiment.demonstrations_digest
        try:
            episodes = self._read(source)
            if self._needs_masks and ACTION_MASKS not in episodes.columns:
                raise UsageError(
                    f"{ACTION_MASKS}: missing; targets need what is allowed after a step. Record "
                    "the episodes with them, or train with --no-action-mask"
                )
        except UsageError as error:
            raise UsageError(f"--demonstrations: {source}: {error}") from error
        if expected is not None and (found := digest_of(episodes)) != expected:
            raise UsageError(
                f"--demonstrations: {source}: not what the run began with: the digest is "
                f"{found[:12]}…, and config.json has {expected[:12]}…; put the same file back, or "
                "begin a new run"
            )
        return episodes

    @property
    def digest(self) -> str:
        """SHA-256 of the episodes, in hexadecimal. Raises UsageError as `episodes` does."""
        return self._experiment.demonstrations_digest or digest_of(self.episodes)

    @property
    def notice(self) -> str:
        """What they are, in words. Raises UsageError as `episodes` does."""
        episodes = self.episodes
        returns = [episode.rewards.sum() for episode in episodes]
        return (
            f"Demonstrations: {len(episodes):,} episodes of {episodes.steps:,} steps, mean return "
            f"{np.mean(returns):.1f}"
        )

    def _read(self, source: str) -> Episodes:
        path = Path(source)
        if path.is_dir():
            return episodes_of_run(path, self._spec)
        if path.suffix == _SUFFIX or path.exists():
            arrays = read_npz(path)
        else:
            arrays = read_minari(source, self._spec)
        collected = episodes_of(arrays, self._spec, len(self._experiment.reward_parts))
        return self._rewards.shaped(collected, self._rewards.raw(collected))


def digest_of(episodes: Episodes) -> str:
    """SHA-256 in hexadecimal over lengths, ends and columns of episodes."""
    arrays = {"lengths": episodes.lengths, "terminated": episodes.terminated} | {
        f"column {name}": array for name, array in episodes.columns.items()
    }
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def write_demonstrations(path: Path, episodes: Episodes, spec: EnvironmentSpec) -> None:
    """Write collected episodes to an .npz file, which `--demonstrations` reads. Raises UsageError
    if it cannot be written."""
    try:
        write_npz(path, arrays_of(episodes, spec))
    except OSError as error:
        raise UsageError(f"--record: {path} cannot be written: {why_refused(error)}") from error
