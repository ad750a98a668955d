"""All settings of a run, from Python or config.json. Imports nothing heavy, for --help."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

import msgspec

from flame_rl.settings import checks
from flame_rl.settings.algorithms import ALGORITHMS, AlgorithmSettings, settings_class
from flame_rl.settings.checks import Count, CountOrZero, Positive, Seed, names_of
from flame_rl.settings.experiment import EnvironmentSource, Experiment, environment_id
from flame_rl.settings.keywords import Changes, Settings
from flame_rl.settings.presets import preset_of
from flame_rl.system.errors import UsageError

if TYPE_CHECKING:
    from flame_rl.wire.messages import Environment


@dataclass(frozen=True)
class Execution:
    """Where networks and episodes are computed; only the rounding of devices changes results."""

    device: Literal["auto", "cpu", "cuda", "gpu"] = "auto"
    """Where networks learn; auto: on a graphics card, if any, for pictures, memory, huge layers."""

    local: bool = False
    """Collect on this machine even where a Flame cluster is configured."""

    workers: CountOrZero | None = None
    """Local worker processes; none: one for each core; 0: collect in the learner's own process."""

    executors: Count | None = None
    """Executors of a Flame cluster; none: one for every core that it offers."""

    workers_per_executor: Count = 1
    """Processes that play inside each executor, which has as many cores."""

    executor_packages: Literal["install", "image"] = "install"
    """Executors install the learner's NumPy, Gymnasium and MuJoCo, or their image has them."""

    simulator: Literal["auto", "plain", "fast"] = "auto"
    """Gymnasium's simulator, a faster one with the same bits, or that where there is one."""

    strict: bool = False
    """Refuse, and do not only warn, if the same seed and actions give another episode."""

    slots: Count | None = None
    """Most environments side by side in a process; none: 32, or as many as a gigabyte holds."""

    task_timeout: Annotated[float, checks.within(1e-9, 1e6, "above 0, up to 1000000")] | None = None
    """Seconds until a silent worker is killed and its episodes are collected again; none: 600 at
    first, then ten times the longest task so far, at least 60."""

    worker_episodes: Count = 100_000
    """A worker process is replaced after this number of episodes."""

    worker_megabytes: Count = 4096
    """A worker process that has taken more memory than this is replaced."""

    cluster_patience: Positive = 120.0
    """Seconds without a result, or an executor at work on one, after which the run ends."""

    def __post_init__(self) -> None:
        checks.check_fields(self)
        if self.device == "gpu":
            vars(self).update(device="cuda")  # it is frozen


@dataclass(frozen=True)
class Output:
    """What a run writes and shows, and which run it resumes. It changes no result."""

    output: Path | None = None
    """Run folder; none: runs/<env>-<algorithm>-<time>."""

    resume: Path | None = None
    """Go on with the run in this folder, or from this checkpoint in one; needs no other flag."""

    trust: bool = False
    """With --resume: run modules that lie in the run folder, too; it may be anybody's code."""

    seeds: tuple[Seed, ...] = ()
    """A run for each of these seeds, side by side, in --output/seed-0 and so on."""

    verbose: bool = False
    """Print more about every iteration: spread of returns, metrics, speed, seconds by phase."""

    tensorboard: bool = False
    """Write returns, metrics and timings for TensorBoard into the run folder."""

    track: Literal["wandb", "mlflow", "trackio"] | None = None
    """Report settings and every iteration to an experiment tracker."""

    plot: bool = False
    """Draw curves.png at the end, and show it where there is a display."""

    checkpoint_every: Count = 10
    """Iterations between two checkpoints; the last state is saved in any case."""

    keep_checkpoints: Count = 3
    """Number of latest checkpoints to keep, besides the best."""

    reproduce: CountOrZero | None = None
    """With --resume: collect only this episode of the next iteration, in this process."""

    def __post_init__(self) -> None:
        checks.check_fields(self)
        if self.reproduce is not None and self.resume is None:
            checks.refuse("reproduce", "with --resume, an episode of an iteration", self.reproduce)
        if len(set(self.seeds)) < len(self.seeds) or (self.seeds and self.resume is not None):
            checks.refuse("seeds", "each once, and for new runs alone", self.seeds)


