"""A study of settings: trials side by side, each a run of main.py in a folder of its own.

Trial n begins once all trials up to n - N are finished, where N is how many there are side by side;
its settings, and whether it is pruned, depend on those alone. The same seed and the same N
therefore give the same study, however long each trial takes, and whatever is killed in between.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from flame_rl.report.tables import read_columns
from flame_rl.run.folder import (
    CONFIG_NAME,
    EVALUATIONS_NAME,
    METRICS_NAME,
    differences,
    is_held,
    read_config,
)
from flame_rl.settings.checks import Count, CountOrZero
from flame_rl.settings.config import TrainConfig
from flame_rl.settings.parse import parse
from flame_rl.settings.ranges import Range, Value, value_of, words_of
from flame_rl.system.errors import RunError, UsageError
from flame_rl.system.files import open_regular, write_atomically
from flame_rl.system.output import say
from flame_rl.system.signals import StopSignal
from flame_rl.tools.seeds import errors_in, share_of, start_run
from flame_rl.tools.study.pruning import RUNGS, Pruner, goes_on, mean_return, score_at
from flame_rl.tools.study.trials import Trial, TrialsFile, suggest
from flame_rl.wire.fields import Length, WireError, from_data, to_data

STUDY_NAME = "study.json"
TRIALS_NAME = "trials.log"
_POLL_SECONDS = 0.2
# Trials that fail from the first on, after which the study does not go on.
_MOST_FAILURES = 3
# Exit code of a mistake in the command, which all trials have in common.
_MISTAKE = 2
# Exit codes of a process that a signal ended: no doing of its trial.
_KILLED = (*range(-64, 0), 129, 130, 143)
_MOST_BEGUN = 3


@dataclass(frozen=True)
class Study:
    """What study.json holds.

    Attributes:
        words: the command line, without the flags below, --output and --resume.
        search: see `TuneFlags`.
        trials: how many.
        parallel: how many side by side.
        pruner: see `TuneFlags`.
        finalists, final_seeds, final_env_steps: see `TuneFlags`; a study that was begun
            before there were finals has none.
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
        study: see `Study`.
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

    def run_of(self, number: int) -> Path:
        """The run folder of a trial."""
        return self.folder / f"trial-{number:03}"

    def prints_of(self, number: int) -> Path:
        """The file with what the process of a trial prints."""
        return self.run_of(number).with_suffix(".txt")

    def settings_of(self, number: int, seen: Sequence[Trial]) -> dict[str, Value]:
        """The settings of a trial; the first has those that the search begins with."""
        if number == 0:
            return {name: value_of(self.config, name) for name in self.ranges}
        return suggest(self.ranges, self.config.experiment.seed, number, seen)

    def command(self, settings: dict[str, Value]) -> list[str]:
        """The words of a run with these settings; what the run has anyhow is left out."""
        chosen = [
            word
            for name, value in settings.items()
            if value != value_of(self.plain, name)
            for word in words_of(name, value)
        ]
        return [*self.words, *chosen]


@dataclass(frozen=True)
class _Playing:
    """A trial whose run is not finished.

    Attributes:
        settings: see `Trial`.
        seen: the trials that it depends on.
        process: of its run.
        begun: how often a process was started.
    """

    settings: dict[str, Value]
    seen: tuple[Trial, ...]
    process: subprocess.Popen[bytes]
    begun: int = 1


def read_study(folder: Path) -> Study:
    """What study.json of the folder holds. Raises UsageError if it holds none."""
    path = folder / STUDY_NAME
    try:
        with open_regular(path) as file:
            return from_data(Study, json.loads(file.read()))
    except FileNotFoundError as error:
        raise UsageError(f"--resume: {folder} holds no study: there is no {STUDY_NAME}") from error
    except OSError as error:
        raise UsageError(f"--resume: {folder} holds no study: {error}") from error
    except (WireError, ValueError, RecursionError) as error:
        raise UsageError(f"--resume: {path} is no study: {error}") from error


def write_study(folder: Path, study: Study) -> None:
    """Write study.json. Raises OSError."""
    text = json.dumps(to_data(study), indent=2) + "\n"
    write_atomically(folder / STUDY_NAME, text.encode())


