"""The trials of a study: their file, and what Optuna suggests for the next one.

The file is a journal of Optuna's, lines of JSON, which other tools of Optuna read, too. It holds
the finished trials in the order of their numbers, and nothing of the sampler: what is suggested for
trial n is a function of the study's seed, of n, and of the trials that n may see.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from flame_rl.settings.checks import Span
from flame_rl.settings.ranges import Range, Value
from flame_rl.system.errors import UsageError
from flame_rl.tools.study.pruning import RUNGS

_STUDY = "flame-rl"
_DIGITS = 3
# Far more than any study's; a larger file is none.
_MOST_BYTES = 1 << 28
_STATES = {
    "done": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "failed": TrialState.FAIL,
}

Ranges = Mapping[str, Range]


@dataclass(frozen=True)
class Trial:
    """A finished trial.

    Attributes:
        number: from 0.
        settings: by field, the values that were chosen from the ranges.
        values: its score at each rung that it reached; see `pruning.score_at`.
        failed: whether its run ended by an error.
    """

    number: int
    settings: dict[str, Value]
    values: tuple[float, ...]
    failed: bool = False

    @property
    def state(self) -> Literal["done", "pruned", "failed"]:
        """How it ended."""
        if self.failed:
            return "failed"
        return "done" if len(self.values) == RUNGS else "pruned"

    @property
    def score(self) -> float | None:
        """Its last value."""
        return self.values[-1] if self.values else None


class TrialsFile:
    """The file of a study's trials. The caller sees to it that one process has it at a time.

    Attributes:
        trials: those in the file, numbered from 0.
    """

    def __init__(self, path: Path, ranges: Ranges) -> None:
        """Open the file, or begin it. A last line without its end, of a process that died, is
        dropped. Raises UsageError if the file holds no trials of this study."""
        self._ranges = ranges
        try:
            _drop_half_a_line(path)
            with _quiet():
                storage = JournalStorage(JournalFileBackend(str(path), lock_obj=_NoLock()))
                begun = _STUDY in optuna.get_all_study_names(storage)
                open_study = optuna.load_study if begun else _create_study
                self._study = open_study(study_name=_STUDY, storage=storage)
                found = self._study.get_trials()
            self.trials = [_read(each, number, ranges) for number, each in enumerate(found)]
        except OSError:
            raise
        except Exception as error:  # Optuna has no errors of its own for a damaged file
            raise UsageError(
                f"{path}: no trials of this study ({type(error).__name__}: {error}); begin another "
                "study, or put back a copy of the file"
            ) from error

    def add(self, trial: Trial) -> None:
        """Write the next trial; it is on disk before this returns."""
        self._study.add_trial(_frozen(trial, self._ranges))
        self.trials.append(trial)


def suggest(ranges: Ranges, seed: int, number: int, seen: Sequence[Trial]) -> dict[str, Value]:
    """The settings of a trial, by the tree-structured Parzen estimator (Bergstra et al. 2011).

    Args:
        ranges: by field.
        seed: of the study.
        number: of the trial.
        seen: the trials that its settings depend on.
    """
    own = np.random.SeedSequence(seed, spawn_key=(number,)).generate_state(1)
    with _quiet():
        sampler = optuna.samplers.TPESampler(seed=int(own[0]))
        study = _in_memory(ranges, seen, sampler)
        params = study.ask(_distributions(ranges)).params
    return {name: _rounded(params[name], ranges[name]) for name in ranges}


def importances(ranges: Ranges, trials: Sequence[Trial]) -> dict[str, float]:
    """How much each setting has to do with being in the better half of the trials, as shares of 1,
    the greatest first (PED-ANOVA, Watanabe et al. 2023). A trial that was pruned counts by its last
    value. Empty where there are too few trials, or all are equal."""
    # As if each had kept its last value to its end.
    ended = [replace(each, values=(each.score,) * RUNGS) for each in trials if not each.failed]
    if len({trial.score for trial in ended}) < 2:
        return {}
    with _quiet():
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=0.5)
        found = optuna.importance.get_param_importances(
            _in_memory(ranges, ended), evaluator=evaluator, params=list(ranges)
        )
    return {name: share for name, share in found.items() if math.isfinite(share)}


class _NoLock:
    """The folder of the study is locked; a lock of the file would outlive a process that is
    killed."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


@contextlib.contextmanager
def _quiet():
    """Optuna reports what is done here; some of what is used here it calls experimental."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        try:
            yield
        finally:
            optuna.logging.set_verbosity(before)


def _drop_half_a_line(path: Path) -> None:
    if not path.exists():
        return
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"more than {_MOST_BYTES:,} bytes")
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        with path.open("r+b") as file:
            file.truncate(whole)


def _distributions(ranges: Ranges) -> dict[str, BaseDistribution]:
    return {name: _distribution(each) for name, each in ranges.items()}


def _distribution(span: Range) -> BaseDistribution:
    if not isinstance(span, Span):
        return CategoricalDistribution(span.words)
    if isinstance(span.low, int) and isinstance(span.high, int):
        return IntDistribution(span.low, span.high, log=span.log)
    return FloatDistribution(span.low, span.high, log=span.log)


def _rounded(value: Value, span: Range) -> Value:
    """A number that can be typed: three digits."""
    if not isinstance(value, float):
        return value
    return min(max(float(f"{value:.{_DIGITS}g}"), span.low), span.high)


def _create_study(**options) -> optuna.Study:
    return optuna.create_study(direction="maximize", **options)


def _in_memory(ranges: Ranges, trials: Sequence[Trial], sampler=None) -> optuna.Study:
    study = _create_study(sampler=sampler)
    study.add_trials([_frozen(trial, ranges) for trial in trials if not trial.failed])
    return study


def _frozen(trial: Trial, ranges: Ranges) -> FrozenTrial:
    return create_trial(
        state=_STATES[trial.state],
        params=trial.settings,
        distributions=_distributions(ranges),
        value=trial.score,
        intermediate_values=dict(enumerate(trial.values, 1)),
    )


def _read(frozen: FrozenTrial, number: int, ranges: Ranges) -> Trial:
    """The trial in the file. Raises ValueError if it has not the form that `_frozen` gives it."""
    values = tuple(frozen.intermediate_values.values())
    trial = Trial(number, dict(frozen.params), values, frozen.state == TrialState.FAIL)
    if not all(isinstance(value, float) and math.isfinite(value) for value in values):
        raise ValueError(f"trial {number} has a value that is no finite number")
    if list(frozen.intermediate_values) != list(range(1, len(values) + 1)) or (
        frozen.state != _STATES[trial.state] or bool(values) == trial.failed
    ):
        raise ValueError(f"trial {number} has values that do not go with its end")
    if trial.settings.keys() != ranges.keys() or not all(
        _is_in(ranges[name], value) for name, value in trial.settings.items()
    ):
        raise ValueError(f"trial {number} has settings that are not in this study's ranges")
    return trial


def _is_in(span: Range, value: object) -> bool:
    if not isinstance(span, Span):
        return value in span.words
    return type(value) in (int, float) and span.low <= value <= span.high
