"""The settings of a run and the numbers of an iteration by name, for TensorBoard and trackers."""

from __future__ import annotations

from flame_rl.run.results import IterationResult
from flame_rl.settings.config import TrainConfig

Settings = dict[str, str | float | bool]


def scalars_of(result: IterationResult) -> dict[str, float]:
    """Returns, metrics of the update, the evaluation where there was one, and times."""
    timing = result.timing
    scalars = {
        "reward/mean": result.reward_mean,
        "reward/std": result.reward_std,
        "reward/min": result.reward_min,
        "reward/max": result.reward_max,
        **{f"reward/{name}": value for name, value in result.reward_parts.items()},
        **{f"outcome/{name}": value for name, value in result.outcomes.items()},
        "episodes/length_mean": result.length_mean,
        "episodes/total": result.episodes,
        **{f"update/{name}": value for name, value in result.losses.items()},
        "speed/env_steps_per_second": timing.env_steps_per_second,
        "seconds/collecting": timing.collecting,
        "seconds/updating": timing.updating,
        "seconds/waiting": timing.waiting,
    }
    if result.evaluation is not None:
        scalars["seconds/evaluating"] = timing.evaluating
        evaluation = result.evaluation.numbers()
        scalars |= {f"evaluation/{name}": value for name, value in evaluation.items()}
    return scalars


def settings_of(config: TrainConfig) -> Settings:
    """The settings that decide the result, by name; of a list its words, of None the word none."""
    sections = config.to_data()
    values = sections["experiment"] | sections["algorithm"]
    values["algorithm"] = values.pop("name")
    return {name: _as_typed(value) for name, value in values.items()}


def _as_typed(value: object) -> str | float | bool:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return "none" if value is None else value
