"""The replay memory of a learner: the store, its priorities, and its files."""

import shutil
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import numpy as np

from flame_rl.learner.off_policy.replay.journal import Journal, Place
from flame_rl.learner.off_policy.replay.samplers import PrioritizedSampler, tree_bytes, uniform
from flame_rl.learner.off_policy.replay.store import ReplayStore, bytes_needed, capacity_in_words
from flame_rl.learner.state import REPLAY
from flame_rl.system.errors import RunError, UsageError
from flame_rl.system.files import refused_as
from flame_rl.system.machine import physical_bytes
from flame_rl.wire.messages import Column, EnvironmentSpec, Episodes

# Added to a TD error, so that no step is drawn with probability 0 (Schaul et al. 2016, 3.3).
_LEAST_PRIORITY = 1e-6


class ReplayMemory:
    """Episodes to learn from again and again; `Stateful`.

    A checkpoint holds no episodes, only how far it got in a journal (journal.py).

    Attributes:
        folder: of the journal, also when a state is loaded; None: a temporary one.
        source: of the episodes of the next loaded state, which stays as it is; None: `folder`.
        store: the episodes.
        needs: what the store and the priorities need, in words.
        prioritized: whether steps are drawn by their priorities.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        columns: Sequence[Column],
        capacity: int,
        alpha: float | None = None,
        frames: int = 1,
    ) -> None:
        """A memory of these columns of `capacity` steps, where `frames` observations are read as
        one. `alpha` is the exponent of the priorities; None: steps are drawn uniformly. Raises
        UsageError if they do not fit into this machine's memory."""
        self.prioritized = alpha is not None
        needed = bytes_needed(columns, capacity) + self.prioritized * tree_bytes(capacity)
        self.needs = capacity_in_words(spec.env_id, capacity, needed)
        if needed > physical_bytes():
            raise UsageError(
                f"--capacity: {self.needs}, and this machine or container has "
                f"{physical_bytes() / 1e9:.1f} GB; choose a smaller capacity"
            )
        self.store = ReplayStore(columns, capacity, frames)
        self._priorities = None if alpha is None else PrioritizedSampler(self.store, alpha)
        self.folder: Path | None = None
        self.source: Path | None = None
        self._journal: Journal | None = None
        # A state that was loaded, whose episodes were not read yet.
        self._waiting: dict[str, np.ndarray] | None = None

    @property
    def env_steps(self) -> int:
        """Steps that were ever added."""
        return self.store.steps if self._waiting is None else _place_in(self._waiting).steps

    def take_over(self, state: dict[str, np.ndarray], folder: Path) -> None:
        """Add the episodes of another replay memory, given what its `state_dict` returned and the
        folder of its journal, which stays as it is. Raises KeyError, ValueError or OSError if they
        are missing, damaged or of another form; and as `add` does."""
        for record in Journal(folder, self.store.columns).read(_place_in(state)):
            self.add(record.episodes)

    def copy_to(self, folder: Path) -> None:
        """Copy the journal. Raises OSError if the disk refuses."""
        self.recall()
        # What was there before stays until all of the copy is there.
        part = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        try:
            shutil.copytree(self._opened().folder, part)
        except OSError:
            shutil.rmtree(part, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)

    def first_needed(self, state: dict[str, np.ndarray]) -> int:
        """The number of the first episode that a state of the learner needs, as
        `Learner.state_dict` returned it."""
        return _place_in(state, f"{REPLAY}.").oldest

    def forget_before(self, first: int) -> None:
        """Delete files of episodes before this number alone. Raises OSError if the disk refuses."""
        if self._journal is not None:
            self._journal.forget(first)

    def add(self, episodes: Episodes) -> None:
        """Add episodes in their order. Raises RunError if a reward is beyond float32, the disk
        refuses, or what was there before is damaged; UsageError if an episode is longer than the
        capacity, and nothing was added."""
        refuse_longer_episodes(int(episodes.lengths.max()), self.store.capacity)
        greatest = np.abs(episodes.columns["rewards"]).max()
        if greatest > np.finfo(np.float32).max:
            raise RunError(
                f"the update was refused: a reward of size {greatest:.3g} is beyond float32. Scale "
                "it"
            )
        self.recall()
        kept = {column.name for column in self.store.columns}
        columns = {name: column for name, column in episodes.columns.items() if name in kept}
        episodes = replace(episodes, columns=columns)
        with self._refused_by_the_disk():
            journal = self._opened()
            if self.folder is None:
                # Only the state before this is ever restored: no checkpoint reads these files.
                journal.forget(self.store.oldest)
            self.store.add(episodes)
            journal.append(episodes)

    def draw(
        self, count: int, beta: float, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Positions of steps, int64 [count], and importance weights, float32 [count], or None where
        steps are drawn uniformly; see `PrioritizedSampler.sample`."""
        if self._priorities is None:
            return uniform(self.store, count, generator), None
        return self._priorities.sample(count, beta, generator)

    def prioritize(self, positions: np.ndarray, errors: np.ndarray) -> None:
        """Set priorities by absolute TD errors, finite, [B]; no effect on uniform draws."""
        if self._priorities is not None:
            self._priorities.update(positions, errors + _LEAST_PRIORITY)

    def recall(self) -> None:
        """Read the episodes of the state that was loaded last, if they were not read yet. Raises
        RunError if they are missing or damaged, or cannot be read."""
        if self._waiting is None:
            return
        try:
            self._opened().restore(self.store, _place_in(self._waiting))
            if self._priorities is not None:
                self._priorities.restore(self._waiting)
        except (OSError, ValueError) as error:
            raise RunError(f"replay: {self.folder or self.source}: {error}") from error
        self._waiting = None

    def state_dict(self) -> dict[str, np.ndarray]:
        """How far the journal is, and the priorities. Raises RunError if the disk refuses."""
        if self._waiting is not None:
            return dict(self._waiting)
        place = Place(self.store.capacity)
        if self.store.episodes:
            with self._refused_by_the_disk():
                place = self._opened().place(self.store)
        *numbers, digest = place
        state = {"place": np.array(numbers), "journal": np.frombuffer(digest, np.uint8)}
        return state if self._priorities is None else state | self._priorities.state()

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        """The inverse of `state_dict`; the episodes are read when they are needed, by `recall`.
        Raises KeyError or ValueError if the state is that of another replay memory."""
        names = {"place", "journal"} | ({"priorities", "greatest"} if self.prioritized else set())
        if state.keys() != names:
            raise KeyError(f"replay: {', '.join(state)} where there must be {', '.join(names)}")
        capacity = _place_in(state).capacity
        if capacity != self.store.capacity:
            raise ValueError(f"capacity: {self.store.capacity} steps, {capacity} in the checkpoint")
        self._waiting = {name: array.copy() for name, array in state.items()}

    def _refused_by_the_disk(self) -> AbstractContextManager[None]:
        """Within the block, an OSError becomes a RunError about the journal."""
        folder = self.folder if self._journal is None else self._journal.folder
        remedy = "What was learned before is safe; once there is room, go on with --resume"
        what = f"replay: the episodes could not be written to {folder}"
        return refused_as(RunError, what, f". {remedy}")

    def _opened(self) -> Journal:
        if self._journal is None:
            folder = self.folder
            if folder is None:
                self._temporary = tempfile.TemporaryDirectory(prefix="flame-rl-replay-")
                folder = Path(self._temporary.name) / "replay"
                if self.source is not None and self.source.is_dir():
                    shutil.copytree(self.source, folder)
            self._journal = Journal(folder, self.store.columns)
            if self._waiting is None:
                self._journal.restore(self.store, Place(self.store.capacity))
        return self._journal


def _place_in(state: dict[str, np.ndarray], prefix: str = "") -> Place:
    """Raises KeyError or ValueError if there is none."""
    numbers, digest = state[f"{prefix}place"], state[f"{prefix}journal"]
    if (numbers.dtype, numbers.shape) != (np.int64, (len(Place._fields) - 1,)) or any(numbers < 0):
        raise ValueError(f"place: {numbers} is no place in a journal")
    return Place(*numbers.tolist(), digest.tobytes())


def refuse_longer_episodes(steps: int, capacity: int) -> None:
    """Raise UsageError if an episode of `steps` steps does not fit into the replay memory."""
    if steps > capacity:
        raise UsageError(
            f"--capacity: {capacity} steps, and an episode of {steps} is kept whole or not at all; "
            "begin a new run with more, or with --max-episode-steps"
        )
