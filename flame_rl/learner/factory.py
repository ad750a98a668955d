"""Makes the learner that the settings ask for."""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import partial
from typing import Any

from flame_rl.learner.demonstrations.demonstrations import Demonstrations
from flame_rl.learner.learner import Learner
from flame_rl.learner.rewards import make_rewards
from flame_rl.learner.training.choose import computing_on
from flame_rl.learner.training.device import choose_device, device_of, reproducible
from flame_rl.learner.training.flat import modules_in, refuse_common_parameters
from flame_rl.settings.config import TrainConfig
from flame_rl.settings.groups import Critics, PolicyGradient, Replay
from flame_rl.system.errors import UsageError
from flame_rl.system.machine import keep_freed_memory
from flame_rl.wire.inputs import why_no_keys
from flame_rl.wire.messages import EnvironmentSpec


def make_learner(config: TrainConfig, spec: EnvironmentSpec) -> Learner:
    """A learner with the configured algorithm; its initial weights follow from the seed. Raises
    UsageError if the algorithm or `make_rewards` refuses the settings, or there is no graphics
    card."""
    rewards, demonstrations = make_rewards(config.experiment, spec), None
    _refuse_policy_observations(config, spec)
    if config.experiment.demonstrations is not None:
        # What a run without them does not need.
        from flame_rl.learner.demonstrations.files import read_demonstrations

        read = partial(read_demonstrations, config.experiment, spec, rewards)
        needs_masks = spec.masked and isinstance(config.algorithm, Replay)
        demonstrations = Demonstrations(config.experiment, read, needs_masks)
    # Algorithms learn from one number.
    spec = replace(spec, reward_shape=())
    factory, own = _named(config.algorithm.frame), _named(config.algorithm.learner)
    device = choose_device(config, spec)
    keep_freed_memory()
    with reproducible(device, config.experiment.seed), computing_on(device_of(device)):
        algorithm = factory(config, spec, own, demonstrations)
    learner = Learner(config, algorithm, rewards, demonstrations)
    refuse_common_parameters(modules_in(learner.parts))
    return learner


def _refuse_policy_observations(config: TrainConfig, spec: EnvironmentSpec) -> None:
    """Raise UsageError for keys that the policy alone cannot observe."""
    keys, settings = config.experiment.policy_observations, config.algorithm
    if not keys:
        return
    name = "--policy-observations"
    if not isinstance(settings, PolicyGradient | Critics):
        raise UsageError(
            f"{name}: {config.algorithm_name} has no critic beside its policy, which would observe "
            "more; choose reinforce, a2c, ppo, impala, ddpg, td3 or sac, or leave the flag out"
        )
    if settings.shared_torso:
        raise UsageError(
            f"{name}: with --shared-torso policy and values are one network, which observes the "
            "same; leave one of the two out"
        )
    if why := why_no_keys(spec.env_id, spec.observation_space, keys):
        raise UsageError(f"{name}: {why}")


def _named(name: str) -> Any:
    """The function or class that "module:name" is."""
    module, _, name = name.partition(":")
    return getattr(importlib.import_module(module), name)
