"""The trials of a study, and its final: Optuna suggests the trials' settings, prunes them, and
keeps them in a journal, from which a study that was killed goes on.

Trials side by side are looked at in turn, after every eighth of their env steps. The same seed and
the same number of them side by side therefore give the same study, however long each trial takes.
"""

import os
import statistics
import time
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import matplotlib
import numpy as np
import optuna
from matplotlib.ticker import MaxNLocator
from optuna import distributions, importance, pruners
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial
from optuna.visualization.matplotlib import plot_optimization_history, plot_param_importances

from flame_rl.report.figures import save_and_show
from flame_rl.report.tables import read_columns
from flame_rl.run.folder import EVALUATIONS_NAME, METRICS_NAME
from flame_rl.system.errors import RunError, UsageError, say
from flame_rl.system.signals import StopSignal
from flame_rl.tools.side_runs import SideRun, supervise
from flame_rl.tools.study import Range, Search, Span, value_of

TRIALS_NAME = "trials.log"
_BEGAN = "study"  # what the journal keeps of study.json
# A trial is looked at after every eighth of its env steps; halving needs a power of two.
RUNGS = 8
_PRUNERS = {
    # From the second eighth on, beside at least five finished trials (Golovin et al. 2017).
    "median": pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=2),
    # After the first, the second and the fourth eighth (Li et al. 2020).
    "halving": pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=2),
    "none": pruners.NopPruner(),
}
_POLL_SECONDS = 0.2
_MOST_FAILURES = 3  # trials that fail from the first on, after which the study does not go on
_FINISHED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
_BEGUN = (*_FINISHED, TrialState.RUNNING)
warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # of what is used here


class Final(NamedTuple):
    """The score of each seed with a trial's settings, and their mean; None of unfinished runs."""

    trial: FrozenTrial
    scores: list[float | None]
    mean: float | None


def open_study(search: Search) -> optuna.Study:
    """The study in its journal, which begins with the first trial. Raises UsageError if damaged."""
    path, fixed = search.folder / TRIALS_NAME, search.study.fixed
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        if path.exists() and not (data := path.read_bytes()).endswith(b"\n"):
            os.truncate(path, data.rfind(b"\n") + 1)  # what a killed process left
        study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(path))),
            study_name="flame-rl",
            direction="maximize",
            pruner=_PRUNERS[search.study.pruner],
            load_if_exists=True,
        )
        wanted = {name: _distribution(search.ranges[name]) for name in search.ranges}
        if any(each.distributions not in ({}, wanted) for each in study.trials):
            raise ValueError("it has other settings, or other ranges")
        if not study.trials:
            study.set_user_attr(_BEGAN, fixed)
            study.enqueue_trial({name: value_of(search.config, name) for name in search.ranges})
    except OSError:
        raise
    except Exception as error:  # Optuna has no errors of its own for a damaged file
        text = f"no trials of this study ({type(error).__name__}: {error}); begin another"
        raise UsageError(f"{path}: {text}") from error
    began = study.user_attrs.get(_BEGAN, fixed)
    if changed := [name for name in fixed if fixed[name] != began[name]]:
        name = changed[0]
        text = f"study.json has the {name} {fixed[name]}, and the study began with {began[name]}"
        raise UsageError(f"--resume: {text}; write it back, or begin another study")
    return study


def begin_trial(search: Search, study: optuna.Study) -> optuna.Trial:
    """The next trial. Its settings are a function of the seed, its number and the trials so far."""
    number = len(study.get_trials(states=_BEGUN))
    own = np.random.SeedSequence(search.config.experiment.seed, spawn_key=(number,))
    study.sampler = optuna.samplers.TPESampler(seed=int(own.generate_state(1)[0]))
    return study.ask({name: _distribution(search.ranges[name]) for name in search.ranges})


def run_trials(search: Search, stop: StopSignal) -> list[FrozenTrial]:
    """Run the trials that are not finished, or save them at `stop`; returns the finished ones, by
    number. Raises RunError where all fail from the first on, and UsageError for a mistake."""
    study = open_study(search)
    playing = deque(
        _play(search, study, optuna.Trial(study, each._trial_id), len(each.intermediate_values))
        for each in study.get_trials(states=(TrialState.RUNNING,))
    )
    try:
        while not stop.is_set():
            while len(playing) < search.study.parallel and (
                len(study.get_trials(states=_BEGUN)) < search.study.trials
            ):
                playing.append(_play(search, study, begin_trial(search, study)))
            if not playing:
                break
            # It stays among them until it has ended, so that its run is saved whatever happens.
            match next(playing[0], "ended"):
                case "waits":
                    time.sleep(_POLL_SECONDS)
                case "looked at":
                    playing.rotate(-1)
                case "ended":
                    playing.popleft()
    finally:
        for each in playing:
            each.close()
    return study.get_trials(states=_FINISHED)


