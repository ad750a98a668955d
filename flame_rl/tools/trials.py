"""The trials of a study, and its final: Optuna suggests the trials' settings, prunes them, and
keeps them in a journal, from which a study that was killed goes on.

Trials side by side are looked at in turn, after every eighth of their env steps. The same seed and
the same number of them side by side therefore give the same study, however long each trial takes.
"""

from __future__ import annotations

import math
import os
import statistics
import time
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.pruners import MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from flame_rl.report.tables import read_columns
from flame_rl.run.saved.folder import EVALUATIONS_NAME, METRICS_NAME
from flame_rl.settings.checks import Span
from flame_rl.settings.ranges import Range, value_of
from flame_rl.system.errors import Interrupted, RunError, UsageError
from flame_rl.system.output import say
from flame_rl.system.signals import StopSignal
from flame_rl.tools.side_runs import SideRun, supervise
from flame_rl.tools.study import Search

TRIALS_NAME = "trials.log"
# A trial is looked at after every eighth of its env steps; halving needs a power of two.
RUNGS = 8
_PRUNERS = {
    # From the second eighth on, beside at least five finished trials (Golovin et al. 2017).
    "median": MedianPruner(n_startup_trials=5, n_warmup_steps=2),
    # After the first, the second and the fourth eighth (Li et al. 2020).
    "halving": SuccessiveHalvingPruner(min_resource=1, reduction_factor=2),
    "none": NopPruner(),
}
_POLL_SECONDS = 0.2
# Trials that fail from the first on, after which the study does not go on.
_MOST_FAILURES = 3
# Exit codes of a process that a signal ended, which is no doing of its trial; how often it starts.
_KILLED, _MOST_STARTS = (*range(-64, 0), 129, 130, 143), 3
# The exit code of a mistake in the command, which all trials have in common.
_MISTAKE = 2
_FINISHED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
_BEGUN = (*_FINISHED, TrialState.RUNNING)
# Of parts of Optuna that are used here.
warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)


@dataclass(frozen=True)
class Final:
    """How good the settings of a trial are in the final: the score of each seed, None where the run
    is not at its end."""

    trial: FrozenTrial
    scores: tuple[float | None, ...]

    @property
    def mean(self) -> float | None:
        """The mean over the seeds; None if a run is not at its end."""
        return None if None in self.scores else statistics.fmean(self.scores)


def open_study(search: Search) -> optuna.Study:
    """The study in its journal, which begins with the first trial's settings. Raises UsageError if
    the file is damaged."""
    path = search.folder / TRIALS_NAME
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        if path.exists() and not (data := path.read_bytes()).endswith(b"\n"):
            # A last line without its end, of a process that died.
            os.truncate(path, data.rfind(b"\n") + 1)
        study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(path))),
            study_name="flame-rl",
            direction="maximize",
            pruner=_PRUNERS[search.study.pruner],
            load_if_exists=True,
        )
        wanted = _distributions(search)
        if any(each.distributions not in ({}, wanted) for each in study.trials):
            raise ValueError("it has other settings, or other ranges")
        if not study.trials:
            study.enqueue_trial({name: value_of(search.config, name) for name in search.ranges})
    except OSError:
        raise
    except Exception as error:  # Optuna has no errors of its own for a damaged file
        raise UsageError(
            f"{path}: no trials of this study ({type(error).__name__}: {error}); begin another "
            "study, or put back a copy of the file"
        ) from error
    return study


def begin_trial(search: Search, study: optuna.Study) -> optuna.Trial:
    """The next trial. Its settings are a function of the seed, its number and the trials so far."""
    number = len(study.get_trials(states=_BEGUN))
    own = np.random.SeedSequence(search.config.experiment.seed, spawn_key=(number,))
    study.sampler = optuna.samplers.TPESampler(seed=int(own.generate_state(1)[0]))
    return study.ask(_distributions(search))


class _Playing:
    """A trial whose run is not finished; `rung` is the next one that it comes to."""

    def __init__(self, search: Search, trial: optuna.Trial, rung: int = 1) -> None:
        self.trial, self.rung, self.run = trial, rung, search.trial_run(trial)
        self._starts, self._search = 0, search

    def wait_for_value(self, stop: StopSignal) -> float | None:
        """The value of the next rung, as soon as it is known; None: the run failed. Raises
        Interrupted once `stop` is set."""
        while not stop.is_set():
            begun = self.run.process is not None
            code = self.run.process.poll() if begun else None
            if not begun or (code in _KILLED and self._starts < _MOST_STARTS):
                run = self._search.trial_run(self.trial)
                if run.start():
                    self.run, self._starts = run, self._starts + 1
            elif code is not None and code != 0:
                return None
            # What was trained is saved before it counts as finished.
            elif code == 0 or self.rung < RUNGS:
                value = _value(self._search, self.run.folder, self.rung, ended=code == 0)
                if value is not None:
                    return value
            time.sleep(_POLL_SECONDS)
        raise Interrupted

    def end(self) -> None:
        """End the run, which saves what it has learned."""
        if self.run.process is not None:
            self.run.process.terminate()
            self.run.process.wait()


