"""Networks that see pictures beside numbers: their layers, what they give, and that all learn."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

import model
from flame_rl.learner.training.choose import network_of
from flame_rl.learner.training.frames import SideBySide, Stacks, time_steps
from flame_rl.modules.layers import Branches, Dense, layers_of
from flame_rl.modules.observations import normalizers_of
from flame_rl.nets.acting import ActingPolicy
from flame_rl.wire import codec
from flame_rl.wire.inputs import observation_columns
from flame_rl.wire.messages import EnvironmentSpec, Episode, Layer, PolicySnapshot
from tests.helpers import together
from tests.learners import make_config, make_learner, shaken

pytestmark = pytest.mark.usefixtures("one_thread")
SPACE = spaces.Dict(
    arm=spaces.Box(-9, 9, (2,)),
    camera=spaces.Box(0, 255, (2, 6, 5), np.uint8),
    lamp=spaces.Discrete(3),
    map=spaces.Box(0, 1, (4, 4), bool),
)
# Their slices of the flattened observation.
ARM, CAMERA, LAMP, MAP = slice(2), slice(2, 62), slice(62, 65), slice(65, 81)
LARGE = spaces.Dict(arm=spaces.Box(-9, 9, (2,)), camera=spaces.Box(0, 255, (36, 40), np.uint8))
CHOICES, NUMBERS = spaces.Discrete(5), spaces.Box(-1, 1, (3,))


def spec_of(space: spaces.Space = SPACE, actions: spaces.Space = CHOICES) -> EnvironmentSpec:
    return EnvironmentSpec("X-v0", space, actions)


def columns_of(rows: int, seed: int = 0, space: spaces.Space = SPACE) -> dict[str, np.ndarray]:
    """Random observations, input by input."""
    rng = np.random.default_rng(seed)
    return {
        column.name: rng.normal(3, 2, (rows, *column.shape)).astype(np.float32)
        if column.dtype == "float32"
        else rng.integers(0, 256, (rows, *column.shape)).astype(np.uint8)
        for column in observation_columns(space)
    }


def policy_of(spec: EnvironmentSpec, **options) -> torch.nn.Module:
    """Away from its small first outputs, with statistics."""
    settings = {"hidden_sizes": (12,), "algorithm": "ppo", "activation": "relu"} | options
    torch.manual_seed(0)
    policy = shaken(model.policy(spec, make_config("X-v0", **settings)), 0.05)
    rng = np.random.default_rng(3)
    for numbers, part in normalizers_of(policy.normalizer):
        part.set(*rng.uniform(1, 4, (2, numbers.stop - numbers.start)))
    return policy


def by_definition(module, x: np.ndarray) -> np.ndarray:
    """The output of a policy's layers for [rows, frames, D], written out for `SPACE`."""
    frames = x.shape[1]
    arm, _, lamp, _ = module.normalizer.branches
    convolutions = [branch[0] for branch in module.network[0].branches if len(branch)]

    def normalized(branch, numbers):
        scaled = (numbers - branch[0].mean.numpy()) / branch[0].std.numpy()
        return scaled.clip(-10, 10).swapaxes(1, 2).reshape(len(x), -1)

    def convolved(convolution, pictures, shape):
        rows, columns, channels = shape
        # The frames of a channel follow each other.
        pictures = pictures.reshape(len(x), frames, rows, columns, channels)
        pictures = pictures.transpose(0, 2, 3, 4, 1).reshape(len(x), rows, columns, -1)
        weight, bias = convolution.weight.detach().numpy(), convolution.bias.detach().numpy()
        made = np.zeros((len(x), rows - 2, columns - 2, 16))
        for row in range(rows - 2):
            for column in range(columns - 2):
                window = pictures[:, row : row + 3, column : column + 3]
                made[:, row, column] = np.einsum("bhwc,fchw->bf", window, weight) + bias
        return made.clip(0).reshape(len(x), -1)

    features = [
        normalized(arm, x[..., ARM]),
        convolved(convolutions[0], x[..., CAMERA] / 255, (6, 5, 2)),
        normalized(lamp, x[..., LAMP]),
        convolved(convolutions[1], x[..., MAP], (4, 4, 1)),
    ]
    y = np.concatenate(features, axis=1)
    for layer in module.network[1:]:
        if isinstance(layer, Dense):
            y = y @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
        else:
            y = y.clip(0)
    return y


