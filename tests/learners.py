"""Learners for tests; apart from what else they need, because this imports torch."""

from __future__ import annotations

from flame_rl.learner.learner import Learner
from flame_rl.learner.learner import make_learner as learner_of_config
from flame_rl.settings.algorithms import ALGORITHMS, settings_class
from flame_rl.settings.config import TrainConfig, names_of
from flame_rl.wire.messages import EnvironmentSpec


def make_config(env: str, **options) -> TrainConfig:
    """The presets of that environment, but for the options; those of other algorithms are left
    out."""
    algorithm = options.get("algorithm", "reinforce")
    foreign = {name for other in ALGORITHMS for name in names_of(settings_class(other))}
    foreign -= set(names_of(settings_class(algorithm)))
    chosen = {name: value for name, value in options.items() if name not in foreign}
    return TrainConfig(env=env, **chosen)


def make_learner(spec: EnvironmentSpec, **options) -> Learner:
    """A learner of `make_config`."""
    return learner_of_config(make_config(spec.env_id, **options), spec)
