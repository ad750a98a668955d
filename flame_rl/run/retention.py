"""Which checkpoints of a run are written, and which are kept."""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from flame_rl.run import checkpoint
from flame_rl.run.folder import BEST_NAME, CHECKPOINTS_NAME
from flame_rl.run.results import IterationResult, RunState
from flame_rl.run.trainer import Trainer
from flame_rl.system.files import write_atomically

Lengths = tuple[int, ...]


class Checkpointer:
    """Saves a run's state every N iterations, and when asked to; and the best.

    The best is the policy of the best evaluation; without evaluations, the policy that collected
    the best mean return of training, from before that iteration's update, or with `overlap` one
    update earlier. Where the run goes on from before the best, that is found anew.
    """

    def __init__(self, folder: Path, trainer: Trainer, tables: Mapping[str, bytearray]) -> None:
        """`tables` has, by file name, all text of each CSV file, whether it is on disk yet or not;
        `folder` is the run's."""
        self._folder = folder / CHECKPOINTS_NAME
        self._best_path = self._folder / BEST_NAME
        self._trainer, self._tables = trainer, tables
        self._lengths = self._table_lengths()
        self._score: float | None = None  # of the latest iteration; None once it is saved
        # The best mean return and its iteration.
        self.best = -math.inf, 0
        # The best state and the tables' lengths then, while it is not on disk.
        self._better: tuple[RunState, Lengths] | None = None
        # The first replayed episode that each kept checkpoint needs.
        self._needed: dict[Path, int] = {}
        with contextlib.suppress(checkpoint.CheckpointError):  # none yet, or a damaged one
            best = checkpoint.read_checkpoint(self._best_path)
            if best.score is not None and best.iterations <= trainer.totals.iterations:
                evaluated = trainer.config.experiment.evaluate_every is not None
                self.best = best.score, best.iterations - evaluated

    def begin(self) -> None:
        """Save the state before the first iteration. Raises RunError if the disk refuses."""
        self._write(self._folder / f"{0:08d}.ckpt", self._latest(), self._lengths, None)

    def report(self, result: IterationResult) -> None:
        """Call after every iteration. Raises RunError if the disk refuses."""
        config, before = self._trainer.config, self._lengths
        self._lengths, self._score = self._table_lengths(), result.reward_mean
        every, done = config.experiment.evaluate_every, result.iteration + 1
        if every is None and result.reward_mean > self.best[0]:
            self.best = result.reward_mean, result.iteration
            self._better = with_collector(self._trainer.before), before
        # The last policy is evaluated in any case, and is not the last in a longer run.
        if every is not None and done % every == 0 and result.evaluation.reward_mean > self.best[0]:
            self.best = result.evaluation.reward_mean, result.iteration
            self._better = self._latest(), self._lengths
            self._save_best()
        if done % config.output.checkpoint_every == 0:
            self.save()

    def save(self) -> None:
        """Save the latest state unless it is saved. Raises RunError if the disk refuses."""
        if self._score is None:
            return
        latest = self._latest()
        path = self._folder / f"{latest.totals.iterations:08d}.ckpt"
        self._write(path, latest, self._lengths, self._score)
        self._score = None
        self._save_best()
        own = checkpoint.list_checkpoints(self._folder)
        # Later ones are of before the run went on from an earlier one.
        done = [each for each in own if checkpoint.iterations_of(each) <= latest.totals.iterations]
        kept = done[: self._trainer.config.output.keep_checkpoints]
        with checkpoint.refused_by_the_disk(self._folder):
            for old in set(own) - set(kept):
                old.unlink(missing_ok=True)
            if (replay := self._trainer.replay) is not None:
                self._needed[path] = replay.first_needed(latest.learner)
                for each in set(kept) - self._needed.keys():
                    # Written before the run was resumed. Nobody can resume from a damaged one.
                    with contextlib.suppress(checkpoint.CheckpointError):
                        self._needed[each] = replay.first_needed(
                            checkpoint.read_checkpoint(each).learner
                        )
                self._needed = {each: self._needed[each] for each in kept if each in self._needed}
                replay.forget_before(min(self._needed.values()))

    def _save_best(self) -> None:
        if self._better is not None:
            self._write(self._best_path, *self._better, self.best[0])
            self._better = None

    def _latest(self) -> RunState:
        """The state now, as views: it must be written before the next iteration."""
        return RunState(self._trainer.totals, self._trainer.learner.state_dict())

    def _table_lengths(self) -> Lengths:
        return tuple(map(len, self._tables.values()))

    def _write(self, path: Path, state: RunState, lengths: Lengths, score: float | None) -> None:
        tables = {
            name: bytes(text[:length])
            for (name, text), length in zip(self._tables.items(), lengths, strict=True)
        }
        data = checkpoint.encode_checkpoint(
            state, score, self._trainer.spec, self._trainer.config, tables
        )
        with checkpoint.refused_by_the_disk(path):
            # Without its parents: a run folder that was moved is not made again.
            self._folder.mkdir(exist_ok=True)
            write_atomically(path, data)


def with_collector(state: RunState) -> RunState:
    """The state with the policy that collects next in place of the latest one, which is the part
    `policy`, or `shared` where one network is policy and value."""
    prefix = "collector."
    part = "shared" if any(name.startswith("shared.") for name in state.learner) else "policy"
    collector = {
        f"{part}.{name.removeprefix(prefix)}": array
        for name, array in state.learner.items()
        if name.startswith(prefix)
    }
    return replace(state, learner=state.learner | collector)
