"""Steps with other goals against loops over an episode, which share no code with the views."""

from dataclasses import dataclass

import numpy as np
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from flame_rl.learner.off_policy.replay.hindsight import GoalPlaces, RelabelledSteps, Relabelling
from flame_rl.learner.off_policy.replay.store import ReplayStore
from flame_rl.learner.off_policy.replay.views import n_step
from flame_rl.wire.messages import Column, Episodes

# Two numbers each; a goal is between two other numbers.
ACHIEVED, DESIRED, WIDTH = slice(3, 5), slice(1, 3), 6
COLUMNS = (
    Column("observations", "float32", (WIDTH,), True),
    Column("actions", "int32", (), False, (4,)),
    Column("rewards", "float64", (), False),
    Column("action_masks", "uint8", (1,), True),
)
CAPACITY = 16


@dataclass
class Grid:
    """Goals in a grid, which end an episode where they are reached."""

    places: GoalPlaces

    def outcomes(self, achieved, desired):
        assert achieved.shape == desired.shape and achieved.shape[1:] == (2,)
        assert (achieved > 0).all(), "of a row that no episode has"
        return -np.abs(achieved - desired).sum(axis=1), (achieved == desired).all(axis=1)


FUNCTIONS = Grid(GoalPlaces(ACHIEVED, DESIRED, spaces.Box(0, 2, (2,), np.float32)))


def episodes_of(lengths, seed):
    rng = np.random.default_rng(seed)
    lengths = np.array(lengths)
    rows, steps = int(lengths.sum()) + len(lengths), int(lengths.sum())
    # So few goals that many are reached more than once, and no observation is 0.
    columns = {
        "observations": rng.integers(1, 3, (rows, WIDTH)).astype(np.float32),
        "actions": rng.integers(0, 4, steps).astype(np.int32),
        "rewards": rng.integers(1, 9, steps).astype(np.float64),
        "action_masks": rng.integers(0, 9, (rows, 1)).astype(np.uint8),
    }
    terminated = rng.random(len(lengths)) < 0.5
    return Episodes(np.arange(len(lengths)), lengths, terminated, ~terminated, columns)


class Slow:
    """One step at a time."""

    def __init__(self, episodes: list, frames: int) -> None:
        self.frames = frames
        self.steps = [(episode, t) for episode in episodes for t in range(episode.length)]

    def seen(self, episode, t, goal):
        """The stack at time t, [k, D], or the observation where k is 1."""
        stack = []
        for s in range(t - self.frames + 1, t + 1):
            row = np.zeros(WIDTH, np.float32)
            if s >= 0:
                row = episode.observations[s].copy()
                if goal is not None:
                    row[1], row[2] = goal
            stack.append(row)
        return stack[0] if self.frames == 1 else np.array(stack)

    def transition(self, position, goal, n, discount):
        """What is learned from, with the episode's own goal where `goal` is None."""
        episode, t = self.steps[position]
        total, k, over = 0.0, 0, False
        while k < n and t + k < episode.length and not over:
            reward, last = episode.rewards[t + k], t + k + 1 == episode.length
            over = last and episode.terminated
            if goal is not None:
                reached = [episode.observations[t + k + 1][3], episode.observations[t + k + 1][4]]
                reward = -abs(reached[0] - goal[0]) - abs(reached[1] - goal[1])
                over = reached[0] == goal[0] and reached[1] == goal[1]
            total += discount**k * reward
            k += 1
        return {
            "observations": self.seen(episode, t, goal),
            "next_observations": self.seen(episode, t + k, goal),
            "rewards": total,
            "discounts": 0.0 if over else discount**k,
            "actions": episode.actions[t],
            "action_masks": episode.columns["action_masks"][t],
            "next_action_masks": episode.columns["action_masks"][t + k],
            "between": [self.seen(episode, t + i, goal) for i in range(1, k)],
            "between_discounts": [discount**i if i < k else 0.0 for i in range(1, n)],
        }


@settings(max_examples=75, deadline=None)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
    st.integers(0, 1000),
    st.sampled_from(["future", "final"]),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.integers(1, 6),
    st.integers(1, 3),
)
def test_a_minibatch_is_that_of_loops_over_episodes(lengths, seed, strategy, share, n, frames):
    store = ReplayStore(COLUMNS, CAPACITY, frames)
    collected = episodes_of(lengths, seed)
    for episode in collected:  # one by one, so that the ring comes round
        steps = np.array([episode.length])
        ends = np.array([episode.terminated]), np.array([episode.truncated])
        store.add(Episodes(np.zeros(1, int), steps, *ends, episode.columns))
    slow = Slow(list(collected), frames)
    rng = np.random.default_rng(seed)
    positions = rng.integers(store.first, store.steps, 12)

    generator = np.random.default_rng(seed)
    hindsight = Relabelling(FUNCTIONS, strategy, share)
    relabelled = RelabelledSteps(store, hindsight, positions, generator)
    batch = n_step(relabelled, positions, n, 0.5)

    # The same draws: who gets a goal, then how many steps ahead it lies.
    generator = np.random.default_rng(seed)
    chosen = generator.random(12) < share
    left = np.array([slow.steps[p][0].length - slow.steps[p][1] for p in positions])
    ahead = generator.integers(1, left + 1) if strategy == "future" else left
    for i, position in enumerate(positions):
        episode, t = slow.steps[position]
        goal = episode.observations[t + ahead[i]][3:5] if chosen[i] else None
        expected = slow.transition(position, goal, n, 0.5)
        between = expected.pop("between")
        np.testing.assert_array_equal(
            batch["between"][i][: len(between)], between or batch["between"][i][:0]
        )
        for name, value in expected.items():
            np.testing.assert_array_equal(batch[name][i], np.float32(value), err_msg=name)
        # What is beyond an end counts nothing.
        assert (batch["between_discounts"][i][len(between) :] == 0).all()
    # No more was drawn.
    own = np.random.default_rng(seed)
    RelabelledSteps(store, hindsight, positions, own)
    assert own.bit_generator.state == generator.bit_generator.state
