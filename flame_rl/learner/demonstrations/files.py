"""The demonstrations of a run, which stay the same, and where they come from: an .npz file, the
replay memory of a run, or a Minari dataset; and writing an .npz file.

An .npz file is untrusted: its unpacked size is bounded before it is read, and nothing is unpickled.
"""

import io
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate

from flame_rl.actor.environments.converting import has_bounds
from flame_rl.actor.environments.masks import ACTION_MASK, OBSERVATION
from flame_rl.learner.demonstrations import conversion
from flame_rl.learner.off_policy.replay.journal import Journal
from flame_rl.learner.rewards import Rewards
from flame_rl.learner.state import REPLAY, arrays_digest
from flame_rl.settings.experiment import Experiment
from flame_rl.system.errors import UsageError
from flame_rl.system.files import open_regular, refused_as, why_refused, write_atomically
from flame_rl.system.machine import physical_bytes, require
from flame_rl.wire.inputs import step_columns
from flame_rl.wire.masks import ACTION_MASKS
from flame_rl.wire.messages import Column, EnvironmentSpec, Episodes, concatenate

# The most bytes of arrays in a file that is smaller than a twentieth of them.
_MOST_UNPACKED = 1 << 30


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
        """`experiment` names them, with the digest if the run has begun; `rewards` makes those that
        are learned from; `needs_masks` says whether masks of actions must be there, too."""
        self._experiment, self._spec, self._rewards = experiment, spec, rewards
        self._needs_masks = needs_masks

    @cached_property
    def episodes(self) -> Episodes:
        """The episodes, with the rewards that are learned from. Raises UsageError if they cannot be
        read, do not fit the environment, or are not those with which the run began."""
        source, expected = self._experiment.demonstrations, self._experiment.demonstrations_digest
        try:
            episodes = self._read()
            if self._needs_masks and ACTION_MASKS not in episodes.columns:
                raise UsageError(f"{ACTION_MASKS}: missing; targets need them, or --no-action-mask")
            if expected is not None and (found := episodes_digest(episodes)) != expected:
                raise UsageError(
                    f"not what the run began with: the digest is {found[:12]}…, and config.json "
                    f"has {expected[:12]}…; put the same file back, or begin a new run"
                )
        except UsageError as error:
            raise UsageError(f"--demonstrations: {source}: {error}") from error
        return episodes

    def _read(self) -> Episodes:
        source, spec, rewards = self._experiment.demonstrations, self._spec, self._rewards
        path = Path(source)
        if path.is_dir():
            return _episodes_of_run(path, spec)
        if path.suffix == ".npz" or path.exists():
            arrays = read_npz(path)
        else:
            arrays = _read_minari(source, spec)
        collected = conversion.episodes_of(arrays, spec, len(self._experiment.reward_parts))
        return rewards.shaped(collected, rewards.raw(collected))

    @property
    def digest(self) -> str:
        """SHA-256 of the episodes, in hexadecimal. Raises UsageError as `episodes` does."""
        return self._experiment.demonstrations_digest or episodes_digest(self.episodes)

    @property
    def notice(self) -> str:
        """What they are, in words. Raises UsageError as `episodes` does."""
        episodes = self.episodes
        mean = np.mean([episode.rewards.sum() for episode in episodes])
        played = f"{len(episodes):,} episodes of {episodes.steps:,} steps"
        return f"Demonstrations: {played}, mean return {mean:.1f}"


def episodes_digest(episodes: Episodes) -> str:
    """SHA-256 in hexadecimal over lengths, ends and columns of episodes."""
    columns = {f"column {name}": array for name, array in episodes.columns.items()}
    ends = {"lengths": episodes.lengths, "terminated": episodes.terminated}
    return arrays_digest(ends | columns)


def write_demonstrations(path: Path, episodes: Episodes, spec: EnvironmentSpec) -> None:
    """Write collected episodes to an .npz file, which `--demonstrations` reads; the same ones give
    the same bytes. Raises UsageError if it cannot be written."""
    packed = io.BytesIO()
    np.savez(packed, **conversion.arrays_of(episodes, spec))
    with refused_as(UsageError, f"--record: {path} cannot be written"):
        write_atomically(path, packed.getvalue())


