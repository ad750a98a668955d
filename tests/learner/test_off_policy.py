"""Gradient steps of learners with replay against torch: formulas of the papers, one sample after
another where that is plainer, differentiated by autograd, and Adam by its paper."""

import contextlib
import copy
import math
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import model
from flame_rl.learner.compiled.network import CompiledNetwork
from flame_rl.learner.learner import Learner
from flame_rl.learner.training import slices
from flame_rl.modules.networks import ActionValueNetwork, CriticNetwork, PolicyNetwork
from flame_rl.system.errors import RunError, UsageError
from flame_rl.wire.messages import Episodes, Layer
from tests.helpers import spec_of
from tests.learners import OF_CONTINUOUS_ACTIONS, OF_DISCRETE_ACTIONS, make_learner, random_episodes

GAMMA, RATE, VALUE_RATE = 0.9, 0.01, 0.02
ROWS, STEPS = 24, 3
# Far above float64's rounding, and a thousandth of one step of Adam.
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
Z, LOWEST, HIGHEST = 7, -2.0, 3.0

NOISY = {"target_noise": 3.0, "target_noise_clip": 2.0}
RAINBOW = {"algorithm": "dqn", "double": True, "dueling": True, "prioritized": True}
DISCRETE = {
    "dqn": {"algorithm": "dqn", "double": False},
    "hard updates": {"algorithm": "dqn", "double": False, "target_period": 2, "tau": 1.0},
    "rare soft updates": {"algorithm": "dqn", "target_period": 2},
    "double": {"algorithm": "dqn", "double": True},
    "duelling": {"algorithm": "dqn", "double": False, "dueling": True},
    "n-step": {"algorithm": "dqn", "double": False, "n_step": 3},
    "prioritised": {"algorithm": "dqn", "double": False, "prioritized": True},
    "clipped": {"algorithm": "dqn", "max_grad_norm": 0.1},
    "c51": {"algorithm": "dqn", "double": False, "distribution": "c51"},
    "quantiles": {"algorithm": "dqn", "double": False, "distribution": "quantiles"},
    "rainbow": RAINBOW | {"n_step": 3, "distribution": "c51", "max_grad_norm": 0.18},
    "rainbow with quantiles": RAINBOW | {"n_step": 2, "distribution": "quantiles"},
    "sarsa": {"algorithm": "sarsa", "expected": False},
    "expected sarsa": {"algorithm": "sarsa", "expected": True},
    "successor": {"algorithm": "successor"},
    "masked dqn": {"algorithm": "dqn", "double": False, "n_step": 2},
    "masked double": {"algorithm": "dqn", "double": True, "dueling": True},
    "masked c51": {"algorithm": "dqn", "distribution": "c51", "prioritized": True},
    "masked quantiles": {"algorithm": "dqn", "distribution": "quantiles", "n_step": 3},
    "masked sarsa": {"algorithm": "sarsa", "expected": False},
    "masked expected sarsa": {"algorithm": "sarsa", "expected": True},
    "masked successor": {"algorithm": "successor"},
}
CONTINUOUS = {
    "ddpg": {"algorithm": "ddpg"},
    "ddpg with n-step": {"algorithm": "ddpg", "n_step": 3},
    "ddpg with layer norm": {"algorithm": "ddpg", "layer_norm": True},
    "ddpg with scaled rewards": {"algorithm": "ddpg", "reward_scale": 0.1, "n_step": 2},
    "td3": {"algorithm": "td3"},
    "td3 with layer norm": {"algorithm": "td3", "layer_norm": True, "policy_delay": 3},
    "td3 with much noise": {"algorithm": "td3", "policy_delay": 1} | NOISY,
    "td3 with n-step": {"algorithm": "td3", "n_step": 2},
    "td3 with scaled rewards": {"algorithm": "td3", "reward_scale": 3.0},
    "sac": {"algorithm": "sac"},
    "sac with scaled rewards": {"algorithm": "sac", "reward_scale": 0.1},
    "sac with n-step": {"algorithm": "sac", "n_step": 3},
    "sac with the mean of the critics": {"algorithm": "sac", "average_critics": True},
    "sac with layer norm": {"algorithm": "sac", "layer_norm": True, "target_entropy": 0.7},
    "sac with atoms": {"algorithm": "sac", "atoms": Z, "n_step": 3, "reward_scale": 2.0},
    "sac with atoms, averaged": {"algorithm": "sac", "atoms": Z, "average_critics": True},
    "td3 with atoms": {"algorithm": "td3", "atoms": Z, "policy_delay": 1},
    "ddpg with atoms": {"algorithm": "ddpg", "atoms": Z},
}
VARIANTS = DISCRETE | CONTINUOUS