@dataclass(frozen=True, init=False)
class TrainConfig:
    """The configuration of a run.

        TrainConfig(env="ant", algorithm="ppo", epochs=5, workers=4)

    Attributes:
        experiment: decides the result, together with `algorithm`.
        algorithm: the algorithm's settings, such as `flame_rl.settings.algorithms.PPOSettings`.
        execution: where it is computed; but for the device, it changes no result.
        output: what is written and shown; changes no result.
    """

    experiment: Experiment
    algorithm: AlgorithmSettings
    execution: Execution
    output: Output

    def __init__(
        self,
        env: EnvironmentSource = "cartpole",
        algorithm: str = "reinforce",
        **settings: Unpack[Settings],
    ) -> None:
        """Take the defaults, then the algorithm's preset for the environment, then `settings`, of
        whichever section; `episodes_per_iter` replaces a preset's steps. Raises UsageError."""
        algorithm = algorithm.lower() if isinstance(algorithm, str) else algorithm
        kinds = _kinds(settings_class(algorithm))
        preset = preset_of(algorithm, environment_id(Experiment(env).env_name))
        values = _by_section(kinds, preset | _with_one_size(settings) | {"env": env}, algorithm)
        # The dataclass is frozen.
        vars(self).update({name: kind(**values[name]) for name, kind in kinds.items()})

    @classmethod
    def of_sections(cls, sections: dict[str, Any]) -> TrainConfig:
        """A configuration of the four sections, without presets."""
        config = object.__new__(cls)
        vars(config).update(sections)
        return config

    def changed(self, **settings: Unpack[Changes]) -> TrainConfig:
        """A copy with new values of some fields, as `__init__` takes them. Raises UsageError."""
        kinds = _kinds(type(self.algorithm))
        values = _by_section(kinds, _with_one_size(settings), self.algorithm_name)
        sections = vars(self).items()
        return self.of_sections({name: replace(each, **values[name]) for name, each in sections})

    @property
    def algorithm_name(self) -> str:
        """The algorithm's name on the command line."""
        return self.algorithm.name

    def to_data(self) -> dict[str, dict[str, Any]]:
        """The settings by section as JSON values, for config.json and checkpoints."""
        sections = {name: dict(vars(settings)) for name, settings in vars(self).items()}
        sections["experiment"]["env"] = self.experiment.env_name
        data = msgspec.to_builtins(sections, enc_hook=str)
        data["algorithm"] = {"name": self.algorithm_name} | data["algorithm"]
        data["output"] |= {"resume": None, "reproduce": None}
        return data

    @classmethod
    def from_data(cls, data: Any) -> TrainConfig:
        """The inverse of `to_data`; what is missing has its default. Raises UsageError."""
        try:
            values = {section: dict(settings) for section, settings in dict(data).items()}
            kinds = _kinds(settings_class(values["algorithm"].pop("name")))
            for name, kind in kinds.items():
                for unknown in values[name].keys() - set(names_of(kind)):
                    raise ValueError(f"{unknown}: there is no such field")
            return cls.of_sections({name: kind(**values[name]) for name, kind in kinds.items()})
        except (UsageError, LookupError, TypeError, ValueError) as error:
            text = "config.json: not a configuration that this version can read"
            raise UsageError(f"{text}: {error}") from error

    def to_json(self) -> str:
        """The text of config.json: all settings, as training uses them."""
        return json.dumps(self.to_data(), indent=2) + "\n"

    __str__ = to_json

    @classmethod
    def from_json(cls, text: str) -> TrainConfig:
        """The inverse of `to_json`. Raises UsageError."""
        try:
            return cls.from_data(msgspec.json.decode(text))
        except (ValueError, RecursionError) as error:
            raise UsageError(f"config.json: not JSON: {error}") from error


def environment_of(config: TrainConfig, env_id: str) -> Environment:
    """The environment as it is configured."""
    from flame_rl.wire.messages import Environment  # it imports Gymnasium

    settings = vars(config.experiment) | vars(config.execution) | {"env_id": env_id}
    return Environment(**{name: settings[name] for name in names_of(Environment)})


def refuse_two_sizes(settings: Mapping[str, Any]) -> None:
    """Raise UsageError where two sizes of an iteration are given, or two lengths of the run."""
    for replaced, name in (("episodes_per_iter", "steps_per_iter"), ("iterations", "env_steps")):
        if None not in (settings.get(replaced), settings.get(name)):
            other = checks.flag(name)
            raise UsageError(f"{checks.flag(replaced)}: {other} takes its place; leave one out")


def owners_of(name: str, algorithm: str) -> str:
    """An error text for a setting that only other algorithms have; "" if none has it."""
    *others, last = [each for each in ALGORITHMS if name in names_of(ALGORITHMS[each])] or [""]
    listed = f"{', '.join(others)} and {last}" if others else last
    return last and f"a setting of {listed}; {algorithm} has none of that name"


def _with_one_size(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings; with episodes_per_iter, no preset's steps_per_iter. Raises UsageError."""
    refuse_two_sizes(settings)
    return {"steps_per_iter": None} | settings if "episodes_per_iter" in settings else settings


def _by_section(
    kinds: dict[str, type], settings: dict[str, Any], algorithm: str
) -> dict[str, dict[str, Any]]:
    """The settings of each section, by the fields of its class. Raises UsageError for others."""
    sections = {name: section for section, kind in kinds.items() for name in names_of(kind)}
    values: dict[str, dict[str, Any]] = {section: {} for section in kinds}
    for name, value in settings.items():
        if name not in sections:
            known = ["env", "algorithm", *sections]
            more = checks.did_you_mean(name, known, "print(TrainConfig()) shows them all")
            text = owners_of(name, algorithm) or f"no such setting; {more}"
            raise UsageError(f"{name}: {text}")
        values[sections[name]][name] = value
    return values


def _kinds(algorithm: type[AlgorithmSettings]) -> dict[str, type]:
    others = {"execution": Execution, "output": Output}
    return {"experiment": Experiment, "algorithm": algorithm} | others
