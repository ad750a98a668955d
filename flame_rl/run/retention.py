"""Which checkpoints of a run are written, and which are kept."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

from flame_rl.learner.learner import Learner
from flame_rl.run.checkpoint import CheckpointError, encode, load, refused_by_the_disk, write
from flame_rl.run.folder import CHECKPOINTS_NAME
from flame_rl.run.results import IterationResult
from flame_rl.settings.config import TrainConfig
from flame_rl.wire.messages import EnvironmentSpec

BEST_NAME = "best.ckpt"


class Checkpointer:
    """Saves a run's state every N iterations and on request, and the best state, by the score
    of an evaluation where there are evaluations."""

    def __init__(
        self, folder: Path, config: TrainConfig, spec: EnvironmentSpec, learner: Learner
    ) -> None:
        self._folder = folder / CHECKPOINTS_NAME
        self._config = config
        self._spec = spec
        self._learner = learner
        self._unsaved: IterationResult | None = None
        self._best = -math.inf
        with contextlib.suppress(CheckpointError):  # none yet, or a damaged one
            score = load(self._folder / BEST_NAME).score
            self._best = self._best if score is None else score

    def report(self, result: IterationResult) -> None:
        """Call after every update. Raises RunError if the disk refuses."""
        self._unsaved = result
        if result.evaluation is not None:
            with refused_by_the_disk(self._folder / BEST_NAME):
                self._keep_if_best(result, result.evaluation.reward_mean)
        if (result.iteration + 1) % self._config.output.checkpoint_every == 0:
            self.save()

    def save(self) -> None:
        """Save the latest state unless it is saved. Raises RunError if the disk refuses."""
        result = self._unsaved
        if result is None:
            return
        path = self._folder / f"{result.totals.iterations:08d}.ckpt"
        with refused_by_the_disk(path):
            self._write(path.name, result, result.reward_mean)
            if self._config.experiment.evaluate_every is None:
                self._keep_if_best(result, result.reward_mean)
            # Newer files can only be damaged: this run was resumed from an older one.
            count = self._config.output.keep_checkpoints
            kept = [file for file in numbered(self._folder) if file.name <= path.name][:count]
            for file in set(numbered(self._folder)) - set(kept):
                file.unlink()
        self._unsaved = None

    def _keep_if_best(self, result: IterationResult, score: float) -> None:
        if score > self._best:
            self._write(BEST_NAME, result, score)
            self._best = score

    def _write(self, name: str, result: IterationResult, score: float) -> None:
        state = self._learner.state_dict()
        write(self._folder / name, encode(result.totals, score, state, self._spec, self._config))


def numbered(folder: Path) -> list[Path]:
    """Numbered checkpoints in a folder, the newest first."""
    return sorted(folder.glob("[0-9]*.ckpt"), reverse=True)