def is_masked(variant: str) -> bool:
    return variant.startswith("masked")


def episodes_of(variant: str) -> Episodes:
    return random_episodes(variant in CONTINUOUS, is_masked(variant))


def learner_of(variant: str, **options) -> Learner:
    """A learner whose replay memory has the random episodes."""
    chosen = {
        "hidden_sizes": (16, 8),
        "gamma": GAMMA,
        "learning_rate": RATE,
        "value_learning_rate": VALUE_RATE,
        "tau": 0.1,
        "atoms": 1 if variant in CONTINUOUS else Z,
        "lowest_return": LOWEST,
        "highest_return": HIGHEST,
        "initial_temperature": 0.3,
        "epsilon_steps": 34,
        "epsilon_start": 0.9,
        "epsilon_end": 0.1,
        "capacity": 50,
    }
    continuous = variant in CONTINUOUS
    spec = spec_of(3, 2 if continuous else 4, continuous)
    spec = replace(spec, action_mask="info" if is_masked(variant) else "none")
    learner = make_learner(spec, **(chosen | VARIANTS[variant] | options))
    algorithm = learner.algorithm
    algorithm.replay.add(algorithm.inner.record(episodes_of(variant)))
    return learner


# The papers' formulas


def batch_of(variant: str, positions: np.ndarray, n: int) -> dict[str, Tensor]:
    """What n steps give from each position on, one after another."""
    steps = [(e, t) for e in episodes_of(variant) for t in range(e.length)]
    rows = []
    for episode, t in (steps[position] for position in positions):
        count = min(n, episode.length - t)
        ended = t + count == episode.length
        following = None if ended else int(episode.actions[t + count].flat[0])
        rows.append(
            {
                "observations": episode.observations[t],
                "actions": episode.actions[t],
                "rewards": sum(GAMMA**k * episode.rewards[t + k] for k in range(count)),
                "next_observations": episode.observations[t + count],
                "discounts": 0.0 if ended and episode.terminated else GAMMA**count,
                "between": [episode.observations[t + min(k, count)] for k in range(1, n)],
                "between_discounts": [GAMMA**k * (k < count) for k in range(1, n)],
                # A number for "no action".
                "next_actions": -1 if following is None else following,
                # What is allowed after them, of at most eight.
                "next_allowed": [
                    (int(byte) >> (7 - action)) % 2
                    for byte in (
                        episode.columns["action_masks"][t + count] if is_masked(variant) else [255]
                    )
                    for action in range(8)
                ],
            }
        )
    assert any(row["discounts"] == 0 for row in rows)
    assert any(row["next_actions"] < 0 and row["discounts"] for row in rows)
    columns = {name: torch.as_tensor(np.array([row[name] for row in rows])) for name in rows[0]}
    return {n: c.double() if c.is_floating_point() else c.long() for n, c in columns.items()}


def greatest_return(episodes: Episodes) -> float:
    """The greatest absolute discounted return; a cut episode begins again for ever."""
    rows = [[*each.rewards[t:]] for each in episodes for t in range(each.length)]
    rows += [[*each.rewards] * 100 for each in episodes if each.truncated]
    return max(abs(sum(GAMMA**k * reward for k, reward in enumerate(row))) for row in rows)


def test_the_scale_of_rewards_is_that_of_the_greatest_return_so_far():
    learner, episodes = learner_of("sac with atoms"), episodes_of("sac")
    scale, first = learner.parts["critic_scale"], greatest_return(episodes)
    for factor, expected in [(1, first), (-3, 3 * first), (0.1, 3 * first)]:
        columns = episodes.columns | {"rewards": factor * episodes.columns["rewards"]}
        learner.algorithm.inner.record(replace(episodes, columns=columns))
        assert float(scale.greatest) == pytest.approx(expected)