def run_trials(search: Search, stop: StopSignal) -> list[FrozenTrial]:
    """Run the trials that are not finished, or save them once `stop` is set.

    Returns:
        The finished trials, by number.

    Raises:
        RunError: trials fail from the first on.
        UsageError: the command has a mistake, which the first trial found; or a file of the study
            is damaged.
    """
    study, playing = open_study(search), deque()
    for each in study.get_trials(states=(TrialState.RUNNING,)):
        live = optuna.Trial(study, each._trial_id)
        playing.append(_Playing(search, live, len(each.intermediate_values) + 1))
    try:
        while not stop.is_set():
            while len(playing) < search.study.parallel and (
                len(study.get_trials(states=_BEGUN)) < search.study.trials
            ):
                playing.append(_Playing(search, begin_trial(search, study)))
            if not playing:
                break
            # It stays among them, so that it is ended whatever happens.
            playing.rotate(-1)
            if _has_ended(study, playing[-1], stop):
                ended = playing.pop()
                say(f"{ended.run.name}: {_how_it_ended(ended.run, study, ended.trial.number)}")
    except Interrupted:
        pass
    finally:
        for each in playing:
            each.end()
    return study.get_trials(states=_FINISHED)


def _has_ended(study: optuna.Study, playing: _Playing, stop: StopSignal) -> bool:
    """Let a trial come to its next rung; whether it has ended there."""
    value, trial, run = playing.wait_for_value(stop), playing.trial, playing.run
    if value is None:
        if trial.number == 0 and run.process.returncode == _MISTAKE:
            said = run.errors() or [f"error: {run.prints} says why"]
            raise UsageError(said[-1].removeprefix("error: "))
        study.tell(trial, state=TrialState.FAIL)
        ends = [each.state for each in study.get_trials(states=_FINISHED)]
        if ends == _MOST_FAILURES * [TrialState.FAIL]:
            raise RunError(f"the first {len(ends)} trials failed; {run.prints} says why")
        return True
    trial.report(value, playing.rung)
    playing.rung += 1
    if playing.rung > RUNGS:
        study.tell(trial, value)
    elif trial.should_prune():
        playing.end()
        study.tell(trial, state=TrialState.PRUNED)
    else:
        return False
    return True


def _value(search: Search, folder: Path, rung: int, ended: bool) -> float | None:
    """The mean of the returns within a tenth of all env steps before a rung; None if the run has
    not come so far. They are those of evaluations where the trials have some."""
    evaluated = search.config.experiment.evaluate_every is not None
    total = search.env_steps
    try:
        columns = read_columns(folder / (EVALUATIONS_NAME if evaluated else METRICS_NAME))
    except (OSError, ValueError) as error:
        if not ended:  # nothing is written yet
            return None
        raise UsageError(f"{folder}: {error}") from error
    steps, returns = columns.get("env_steps", []), columns.get("reward_mean", [])
    place = total * rung / RUNGS
    until = next((each for each in steps if each >= place), None)
    if until is None:
        if not ended:
            return None
        # --stop-at ended it, at a return that it keeps.
        place = until = steps[-1]
    pairs = zip(steps, returns, strict=True)
    return statistics.fmean(value for at, value in pairs if place - total / 10 < at <= until)


def _how_it_ended(run: SideRun, study: optuna.Study, number: int) -> str:
    trial = study.trials[number]
    if trial.state == TrialState.FAIL:
        return "; ".join(["failed", *run.errors()[-1:]])
    rungs = len(trial.intermediate_values)
    how = f", pruned after {rungs}/{RUNGS} of its steps" if rungs < RUNGS else ""
    return f"{trial.value:.1f}{how}"


def run_finals(search: Search, best: Sequence[FrozenTrial], stop: StopSignal) -> list[Final]:
    """Run the final, as far as it is not done, or save its runs once `stop` is set; `best` are the
    trials that were trained to their end, the best first. Returns the finalists, the best first."""
    chosen = best[: search.study.finalists]
    runs = [[search.final_run(trial, seed) for seed in search.final_seeds] for trial in chosen]
    left = [run for some in runs for run in some if _score_of(run) is None]
    supervise(left, search.study.parallel, stop)
    finals = [
        Final(trial, tuple(map(_score_of, some))) for trial, some in zip(chosen, runs, strict=True)
    ]
    # A run that failed counts as the worst that there is.
    return sorted(finals, key=lambda each: (each.mean is not None, each.mean), reverse=True)


def _score_of(run: SideRun) -> float | None:
    row = run.row()
    return row.last if row is not None and row.state == "done" else None


def best_of(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The trials that were trained to their end, the best first; of equal scores the first."""
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    return sorted(done, key=lambda trial: trial.value, reverse=True)


def importances(trials: Sequence[FrozenTrial]) -> Mapping[str, float]:
    """How much each setting has to do with being in the better half of the trials, as shares of 1,
    the greatest first (PED-ANOVA, Watanabe et al. 2023). A trial that was pruned counts by its last
    value. Empty where there are too few trials, or all are equal."""
    scored = [each for each in trials if each.value is not None]
    if len({each.value for each in scored}) < 2:
        return {}
    study = optuna.create_study(direction="maximize")
    for each in scored:
        own = {"params": each.params, "distributions": each.distributions}
        study.add_trial(create_trial(value=each.value, **own))
    evaluator = PedAnovaImportanceEvaluator(target_quantile=0.5)
    found = get_param_importances(study, evaluator=evaluator)
    return {name: share for name, share in found.items() if math.isfinite(share)}


def _distributions(search: Search) -> dict[str, BaseDistribution]:
    return {name: _distribution(span) for name, span in search.ranges.items()}


def _distribution(span: Range) -> BaseDistribution:
    if not isinstance(span, Span):
        return CategoricalDistribution(span.words)
    whole = isinstance(span.low, int) and isinstance(span.high, int)
    return (IntDistribution if whole else FloatDistribution)(span.low, span.high, log=span.log)