@contextmanager
def _refused(what: str, remedy: str) -> Iterator[None]:
    """Within the block, whatever damaged bytes raise becomes a UsageError of one line."""
    try:
        yield
    except UsageError:
        raise
    except MemoryError as error:
        raise UsageError("there is no memory for its arrays; use fewer episodes") from error
    except Exception as error:
        reason = why_refused(error) if isinstance(error, OSError) else str(error)
        raise UsageError(f"{what}: {' '.join(reason.split()):.200}; {remedy}") from error


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file by name. Raises UsageError if it cannot be read, is damaged, or unpacks
    to far more than it has."""
    if not path.exists():
        raise UsageError("there is no such file")
    with _refused("no sound .npz file", "write it anew by np.savez"), open_regular(path) as file:
        with zipfile.ZipFile(file) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        size = path.stat().st_size
        most = min(physical_bytes(), max(_MOST_UNPACKED, 20 * size))
        if unpacked > most:
            raise UsageError(
                f"{size / 1e6:.1f} MB that unpack to {unpacked / 1e9:.1f} GB, and at most "
                f"{most / 1e9:.1f} GB are read; write fewer episodes, or do not compress them"
            )
        file.seek(0)
        with np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)


def _episodes_of_run(folder: Path, spec: EnvironmentSpec) -> Episodes:
    """All episodes of a run's replay memory, with the rewards that the run learned from."""
    journal = Journal(folder / REPLAY, step_columns(replace(spec, reward_shape=())))
    if not journal.folder.is_dir():
        raise UsageError(
            f"no run with a replay memory, which {REPLAY}/ would hold; the policy of any run plays "
            "demonstrations by main.py evaluate RUN --record FILE.npz"
        )
    with _refused(REPLAY, "take another run"):
        found = [_needed(record.episodes, spec, journal.columns) for record in journal.read()]
    if not found:
        raise UsageError(f"{REPLAY}: no episode that is whole; take another run")
    return concatenate(found)


def _needed(episodes: Episodes, spec: EnvironmentSpec, columns: Sequence[Column]) -> Episodes:
    names = {conversion.REWARD_PARTS, *(column.name for column in columns)}
    kept = {name: array for name, array in episodes.columns.items() if name in names}
    if isinstance(spec.action_space, spaces.Box):
        # Recorded before they were clipped to their bounds, as the environment took them.
        bounded = has_bounds(spec.action_space)
        kept["actions"] = np.where(bounded, episodes.actions.clip(-1, 1), episodes.actions)
    return replace(episodes, columns=kept)


def _read_minari(name: str, spec: EnvironmentSpec) -> dict[str, np.ndarray]:
    """A dataset on this machine as arrays; see conversion.py. Nothing is downloaded."""
    try:
        minari = require("minari", "minari", "demonstrations")
    except UsageError as error:
        raise UsageError(f"no file and no run folder; of a Minari dataset, {error}") from error
    what = "no file, no run folder and no Minari dataset on this machine that can be read"
    with _refused(what, f"give another name, or fetch it by `minari download {name}`"):
        dataset = minari.load_dataset(name, download=False)
        arrays = [_of_minari(episode, spec) for episode in dataset.iterate_episodes()]
        return {n: np.concatenate([each[n] for each in arrays]) for n in arrays[0]}


def _of_minari(episode: Any, spec: EnvironmentSpec) -> dict[str, np.ndarray]:
    names = ("actions", "rewards", "terminations", "truncations")
    arrays = {name: np.asarray(getattr(episode, name)) for name in names}
    observations, masks = episode.observations, None
    if spec.action_mask == "observation":
        observations, masks = observations[OBSERVATION], observations[ACTION_MASK]
    elif spec.masked:
        masks = (episode.infos or {}).get(ACTION_MASK)
    if masks is not None:
        arrays[ACTION_MASKS] = np.asarray(masks).reshape(len(masks), -1)
    # Of a Dict or a Tuple, Minari has an array for each part.
    batched = batch_space(spec.observation_space, len(arrays["rewards"]) + 1)
    return arrays | conversion.flattened(spec.observation_space, iterate(batched, observations))
