"""A policy that observes less than the values and critics do."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces

import model
from flame_rl.learner.make import make_learner
from flame_rl.nets.acting import ActingPolicy
from flame_rl.run.policy import Policy
from flame_rl.system.errors import UsageError
from flame_rl.wire.codec import decode_snapshot, encode_snapshot
from flame_rl.wire.messages import EnvironmentSpec
from tests.learners import make_config, shaken

NUMBERS = {
    "arm": spaces.Box(-1, 1, (3,), np.float32),
    "goal": spaces.Discrete(4),
    "speed": spaces.Box(-1, 1, (2,), np.float32),
}
# The order of a Dict of keyword arguments is that of their names.
WITH_PICTURES = NUMBERS | {
    "camera": spaces.Box(0, 255, (6, 5, 2), np.uint8),
    "map": spaces.Box(0, 255, (4, 4), np.uint8),
}
ACTIONS = {
    "ppo": spaces.Discrete(3),
    "sac": spaces.Box(-1, 1, (2,)),
    "td3": spaces.Box(-1, 1, (2,)),
}
MAKERS = {"ppo": model.policy, "sac": model.squashed_policy, "td3": model.deterministic_policy}


def spec_of(observed: dict, algorithm: str = "ppo") -> EnvironmentSpec:
    return EnvironmentSpec("X-v0", spaces.Dict(observed), ACTIONS[algorithm])


def policy_of(observed: dict, keys: tuple[str, ...], algorithm: str = "ppo", **options):
    options |= {"hidden_sizes": (8, 6), "policy_observations": keys}
    config = make_config("X-v0", algorithm=algorithm, **options)
    torch.manual_seed(0)
    return shaken(MAKERS[algorithm](spec_of(observed, algorithm), config))


def observations(observed: dict, rows: int, frames: int = 1) -> tuple[list[dict], np.ndarray]:
    """Observations, and the same flattened by Gymnasium, [rows, frames, D]."""
    space = spaces.Dict(observed)
    space.seed(3)
    drawn = [space.sample() for _ in range(rows * frames)]
    flat = np.stack([spaces.flatten(space, each) for each in drawn]).astype(np.float32)
    return drawn, flat.reshape(rows, frames, -1)


@pytest.mark.parametrize("frames", [1, 3])
@pytest.mark.parametrize(
    ("observed", "keys", "algorithm"),
    [
        (NUMBERS, ("arm", "speed"), "ppo"),
        (NUMBERS, ("goal",), "ppo"),
        (WITH_PICTURES, ("camera", "speed"), "ppo"),
        (WITH_PICTURES, ("map",), "ppo"),
        (WITH_PICTURES, ("arm", "goal"), "ppo"),
        (NUMBERS, ("goal", "speed"), "sac"),
        (NUMBERS, ("arm",), "td3"),
    ],
)
def test_it_is_the_policy_of_an_environment_with_these_keys_alone(
    observed, keys, algorithm, frames
):
    if frames > 1 and algorithm != "ppo":
        pytest.skip("no stacked frames")
    own = {key: space for key, space in observed.items() if key in keys}
    options = {"frame_stack": frames, "algorithm": algorithm}
    ours, theirs = policy_of(observed, keys, **options), policy_of(own, (), **options)
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
    drawn, flat = observations(observed, 8, frames)
    restricted = [{key: each[key] for key in keys} for each in drawn]
    flat_own = np.stack([spaces.flatten(spaces.Dict(own), each) for each in restricted])
    flat_own = flat_own.astype(np.float32).reshape(8, frames, -1)
    with torch.no_grad():
        outputs = [
            made(torch.from_numpy(x if frames > 1 else x[:, 0]))
            for made, x in ((ours, flat), (theirs, flat_own))
        ]
    assert torch.equal(*outputs)
    # Actors, after the way through the wire.
    acted = []
    for made, x in ((ours, flat), (theirs, flat_own)):
        acting = ActingPolicy(decode_snapshot(encode_snapshot(made.snapshot())))
        states = acting.states(8)
        outputs_of_steps = [
            acting.forward(np.ascontiguousarray(x[:, t]), states) for t in range(frames)
        ]
        acted.append(outputs_of_steps[-1])
    assert acted[0].tobytes() == acted[1].tobytes()
    np.testing.assert_allclose(acted[0], outputs[0], rtol=1e-4, atol=1e-5)


def test_what_it_does_not_observe_may_be_left_out():
    agent = Policy(policy_of(NUMBERS, ("arm", "goal")).snapshot(), spec_of(NUMBERS))
    (observation, *_), _ = observations(NUMBERS, 1)
    action = agent.act(observation)
    assert agent.act({key: observation[key] for key in ("arm", "goal")}) == action
    with pytest.raises(ValueError, match="'goal' is missing"):
        agent.act({"arm": observation["arm"], "speed": observation["speed"]})


@pytest.mark.parametrize(
    ("options", "observed", "text"),
    [
        ({"algorithm": "dqn"}, NUMBERS, "--policy-observations: dqn has no critic beside its"),
        ({"shared_torso": True}, NUMBERS, "with --shared-torso policy and values are one network"),
        ({}, None, "is no Dict"),
        ({"policy_observations": ("arms",)}, NUMBERS, "observes no 'arms'; it has arm, goal"),
    ],
)
def test_what_cannot_be_is_refused(options, observed, text):
    spec = spec_of(NUMBERS)
    if observed is None:
        spec = replace(spec, observation_space=NUMBERS["arm"])
    settings = {"algorithm": "ppo", "policy_observations": ("arm",)} | options
    with pytest.raises(UsageError, match=text):
        make_learner(make_config("X-v0", **settings), spec)
