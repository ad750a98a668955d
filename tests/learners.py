"""Learners for tests; apart from what else they need, because this imports torch."""

from __future__ import annotations

import model
from flame_rl.config import TrainConfig
from flame_rl.learner.learner import Learner
from flame_rl.messages import EnvironmentSpec
from flame_rl.presets import with_presets


def make_learner(spec: EnvironmentSpec, **options) -> Learner:
    """A learner with the presets of that environment, but for the options."""
    config = with_presets(TrainConfig(env=spec.env_id, **options), spec.env_id)
    return Learner(config, *model.make_networks(spec, config))
