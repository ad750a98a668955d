"""Environments with goals, in the manner of Gymnasium-Robotics and of panda-gym.

Where GOALS_DIES names a file that does not exist, one process dies in an episode and makes it.
"""

import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
from gymnasium import spaces

from flame_rl.actor.simulators.repeatable import SEED

BITS = 10
NEAR = 0.2


class GoalEnv(gymnasium.Env):
    """Each step may end with a success; a subclass says what is achieved."""

    ends = True

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.dies = 0, seed not in (SEED, SEED + 1) and os.environ.get("GOALS_DIES")
        self.begin()
        return self.seen(), {}

    def step(self, action):
        if self.dies and self.t == 3 and not Path(self.dies).exists():
            Path(self.dies).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        self.t += 1
        self.move(action)
        reached = bool(self.reached(self.state, self.goal))
        info = {"is_success": reached}
        reward = self.compute_reward(self.state, self.goal, info)
        return self.seen(), float(reward), self.ends and reached, False, info

    def seen(self):
        return {
            "observation": self.state.copy(),
            "achieved_goal": self.state.copy(),
            "desired_goal": self.goal.copy(),
        }

    def compute_reward(self, achieved_goal, desired_goal, info):
        return np.asarray(self.reached(achieved_goal, desired_goal), np.float32) - 1


class Bits(GoalEnv):
    """Flip one bit at each step, until all are as they are wished."""

    action_space = spaces.Discrete(BITS)
    observation_space = spaces.Dict(
        {
            name: spaces.MultiBinary(BITS)
            for name in ("observation", "achieved_goal", "desired_goal")
        }
    )

    def begin(self):
        self.state, self.goal = self.np_random.integers(0, 2, (2, BITS)).astype(np.int8)

    def move(self, action):
        self.state[action] ^= 1

    def reached(self, achieved, desired):
        return (achieved == desired).all(axis=-1)

    def compute_terminated(self, achieved_goal, desired_goal, info):
        return self.reached(achieved_goal, desired_goal)


class MaskedGoals(Bits):
    """The bit that was flipped last stays as it is."""

    def reset(self, **options):
        seen, _ = super().reset(**options)
        self.allowed = np.ones(BITS, np.int8)
        return seen, {"action_mask": self.allowed}

    def step(self, action):
        assert self.allowed[action]
        seen, reward, terminated, truncated, info = super().step(action)
        self.allowed = np.ones(BITS, np.int8)
        self.allowed[action] = 0
        return seen, reward, terminated, truncated, info | {"action_mask": self.allowed}


class Point(GoalEnv):
    """Move about in a plane. Like Fetch it goes on after a success, and says so of one goal."""

    ends = False
    action_space = spaces.Box(-1, 1, (2,), np.float32)
    observation_space = spaces.Dict(
        {
            "desired_goal": spaces.Box(-9, 9, (2,), np.float64),
            "observation": spaces.Box(-9, 9, (2,), np.float64),
            "achieved_goal": spaces.Box(-9, 9, (2,), np.float64),
        }
    )

    def begin(self):
        self.state, self.goal = np.zeros(2), self.np_random.uniform(-1, 1, 2)

    def move(self, action):
        self.state = np.clip(self.state + 0.3 * action, -2, 2)

    def reached(self, achieved, desired):
        return np.linalg.norm(achieved - desired, axis=-1) < NEAR

    def compute_terminated(self, achieved_goal, desired_goal, info):
        return False


class Maze(Point):
    """It ends with a success, and its function takes one goal alone, without saying so."""

    ends = True

    def compute_terminated(self, achieved_goal, desired_goal, info):
        return bool(np.linalg.norm(achieved_goal - desired_goal) < NEAR)


class Panda(Point):
    """It ends with a success, as panda-gym's do, and has no function that says so."""

    ends = True
    compute_terminated = property()

    def __init__(self):
        self.task = SimpleNamespace(is_success=self.reached)


class Old(Point):
    """It never ends, and has no function that says so."""

    compute_terminated = property()


class Mute(Panda):
    """It ends, and nothing says with which goals."""

    def __init__(self):
        pass


class Paid(Point):
    """The reward follows from more than goals."""

    def step(self, action):
        seen, reward, *rest = super().step(action)
        return seen, reward - 0.1 * float(np.abs(action).sum()), *rest


class Ending(Bits):
    """It ends for another reason, too."""

    def step(self, action):
        seen, reward, terminated, *rest = super().step(action)
        return seen, reward, terminated or self.t == BITS // 2, *rest


class Free(Point):
    """Its rewards are its own."""

    def step(self, action):
        self.t += 1
        self.move(action)
        return self.seen(), 0.0, False, False, {}


class Silent(Free):
    compute_reward = property()

    def move(self, action):
        raise AssertionError("an episode is played")


class Dividing(Free):
    def compute_reward(self, achieved_goal, desired_goal, info):
        return np.nan


class Counted(Point):
    """It counts the objects that are open, and may not want to be closed."""

    open, sound = 0, True

    def __init__(self):
        Counted.open += 1

    def close(self):
        Counted.open -= 1
        if not self.sound:
            raise RuntimeError("no such window")


class Informed(Free):
    def compute_reward(self, achieved_goal, desired_goal, info):
        return info["paid"]


class Quitting(Free):
    def compute_reward(self, achieved_goal, desired_goal, info):
        return 0.0 if info else sys.exit()


for kind in (Bits, MaskedGoals, Ending):
    gymnasium.register(f"{kind.__name__}-v0", kind, max_episode_steps=BITS)
for kind in (Point, Maze, Panda, Old, Mute, Paid, Free, Silent, Dividing, Informed, Quitting):
    gymnasium.register(f"{kind.__name__}-v0", kind, max_episode_steps=8)
gymnasium.register("Counted-v0", Counted, max_episode_steps=8)