def slow(module: nn.Module) -> nn.Module:
    """A copy in float64."""
    module = copy.deepcopy(module).double()
    for parameter in module.parameters():
        parameter.grad = None
    return module


class SlowAdam:
    """Parameter by parameter, as algorithm 1 of Kingma and Ba 2015 says. torch's own imports its
    compiler, which is slow and, beside other libraries, can end the process."""

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float) -> None:
        self.parameters = list(parameters)
        self.rate, self.count = rate, 0
        self.first, self.second = ([torch.zeros_like(p) for p in self.parameters] for _ in range(2))

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        self.count += 1
        for place, parameter in enumerate(self.parameters):
            g = parameter.grad
            m = self.first[place] = 0.9 * self.first[place] + 0.1 * g
            v = self.second[place] = 0.999 * self.second[place] + 0.001 * g**2
            corrected = m / (1 - 0.9**self.count), v / (1 - 0.999**self.count)
            parameter -= self.rate * corrected[0] / (corrected[1].sqrt() + 1e-8)


def descend(loss: Tensor, adam: SlowAdam, max_norm: float = math.inf) -> None:
    adam.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(adam.parameters, max_norm)
    adam.step()


def follow(target: nn.Module, module: nn.Module, tau: float) -> None:
    with torch.no_grad():
        for theirs, ours in zip(target.parameters(), module.parameters(), strict=True):
            theirs.copy_((1 - tau) * theirs + tau * ours)


def huber(x: Tensor) -> Tensor:
    return torch.where(x.abs() < 1, x**2 / 2, x.abs() - 0.5)


def projected(support: Tensor, reward: Tensor, discount: Tensor, p: Tensor) -> Tensor:
    """The distribution of reward + discount * atom on the atoms."""
    out = torch.zeros(Z, dtype=torch.float64)
    low, high = support[0], support[-1]
    for atom, probability in zip(support, p, strict=True):
        moved = (reward + discount * atom).clamp(low, high)
        place = (moved - low) / (high - low) * (Z - 1)
        for i in range(Z):
            out[i] += probability * (1 - (place - i).abs()).clamp(min=0)
    return out


