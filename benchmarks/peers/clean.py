"""PPO in one plain file, in the style of CleanRL: torch and Gymnasium's SyncVectorEnv.

Written after Schulman et al. 2017 and Huang et al. 2022, "The 37 Implementation Details of Proximal
Policy Optimization", with the latter's numbers for MuJoCo. Arguments as in ours.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn

from benchmarks.peers.work import BATCH, ENVS, EPOCHS, HIDDEN, MINIBATCH, Score, serve

GAMMA, LAMBDA, CLIP, LEARNING_RATE = 0.99, 0.95, 0.2, 3e-4
# Networks this small are quickest so.
torch.set_num_threads(1)


def network(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in HIDDEN:
        layers += [nn.Linear(inputs, width), nn.Tanh()]
        inputs = width
    layers.append(nn.Linear(inputs, outputs))
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight, gain if layer is layers[-1] else 2**0.5)
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


class RunningMoments:
    """Mean and variance of all rows so far (Chan, Golub and LeVeque 1983)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.mean, self.var, self._count = np.zeros(shape), np.ones(shape), 1e-4

    def add(self, rows: np.ndarray) -> None:
        count = self._count + len(rows)
        delta = rows.mean(0) - self.mean
        both = self.var * self._count + rows.var(0) * len(rows)
        self.var = (both + delta**2 * self._count * len(rows) / count) / count
        self.mean = self.mean + delta * len(rows) / count
        self._count = count


class Ppo:
    """One training run: environments, networks and what they have seen."""

    def __init__(self, env_id: str, steps: int, minibatch: int, seed: int) -> None:
        """`steps` of each environment between two updates."""
        torch.manual_seed(seed)
        self._envs = SyncVectorEnv(
            [lambda: gymnasium.make(env_id)] * ENVS, autoreset_mode=AutoresetMode.SAME_STEP
        )
        self._steps, self._minibatch = steps, minibatch
        space = self._envs.single_action_space
        inputs, outputs = self._envs.single_observation_space.shape[0], space.shape[0]
        self._low, self._high = space.low, space.high
        self._policy = network(inputs, outputs, 0.01)
        self._log_std = nn.Parameter(torch.zeros(outputs))
        self._values = network(inputs, 1, 1.0)
        self._parameters = [*self._policy.parameters(), *self._values.parameters(), self._log_std]
        self.adam = torch.optim.Adam(self._parameters, lr=LEARNING_RATE, eps=1e-5)
        self._seen, self._discounted = RunningMoments((inputs,)), RunningMoments(())
        self._discounted_returns = np.zeros(ENVS)
        self._episode_returns = np.zeros(ENVS)
        self._observation = self._normalize(self._envs.reset(seed=seed)[0])
        self._ended = torch.zeros(ENVS)

    def collect(self, episode_ended: Callable[[float], None]) -> tuple[Tensor, ...]:
        """A batch, float32 [steps, ENVS, ...]: observations, actions, log-probabilities,
        advantages, values."""
        rows: list[tuple[Tensor, ...]] = []
        for _ in range(self._steps):
            with torch.no_grad():
                distribution = self._distribution(self._observation)
                action = distribution.sample()
                log_prob = distribution.log_prob(action).sum(-1)
                value = self._values(self._observation).squeeze(-1)
            clipped = np.clip(action.numpy(), self._low, self._high)
            observation, reward, terminated, truncated, _ = self._envs.step(clipped)
            ended = terminated | truncated
            self._episode_returns += reward
            for slot in np.flatnonzero(ended):
                episode_ended(float(self._episode_returns[slot]))
            self._episode_returns[ended] = 0
            scaled = self._scale(reward, terminated)
            rows.append((self._observation, action, log_prob, value, scaled, self._ended))
            self._observation = self._normalize(observation)
            self._ended = torch.from_numpy(ended.astype(np.float32))
        observations, actions, log_probs, values, rewards, began = map(
            torch.stack, zip(*rows, strict=True)
        )
        with torch.no_grad():
            following = self._values(self._observation).squeeze(-1)
        advantages, ahead = torch.empty_like(rewards), torch.zeros(ENVS)
        goes_on = 1 - self._ended
        for t in reversed(range(self._steps)):
            delta = rewards[t] + GAMMA * following * goes_on - values[t]
            ahead = advantages[t] = delta + GAMMA * LAMBDA * goes_on * ahead
            following, goes_on = values[t], 1 - began[t]
        return observations, actions, log_probs, advantages, values

    def update(self, batch: tuple[Tensor, ...]) -> None:
        observations, actions, log_probs, advantages, values = (x.flatten(0, 1) for x in batch)
        targets = advantages + values
        for _ in range(EPOCHS):
            for index in torch.randperm(len(targets)).split(self._minibatch):
                distribution = self._distribution(observations[index])
                now = distribution.log_prob(actions[index]).sum(-1)
                ratio = (now - log_probs[index]).exp()
                gain = advantages[index]
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                bounded = ratio.clamp(1 - CLIP, 1 + CLIP)
                policy_loss = -torch.minimum(ratio * gain, bounded * gain).mean()
                value, target = self._values(observations[index]).squeeze(-1), targets[index]
                near = values[index] + (value - values[index]).clamp(-CLIP, CLIP)
                value_loss = torch.maximum((value - target) ** 2, (near - target) ** 2).mean()
                self.adam.zero_grad()
                (policy_loss + 0.25 * value_loss).backward()
                nn.utils.clip_grad_norm_(self._parameters, 0.5)
                self.adam.step()

    def _distribution(self, observations: Tensor) -> torch.distributions.Normal:
        mean = self._policy(observations)
        return torch.distributions.Normal(mean, self._log_std.exp(), validate_args=False)

    def _normalize(self, observations: np.ndarray) -> Tensor:
        self._seen.add(observations)
        scaled = (observations - self._seen.mean) / np.sqrt(self._seen.var + 1e-8)
        return torch.from_numpy(np.clip(scaled, -10, 10).astype(np.float32))

    def _scale(self, rewards: np.ndarray, terminated: np.ndarray) -> Tensor:
        self._discounted_returns = self._discounted_returns * GAMMA * (1 - terminated) + rewards
        self._discounted.add(self._discounted_returns)
        scaled = rewards / np.sqrt(self._discounted.var + 1e-8)
        return torch.from_numpy(np.clip(scaled, -10, 10).astype(np.float32))


def main(env_id: str) -> None:
    runs = {size: Ppo(env_id, BATCH // ENVS, size, seed=0) for size in (MINIBATCH, 1024)}

    def collect() -> int:
        runs[MINIBATCH].collect(lambda _: None)
        return BATCH

    def train(run: Ppo) -> int:
        run.update(run.collect(lambda _: None))
        return BATCH

    serve(
        {
            "collect": collect,
            "train": lambda: train(runs[MINIBATCH]),
            "train coarse": lambda: train(runs[1024]),
        }
    )


def score(env_id: str, seed: int, target: float) -> int:
    """Env steps until then, of a million, over which the learning rate falls to 0."""
    run, steps, total = Ppo(env_id, 2048 // ENVS, MINIBATCH, seed), 0, 1_000_000
    score, reached = Score(target), []
    while steps < total and not any(reached):
        run.adam.param_groups[0]["lr"] = LEARNING_RATE * (1 - steps / total)
        batch = run.collect(lambda value: reached.append(score.add(value)))
        steps += 2048
        if not any(reached):
            run.update(batch)
    return steps if any(reached) else 0


if __name__ == "__main__":
    if len(sys.argv) == 2:
        main(sys.argv[1])
    else:
        print(score(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
