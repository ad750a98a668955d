"""Recurrent deep Q-learning, compared with the formula for one step after another."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from flame_rl.system.errors import UsageError
from tests.helpers import spec_of
from tests.learner.test_off_policy import GAMMA, slow
from tests.learners import make_learner, random_episodes

OPTIONS = {
    "algorithm": "r2d2",
    "hidden_sizes": (8,),
    "memory_size": 6,
    "gamma": GAMMA,
    "capacity": 50,
    "max_grad_norm": 1e9,
}


def learner_with(memory: str, length: int, burn_in: int, masked: bool):
    options = OPTIONS | {"memory": memory, "sequence_length": length, "burn_in": burn_in}
    spec = replace(spec_of(3, 4, False), action_mask="info" if masked else "none")
    learner = make_learner(spec, **options)
    learner.algorithm.replay.add(random_episodes(False, masked))
    return learner


def action_values(network, observations: np.ndarray, burnt_in: int) -> torch.Tensor:
    """The action values after each of these observations, the memory being empty before, [T, A]:
    torch's own layers, where no gradient passes the state after the first `burnt_in` steps."""
    *before, memory, last = network.network
    x = torch.from_numpy(observations.astype(np.float64))
    for layer in before:
        x = layer(x)
    unroll, state, parts = (nn.GRU if isinstance(memory, nn.GRU) else nn.LSTM).forward, None, []
    if burnt_in:
        with torch.no_grad():
            first, state = unroll(memory, x[:burnt_in])
        parts = [first]
    parts.append(unroll(memory, x[burnt_in:], state)[0])
    return last(torch.cat(parts))


@pytest.mark.parametrize(("length", "burn_in"), [(3, 2), (2, 0), (50, 2)])
@pytest.mark.parametrize(("memory", "masked"), [("gru", False), ("lstm", False), ("gru", True)])
def test_the_gradient_is_that_of_the_formula(memory, masked, length, burn_in):
    """Where every step is drawn once, the mean is over every step once, however long the sequence
    is in which it is learned from; and burning in has no gradient (Kapturowski et al. 2019)."""
    learner = learner_with(memory, length, burn_in, masked)
    inner, episodes = learner.algorithm.inner, random_episodes(False, masked)
    target = learner.parts["target"]
    with torch.no_grad():
        for parameter in target.parameters():
            parameter.mul_(0.7)  # another network than the online one
    online, target = slow(learner.parts["policy"]), slow(target)

    losses, errors = [], []
    for episode in episodes:
        learned_until = start = 0
        while learned_until < episode.length:
            burnt_in = learned_until - start
            stop = min(start + burn_in + length, episode.length)
            observations = episode.observations[start : stop + 1]
            q = action_values(online, observations, burnt_in)
            slower = action_values(target, observations, 0).detach()
            own = []
            for step in range(learned_until, stop):
                now = step - start
                wanted = episode.rewards[step]
                if not (episode.terminated and step == episode.length - 1):
                    byte = int(episode.columns["action_masks"][step + 1, 0]) if masked else 255
                    allowed = [action for action in range(4) if byte >> (7 - action) & 1]
                    best = max(allowed, key=lambda action, row=q[now + 1]: row[action])
                    wanted += GAMMA * slower[now + 1, best]
                own.append(q[now, episode.actions[step]] - wanted)
            losses += [torch.nn.functional.huber_loss(e, 0 * e) for e in own]
            errors += [torch.stack(own).abs().mean()] * len(own)
            learned_until, start = stop, start + length
    mean = torch.stack(losses).mean()
    gradients = torch.autograd.grad(mean, list(online.parameters()))

    store = learner.algorithm.replay.store
    assert len(losses) == store.steps
    samples = inner.view(store, np.arange(store.steps))
    numbers = inner.step(samples, np.random.default_rng(0), 1.0)
    found = learner.parts["policy_adam"].gradient
    expected = np.concatenate([g.reshape(-1).numpy() for g in gradients])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
    assert numbers["loss"].mean() == pytest.approx(mean.item(), rel=1e-4)
    np.testing.assert_allclose(numbers["td_error"], [e.item() for e in errors], rtol=1e-4)


def test_a_network_without_a_memory_is_refused():
    with pytest.raises(UsageError, match="--memory: r2d2 is for networks with one"):
        make_learner(spec_of(3, 4, False), **OPTIONS | {"memory": "none"})
