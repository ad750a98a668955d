"""The heads of value-based and deterministic policies against torch, plain loops and statistics."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

import model
from flame_rl.learner.compiled.network import CompiledNetwork
from flame_rl.learner.training.autograd import AutogradNetwork
from flame_rl.learner.training.choose import in_training
from flame_rl.nets.acting import ActingPolicy
from flame_rl.nets.kinds import HEADS
from flame_rl.settings.config import TrainConfig
from flame_rl.wire.masks import allowed_in, mask_bytes, pack_masks
from flame_rl.wire.messages import EnvironmentSpec, Layer, PolicySnapshot
from tests.helpers import snapshot_with


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


EPSILON = {"epsilon": floats(0.3), "repeat": floats(0)}
SUPPORT = floats(-10, -2.5, 0, 1, 30)


def test_the_value_of_a_distribution_is_its_mean():
    rng = np.random.default_rng(1)
    actions, atoms = 3, len(SUPPORT)
    logits = rng.standard_normal((200, actions * atoms)) * 4
    logits[0] *= 1000  # no overflow
    head = HEADS["epsilon_greedy_distribution"](actions * atoms, support=SUPPORT, **EPSILON)
    expected = np.zeros((200, actions))
    for action in range(actions):
        first = action * atoms
        chances = torch.softmax(torch.from_numpy(logits[:, first : first + atoms]), dim=1)
        expected[:, action] = (chances @ torch.from_numpy(SUPPORT).double()).numpy()
    np.testing.assert_allclose(head.values(logits), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(head.greedy(logits), expected.argmax(axis=1))
    noise = rng.random((200, 2))
    plain = HEADS["epsilon_greedy"](actions, **EPSILON)
    np.testing.assert_array_equal(head.sample(logits, noise), plain.sample(expected, noise))


def test_squashed_gaussian_is_torchs():
    rng = np.random.default_rng(2)
    output = rng.standard_normal((100, 6)) * 3
    output[:10, 3:] = [-50.0, 5.0, 700.0]  # logarithms of standard deviations beyond the range
    noise = rng.standard_normal((100, 3))
    head = HEADS["squashed_gaussian"](6)
    assert (head.noise, head.noise_width, head.shape) == ("normal", 3, (3,))
    mean, log_std = torch.from_numpy(output).split(3, dim=1)
    gaussian = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
    squash = torch.distributions.TanhTransform()
    expected = squash(gaussian.loc + gaussian.scale * torch.from_numpy(noise))
    np.testing.assert_allclose(head.sample(output, noise), expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(head.greedy(output), squash(mean), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("theta", [1.0, 0.15])
def test_noise_is_added_to_a_deterministic_action_and_clipped(theta):
    std = floats(0.1, 0.0, 2.0)
    head = HEADS["noisy"](3, std=std, theta=floats(theta))
    rng = np.random.default_rng(3)
    output, noise = rng.uniform(-1.2, 1.2, (100, 3)), rng.standard_normal((100, 3))
    actions, greedy = head.sample(output, noise), head.greedy(output)
    for row in range(100):
        for i in range(3):
            wanted = output[row, i] + float(std[i]) * noise[row, i]
            assert actions[row, i] == np.float32(max(-1.0, min(1.0, wanted)))
            assert greedy[row, i] == np.float32(max(-1.0, min(1.0, output[row, i])))
    assert abs(actions).max() == abs(greedy).max() == 1


def of_zeros(width: int, kind: str, **arrays: np.ndarray) -> ActingPolicy:
    """A policy with this head, whose network gives 0."""
    weight, bias = np.zeros((1, width), np.float32), np.zeros(width, np.float32)
    layer = Layer("dense", {"weight": weight, "bias": bias})
    return ActingPolicy(PolicySnapshot(0, (layer,), Layer(kind, arrays)))


def test_ornstein_uhlenbeck_by_definition():
    std = floats(0.02, 0.05)
    policy = of_zeros(2, "noisy", std=std, theta=floats(0.15))
    noise = policy.draw_noise(np.random.default_rng(4), 200)
    actions = policy.act(np.zeros((200, 1), np.float32), noise)
    generator = np.random.default_rng(4)
    x = [0.0, 0.0]
    for step in range(200):
        for i in range(2):
            theta = float(np.float32(0.15))
            x[i] = (1 - theta) * x[i] + float(std[i]) * generator.standard_normal()
        np.testing.assert_allclose(actions[step], x, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", HEADS)
def test_noise_has_the_same_bits_however_many_steps_are_drawn_at_a_time(kind):
    policy = ActingPolicy(snapshot_with(kind, 4, 3))
    expected = policy.draw_noise(np.random.default_rng(6), 60)
    assert expected.shape == (60, policy.head.noise_width)
    for size in (1, 2, 7, 59):
        generator = np.random.default_rng(6)
        before, parts = None, []
        for first in range(0, 60, size):
            parts.append(policy.draw_noise(generator, min(size, 60 - first), before))
            before = parts[-1][-1]
        assert np.concatenate(parts).tobytes() == expected.tobytes()


@pytest.mark.parametrize("repeat", [0.3, 0.95])
def test_exploration_is_repeated(repeat):
    policy = of_zeros(3, "epsilon_greedy", epsilon=floats(0.3), repeat=floats(repeat))
    noise = policy.draw_noise(np.random.default_rng(8), 1_000)
    generator, expected = np.random.default_rng(8), []
    for step in range(1_000):
        own, decides = [generator.random(), generator.random()], generator.random()
        repeats = step > 0 and decides < float(np.float32(repeat))
        expected.append(expected[-1] if repeats else own)
    np.testing.assert_array_equal(noise, expected)


def test_the_first_step_of_an_episode_never_repeats():
    policy = ActingPolicy(snapshot_with("epsilon_greedy", 4, 3))
    firsts = {policy.draw_noise(np.random.default_rng(n), 1)[0, 0] for n in range(50)}
    assert len(firsts) == 50


BOX = spaces.Box(-1, 1, (3,), np.float32)
FACTORS = (3, 1, 9, 2)
ROWS = 64


def random_masks(rng: np.random.Generator, choices: tuple[int, ...], rows: int) -> np.ndarray:
    """Bool [rows, A], one choice of each factor or more; the first row allows all, the second one
    choice alone."""
    parts = []
    for count in choices:
        part = rng.random((rows, count)) < 0.4
        part[np.arange(rows), rng.integers(count, size=rows)] = True
        part[0], part[1] = True, np.arange(count) == count - 1
        parts.append(part)
    return np.concatenate(parts, axis=1)


def naive(logits, allowed, action):
    """Log-probability of the action and entropy of one factor, over what is allowed."""
    total = sum(math.exp(x) for x, yes in zip(logits, allowed, strict=True) if yes)
    p = {i: math.exp(x) / total for i, x in enumerate(logits) if allowed[i]}
    return math.log(p[action]), -sum(each * math.log(each) for each in p.values()), p


def of_each_factor(row, choices):
    return np.split(row, np.cumsum(choices)[:-1])


def test_a_mask_takes_a_bit_for_each_choice():
    for count in (1, 7, 8, 9, 500):
        allowed = np.random.default_rng(count).random((4, 2, count)) < 0.5
        packed = pack_masks(allowed)
        assert packed.shape == (4, 2, mask_bytes(count)) and packed.dtype == np.uint8
        assert mask_bytes(count) == math.ceil(count / 8)
        np.testing.assert_array_equal(allowed_in({"action_masks": packed}, count), allowed)
    assert pack_masks(np.array([[1, 0, 0, 0, 0, 0, 0, 1, 1]])).tolist() == [[129, 128]]
    assert allowed_in({}, 3) is None


@pytest.mark.parametrize(("kind", "choices"), [("categorical", (9,)), ("factored", FACTORS)])
def test_what_is_forbidden_is_never_drawn_and_the_rest_as_often_as_it_should(kind, choices):
    rng = np.random.default_rng(1)
    width, rows, draws = sum(choices), 6, 40_000
    arrays = {} if kind == "categorical" else {"choices": np.array(choices, np.int32)}
    head = HEADS[kind](width, **arrays)
    logits, allowed = 2 * rng.standard_normal((rows, width)), random_masks(rng, choices, rows)
    seen = {"action_masks": pack_masks(allowed)}
    greedy = head.greedy(logits, seen).reshape(rows, -1)
    for row in range(rows):
        noise = rng.random((draws, len(choices)))
        # The ends of the interval, too.
        noise[0], noise[1] = 0, np.nextafter(1, 0)
        mask = {"action_masks": np.repeat(seen["action_masks"][row : row + 1], draws, axis=0)}
        taken = head.sample(np.repeat(logits[row : row + 1], draws, axis=0), noise, mask)
        columns = taken.reshape(draws, -1).T
        parts = of_each_factor(logits[row], choices), of_each_factor(allowed[row], choices)
        for factor, (of_factor, yes) in enumerate(zip(*parts, strict=True)):
            some = int(np.flatnonzero(yes)[0])
            _, _, p = naive(of_factor, yes, some)
            counts = np.bincount(columns[factor], minlength=len(yes))
            assert counts[~yes].sum() == 0
            assert greedy[row, factor] == max(p, key=p.get)
            for choice, probability in p.items():
                bound = 5 * math.sqrt(draws * probability * (1 - probability)) + 2
                assert abs(counts[choice] - draws * probability) <= bound


@pytest.mark.parametrize("choices", [(9,), FACTORS])
def test_log_probabilities_and_entropies(choices):
    """Compiled and by torch, against loops over what is allowed; tests/learner/test_compiled.py
    compares the gradients."""
    rng = np.random.default_rng(2)
    space = spaces.MultiDiscrete(choices) if len(choices) > 1 else spaces.Discrete(9)
    spec = EnvironmentSpec("X-v0", BOX, space, action_mask="info")
    config = TrainConfig(env="X-v0", algorithm="ppo", hidden_sizes=(), normalize_observations=False)
    torch.manual_seed(0)
    policy = model.policy(spec, config)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.normal_(0, 2)
    allowed = random_masks(rng, choices, ROWS)
    drawn = [
        [rng.choice(np.flatnonzero(part)) for part in of_each_factor(row, choices)]
        for row in allowed
    ]
    actions = np.array(drawn, np.int32)
    inputs = rng.standard_normal((ROWS, 3)).astype(np.float32)
    samples = {"inputs": inputs, "action_masks": pack_masks(allowed)}
    samples["actions"] = actions if len(choices) > 1 else actions[:, 0]

    weight, bias = (p.detach().numpy().astype(np.float64) for p in policy.network[-1].parameters())
    logits = inputs @ weight.T + bias
    expected = np.zeros((2, ROWS))
    for row in range(ROWS):
        parts = (of_each_factor(each[row], choices) for each in (logits, allowed))
        for factor, (part, yes) in enumerate(zip(*parts, strict=True)):
            expected[:, row] += naive(part, yes, actions[row, factor])[:2]
    assert expected[1][1] == 0  # one choice alone
    compiled = in_training(policy).network
    assert type(compiled) is CompiledNetwork
    for network in (compiled, AutogradNetwork(policy)):
        np.testing.assert_allclose(network.outputs(samples), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", ["epsilon_greedy", "epsilon_greedy_distribution"])
def test_epsilon_greedy_draws_and_maximises_over_what_is_allowed(kind, masked):
    rng = np.random.default_rng(3)
    actions, support = 9, floats(-3, 1, 4)
    allowed, noise = random_masks(rng, (actions,), 500) | (not masked), rng.random((500, 2))
    noise[:2, 1] = 0, np.nextafter(1, 0)
    arrays = {"epsilon": floats(0.5), "repeat": floats(0)}
    if kind == "epsilon_greedy":
        output = rng.standard_normal((500, actions))
        output[:9, 2] = output[:9, 5] = 4.0  # of equal values, the first
        values = output
    else:
        arrays["support"] = support
        output = rng.standard_normal((500, actions * 3))
        p = np.exp(output.reshape(500, actions, 3))
        values = (p / p.sum(axis=2, keepdims=True) * support).sum(axis=2)
    head = HEADS[kind](output.shape[1], **arrays)
    seen = ({"action_masks": pack_masks(allowed)},) * masked
    taken, greedy = head.sample(output, noise, *seen), head.greedy(output, *seen)
    for row in range(500):
        choices = [action for action in range(actions) if allowed[row, action]]
        best = max(choices, key=lambda action, row=row: values[row, action])
        anything = choices[math.floor(noise[row, 1] * len(choices))]
        assert greedy[row] == best
        assert taken[row] == (anything if noise[row, 0] < 0.5 else best)


@pytest.mark.parametrize("kind", ["categorical", "factored", "epsilon_greedy"])
def test_a_mask_that_allows_all_changes_no_bit(kind):
    rng = np.random.default_rng(4)
    arrays = {"factored": {"choices": np.array([4, 5], np.int32)}}.get(kind, {})
    if kind == "epsilon_greedy":
        arrays = {"epsilon": floats(0.5), "repeat": floats(0)}
    head = HEADS[kind](9, **arrays)
    output, noise = rng.standard_normal((200, 9)), rng.random((200, head.noise_width))
    seen = {"action_masks": pack_masks(np.ones((200, 9), bool))}
    np.testing.assert_array_equal(head.sample(output, noise), head.sample(output, noise, seen))
    np.testing.assert_array_equal(head.greedy(output), head.greedy(output, seen))