class SlowValues:
    """DQN and SARSA; and successor features with the reward as their only part."""

    def __init__(self, learner: Learner) -> None:
        self.settings = learner.algorithm.config.algorithm
        self.sarsa = learner.algorithm.config.algorithm_name == "sarsa"
        self.online, self.target = (slow(learner.parts[name]) for name in ("policy", "target"))
        self.adam = SlowAdam(self.online.parameters(), RATE)
        self.kind = getattr(self.settings, "distribution", "none")
        self.support = torch.linspace(LOWEST, HIGHEST, Z, dtype=torch.float64)
        self.count = 0

    @property
    def modules(self) -> dict[str, nn.Module]:
        return {"policy": self.online, "target": self.target}

    def outputs(self, network: nn.Module, observations: Tensor) -> Tensor:
        """[B, A, Z]: values, quantiles or logits."""
        atoms = 1 if self.kind == "none" else Z
        output = network(observations).reshape(len(observations), -1, atoms)
        if getattr(self.settings, "dueling", False):
            value, advantages = output[:, :1], output[:, 1:]
            return value + advantages - advantages.mean(1, keepdim=True)
        return output

    def values(self, outputs: Tensor) -> Tensor:
        if self.kind == "c51":
            return (outputs.softmax(-1) * self.support).sum(-1)
        return outputs.mean(-1)

    def step(self, batch, weights, generator) -> dict[str, float]:
        targets = self.targets(batch)
        rows = torch.arange(len(weights))
        chosen = self.outputs(self.online, batch["observations"])[rows, batch["actions"]]
        losses = self.losses(chosen, targets)
        descend((weights * losses).mean(), self.adam, self.settings.max_grad_norm)
        self.count += 1
        if self.count % getattr(self.settings, "target_period", 1) == 0:
            follow(self.target, self.online, self.settings.tau)
        value = self.values(chosen[:, None])[:, 0]
        error = (targets.mean(-1) - value).abs()
        if self.kind == "c51":
            entropy = -torch.special.xlogy(targets, targets).sum(-1)
            error = losses - entropy
        numbers = {"loss": weights * losses, "value": value, "td_error": error}
        return {name: tensor.detach().numpy() for name, tensor in numbers.items()}

    @torch.no_grad()
    def targets(self, batch) -> Tensor:
        """[B, Z]."""
        after = self.outputs(self.target, batch["next_observations"])
        every = []
        for b, row in enumerate(after):
            reward, discount = batch["rewards"][b], batch["discounts"][b]
            if self.sarsa:
                every.append(reward + discount * self.sarsa_value(row[:, 0], batch, b))
                continue
            selecting = self.values(after)
            if getattr(self.settings, "double", False):
                other = self.outputs(self.online, batch["next_observations"])
                selecting = self.values(other)
            best = row[self.best_of(selecting[b], batch, b)]
            if self.kind == "c51":
                every.append(projected(self.support, reward, discount, best.softmax(0)))
            else:
                every.append(reward + discount * best)
        return torch.stack([torch.atleast_1d(target) for target in every])

    def sarsa_value(self, values: Tensor, batch, b: int) -> Tensor:
        # 17 steps of the 34 in which epsilon falls.
        epsilon, action = 0.5, batch["next_actions"][b]
        if not self.settings.expected and action >= 0:
            return values[action]
        allowed = self.allowed(values, batch, b)
        return sum(
            (epsilon / len(allowed) + (1 - epsilon) * (a == self.best_of(values, batch, b)))
            * values[a]
            for a in allowed
        )

    def allowed(self, values: Tensor, batch, b: int) -> list[int]:
        return [a for a in range(len(values)) if batch["next_allowed"][b, a]]

    def best_of(self, values: Tensor, batch, b: int) -> int:
        return max(self.allowed(values, batch, b), key=lambda action: values[action])

    def losses(self, chosen: Tensor, targets: Tensor) -> Tensor:
        if self.kind == "c51":
            return -(targets * chosen.log_softmax(-1)).sum(-1)
        if self.kind == "none":
            return huber(targets - chosen).sum(-1)
        total = torch.zeros(len(chosen), dtype=torch.float64)
        for i in range(Z):
            for j in range(Z):
                error = targets[:, j] - chosen[:, i]
                below = (error < 0).double()
                total = total + ((2 * i + 1) / (2 * Z) - below).abs() * huber(error) / Z
        return total


