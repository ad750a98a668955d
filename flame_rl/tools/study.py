"""A study of settings: what its trials search, and the command of each, a run of main.py in a
folder of its own. The settings of the best trials train for longer in a final, with several seeds.

Settings that learn quickest in a short trial need not end best, and the best score of many trials
with one seed is partly luck (Eimer et al. 2023, "Hyperparameters in Reinforcement Learning and How
To Tune Them"): the score of a finalist is the mean over seeds that no trial had.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from flame_rl.backends.select import make_backend
from flame_rl.run.folder import CONFIG_NAME
from flame_rl.settings.checks import Count, CountOrZero, check_fields, did_you_mean, flag, names_of
from flame_rl.settings.config import TrainConfig, environment_of
from flame_rl.settings.experiment import environment_id
from flame_rl.system.errors import UsageError
from flame_rl.system.files import open_regular, write_atomically
from flame_rl.system.signals import StopSignal
from flame_rl.tools.side_runs import SideRun, share_of, without

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

_STUDY_NAME = "study.json"
MAY_CHANGE = ("--trials", "--finalists")  # what flags may change of a resumed study
_LONGER = 4  # a run of the final is this many times as long as a trial, by default
_EPISODES = 100
_ONLY_AT_THE_END = 1_000_000


@dataclass(frozen=True)
class Span:
    """From `low` to `high`: of an integer the whole numbers; with `log`, by the logarithm."""

    low: float
    high: float
    log: bool = False


Range = Span | tuple[str, ...]  # or some values in words of a command line
Value = int | float | str

RANGES: dict[str, Range] = {
    "learning_rate": Span(1e-5, 1e-2, log=True),
    "value_learning_rate": Span(1e-5, 1e-2, log=True),
    "entropy_coefficient": ("0.0", "0.001", "0.003", "0.01", "0.03"),
    "initial_log_std": Span(-2.0, 0.0),
    "minibatches": ("4", "8", "16", "32", "64"),
    "max_kl": Span(0.01, 0.5, log=True),
    "gae_lambda": ("0.8", "0.9", "0.95", "0.98", "1.0"),
    "trace_lambda": ("0.8", "0.9", "0.95", "0.98", "1.0"),
    "epochs": Span(1, 20, log=True),
    "value_epochs": Span(1, 10, log=True),
    "clip_range": Span(0.1, 0.4),
    "batch_size": ("32", "64", "128", "256", "512"),
    "updates_per_step": Span(0.05, 1.0, log=True),
    "tau": Span(0.001, 0.1, log=True),
    "n_step": Span(1, 5),
    "epsilon_end": Span(0.01, 0.2, log=True),
    "epsilon_steps": Span(1_000, 50_000, log=True),
    "noise": Span(0.05, 0.5),
    "target_noise": Span(0.05, 0.5),
    "initial_temperature": Span(0.005, 1.0, log=True),
    "gamma": ("0.95", "0.98", "0.99", "0.995", "0.999"),
    "steps_per_iter": ("512", "1024", "2048", "4096"),
    "hidden_sizes": ("32 32", "64 64", "128 128", "256 256"),
    "activation": ("tanh", "relu"),
}


@dataclass(frozen=True)
class TuneFlags:
    """The flags of `tune` besides those of training."""

    trials: Count = 50
    """Number of trials. A resumed study may be given more."""

    parallel: Count | None = None
    """Trials side by side; none: one for each core. With more, each learns from fewer others."""

    pruner: Literal["median", "halving", "none"] = "median"
    """Which trials end early: those worse than half of the finished ones, or the worse half."""

    search: tuple[str, ...] = ()
    """Names of flags to search; none: all with a range and an effect that are not given."""

    finalists: CountOrZero = 4
    """Number of trials whose settings train again in the end; 0: the best trial is chosen."""

    final_seeds: Count = 3
    """Seeds with which each of the finalists is trained."""

    final_env_steps: Count | None = None
    """Env steps of each of these runs; none: four times --env-steps."""

    __post_init__ = check_fields


@dataclass(frozen=True)
class Study(TuneFlags):
    """What study.json holds: these flags, and as `words` the command line without them."""

    words: tuple[str, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> Study:
        """That of a folder. Raises UsageError if it holds none."""
        path = folder / _STUDY_NAME
        try:
            with open_regular(path) as file:
                return msgspec.json.decode(file.read(), type=cls)
        except FileNotFoundError as error:
            text = f"--resume: {folder} holds no study: there is no {_STUDY_NAME}"
            raise UsageError(text) from error
        except (OSError, ValueError, RecursionError, UsageError) as error:
            raise UsageError(f"--resume: {path} is no study: {error}") from error

    @property
    def fixed(self) -> dict[str, object]:
        """What a resumed study may not change, as in JSON."""
        values = msgspec.json.decode(msgspec.json.encode(self))
        return {name: values[name] for name in values if flag(name) not in MAY_CHANGE}

    def write(self, folder: Path) -> None:
        """Write study.json. Raises OSError."""
        text = msgspec.json.format(msgspec.json.encode(self))
        write_atomically(folder / _STUDY_NAME, text + b"\n")


@dataclass(frozen=True)
class Search:
    """A study in a folder that this process holds, and what follows from it: the configuration of
    its first trial, the ranges of the settings that are searched, by field, and the words of every
    trial without these."""

    folder: Path
    study: Study
    config: TrainConfig
    ranges: dict[str, Range]
    words: tuple[str, ...]

    @classmethod
    def of(cls, study: Study, config: TrainConfig, folder: Path = Path()) -> Search:
        """What follows from a study and the configuration of its words. Raises UsageError."""
        if config.experiment.env_steps is None:
            raise UsageError("--env-steps: the env steps of each trial, such as 100000")
        if config.output.seeds:
            raise UsageError("--seeds: all trials have the one --seed; train the best with others")
        ranges = ranges_of(config, flags_of(study.words), study.search)
        words = without(study.words, list(map(flag, ranges)))
        return cls(folder, study, config, ranges, tuple(words))

    @property
    def final_env_steps(self) -> int:
        """Of each run of the final."""
        return self.study.final_env_steps or _LONGER * self.config.experiment.env_steps

    @property
    def final_seeds(self) -> range:
        """Those after the seed of the trials."""
        first = self.config.experiment.seed + 1
        return range(first, first + self.study.final_seeds)

    def settings_of(self, trial: FrozenTrial) -> dict[str, Value]:
        """A trial's settings, which its run has: numbers that can be typed, with three digits."""
        if trial.number == 0:
            return trial.params
        settings = {name: trial.params[name] for name in self.ranges}
        for name, value in settings.items():
            if isinstance(value, float):
                span = self.ranges[name]
                settings[name] = min(max(float(f"{value:.3g}"), span.low), span.high)
        return settings

    def command(self, trial: FrozenTrial, final: bool = False) -> list[str]:
        """The words of a trial's run, or of one of the final without its seed."""
        words = list(self.words)
        for name, value in self.settings_of(trial).items():
            words += [flag(name), *str(value).split()]
        if not final:
            return words
        words = without(words, ("--env-steps", "--seed", "--stop-at"))  # finals are as long
        words += ["--env-steps", str(self.final_env_steps)]
        if not self.config.experiment.evaluate_every:
            words = without(words, ("--evaluate-every",))
            words += ["--evaluate-every", str(_ONLY_AT_THE_END)]
        if "--evaluate-episodes" not in flags_of(words):
            words += ["--evaluate-episodes", str(_EPISODES)]
        return words

    def run(self, trial: FrozenTrial, seed: int | None = None) -> SideRun:
        """The run of a trial, or with a seed one of the final; it goes on if it has begun."""
        name, folder, words = f"trial {trial.number}", f"trial-{trial.number:03}", []
        if seed is not None:
            name, folder = f"{name} with seed {seed}", f"final-{trial.number:03}-seed-{seed}"
            words = ["--seed", str(seed)]
        place = self.folder / folder
        words = [*self.command(trial, final=seed is not None), *words, "--output", str(place)]
        if (place / CONFIG_NAME).exists():
            words = ["--resume", str(place)]
        workers = share_of(self.config.execution.workers, self.study.parallel)
        return SideRun(name, place, [*words, "--workers", str(workers)])


