"""A study of settings: trials (trials.py), each a run of main.py in a folder of its own, and a
final in which the settings of the best trials train for longer, with several seeds.

Settings that learn quickest in a short trial need not end best, and the best score of many trials
with one seed is partly luck (Eimer et al. 2023, "Hyperparameters in Reinforcement Learning and How
To Tune Them"): the score of a finalist is the mean over seeds that no trial had.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from flame_rl.run.folder import CONFIG_NAME
from flame_rl.settings.checks import Span
from flame_rl.settings.config import TrainConfig
from flame_rl.settings.ranges import Range, Value, value_of, words_of
from flame_rl.system.errors import UsageError
from flame_rl.system.files import open_regular, write_atomically
from flame_rl.system.signals import StopSignal
from flame_rl.tools.seeds import SideRun, row_of, share_of, supervise, without
from flame_rl.wire.fields import Length, WireError, Within, from_data, to_data

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

Pruner = Literal["median", "halving", "none"]

STUDY_NAME = "study.json"
# A run of the final is this many times as long as a trial, by default, and evaluated at its end.
_LONGER = 4
_EPISODES = 100
_ONLY_AT_THE_END = 1_000_000


Count = Annotated[int, Within(1, 1 << 40, "at least 1, at most 2**40")]
CountOrZero = Annotated[int, Within(0, 1 << 40, "0 or more, at most 2**40")]


@dataclass(frozen=True)
class Study:
    """What study.json holds; see `flame_rl.commands.tune.TuneFlags`.

    Attributes:
        words: the command line, without the flags below, --output and --resume.
    """

    words: Annotated[tuple[str, ...], Length(0, 1000)]
    search: Annotated[tuple[str, ...], Length(0, 1000)]
    trials: Count
    parallel: Count
    pruner: Pruner
    finalists: CountOrZero = 0
    final_seeds: Count = 3
    final_env_steps: Count | None = None


@dataclass(frozen=True)
class Search:
    """A study and what follows from it.

    Attributes:
        folder: of the study, which this process holds.
        config: of the first trial.
        ranges: of the settings that are searched, by field.
        words: of every trial, without those settings.
        plain: the configuration that `words` give.
    """

    folder: Path
    study: Study
    config: TrainConfig
    ranges: dict[str, Range]
    words: tuple[str, ...]
    plain: TrainConfig

    @property
    def env_steps(self) -> int:
        """Of a trial."""
        return self.config.experiment.env_steps

    @property
    def final_env_steps(self) -> int:
        """Of each run of the final."""
        return self.study.final_env_steps or _LONGER * self.env_steps

    @property
    def final_seeds(self) -> range:
        """Those after the seed of the trials."""
        first = self.config.experiment.seed + 1
        return range(first, first + self.study.final_seeds)

    def settings_of(self, trial: FrozenTrial) -> dict[str, Value]:
        """A trial's settings, which its run has: numbers that can be typed, with three digits."""
        if trial.number == 0:
            return trial.params
        return {name: _rounded(trial.params[name], each) for name, each in self.ranges.items()}

    def command(self, trial: FrozenTrial, final: bool = False) -> list[str]:
        """The words of a trial's run, or of one of the final without its seed; what the run has
        anyhow is left out."""
        words = list(self.words)
        for name, value in self.settings_of(trial).items():
            if value != value_of(self.plain, name):
                words += words_of(name, value)
        if not final:
            return words
        # Runs of the final are all as long.
        words = without(words, ("--env-steps", "--seed", "--stop-at"))
        words += ["--env-steps", str(self.final_env_steps)]
        if not self.config.experiment.evaluate_every:
            words = without(words, ("--evaluate-every",))
            words += ["--evaluate-every", str(_ONLY_AT_THE_END)]
        if without(words, ("--evaluate-episodes",)) == words:
            words += ["--evaluate-episodes", str(_EPISODES)]
        return words

    def run(self, name: str, folder: str, words: Sequence[str]) -> SideRun:
        """A run of the study, which begins, or goes on if it has begun."""
        place = self.folder / folder
        begun = ["--resume", str(place)] if (place / CONFIG_NAME).exists() else None
        workers = share_of(self.config.execution.workers, self.study.parallel)
        own = begun or [*words, "--output", str(place)]
        return SideRun(name, place, (*own, "--workers", str(workers)))

    def trial_run(self, trial: FrozenTrial) -> SideRun:
        """The run of a trial."""
        name = f"trial {trial.number}"
        return self.run(name, f"trial-{trial.number:03}", self.command(trial))


@dataclass(frozen=True)
class Final:
    """How good the settings of a trial are in the final.

    Attributes:
        trial: the trial.
        scores: of each seed; None where the run is not at its end.
    """

    trial: FrozenTrial
    scores: tuple[float | None, ...]

    @property
    def mean(self) -> float | None:
        """The mean over the seeds; None if a run is not at its end."""
        return None if None in self.scores else statistics.fmean(self.scores)


def read_study(folder: Path) -> Study:
    """What study.json of the folder holds. Raises UsageError if it holds none."""
    path = folder / STUDY_NAME
    try:
        with open_regular(path) as file:
            return from_data(Study, json.loads(file.read()))
    except FileNotFoundError as error:
        raise UsageError(f"--resume: {folder} holds no study: there is no {STUDY_NAME}") from error
    except (OSError, WireError, ValueError, RecursionError) as error:
        raise UsageError(f"--resume: {path} is no study: {error}") from error


def write_study(folder: Path, study: Study) -> None:
    """Write study.json. Raises OSError."""
    text = json.dumps(to_data(study), indent=2) + "\n"
    write_atomically(folder / STUDY_NAME, text.encode())


def run_finals(search: Search, best: Sequence[FrozenTrial], stop: StopSignal) -> list[Final]:
    """Run the final, as far as it is not done.

    Args:
        search: the study.
        best: its trials that were trained to their end, the best first.
        stop: set when the user asks to stop; the runs are then saved.

    Returns:
        The finalists, the best first.
    """
    runs = {
        trial.number: [_final_run(search, trial, seed) for seed in search.final_seeds]
        for trial in best[: search.study.finalists]
    }
    left = [run for some in runs.values() for run in some if _score_of(run) is None]
    supervise(left, search.study.parallel, stop)
    finals = [
        Final(trial, tuple(map(_score_of, runs[trial.number])))
        for trial in best[: search.study.finalists]
    ]
    # A run that failed counts as the worst that there is.
    return sorted(finals, key=lambda each: (each.mean is not None, each.mean), reverse=True)


def _final_run(search: Search, trial: FrozenTrial, seed: int) -> SideRun:
    words = [*search.command(trial, final=True), "--seed", str(seed)]
    name = f"trial {trial.number} with seed {seed}"
    return search.run(name, f"final-{trial.number:03}-seed-{seed}", words)


def _score_of(run: SideRun) -> float | None:
    row = row_of(run)
    return row.last if row is not None and row.state == "done" else None


def _rounded(value: Value, span: Range) -> Value:
    """A number that can be typed, with three digits."""
    if not isinstance(value, float) or not isinstance(span, Span):
        return value
    return min(max(float(f"{value:.3g}"), span.low), span.high)