class SlowCritics:
    """DDPG, TD3 and SAC."""

    def __init__(self, learner: Learner) -> None:
        parts, self.settings = learner.parts, learner.algorithm.config.algorithm
        self.kind = learner.algorithm.config.algorithm_name
        names = ["critic1"] if self.kind == "ddpg" else ["critic1", "critic2"]
        self.critics = [slow(parts[name]) for name in names]
        self.targets = [slow(parts[f"{name}_target"]) for name in names]
        self.policy = slow(parts["policy"])
        self.modules = {"policy": self.policy}
        for name, critic, target in zip(names, self.critics, self.targets, strict=True):
            self.modules |= {name: critic, f"{name}_target": target}
        self.adams = [SlowAdam(critic.parameters(), VALUE_RATE) for critic in self.critics]
        self.adam = SlowAdam(self.policy.parameters(), RATE)
        if self.kind == "sac":
            self.temperature = self.modules["temperature"] = slow(parts["temperature"])
            self.temperature_adam = SlowAdam(self.temperature.parameters(), RATE)
        else:
            self.policy_target = self.modules["policy_target"] = slow(parts["policy_target"])
        self.count, self.scale, self.support = 0, self.settings.reward_scale, None
        if self.settings.atoms > 1:
            self.support = torch.linspace(-10, 10, Z, dtype=torch.float64)
            self.scale = 5 / greatest_return(episodes_of("sac"))

    def mean(self, output: Tensor) -> Tensor:
        """The value that a critic's output, [B, 1] or [B, Z], says."""
        return output if self.support is None else output.softmax(1) @ self.support

    def step(self, batch, weights, generator) -> dict[str, float]:
        s, after = batch["observations"], batch["next_observations"]
        self.count += 1
        if self.kind == "sac":
            noises = torch.from_numpy(
                generator.standard_normal((1 + self.settings.n_step, ROWS, 2), np.float32)
            ).double()
            alpha = self.temperature.log_alpha.exp().detach()
        with torch.no_grad():
            if self.kind == "ddpg":
                actions, bonus = self.policy_target(after), 0
            elif self.kind == "td3":
                noise = torch.from_numpy(generator.standard_normal((ROWS, 2), np.float32)).double()
                limit = self.settings.target_noise_clip
                noise = (noise * self.settings.target_noise).clamp(-limit, limit)
                actions, bonus = (self.policy_target(after) + noise).clamp(-1, 1), 0
            else:
                actions, log_probs = self.drawn(after, noises[0])
                bonus = -alpha * log_probs
            outputs = [q(after, actions) for q in self.targets]
            value = self.of_both([self.mean(output) for output in outputs])
            rewards = self.scale * batch["rewards"]
            if self.kind == "sac":
                # The soft return of n steps: the entropy of each step after the first.
                for k, noise in enumerate(noises[1:-1]):
                    _, log_probs = self.drawn(batch["between"][:, k], noise)
                    rewards = rewards - batch["between_discounts"][:, k] * alpha * log_probs
            targets = rewards + batch["discounts"] * (value + bonus)
            atoms = []
            for b in range(ROWS if self.support is not None else 0):
                p = [output[b].softmax(0) for output in outputs]
                # The distribution of the lower mean, or both mixed.
                mixed = min(p, key=lambda each: each @ self.support)
                if getattr(self.settings, "average_critics", False):
                    mixed = sum(p) / len(p)
                reward = rewards[b] + batch["discounts"][b] * (bonus + torch.zeros(ROWS))[b]
                atoms.append(projected(self.support, reward, batch["discounts"][b], mixed))
        values, losses, errors = [], [], []
        for critic, adam in zip(self.critics, self.adams, strict=True):
            output = critic(s, batch["actions"])
            value = self.mean(output)
            if self.support is None:
                loss, told, error = (value - targets) ** 2, 1, (value - targets).abs()
            else:
                wanted = torch.stack(atoms)
                loss, told = -(wanted * output.log_softmax(1)).sum(1), weights
                error = loss + torch.special.xlogy(wanted, wanted).sum(1)
            losses.append((told * loss).detach())
            errors.append(error.detach())
            descend((weights * loss).mean(), adam)
            values.append(value.detach())
        numbers = {"value_loss": torch.stack(losses), "value": torch.stack(values)}
        numbers["td_error"] = torch.stack(errors).mean(0)
        if self.kind != "td3" or self.count % self.settings.policy_delay == 0:
            if self.kind == "sac":
                actions, log_probs = self.drawn(s, noises[-1])
                numbers |= {"policy_entropy": -log_probs, "temperature": alpha}
                value = self.of_both([self.mean(q(s, actions)) for q in self.critics])
                numbers["loss"] = alpha * log_probs - value
                entropy = self.settings.target_entropy * 2
                of_temperature = -self.temperature.log_alpha * (log_probs + entropy).detach()
            else:
                numbers["loss"] = -self.mean(self.critics[0](s, self.policy(s)))
            descend(numbers["loss"].mean(), self.adam)
            if self.kind == "sac":
                descend(of_temperature.mean(), self.temperature_adam)
            else:
                follow(self.policy_target, self.policy, self.settings.tau)
            for target, critic in zip(self.targets, self.critics, strict=True):
                follow(target, critic, self.settings.tau)
        return {name: tensor.detach().numpy() for name, tensor in numbers.items()}

    def of_both(self, values: list[Tensor]) -> Tensor:
        if getattr(self.settings, "average_critics", False):
            return sum(values) / len(values)
        return torch.stack(values).min(0).values

    def drawn(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.policy(observations).chunk(2, dim=-1)
        gaussian = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        u = mean + gaussian.stddev * noise
        log_probs = gaussian.log_prob(u) - torch.log(1 - torch.tanh(u) ** 2)
        return torch.tanh(u), log_probs.sum(-1)


def compare_steps(learner: Learner, variant: str) -> None:
    """Some gradient steps of the learner and of torch, from different batches."""
    continuous, inner = variant in CONTINUOUS, learner.algorithm.inner
    oracle = (SlowCritics if continuous else SlowValues)(learner)
    n = VARIANTS[variant].get("n_step", 1)
    rng = np.random.default_rng(1)
    for step in range(STEPS):
        # All steps, and some of them twice.
        positions = np.concatenate([np.arange(17), rng.integers(0, 17, ROWS - 17)])
        weights = np.ones(ROWS, np.float32)
        samples = inner.view(learner.algorithm.replay.store, positions)
        # Critics take weights, too.
        if VARIANTS[variant].get("prioritized") or variant == "ddpg":
            weights = rng.uniform(0.1, 1, ROWS).astype(np.float32)
            samples["weights"] = weights
        before = {name: slow(part) for name, part in oracle.modules.items()}
        one = {name: column[None] for name, column in samples.items()}
        (numbers,) = inner.steps(one, np.random.default_rng(step), 1.0)
        batch = batch_of(variant, positions, n)
        expected = oracle.step(
            batch, torch.from_numpy(weights).double(), np.random.default_rng(step)
        )
        assert numbers.keys() == expected.keys() <= {*inner.metrics}
        for name, array in expected.items():
            np.testing.assert_allclose(numbers[name], array, **CLOSE, err_msg=name)
        for name, module in oracle.modules.items():
            moved = 0.0
            parameters = zip(
                *(m.parameters() for m in (learner.parts[name], module, before[name])), strict=True
            )
            for ours, theirs, old in parameters:
                np.testing.assert_allclose(
                    ours.detach().numpy(), theirs.detach().numpy(), **CLOSE, err_msg=name
                )
                moved = max(moved, (theirs - old).abs().max().item())
            assert moved == 0 or moved > 50 * CLOSE["atol"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_steps_are_those_of_the_paper(variant):
    for activation in ("relu", "tanh", "silu") if variant in ("rainbow", "sac") else ("relu",):
        compare_steps(learner_of(variant, activation=activation), variant)


@pytest.mark.parametrize("double", [False, True])
def test_steps_at_once_are_those_one_after_another(double):
    """In compiled code, with masks and weights; a forbidden choice has the greatest value."""
    options = {"double": double, "target_period": 2, "tau": 0.5, "hidden_sizes": (300, 300)}
    rng, samples = np.random.default_rng(0), {}
    for name in ("observations", "next_observations"):
        samples[name] = rng.normal(size=(5, 300, 3)).astype(np.float32)
    for name in ("rewards", "discounts", "weights"):
        samples[name] = rng.uniform(size=(5, 300)).astype(np.float32)
    samples["actions"] = rng.integers(0, 2, (5, 300))
    allowed = rng.integers(1, 4, (5, 300, 1))
    samples["next_action_masks"] = (allowed << 6).astype(np.uint8)
    results = []
    for divided in ([samples], [{n: c[k : k + 1] for n, c in samples.items()} for k in range(5)]):
        learner = make_learner(spec_of(3, 2, False), algorithm="dqn", **options)
        inner = learner.algorithm.inner
        assert type(inner.online.network) is CompiledNetwork
        results.append([n for part in divided for n in inner.steps(part, rng, 1.0)])
    for one, other in zip(*results, strict=True):
        for name, array in one.items():
            np.testing.assert_array_equal(array, other[name])
    learner = make_learner(spec_of(3, 2, False), algorithm="dqn", **options)
    for k, numbers in enumerate(results[0]):
        plain = learner.algorithm.inner.step({n: c[k] for n, c in samples.items()}, rng, 1.0)
        for name, array in numbers.items():
            np.testing.assert_allclose(array, plain[name], **CLOSE, err_msg=name)


class Doubling(PolicyNetwork):
    """Takes an observation twice; actors get twice the first weights."""

    def forward(self, observations: Tensor) -> Tensor:
        return super().forward(2 * observations)

    def export_layers(self) -> tuple[Layer, ...]:
        first, *others = super().export_layers()
        arrays = first.arrays | {"weight": 2 * first.arrays["weight"]}
        return (replace(first, arrays=arrays), *others)


class ChangedValues(Doubling, ActionValueNetwork):
    pass


class ChangedCritic(CriticNetwork):
    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        return super().forward(observations, actions) + (actions**2).sum(-1)


CHANGED = {
    "action_values": ChangedValues,
    "deterministic_policy": Doubling,
    "squashed_policy": Doubling,
    "critic": ChangedCritic,
}


@pytest.mark.parametrize(
    "variant", ["rainbow", "masked quantiles", "sarsa", "successor", "ddpg", "td3", "sac"]
)
def test_networks_that_somebody_changed_are_differentiated_by_torch(variant, monkeypatch):
    """As they are now: the oracle uses the changed modules, too."""

    def changed(make, kind, *arguments):
        module = make(*arguments)
        module.__class__ = kind
        return module

    for name, kind in CHANGED.items():
        monkeypatch.setattr(model, name, partial(changed, getattr(model, name), kind))
    compare_steps(learner_of(variant), variant)


# When gradient steps are taken, and how exploration falls


@pytest.mark.parametrize("algorithm", OF_DISCRETE_ACTIONS)
def test_epsilon_falls_linearly_in_env_steps(algorithm):
    fixed = {"epsilon_start": 0.9, "epsilon_end": 0.1, "warm_up_steps": 1000}
    learner = make_learner(spec_of(3, 2, False), algorithm=algorithm, epsilon_steps=50, **fixed)
    for played in (0, 17, 34, 51, 68):
        (epsilon,) = learner.snapshot().head.arrays["epsilon"]
        assert epsilon == pytest.approx(max(0.1, 0.9 - 0.8 * played / 50))
        assert learner.collector_snapshot().head.arrays["epsilon"] == epsilon
        learner.update(random_episodes(False))
    at_once = make_learner(spec_of(3, 2, False), algorithm=algorithm, epsilon_steps=0, **fixed)
    assert at_once.snapshot().head.arrays["epsilon"] == np.float32(0.1)


@pytest.mark.parametrize("algorithm", ["ddpg", "td3"])
def test_noise_is_wide_during_the_warm_up(algorithm):
    options = {"warm_up_steps": 34, "noise": 0.25, "updates_per_step": 0.1, "batch_size": 4}
    learner = make_learner(spec_of(3, 2, True), algorithm=algorithm, **options)
    for std in (1.0, 1.0, 0.25, 0.25):
        np.testing.assert_array_equal(learner.snapshot().head.arrays["std"], [std, std])
        learner.update(random_episodes(True))


def test_importance_weights_become_whole(monkeypatch):
    """Beta rises in a straight line from its first value to 1."""
    options = {"prioritized": True, "priority_beta": 0.4, "warm_up_steps": 0}
    learner = make_learner(spec_of(3, 2, False), algorithm="dqn", updates_per_step=0.1, **options)
    betas, draw = [], learner.algorithm.replay.draw

    def recorded(count, beta, generator):
        betas.append(beta)
        positions, weights = draw(count, beta, generator)
        assert weights.dtype == np.float32 and weights.max() == 1
        return positions, weights

    monkeypatch.setattr(learner.algorithm.replay, "draw", recorded)
    for progress in (0, 0.25, 0.5, 0.75, 1, 1.25):
        learner.update(random_episodes(False), progress)
    assert sorted(set(betas)) == pytest.approx([0.4, 0.55, 0.7, 0.85, 1.0])


@pytest.mark.parametrize("algorithm", [*OF_DISCRETE_ACTIONS, *OF_CONTINUOUS_ACTIONS])
def test_the_learning_rates_fall_to_nothing(algorithm):
    """The first step of Adam moves most parameters by the learning rate, whatever the gradient."""
    continuous = algorithm in OF_CONTINUOUS_ACTIONS
    moves = {}
    for progress in (0, 0.5, 1, 1.25):
        learner = make_learner(
            spec_of(3, 2, continuous),
            algorithm=algorithm,
            learning_rate=1e-3,
            value_learning_rate=1e-3,
            learning_rate_decay=True,
            warm_up_steps=0,
            updates_per_step=0.001,
            batch_size=5,
            policy_delay=1,
        )
        adams = {name: part for name, part in learner.parts.items() if name.endswith("_adam")}
        before = {name: adam.parameters.copy() for name, adam in adams.items()}
        assert learner.update(random_episodes(continuous), progress)["gradient_steps"] == 1
        moves[progress] = [
            np.abs(adam.parameters - before[name]).max() for name, adam in adams.items()
        ]
    assert moves[0] == pytest.approx([1e-3] * len(adams), rel=0.01)
    assert moves[0.5] == pytest.approx([5e-4] * len(adams), rel=0.01)
    assert moves[1] == moves[1.25] == [0] * len(adams)


def test_priorities_are_the_last_errors(monkeypatch):
    learner = learner_of("prioritised", warm_up_steps=34, updates_per_step=0.001, batch_size=20)
    replay, inner, errors = learner.algorithm.replay, learner.algorithm.inner, {}
    steps = inner.steps

    def recorded(samples, generator, decay):
        for numbers in steps(samples, generator, decay):
            errors["last"] = numbers["td_error"]
            yield numbers

    monkeypatch.setattr(inner, "steps", recorded)
    prioritize, positions = replay.prioritize, {}

    def remember(where, numbers):
        positions["last"] = where
        np.testing.assert_array_equal(numbers, errors["last"])
        prioritize(where, numbers)

    monkeypatch.setattr(replay, "prioritize", remember)
    learner.update(random_episodes(False))
    kept = replay.state_dict()["priorities"]
    # What was not drawn yet has the greatest priority before this step, 1.
    expected = dict.fromkeys(range(replay.store.first, replay.store.steps), 1.0)
    drawn = zip(positions["last"].tolist(), errors["last"].astype(float), strict=True)
    expected |= {position: error + 1e-6 for position, error in drawn}
    assert 5 < sum(priority == 1 for priority in expected.values()) < len(expected) == 34
    np.testing.assert_allclose(kept, np.array(list(expected.values())) ** 0.6, rtol=1e-5)


@pytest.mark.parametrize("algorithm", [*OF_DISCRETE_ACTIONS, *OF_CONTINUOUS_ACTIONS, "impala"])
def test_a_capacity_beyond_this_machine_is_refused(algorithm):
    spec = spec_of(3, 2, algorithm in OF_CONTINUOUS_ACTIONS)
    words = r"^--capacity: 1,099,.* steps .* need \d+\.\d GB, .* has \d+\.\d GB; choose"
    with pytest.raises(UsageError, match=words):
        make_learner(spec, algorithm=algorithm, capacity=1 << 40)


def test_what_a_run_needs_has_the_priorities_among_it():
    """A row of 3 observed numbers, reward, end and action, 16 bytes of a step, and of the tree's
    2 ** 17 leaves twice 8."""
    for prioritized, needed in ((False, 4.0), (True, 4.0 + 2.1)):
        options = {"algorithm": "dqn", "capacity": 100_000, "prioritized": prioritized}
        files = make_learner(spec_of(3, 2, False), **options).parts["replay"]
        assert files.needs == f"100,000 steps of X-v0 need {needed:.1f} MB"


@pytest.mark.parametrize("algorithm", [*OF_DISCRETE_ACTIONS, *OF_CONTINUOUS_ACTIONS])
def test_a_reward_beyond_float32_is_refused_when_it_comes(algorithm):
    """Before anything is drawn; the greatest number of float32 is kept."""
    continuous = algorithm in OF_CONTINUOUS_ACTIONS
    learner = make_learner(spec_of(3, 2, continuous), algorithm=algorithm, warm_up_steps=1000)
    store = learner.algorithm.replay.store
    episodes = random_episodes(continuous)
    for reward, steps in ((-3.5e38, 0), (1e300, 0), (float(np.finfo(np.float32).max), 17)):
        episodes.columns["rewards"][5] = reward
        refused = pytest.raises(RunError, match=r"a reward of size .* beyond float32.* Scale")
        with contextlib.nullcontext() if steps else refused:
            learner.update(episodes)
        assert store.steps == steps
    assert np.isfinite(store.read(store.rows(np.arange(17)))["rewards"]).all()


def test_an_error_waits_for_the_other_threads(monkeypatch):
    monkeypatch.setattr(slices, "available_cores", lambda: 2)
    done = []

    def fail() -> None:
        raise KeyboardInterrupt

    def go_on() -> None:
        time.sleep(0.1)
        done.append(True)

    with pytest.raises(KeyboardInterrupt):
        slices.run_parallel([fail, go_on])
    assert done == [True]
