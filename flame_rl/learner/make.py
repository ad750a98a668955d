"""Makes a learner. `_imported` is the table of the algorithms, which imports the chosen one."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from flame_rl.learner.learner import Algorithm, Learner, modules_in
from flame_rl.learner.own_model import file_digest, model_of
from flame_rl.learner.rewards import make_rewards
from flame_rl.learner.training.autograd import AutogradNetwork, name_of
from flame_rl.learner.training.device import choose_device, reproducible
from flame_rl.learner.training.frames import Stacks
from flame_rl.modules.networks import PolicyNetwork, inputs_of
from flame_rl.nets.acting import ActingPolicy
from flame_rl.nets.layers import ROW_BLOCK
from flame_rl.settings.algorithms import Critics, OnPolicySettings, PolicyGradient, ReplaySettings
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from flame_rl.system.machine import keep_freed_memory
from flame_rl.wire.inputs import observation_dtype, step_columns, why_no_keys
from flame_rl.wire.masks import ACTION_MASKS, pack_masks
from flame_rl.wire.messages import EnvironmentSpec, Layer, PolicySnapshot
from flame_rl.wire.packing import WireError

if TYPE_CHECKING:
    from flame_rl.learner.demonstrations.files import Demonstrations


def make_learner(config: TrainConfig, spec: EnvironmentSpec) -> Learner:
    """A learner with the configured algorithm; its initial weights follow from the seed. Raises
    UsageError if the algorithm, or `make_rewards`, refuses the settings, or no card is there."""
    rewards, demonstrations = make_rewards(config.experiment, spec), None
    _refuse_policy_observations(config, spec)
    if config.experiment.demonstrations is not None:
        # Here and not above: few runs have any.
        from flame_rl.learner.demonstrations.files import Demonstrations

        needs_masks = spec.masked and isinstance(config.algorithm, ReplaySettings)
        demonstrations = Demonstrations(config.experiment, spec, rewards, needs_masks)
    # Algorithms learn from one number.
    spec = replace(spec, reward_shape=())
    device = choose_device(config, spec)
    keep_freed_memory()
    with reproducible(device, config.experiment.seed):
        algorithm = _make_algorithm(config, spec, demonstrations)
        learner = Learner(config, algorithm, rewards)
        learner.networks_file = file_digest(model_of(config))
        modules = modules_in(learner.parts)
        _refuse_common_parameters(modules)
        for name, array in learner.weights().items():
            if not np.isfinite(array).all():
                raise UsageError(f"model.py: {name} is NaN or infinite at first; initialise it")
        _refuse_unusable(modules, config, spec)
    return learner


def _refuse_unusable(
    modules: dict[str, nn.Module], config: TrainConfig, spec: EnvironmentSpec
) -> None:
    """Raise UsageError unless actors can run the policy in this environment, compute what a trained
    `PolicyNetwork` does, and losses see of each network what they need. Tried on observations as
    of the first steps of episodes."""
    shared = modules.get("shared")
    policy = modules["policy"] if shared is None else shared.policy
    acting = _acting(policy, spec)
    # Zeros and ones, which any observation may have; each row is another one.
    places, rows = np.arange(spec.observation_dim) % ROW_BLOCK, np.arange(ROW_BLOCK)
    seen = (places >= rows[:, None]).astype(observation_dtype(spec.observation_space))
    frames = AutogradNetwork(policy).frames
    samples = {"inputs": seen if frames == 1 else Stacks(seen, 0 * rows, rows, frames)}
    samples["time"] = 0 * rows
    if isinstance(policy, PolicyNetwork):

        def output_of(own: PolicyNetwork, tensors: dict[str, Tensor]) -> tuple[Tensor]:
            if shared is None:
                return (own(*inputs_of(tensors)),)
            return (own.network[-1](shared.features(own.preprocess(*inputs_of(tensors)))),)

        (output,) = AutogradNetwork(policy, output_of).outputs(samples)
        trained = policy.for_actors(output.reshape(ROW_BLOCK, -1))
        acted = acting.forward(seen, acting.states(ROW_BLOCK), rows)
        close = 1e-3 * np.abs(acted).max()
        same = trained.shape == acted.shape
        if not same or not np.allclose(trained, acted, rtol=1e-3, atol=close, equal_nan=True):
            raise UsageError(
                f"model.py: the policy, {type(policy).__name__}, computes something else than the "
                "layers that actors get of it: outputs differ for the same observations; give a "
                "layer of its own a `kind` (docs/add-a-layer.md), and a policy of its own a "
                "`snapshot`"
            )
    actions = acting.act(seen, None, acting.states(ROW_BLOCK), rows)
    samples["actions"] = actions
    if spec.masked:
        samples[ACTION_MASKS] = pack_masks(np.ones((ROW_BLOCK, spec.action_dim), bool))
    number = [(ROW_BLOCK,)]  # one for each step
    wanted = {"policy": 2 * number if config.algorithm.has_log_probs else None, "value": number}
    atoms = getattr(config.algorithm, "atoms", 1)
    wanted |= {name: [(ROW_BLOCK, atoms)] for name in ("critic1", "critic2")}
    for name, module in (modules | {"policy": policy}).items():
        given = samples
        if name not in wanted:  # a copy, or checked as the policy
            continue
        if name == "value":
            _refuse_without(module, model_of(config).value, "ValueNetwork", "last", "scale")
        elif name != "policy":
            _refuse_without(module, model_of(config).critic, "CriticNetwork")
            given = {"inputs": np.concatenate([seen, actions], axis=1, dtype=np.float32)}
        # A copy, because a pass may count.
        shapes = [each.shape for each in AutogradNetwork(copy.deepcopy(module)).outputs(given)]
        if shapes != wanted[name] and (wanted[name] or len(shapes) != 1):
            raise UsageError(
                f"model.py: {name_of(module.outputs)} returned {shapes} for {ROW_BLOCK} steps, in "
                f"place of {wanted[name] or 'one alone'}; return a tuple of what the loss sees "
                "(flame_rl/modules/networks.py; critics have --atoms outputs)"
            )


def _refuse_without(
    module: nn.Module, make: Callable[..., nn.Module], kind: str, *names: str
) -> None:
    """Raise UsageError unless a network that `make` of model.py made has `outputs` and these."""
    for name in ("outputs", *names):
        if not hasattr(module, name):
            raise UsageError(
                f"model.py: {name_of(make)} returned {type(module).__name__}, which has no {name}; "
                f"make it a {kind}, or give it what that has (flame_rl/modules/networks.py)"
            )


def _acting(policy: nn.Module, spec: EnvironmentSpec) -> ActingPolicy:
    """The policy as actors have it. Raises UsageError if they refuse it, or it is one for other
    observations or actions."""
    for name in ("outputs", "snapshot"):
        if not hasattr(policy, name):
            raise UsageError(
                f"model.py: the policy, {type(policy).__name__}, has no {name}(); return one of "
                "flame_rl.modules.networks, such as CategoricalPolicy (docs/python.md)"
            )
    snapshot = policy.snapshot()
    is_one = isinstance(snapshot, PolicySnapshot)
    if not is_one or not all(isinstance(each, Layer) for each in snapshot.layers):
        raise UsageError(
            f"model.py: {name_of(policy.snapshot)} returned {snapshot!r:.100}, which is no "
            "PolicySnapshot of a tuple of Layers and a head"
        )
    try:
        acting = ActingPolicy(snapshot)
    except WireError as error:
        raise UsageError(
            f"model.py: the policy cannot act: {error}. Actors run the layers and heads of "
            "flame_rl/nets/; make it of those, or smaller with --hidden-sizes"
        ) from error
    (actions,) = (column for column in step_columns(spec) if column.name == "actions")
    own, there = (
        f"observations of {width} numbers and actions of "
        + (f"choices {list(of.choices)}" if of.choices else f"{math.prod(of.shape)} real numbers")
        for width, of in ((acting.observation_dim, acting.head), (spec.observation_dim, actions))
    )
    if own != there:
        raise UsageError(f"model.py: the policy is for {own}, and {spec.env_id} has {there}")
    return acting


def _refuse_common_parameters(modules: dict[str, nn.Module]) -> None:
    """Raise UsageError where a parameter belongs to two networks: only one would train it."""
    owners: dict[nn.Parameter, str] = {}
    for name, module in modules.items():
        for of, parameter in module.named_parameters():
            owner = owners.setdefault(parameter, name)
            if owner != name:
                raise UsageError(
                    f"model.py: the networks {owner!r} and {name!r} have the parameter {of} in "
                    "common; add --shared-torso, or give each its own layers"
                )


def _refuse_policy_observations(config: TrainConfig, spec: EnvironmentSpec) -> None:
    """Raise UsageError for keys that the policy alone cannot observe."""
    keys, settings = config.experiment.policy_observations, config.algorithm
    why = ""
    if keys and not isinstance(settings, PolicyGradient | Critics):
        why = (
            f"{config.algorithm_name} has no critic beside its policy; choose reinforce, a2c, ppo, "
            "impala, ddpg, td3 or sac, or leave the flag out"
        )
    elif keys and settings.shared_torso:
        why = "with --shared-torso policy and values are one network; leave one of the two out"
    elif keys:
        why = why_no_keys(spec.env_id, spec.observation_space, keys)
    if why:
        raise UsageError(f"--policy-observations: {why}")


def _make_algorithm(
    config: TrainConfig, spec: EnvironmentSpec, demonstrations: Demonstrations | None
) -> Algorithm:
    """The configured algorithm, with new networks. Raises UsageError where it is not for these
    actions, or not for these settings."""
    chosen = _imported(config.algorithm_name)
    if isinstance(config.algorithm, ReplaySettings):
        from flame_rl.learner.off_policy.update import OffPolicyAlgorithm

        return OffPolicyAlgorithm(config, spec, chosen, demonstrations)
    if isinstance(config.algorithm, OnPolicySettings):
        if demonstrations is not None:
            from flame_rl.learner.demonstrations.cloning import ClonedFirst

            return ClonedFirst(config, spec, chosen, demonstrations)
        from flame_rl.learner.on_policy.update import OnPolicyAlgorithm

        return OnPolicyAlgorithm(config, spec, chosen)
    return chosen(config, spec, demonstrations)


def _imported(name: str) -> Callable[..., Any]:
    """With `OnPolicySettings` the algorithm's `Update`, with `ReplaySettings` what makes its
    `GradientStep`, with others what makes the `Algorithm`."""
    match name:
        case "reinforce":
            from flame_rl.learner.algorithms.reinforce import reinforce as chosen
        case "a2c":
            from flame_rl.learner.algorithms.a2c import a2c as chosen
        case "ppo":
            from flame_rl.learner.algorithms.ppo import ppo as chosen
        case "pqn":
            from flame_rl.learner.algorithms.pqn import PQN as chosen  # noqa: N811
        case "bc":
            from flame_rl.learner.algorithms.bc import Imitation as chosen  # noqa: N813
        case "dqn":
            from flame_rl.learner.algorithms.dqn import DQN as chosen  # noqa: N811
        case "sarsa":
            from flame_rl.learner.algorithms.sarsa import Sarsa as chosen  # noqa: N813
        case "successor":
            from flame_rl.learner.algorithms.successor import Successor as chosen  # noqa: N813
        case "r2d2":
            from flame_rl.learner.algorithms.r2d2 import R2D2 as chosen  # noqa: N811
        case "impala":
            from flame_rl.learner.algorithms.impala import Impala as chosen  # noqa: N813
        case "ddpg":
            from flame_rl.learner.algorithms.ddpg import DDPG as chosen  # noqa: N811
        case "td3":
            from flame_rl.learner.algorithms.td3 import TD3 as chosen  # noqa: N811
        case "sac":
            from flame_rl.learner.algorithms.sac import SAC as chosen  # noqa: N811
    return chosen
