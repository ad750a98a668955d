"""The update against an oracle that goes episode by episode and step by step."""

import copy
import math
import os

import numpy as np
import pytest
import torch

from flame_rl.learner.compiled import network as compiled
from flame_rl.learner.learner import Learner
from flame_rl.learner.training import slices
from flame_rl.settings.algorithms import ALGORITHMS
from flame_rl.wire.messages import Episode
from tests.helpers import run_script
from tests.learners import OF_DISCRETE_ACTIONS, ON_POLICY, learner_of, random_episodes


def policy_terms(policy, episode: Episode, t: int):
    """log pi(a_t | s_t) and the entropy, from the definitions."""
    output = policy.network(torch.from_numpy(episode.observations[t]))
    if episode.actions.dtype == np.int32:
        log_probs = torch.log_softmax(output, dim=0)
        return log_probs[int(episode.actions[t])], -(log_probs.exp() * log_probs).sum()
    z = (torch.from_numpy(episode.actions[t]) - output) / policy.log_std.exp()
    log_prob = (-0.5 * z**2 - policy.log_std - 0.5 * math.log(2 * math.pi)).sum()
    return log_prob, (policy.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()


def slow_returns(episodes, gamma, last):
    """One list an episode; `last` follows one that was truncated."""
    out = []
    for episode, value in zip(episodes, last, strict=True):
        g = value if episode.truncated else 0.0
        backwards = []
        for reward in episode.rewards[::-1]:
            g = reward + gamma * g
            backwards.append(g)
        out.append(backwards[::-1])
    return out


def normalized(lists):
    numbers = [x for one in lists for x in one]
    mean = sum(numbers) / len(numbers)
    std = math.sqrt(sum((x - mean) ** 2 for x in numbers) / len(numbers))
    return [[(x - mean) / std for x in one] for one in lists]


def oracle_advantages(learner: Learner, episodes, gamma: float, variant: str):
    """Episode by episode, step by step."""
    value = learner.parts["value"]
    with torch.no_grad():
        values = [
            [value(torch.from_numpy(o[None])).item() for o in e.observations] for e in episodes
        ]
    if variant == "gae":
        out = []
        for episode, v in zip(episodes, values, strict=True):
            v = [*v[:-1], v[-1] if episode.truncated else 0.0]
            a, backwards = 0.0, []
            for t in reversed(range(episode.length)):
                a = episode.rewards[t] + gamma * v[t + 1] - v[t] + gamma * 0.9 * a
                backwards.append(a)
            out.append(backwards[::-1])
        return normalized(out)
    if variant == "value":
        returns = slow_returns(episodes, gamma, [v[-1] for v in values])
        pairs = [zip(g, v[:-1], strict=True) for g, v in zip(returns, values, strict=True)]
        return normalized([[a - b for a, b in pair] for pair in pairs])
    # The constant value: mean return when it bootstraps the one truncated episode.
    constant = 0.0
    for _ in range(5000):
        returns = slow_returns(episodes, gamma, [constant] * len(episodes))
        constant = sum(map(sum, returns)) / sum(map(len, returns))
    if variant == "leave-one-out":
        out = []
        for i, own in enumerate(returns):
            others = [g for j, g in enumerate(returns) if j != i]
            means = [
                sum(g[t] if t < len(g) else 0.0 for g in others) / len(others)
                for t in range(len(own))
            ]
            out.append([a - b for a, b in zip(own, means, strict=True)])
        return normalized(out)
    return normalized(returns)


VARIANTS = {
    "none": {"algorithm": "reinforce", "baseline": "none"},
    "leave-one-out": {"algorithm": "reinforce", "baseline": "leave-one-out"},
    "value": {"algorithm": "reinforce", "baseline": "value"},
    "gae": {"algorithm": "a2c", "gae_lambda": 0.9, "value_epochs": 1},
}


@pytest.mark.parametrize("continuous", [True, False])
@pytest.mark.parametrize("slice_steps", [8192, 5])
@pytest.mark.parametrize("variant", VARIANTS)
def test_loss_and_gradient(continuous, slice_steps, variant, monkeypatch):
    monkeypatch.setattr(compiled, "_WORKSPACE", 1)
    monkeypatch.setattr(compiled, "_LEAST_ROWS", slice_steps)
    options = {"gamma": 0.9, "entropy_coefficient": 0.1} | VARIANTS[variant]
    learner = learner_of(continuous, **options)
    policy = copy.deepcopy(learner.parts["policy"])
    for parameter in policy.parameters():
        parameter.grad = None
    episodes = random_episodes(continuous)
    advantages = oracle_advantages(learner, episodes, 0.9, variant)
    total = 0.0
    for episode, own in zip(episodes, advantages, strict=True):
        for t in range(episode.length):
            log_prob, entropy = policy_terms(policy, episode, t)
            total = total - log_prob * own[t] - 0.1 * entropy
    expected = total / sum(e.length for e in episodes)
    expected.backward()
    metrics = learner.update(episodes)
    assert metrics["loss"] == pytest.approx(expected.item(), rel=1e-4, abs=1e-5)
    norm = math.sqrt(sum((p.grad**2).sum().item() for p in policy.parameters()))
    assert metrics["gradient_norm"] == pytest.approx(norm, rel=1e-4)
    flat = torch.cat([parameter.grad.reshape(-1) for parameter in policy.parameters()])
    # After the first step, Adam's sum of gradients is the gradient.
    np.testing.assert_allclose(
        learner.parts["policy_adam"].moments[0], flat.numpy(), rtol=1e-4, atol=1e-6
    )


def test_the_number_of_cores_changes_no_bit(monkeypatch):
    # So many slices that all cores compute some.
    monkeypatch.setattr(compiled, "_WORKSPACE", 1)
    monkeypatch.setattr(compiled, "_LEAST_ROWS", 1)
    digests = set()
    for cores in (1, 2, 7):
        monkeypatch.setattr(slices, "available_cores", lambda cores=cores: cores)
        for algorithm in ALGORITHMS:
            options = {"baseline": "value", "epochs": 2, "learning_rate": 1e-2, "warm_up_steps": 9}
            continuous = algorithm not in (*OF_DISCRETE_ACTIONS, "pqn")
            learner = learner_of(continuous, algorithm=algorithm, **options)
            metrics = [learner.update(random_episodes(continuous)) for _ in range(3)]
            digests.add((algorithm, learner.weights_digest(), str(metrics)))
    assert len(digests) == len(ALGORITHMS)


PEAK = """
import os, tracemalloc
import numpy as np
from tests.helpers import episode_of, spec_of, together
from tests.learners import make_learner

# What two threads hold at once depends on when they run; one core has one peak.
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])

def episodes(steps):
    rng = np.random.default_rng(0)
    observations = rng.standard_normal((steps + 1, 100), np.float32)
    actions = rng.standard_normal((steps, 8), np.float32)
    return together([episode_of(0, observations, actions, rng.standard_normal(steps), True, False)])

large = episodes(60_000)
batch = sum(getattr(large, name).nbytes for name in ("observations", "actions", "rewards"))
for algorithm in ("reinforce", "ppo"):
    learner = make_learner(spec_of(100, 8, True), algorithm=algorithm, epochs=1)
    learner.update(episodes(5_000))  # what is allocated once
    tracemalloc.start()
    learner.update(large)
    print(tracemalloc.get_traced_memory()[1] / batch)
    tracemalloc.stop()
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs one core to itself")
def test_memory_of_an_update(tmp_path):
    """The batch once, and about three times as much besides."""
    done = run_script(PEAK, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    peaks = [float(line) for line in done.stdout.splitlines()]
    assert len(peaks) == 2 and all(0.5 < peak < 4.2 for peak in peaks)


def test_versions_count_updates_and_the_digest_follows_the_weights():
    learner = learner_of(False)
    assert learner.snapshot().version == 0
    before = learner.weights_digest()
    assert before == learner_of(False).weights_digest()
    learner.update(random_episodes(False))
    assert learner.snapshot().version == 1
    assert learner.weights_digest() != before
    assert learner_of(False, seed=1).weights_digest() != before


def test_a_snapshot_is_a_copy():
    learner = learner_of(True, normalize_observations=True)
    snapshot = learner.snapshot()
    kept = copy.deepcopy(snapshot)
    learner.update(random_episodes(True))
    later = learner.snapshot()
    three = [(*each.layers, each.head) for each in (snapshot, kept, later)]
    for layers in zip(*three, strict=True):
        for now, before, after in zip(*(layer.arrays.values() for layer in layers), strict=True):
            np.testing.assert_array_equal(now, before)
            assert (after != before).any()


def distribution(policy, observations, continuous: bool) -> torch.distributions.Distribution:
    if continuous:
        return torch.distributions.Normal(policy(observations), policy.log_std.exp())
    return torch.distributions.Categorical(logits=policy(observations))


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_a_step_that_goes_too_far_is_taken_back(algorithm):
    """Measured with torch's own distributions."""
    options = {"algorithm": algorithm, "learning_rate": 0.5, "epochs": 5}
    for continuous in (True, False):
        episodes = random_episodes(continuous)
        observations = torch.from_numpy(np.concatenate([e.observations[:-1] for e in episodes]))
        far, near = (
            learner_of(continuous, **options, max_kl=max_kl, clip_range=100.0)
            for max_kl in (1e9, 0.05)
        )
        distances = []
        for learner in (far, near):
            policy = learner.parts["policy"]
            before = copy.deepcopy(policy)
            metrics = learner.update(episodes)
            with torch.no_grad():
                both = (distribution(each, observations, continuous) for each in (before, policy))
                kl = torch.distributions.kl_divergence(*both)
            distances.append((kl.sum(-1) if continuous else kl).mean().item())
        assert distances[0] > 0.15
        assert 0 < distances[1] < 0.1  # estimated from the actions taken, here exact
        assert metrics["kl"] <= 0.05