def run_trials(search: Search, stop: StopSignal) -> list[Trial]:
    """Run the trials that are not finished.

    Args:
        search: the study.
        stop: set when the user asks to stop; the runs are then saved.

    Returns:
        The finished trials, in order.

    Raises:
        RunError: trials fail from the first on.
        UsageError: the command has a mistake, which the first trial found; or a file of the study
            is damaged, or was made by other versions.
    """
    study = search.study
    journal = TrialsFile(search.folder / TRIALS_NAME, search.ranges)
    done, finished, playing = journal.trials, {}, {}
    following = len(done)
    while len(done) < study.trials and not stop.is_set():
        while following < min(study.trials, len(done) + study.parallel):
            if is_held(search.run_of(following)):
                break  # the process of a study that was killed is still at it
            seen = tuple(done[: max(0, following + 1 - study.parallel)])
            settings = search.settings_of(following, seen)
            process = _start(search, following, settings)
            playing[following] = _Playing(settings, seen, process)
            following += 1
        for number, trial in list(playing.items()):
            if trial.process.poll() in _KILLED and trial.begun < _MOST_BEGUN:
                process = _start(search, number, trial.settings)
                playing[number] = replace(trial, process=process, begun=trial.begun + 1)
                continue
            found = _judge(search, number, trial)
            if found is not None and number == 0 and trial.process.returncode == _MISTAKE:
                _end(playing)
                said = errors_in(search.prints_of(0)) or [f"error: {search.prints_of(0)} says why"]
                raise UsageError(said[-1].removeprefix("error: "))
            if found is not None:
                finished[number] = found
                del playing[number]
                say(_line(search, found))
        while len(done) in finished:
            journal.add(finished.pop(len(done)))
            if len(done) == _MOST_FAILURES and all(trial.failed for trial in done):
                _end(playing)
                raise RunError(
                    f"the first {len(done)} trials failed; {search.prints_of(0)} says why"
                )
        time.sleep(_POLL_SECONDS)
    _end(playing)
    return done


def words_of_run(search: Search, folder: Path, words: Sequence[str]) -> list[str]:
    """The words that begin a run in a folder of the study, or go on with it.

    Raises:
        UsageError: the run there has other settings.
    """
    if (folder / CONFIG_NAME).exists():
        wanted, _ = parse(words)
        if different := differences(read_config(folder), wanted):
            raise UsageError(
                f"--resume: {folder} has other settings than this study chooses ({different}): it "
                "was made by other versions of Optuna or of this package, or it was changed"
            )
        place = ["--resume", str(folder)]
    else:
        place = [*words, "--output", str(folder)]
    workers = share_of(search.config.execution.workers, search.study.parallel)
    return [*place, "--workers", str(workers)]


def _start(search: Search, number: int, settings: dict[str, Value]) -> subprocess.Popen[bytes]:
    """Begin the run of a trial, or go on with it."""
    words = words_of_run(search, search.run_of(number), search.command(settings))
    return start_run(words, search.prints_of(number))


def _judge(search: Search, number: int, trial: _Playing) -> Trial | None:
    """The trial if it is finished, or so poor that it is; None while it is not."""
    folder, code = search.run_of(number), trial.process.poll()
    if code is not None and code != 0:
        return Trial(number, trial.settings, (), failed=True)
    try:
        env_steps, returns = _returns(search, folder)
    except (OSError, ValueError) as error:
        if code is None:  # nothing is written yet
            return None
        raise UsageError(f"{folder}: {error}") from error
    values: list[float] = []
    for rung in range(1, RUNGS + 1):
        value = score_at(env_steps, returns, rung, search.env_steps)
        if value is None and code == 0:
            # --stop-at ended it, at a return that it keeps.
            after = env_steps[-1] - search.env_steps / 10
            value = mean_return(env_steps, returns, after, env_steps[-1])
        if value is None or (rung == RUNGS and code is None):
            return None  # what was trained is saved first
        values.append(value)
        others = [other.values for other in trial.seen]
        if not goes_on(search.study.pruner, values, others):
            if code is None:
                _end({number: trial})
            break
    return Trial(number, trial.settings, tuple(values))


def _returns(search: Search, folder: Path) -> tuple[list[float], list[float]]:
    """Env steps and mean returns: of evaluations where the trials have some."""
    evaluated = search.config.experiment.evaluate_every is not None
    columns = read_columns(folder / (EVALUATIONS_NAME if evaluated else METRICS_NAME))
    return columns.get("env_steps", []), columns.get("reward_mean", [])


def _end(playing: dict[int, _Playing]) -> None:
    """End the runs; each saves what it has learned."""
    for trial in playing.values():
        trial.process.terminate()
    for trial in playing.values():
        trial.process.wait()


def _line(search: Search, trial: Trial) -> str:
    if trial.failed:
        errors = errors_in(search.prints_of(trial.number))
        return "; ".join([f"trial {trial.number}: failed", *errors[-1:]])
    how = (
        "" if trial.state == "done" else f", pruned after {len(trial.values)}/{RUNGS} of its steps"
    )
    return f"trial {trial.number}: {trial.score:.1f}{how}"
