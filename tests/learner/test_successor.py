"""Successor features, in a grid world whose action values are solved for exactly."""

import gymnasium
import numpy as np
import pytest
import torch

from flame_rl import TrainConfig, Trainer
from flame_rl.system.errors import UsageError

ROWS, COLUMNS, GAMMA = 3, 4, 0.9
CELLS = ROWS * COLUMNS
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
# An episode ends in one of these, which pays one of each part; the third part is paid every step.
APPLES, NUTS = 3, 8
WEIGHTS = (1.0, 0.6, -0.05)


def moved(cell: int, action: int) -> int:
    row, column = divmod(cell, COLUMNS)
    row = min(max(row + MOVES[action][0], 0), ROWS - 1)
    column = min(max(column + MOVES[action][1], 0), COLUMNS - 1)
    return row * COLUMNS + column


def paid(cell: int) -> np.ndarray:
    """The parts of the reward of a step to this cell."""
    return np.array([cell == APPLES, cell == NUTS, 1.0])


class Orchard(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (CELLS,), np.float32)
    action_space = gymnasium.spaces.Discrete(len(MOVES))
    reward_space = gymnasium.spaces.Box(0, 1, (3,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell = int(self.np_random.choice([c for c in range(CELLS) if c not in (APPLES, NUTS)]))
        return self._seen(), {}

    def step(self, action):
        self.cell = moved(self.cell, int(action))
        return self._seen(), paid(self.cell), self.cell in (APPLES, NUTS), False, {}

    def _seen(self):
        return np.eye(CELLS, dtype=np.float32)[self.cell]


def make_orchard() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(Orchard(), 40)


def best_actions(weights: tuple[float, ...]) -> np.ndarray:
    """By value iteration, [CELLS]."""
    q = np.zeros((CELLS, len(MOVES)))
    for _ in range(200):
        for cell in range(CELLS):
            for action in range(len(MOVES)):
                to = moved(cell, action)
                q[cell, action] = paid(to) @ weights
                if to not in (APPLES, NUTS):
                    q[cell, action] += GAMMA * q[to].max()
    return q.argmax(axis=1)


def features_of(policy: np.ndarray) -> np.ndarray:
    """What each action's discounted parts sum up to if `policy` acts from then on,
    [CELLS, actions, 3], by solving the linear equations of its states."""
    follows, gains = np.eye(CELLS), np.zeros((CELLS, 3))
    for cell in range(CELLS):
        to = moved(cell, policy[cell])
        gains[cell] = paid(to)
        if to not in (APPLES, NUTS):
            follows[cell, to] -= GAMMA
    states = np.linalg.solve(follows, gains)
    features = np.zeros((CELLS, len(MOVES), 3))
    for cell in range(CELLS):
        for action in range(len(MOVES)):
            to = moved(cell, action)
            features[cell, action] = paid(to)
            if to not in (APPLES, NUTS):
                features[cell, action] += GAMMA * states[to]
    return features


def make(**options) -> Trainer:
    small = {"hidden_sizes": (64,), "steps_per_iter": 500, "warm_up_steps": 500, "batch_size": 64}
    fixed = {"env": make_orchard, "algorithm": "successor", "gamma": GAMMA, "local": True}
    return Trainer(TrainConfig(**fixed | small | {"workers": 0} | options))


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """The path of a trained policy."""
    path = tmp_path_factory.mktemp("successor") / "trained.ckpt"
    settings = {"learning_rate": 3e-3, "tau": 0.02, "epsilon_steps": 2_000, "epsilon_end": 0.3}
    with make(reward_weights=WEIGHTS, iterations=14, **settings) as trainer:
        list(trainer)
        trainer.save(path)
    return path


def test_values_under_other_weights_follow_without_learning(learned):
    exact = features_of(best_actions(WEIGHTS))
    inside = [cell for cell in range(CELLS) if cell not in (APPLES, NUTS)]
    with Trainer.load(learned, env=make_orchard) as trainer, torch.no_grad():
        module = trainer.learner.parts["policy"]
        found = module(torch.eye(CELLS)).numpy().reshape(CELLS, len(MOVES), 3)
    for weights in (WEIGHTS, (0.2, 1.0, -0.05), (-1.0, 0.5, 0.1), (0.0, 0.0, -1.0)):
        ours, theirs = (features[inside] @ np.array(weights) for features in (found, exact))
        assert np.abs(ours - theirs).max() < 0.1 * np.abs(theirs).max(), weights


def test_a_trained_policy_acts_by_other_weights(learned):
    """Beside the nuts, going for the apples is best in training; with other weights it is not."""
    beside = moved(NUTS, 3)
    seen = np.eye(CELLS, dtype=np.float32)[beside]
    up, left, right = 0, 2, 3
    for weights, wanted in ((WEIGHTS, {up, right}), ((0.1, 1.0, -0.05), {left})):
        exact = features_of(best_actions(WEIGHTS))[beside] @ np.array(weights)
        assert set(np.flatnonzero(exact > exact.max() - 1e-9)) == wanted
        with Trainer.load(learned, env=make_orchard, reward_weights=weights) as trainer:
            assert trainer.compute_action(seen) in wanted


def test_weights_are_those_of_the_parts():
    with pytest.raises(
        UsageError, match=r"--reward-weights: 2 for 3 parts of the reward, reward_0"
    ):
        make(reward_weights=(1.0, 2.0))
    with pytest.raises(UsageError, match="--reward-weights: successor learns the return of each"):
        make(env="cartpole", reward_parts=("gain",))
    with pytest.raises(UsageError, match="--reward-weights: successor learns the return of each"):
        make(env="cartpole", reward="math:floor")
