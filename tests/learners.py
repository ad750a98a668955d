"""Learners for tests; apart from what else they need, because this imports torch."""

from __future__ import annotations

import model
from flame_rl.learner.learner import Learner
from flame_rl.settings.config import TrainConfig
from flame_rl.settings.presets import with_presets
from flame_rl.wire.messages import EnvironmentSpec


def make_learner(spec: EnvironmentSpec, **options) -> Learner:
    """A learner with the presets of that environment, but for the options."""
    config = with_presets(TrainConfig(env=spec.env_id, **options), spec.env_id)
    return Learner(config, *model.make_networks(spec, config))
