"""V-trace on sequences, against its definition as sums and products."""

import numpy as np
import pytest
import torch

from flame_rl.learner.algorithms.impala import v_trace
from tests.helpers import spec_of
from tests.learner.test_off_policy import slow
from tests.learners import make_learner, random_episodes


def by_definition(rewards, discounts, values, next_values, rho, length, trace_lambda):
    """Eq. 1 of the paper for one sequence of `length` steps."""
    deltas = rho * (rewards + discounts * next_values - values)
    errors = np.zeros(len(rewards))
    for s in range(length):
        for t in range(s, length):
            trace = np.prod(discounts[s:t] * trace_lambda * rho[s:t])
            errors[s] += trace * deltas[t]
    advantages = np.zeros(len(rewards))
    for s in range(length):
        following = next_values[s] + (errors[s + 1] if s + 1 < length else 0)
        advantages[s] = rho[s] * (rewards[s] + discounts[s] * following - values[s])
    return errors, advantages


@pytest.mark.parametrize("trace_lambda", [0.0, 0.7, 1.0])
def test_sequences_by_definition(trace_lambda):
    rng = np.random.default_rng(0)
    lengths = [6, 4, 1, 6]
    mask = (np.arange(6) < np.array(lengths)[:, None]).astype(float)
    # Beyond its end a sequence repeats an observation, whose value is not 0.
    rewards, values, next_values = rng.standard_normal((3, 4, 6))
    rewards, discounts = rewards * mask, 0.9 * mask
    discounts[1, 3] = 0.0  # an end; the sequence of one step was cut
    rho = rng.uniform(0.1, 1, (4, 6))
    samples = {"rewards": rewards, "discounts": discounts, "mask": mask}
    ours = v_trace(samples, values, next_values, rho, trace_lambda)
    for row, length in enumerate(lengths):
        columns = (x[row] for x in (rewards, discounts, values, next_values, rho))
        theirs = by_definition(*columns, length, trace_lambda)
        for own, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(own[row], other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("continuous", [True, False])
def test_what_is_recorded_is_the_policy_that_acted(continuous):
    """Before its first update nothing has changed: every importance weight is 1."""
    learner = make_learner(
        spec_of(3, 2, continuous),
        algorithm="impala",
        warm_up_steps=0,
        sequence_length=4,
        updates_per_step=0.05,
        normalize_observations=False,
    )
    metrics = learner.update(random_episodes(continuous))
    assert metrics["gradient_steps"] == 1
    assert metrics["importance"] == pytest.approx(1, abs=1e-5)
    assert learner.algorithm.replay.store.columns[-1].name == "log_probs"


def test_every_step_counts_alike():
    """Where every step is drawn once, the gradients are those of means over every step once,
    however long the sequence in which it lies: the formulas of the algorithm's file in torch."""
    gamma, entropy_weight, length = 0.9, 0.1, 4
    learner = make_learner(
        spec_of(3, 2, False),
        algorithm="impala",
        hidden_sizes=(8,),
        gamma=gamma,
        sequence_length=length,
        entropy_coefficient=entropy_weight,
        normalize_observations=False,
        max_grad_norm=1e9,
        capacity=50,
    )
    inner, store = learner.algorithm.inner, learner.algorithm.replay.store
    learner.algorithm.replay.add(inner.record(random_episodes(False)))
    policy, value = slow(learner.parts["policy"]), slow(learner.parts["value"])
    samples = inner.view(store, np.arange(store.steps))
    # Another policy acted: of half of the steps, the actions are less likely now.
    acted = np.where(samples["actions"] == 0, 0.3, -0.2).astype(np.float32)
    samples["log_probs"] += acted
    trace_lambda, scale = learner.algorithm.config.algorithm.trace_lambda, value.scale.item()

    columns = []
    for episode in random_episodes(False):
        observations = torch.from_numpy(episode.observations).double()
        actions = torch.from_numpy(episode.actions).long()
        v = value(observations)
        choice = torch.distributions.Categorical(logits=policy(observations[:-1]))
        log_pi, entropy = choice.log_prob(actions), choice.entropy()
        rho = np.exp(np.minimum(0, np.where(episode.actions == 0, -0.3, 0.2)))
        discounts = np.full(episode.length, gamma)
        discounts[-1] *= not episode.terminated
        values = v.detach().numpy()
        for start in range(0, episode.length, length):
            part = slice(start, min(start + length, episode.length))
            numbers = (episode.rewards, discounts, values[:-1], values[1:], rho)
            own = [array[part] for array in numbers]
            errors, advantages = map(
                torch.from_numpy, by_definition(*own, len(own[0]), trace_lambda)
            )
            columns.append((log_pi[part], entropy[part], v[:-1][part], errors, advantages))
    log_pi, entropy, v, errors, advantages = map(torch.cat, zip(*columns, strict=True))
    assert len(v) == store.steps
    loss = -(advantages / advantages.square().mean().sqrt() * log_pi + entropy_weight * entropy)
    value_loss = 0.5 * ((v - v.detach() - errors) / scale).square()

    numbers = inner.step(samples, np.random.default_rng(0), 1.0)
    found = {"loss": loss, "value_loss": value_loss, "td_error": errors.abs() / scale}
    for name, expected in found.items():
        assert numbers[name].mean() == pytest.approx(expected.mean().item(), rel=1e-4), name
    for name, module, total in [("policy", policy, loss), ("value", value, value_loss)]:
        gradients = torch.autograd.grad(total.mean(), list(module.parameters()))
        expected = np.concatenate([g.reshape(-1).numpy() for g in gradients])
        actual = learner.parts[f"{name}_adam"].gradient
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