def _play(
    search: Search, study: optuna.Study, trial: optuna.Trial, reported: int = 0
) -> Iterator[Literal["waits", "looked at"]]:
    """Play a trial on from the rungs that are reported, and save its run whatever ends it. Yields
    "looked at" after each rung but the last, and "waits" until it comes to one."""
    run, rung = search.run(trial), min(reported, RUNGS - 1) + 1
    try:
        while rung <= RUNGS:
            value = None
            if run.process is None:
                if run.start():
                    say(f"{run.name}: begins, with its output in {run.prints}")
            elif code := run.process.poll():
                _fail(study, trial, run)
                break
            # What was trained is saved before it counts as finished.
            elif code == 0 or rung < RUNGS:
                value = _value(search, run.folder, rung, ended=code == 0)
            if value is None:
                yield "waits"
                continue
            if rung > reported:
                trial.report(value, rung)
            rung += 1
            if rung > RUNGS:
                study.tell(trial, value)
            elif trial.should_prune():
                run.end()
                study.tell(trial, state=TrialState.PRUNED)
                break
            else:
                yield "looked at"
        ended = study.trials[trial.number]
        how = "; ".join(["failed", *run.errors()[-1:]])
        if ended.state != TrialState.FAIL:
            rungs = len(ended.intermediate_values)
            pruned = f", pruned after {rungs}/{RUNGS} of its steps" if rungs < RUNGS else ""
            how = f"{ended.value:.1f}{pruned}"
        say(f"{run.name}: {how}")
    finally:
        run.end()


def _fail(study: optuna.Study, trial: optuna.Trial, run: SideRun) -> None:
    """End a trial whose run failed. Raises UsageError for a mistake in the command, which all
    trials have in common, and RunError if no trial has succeeded after some."""
    if trial.number == 0 and run.process.returncode == 2:  # a mistake
        said = run.errors() or [f"error: {run.prints} says why"]
        raise UsageError(said[-1].removeprefix("error: "))
    study.tell(trial, state=TrialState.FAIL)
    ends = [each.state for each in study.get_trials(states=_FINISHED)]
    if ends == _MOST_FAILURES * [TrialState.FAIL]:
        raise RunError(f"the first {len(ends)} trials failed; {run.prints} says why")


def _value(search: Search, folder: Path, rung: int, ended: bool) -> float | None:
    """The mean of the returns within a tenth of all env steps before a rung; None if the run has
    not come so far. They are those of evaluations where the trials have some."""
    evaluated = search.config.experiment.evaluate_every is not None
    total = search.config.experiment.env_steps
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
        place = until = steps[-1]  # --stop-at ended it, at a return that it keeps
    pairs = zip(steps, returns, strict=True)
    return statistics.fmean(value for at, value in pairs if place - total / 10 < at <= until)


def run_finals(search: Search, best: Sequence[FrozenTrial], stop: StopSignal) -> list[Final]:
    """Run the final, as far as it is not done, or save its runs once `stop` is set; `best` are the
    trials that were trained to their end, the best first. Returns the finalists, the best first."""
    chosen, seeds = best[: search.study.finalists], search.final_seeds
    runs = [(trial, [search.run(trial, seed) for seed in seeds]) for trial in chosen]
    left = [run for _, some in runs for run in some if _score_of(run) is None]
    supervise(left, search.study.parallel, stop)
    finals = []
    for trial, some in runs:
        scores = [_score_of(run) for run in some]
        finals.append(Final(trial, scores, None if None in scores else statistics.fmean(scores)))
    # A run that failed counts as the worst that there is.
    return sorted(finals, key=lambda each: (each.mean is not None, each.mean), reverse=True)


def _score_of(run: SideRun) -> float | None:
    row = run.row()
    return row.last if row is not None and row.state == "done" else None


def best_of(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The trials that were trained to their end, the best first; of equal scores the first."""
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    return sorted(done, key=lambda trial: trial.value, reverse=True)


@matplotlib.rc_context()  # Optuna changes the style of all pictures
def draw_study(trials: Sequence[FrozenTrial], folder: Path) -> list[Path]:
    """Draw by Optuna the scores of the trials, best.png, and importance.png: how much each setting
    has to do with being in the better half (PED-ANOVA, Watanabe et al. 2023), where a trial that
    was pruned counts by its last value. The second needs ten trials, and scores that differ."""
    study, judged = (optuna.create_study(direction="maximize") for _ in range(2))
    scored = [each for each in trials if each.value is not None]
    study.add_trials(scored)
    for each in scored:
        own = {"params": each.params, "distributions": each.distributions}
        judged.add_trial(create_trial(value=each.value, **own))
    axes = plot_optimization_history(study, target_name="mean return")
    axes.set_title("Scores of the trials")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    drawn = [save_and_show(axes.figure, folder / "best.png")]
    if len(scored) >= 10 and len({each.value for each in scored}) > 1:
        evaluator = importance.PedAnovaImportanceEvaluator(target_quantile=0.5)
        axes = plot_param_importances(judged, evaluator=evaluator, target_name="mean return")
        drawn.append(save_and_show(axes.figure, folder / "importance.png"))
    return drawn


def _distribution(span: Range) -> distributions.BaseDistribution:
    if not isinstance(span, Span):
        return distributions.CategoricalDistribution(span)
    whole = isinstance(span.low, int)
    kind = distributions.IntDistribution if whole else distributions.FloatDistribution
    return kind(span.low, span.high, log=span.log)