@pytest.mark.parametrize("frames", [1, 3])
def test_what_acts_and_what_learns_are_the_definition(frames):
    """Step by step in NumPy, and all at once from the columns of an episode."""
    policy = policy_of(spec_of(), frame_stack=frames)
    columns = columns_of(6)
    whole = SideBySide(tuple(columns.values()))
    flat = np.asarray(whole)
    stacked = np.stack(
        [
            np.stack([flat[t - k] if t >= k else np.zeros(81) for k in reversed(range(frames))])
            for t in range(6)
        ]
    )
    # Missing observations are 0 after the normalisation; before it that is the mean.
    acting = ActingPolicy(codec.decode_snapshot(codec.encode_snapshot(policy.snapshot())))
    states = acting.states(8)
    acted = [acting.forward(np.tile(row, (8, 1)), states)[0] for row in flat]
    inputs = whole
    if frames > 1:
        inputs = Stacks(whole, time_steps(np.array([6])), np.arange(6), frames)
    network = network_of(policy, lambda module, samples: (module(*samples.values()),))
    (learned,) = network.outputs({"inputs": inputs})
    np.testing.assert_allclose(acted, learned, rtol=1e-4, atol=1e-4)
    expected = by_definition(policy, stacked)
    np.testing.assert_allclose(acted[frames - 1 :], expected[frames - 1 :], rtol=1e-4, atol=1e-4)
    assert learned.std(axis=0).min() > 1e-2


def random_episodes(spec: EnvironmentSpec, seed: int):
    rng, episodes = np.random.default_rng(seed), []
    for index, length in enumerate([9, 4, 12]):
        actions = rng.integers(0, 5, length).astype(np.int32)
        if spec.continuous:
            actions = rng.standard_normal((length, 3)).astype(np.float32)
        columns = columns_of(length + 1, seed + index, spec.observation_space)
        columns |= {"actions": actions, "rewards": rng.standard_normal(length)}
        episodes.append(Episode(index, columns, index != 1, index == 1))
    return together(episodes)


@pytest.mark.parametrize("algorithm", ["ppo", "td3"])
def test_the_statistics_are_those_of_each_input(algorithm):
    """NumPy's mean and deviations over all observations of two updates."""
    spec = spec_of(LARGE, NUMBERS)
    options = {"algorithm": algorithm, "hidden_sizes": (4,), "normalize_observations": True}
    options |= {"warm_up_steps": 0, "batch_size": 4, "updates_per_step": 0.05, "capacity": 100}
    learner = make_learner(spec, **options)
    batches = [random_episodes(spec, seed) for seed in range(2)]
    for batch in batches:
        learner.update(batch)
    arm, camera = (
        np.concatenate([batch.columns[column.name] for batch in batches]).astype(np.float64)
        for column in observation_columns(LARGE)
    )
    layers = learner.snapshot().layers
    (normalize,) = [layer for layer in layers if layer.kind == "normalize"]
    assert normalize.input == 0
    np.testing.assert_allclose(normalize.arrays["mean"], arm.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(normalize.arrays["std"], arm.std(axis=0), rtol=1e-5)
    if algorithm == "ppo":
        (center,) = [layer for layer in layers if layer.kind == "center"]
        assert center.input == 1
        np.testing.assert_allclose(center.arrays["mean"], camera.mean(axis=0), rtol=1e-5)
        factor = 1 / np.sqrt(camera.var(axis=0).mean())
        np.testing.assert_allclose(center.arrays["factor"], [factor], rtol=1e-5)


def test_a_branch_may_have_any_layers():
    """What a user may put there: dense layers for the numbers, and a branch for each of two."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        Branches([2, 60], [[Dense(2, 5)], []]), Branches([5, 60], [[], [Dense(60, 3)]]), Dense(8, 4)
    )
    x = np.random.default_rng(0).standard_normal((8, 62)).astype(np.float32)
    acting = ActingPolicy(PolicySnapshot(0, layers_of(module), Layer("categorical", {})))
    with torch.no_grad():
        expected = module(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(acting.forward(x), expected, rtol=1e-5, atol=1e-6)
    # A network may end with branches.
    ends = ActingPolicy(PolicySnapshot(0, layers_of(*module[:2]), Layer("categorical", {})))
    assert ends.forward(x).shape == (8, 8)
