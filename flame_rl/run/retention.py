"""Which checkpoints of a run are written, and which are kept."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from flame_rl.learner.learner import Learner
from flame_rl.run.checkpoint import CheckpointError, encode, load, refused_by_the_disk, write
from flame_rl.run.folder import CHECKPOINTS_NAME
from flame_rl.run.results import IterationResult, Totals
from flame_rl.settings.config import TrainConfig
from flame_rl.wire.messages import EnvironmentSpec

BEST_NAME = "best.ckpt"
# Names that a run gives its checkpoints; the second form where a folder has the first one.
_OWN_NAME = re.compile(r"(\d{8,})(\.run)?\.ckpt")


class Table(Protocol):
    """A CSV file of the run: its path, and all of its text, whether it is on disk yet or not."""

    path: Path
    text: bytearray


@dataclass(frozen=True)
class State:
    """Where a run was at one moment.

    Attributes:
        totals: how far.
        learner: a copy of the learner's state.
        lengths: bytes of each table.
    """

    totals: Totals
    learner: dict[str, np.ndarray]
    lengths: tuple[int, ...]


class Checkpointer:
    """Saves a run's state every N iterations, and when asked to; and the best.

    The best is the policy of the best evaluation; without evaluations, the policy that collected
    the best training rewards, which is the one before that iteration's update, or with `overlap`
    one update earlier.
    """

    def __init__(
        self,
        folder: Path,
        config: TrainConfig,
        spec: EnvironmentSpec,
        learner: Learner,
        totals: Totals,
        tables: Sequence[Table] = (),
    ) -> None:
        self._folder = folder / CHECKPOINTS_NAME
        self._config = config
        self._spec = spec
        self._learner = learner
        self._tables = tables
        self._now = self._state(totals)
        self._score: float | None = None  # of the latest state; None once it is saved
        self._best = -math.inf
        self._better: State | None = None  # the best state, while it is not on disk
        # With such files, the learner's state in each checkpoint that is kept.
        self._saved: dict[Path, dict[str, np.ndarray]] = {}
        with contextlib.suppress(CheckpointError):  # none yet, or a damaged one
            score = load(self._folder / BEST_NAME).score
            self._best = self._best if score is None else score

    def report(self, result: IterationResult) -> None:
        """Call after every iteration. Raises RunError if the disk refuses."""
        before, self._now = self._now, self._state(result.totals)
        self._score = result.reward_mean
        if self._config.experiment.evaluate_every is None:
            self._keep_if_best(with_collector(before), result.reward_mean)
        elif result.evaluation is not None:
            self._keep_if_best(self._now, result.evaluation.reward_mean)
            self._save_best()
        if (result.iteration + 1) % self._config.output.checkpoint_every == 0:
            self.save()

    def save(self) -> None:
        """Save the latest state unless it is saved. Raises RunError if the disk refuses."""
        if self._score is None:
            return
        iterations = self._now.totals.iterations
        path = self._folder / f"{iterations:08d}.ckpt"
        if path.is_dir():
            path = self._folder / f"{iterations:08d}.run.ckpt"
        self._write(path, self._now, self._score)
        self._score = None
        self._save_best()
        done = [file for file in numbered(self._folder) if number_of(file) <= iterations]
        kept = self._config.output.keep_checkpoints
        with refused_by_the_disk(self._folder):
            for file in done[kept:]:
                file.unlink(missing_ok=True)
            self._keep_files_for(done[:kept], path)

    def _keep_files_for(self, checkpoints: Sequence[Path], latest: Path) -> None:
        """Keep of the algorithm's files what these checkpoints need; `latest`, one of them, has the
        latest state."""
        files = self._learner.algorithm.files
        if files is None:
            return
        self._saved[latest] = self._now.learner
        for path in checkpoints:
            if path not in self._saved:
                # Written before the run was resumed. Nobody can resume from a damaged one.
                with contextlib.suppress(CheckpointError):
                    self._saved[path] = load(path).learner
        self._saved = {path: self._saved[path] for path in checkpoints if path in self._saved}
        files.keep_for(list(self._saved.values()))

    def _keep_if_best(self, state: State, score: float) -> None:
        if score > self._best:
            self._best, self._better = score, state

    def _save_best(self) -> None:
        if self._better is not None:
            self._write(self._folder / BEST_NAME, self._better, self._best)
            self._better = None

    def _state(self, totals: Totals) -> State:
        learner = {name: array.copy() for name, array in self._learner.state_dict().items()}
        return State(totals, learner, tuple(len(table.text) for table in self._tables))

    def _write(self, path: Path, state: State, score: float) -> None:
        tables = {
            table.path.name: bytes(table.text[:length])
            for table, length in zip(self._tables, state.lengths, strict=True)
        }
        data = encode(state.totals, score, state.learner, self._spec, self._config, tables)
        with refused_by_the_disk(path):
            write(path, data)


def with_collector(state: State) -> State:
    """The state with the policy that collects next in place of the latest one, which is the part
    `policy`, or `shared` where one network is policy and value."""
    prefix = "collector."
    shared = any(name.startswith("shared.") for name in state.learner)
    collector = {
        f"{'shared' if shared else 'policy'}.{name.removeprefix(prefix)}": array
        for name, array in state.learner.items()
        if name.startswith(prefix)
    }
    return replace(state, learner=state.learner | collector)


def numbered(folder: Path) -> list[Path]:
    """The checkpoints that the run wrote into a folder, the newest first; other files are not its
    own."""
    own = [file for file in folder.glob("*.ckpt") if _OWN_NAME.fullmatch(file.name)]
    return sorted((file for file in own if file.is_file()), key=number_of, reverse=True)


def number_of(file: Path) -> int:
    """The number of iterations that a checkpoint's name says."""
    return int(_OWN_NAME.fullmatch(file.name)[1])
