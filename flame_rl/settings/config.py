"""All settings of a run: from Python's keywords, or from config.json.

Imports nothing heavy, so that `--help` answers at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from flame_rl.settings.algorithms import (
    ALGORITHMS,
    AlgorithmSettings,
    algorithm_name,
    settings_class,
)
from flame_rl.settings.checks import refuse
from flame_rl.settings.environments import environment_id, environment_name
from flame_rl.settings.execution import Execution, Output
from flame_rl.settings.experiment import EnvironmentSource, Experiment
from flame_rl.system.errors import UsageError
from flame_rl.wire.fields import from_data, to_data

PARTS = ("experiment", "algorithm", "execution", "output")


@dataclass(frozen=True, init=False)
class TrainConfig:
    """The configuration of a run.

        TrainConfig(env="ant", algorithm="ppo", epochs=5, workers=4)

    Attributes:
        experiment: decides the result, together with `algorithm`.
        algorithm: the algorithm's settings, such as `flame_rl.settings.ppo.PPO`.
        execution: where episodes are collected and networks are computed; but for the device, it
            changes no result.
        output: what is written and shown; changes no result.
    """

    experiment: Experiment
    algorithm: AlgorithmSettings
    execution: Execution
    output: Output

    def __init__(
        self, env: EnvironmentSource = "cartpole", algorithm: str = "reinforce", **settings: Any
    ) -> None:
        """Take the defaults, then the algorithm's preset for the environment, then `settings`.
        With `episodes_per_iter`, the preset's steps_per_iter has no effect.

        Args:
            env: an environment's name or Gymnasium id, or a function that makes one.
            algorithm: a name in `flame_rl.settings.algorithms`.
            settings: values of fields, of whichever part, by name.

        Raises:
            UsageError: a setting does not exist, or has a value that it cannot have.
        """
        if algorithm not in ALGORITHMS:
            refuse("algorithm", " or ".join(ALGORITHMS), algorithm)
        chosen = settings_class(algorithm)
        refuse_both_sizes(settings)
        env_id = environment_id(environment_name(env))
        preset = chosen.presets.get("", {}) | chosen.presets.get(env_id, {})
        if "episodes_per_iter" in settings:
            preset.pop("steps_per_iter", None)
        values = preset | settings | {"env": env}
        kinds = _kinds(chosen)
        parts = {
            part: kind(**{name: values.pop(name) for name in names_of(kind) if name in values})
            for part, kind in kinds.items()
        }
        if values:
            name = next(iter(values))
            raise UsageError(f"{name}: {no_setting(name, algorithm)}")
        self._set(parts)

    @classmethod
    def of_parts(cls, **parts: Any) -> TrainConfig:
        """A configuration made of its four parts, without presets."""
        config = object.__new__(cls)
        config._set(parts)
        return config

    def changed(self, **settings: Any) -> TrainConfig:
        """A copy with new values of some fields, of whichever part. With `episodes_per_iter` alone,
        steps_per_iter has no effect any more. Raises UsageError."""
        refuse_both_sizes(settings)
        if "episodes_per_iter" in settings:
            settings = {"steps_per_iter": None} | settings
        parts = {part: getattr(self, part) for part in PARTS}
        # Together, because some values are refused without others.
        changes: dict[str, dict[str, Any]] = {part: {} for part in PARTS}
        for name, value in settings.items():
            part = next((p for p in PARTS if name in names_of(type(parts[p]))), None)
            if part is None:
                raise UsageError(f"{name}: {no_setting(name, self.algorithm_name)}")
            changes[part][name] = value
        return TrainConfig.of_parts(**{p: replace(parts[p], **changes[p]) for p in PARTS})

    @property
    def overlap(self) -> bool:
        """Whether the next iteration is collected during an update; see the algorithms' flag."""
        return getattr(self.algorithm, "overlap", False)

    @property
    def algorithm_name(self) -> str:
        """The algorithm's name on the command line."""
        return algorithm_name(self.algorithm)

    def __str__(self) -> str:
        """All settings as training uses them, one per line."""
        rows = [f"{'algorithm':<24}{self.algorithm_name}"]
        for part in PARTS:
            rows += [f"\n{part}"]
            for name in names_of(type(getattr(self, part))):
                value = getattr(getattr(self, part), name)
                value = self.experiment.env_name if name == "env" else value
                words = value if isinstance(value, tuple) else (value,)
                text = " ".join(map(str, words)) or "none"
                rows.append(f"  {name:<24}{text}")
        return "\n".join(rows)

    def to_data(self) -> dict[str, dict[str, Any]]:
        """The settings by part as JSON values, for config.json and checkpoints."""
        parts = {part: to_data(getattr(self, part)) for part in PARTS}
        parts["experiment"]["env"] = self.experiment.env_name
        parts["algorithm"] = {"name": self.algorithm_name} | parts["algorithm"]
        parts["output"] |= {"resume": None, "reproduce": None}
        return parts

    @classmethod
    def from_data(cls, data: Any) -> TrainConfig:
        """The inverse of `to_data`. A setting that an earlier version did not have, and that the
        data lack, has its default, except that the device is the CPU. Raises UsageError if the data
        are no configuration."""
        try:
            data = {part: dict(settings) for part, settings in dict(data).items()}
            kinds = _kinds(_known(data["algorithm"].pop("name")))
            if unknown := data.keys() - kinds.keys():
                raise ValueError(f"{', '.join(map(str, unknown))}: no part of a configuration")
            # Where every run learned before there was a choice.
            data["execution"].setdefault("device", "cpu")
            return cls.of_parts(**{p: from_data(kind, data[p], p) for p, kind in kinds.items()})
        except (UsageError, ImportError, LookupError, TypeError, ValueError) as error:
            raise UsageError(
                f"config.json: not a configuration that this version can read: {error}"
            ) from error

    def to_json(self) -> str:
        """The text of config.json."""
        return json.dumps(self.to_data(), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> TrainConfig:
        """The inverse of `to_json`. Raises UsageError if the text is no configuration."""
        try:
            return cls.from_data(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise UsageError(f"config.json: not JSON: {error}") from error

    def _set(self, parts: dict[str, Any]) -> None:
        for part in PARTS:
            object.__setattr__(self, part, parts[part])


def names_of(kind: type) -> list[str]:
    """The names of a settings class's fields."""
    return [field.name for field in fields(kind)]


def refuse_both_sizes(settings: Mapping[str, Any]) -> None:
    """Raise UsageError where both sizes of an iteration are given."""
    if None not in (settings.get("episodes_per_iter"), settings.get("steps_per_iter")):
        raise UsageError(
            "--episodes-per-iter: --steps-per-iter takes its place; leave one of the two out"
        )


def no_setting(name: str, algorithm: str) -> str:
    """An error text for a setting that the algorithm lacks: which algorithms have it, if any."""
    owners = [other for other in ALGORITHMS if name in names_of(settings_class(other))]
    if owners:
        *others, last = owners
        listed = f"{', '.join(others)} and {last}" if others else last
        return f"a setting of {listed}; {algorithm} has none of that name"
    return "no such setting; print(TrainConfig()) shows them all"


def _known(algorithm: object) -> type[AlgorithmSettings]:
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm: {algorithm!s:.40} is none of {', '.join(ALGORITHMS)}")
    return settings_class(algorithm)


def _kinds(algorithm: type[AlgorithmSettings]) -> dict[str, type]:
    """The classes of the four parts, where the algorithm's settings have this class."""
    classes = (Experiment, algorithm, Execution, Output)
    return dict(zip(PARTS, classes, strict=True))