def flags_of(words: Sequence[str]) -> list[str]:
    """The names of the flags on a command line, with hyphens."""
    return [w.partition("=")[0].replace("_", "-") for w in words if w.startswith("--")]


def ranges_of(config: TrainConfig, given: Sequence[str], search: Sequence[str]) -> dict[str, Range]:
    """The settings to search, by field, with ranges that hold the value in `config`: those named in
    `search`, or else all that no flag in `given` sets. Raises UsageError for others."""
    fields = [*names_of(type(config.algorithm)), *names_of(type(config.experiment))]
    known = [name for name in fields if name in RANGES]
    named = [name.lstrip("-").replace("-", "_") for name in search]
    for name in named:
        if name not in known:
            more = did_you_mean(name, known, f"there are {', '.join(known)}")
            raise UsageError(f"--search: {name!r} has no range; {more}")
    # A setting that is none has no effect, such as steps_per_iter beside episodes_per_iter.
    wanted = named or [
        name for name in known if flag(name) not in given and value_of(config, name) is not None
    ]
    if not wanted:
        raise UsageError("--search: every setting with a range is given; nothing is left to search")
    return {name: _reaching(RANGES[name], name, value_of(config, name)) for name in wanted}


def with_effect(search: Search, stop: StopSignal) -> tuple[str, ...]:
    """The settings of a search with an effect in its environment. Raises as `Backend.describe`."""
    config, idle = search.config, set()
    if config.algorithm.shared_torso or not getattr(config.algorithm, "trains_values", True):
        idle |= {"value_learning_rate", "value_epochs"}
    if "initial_log_std" in search.ranges:
        environment = environment_of(config, environment_id(config.experiment.env))
        with closing(make_backend(config.changed(workers=1, executors=1), stop)) as backend:
            idle |= set() if backend.describe(environment).continuous else {"initial_log_std"}
    return tuple(name for name in search.ranges if name not in idle)


def value_of(config: TrainConfig, name: str) -> Value | None:
    """The value of a setting with a range, as the range has it."""
    section = config.algorithm if hasattr(config.algorithm, name) else config.experiment
    value = getattr(section, name)
    if value is None or isinstance(RANGES[name], Span):
        return value
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _reaching(mark: Range, name: str, first: Value | None) -> Range:
    """The range with the first value in it."""
    if first is None:
        raise UsageError(f"--search: {flag(name)} is none; give it a number")
    if isinstance(mark, tuple):
        return mark if first in mark else (*mark, first)
    if mark.log and first <= 0:
        raise UsageError(f"--search: {flag(name)} cannot begin with {first}, by its logarithm")
    return replace(mark, low=min(mark.low, first), high=max(mark.high, first))
