"""Tiny environments whose answers are known, and ones that misbehave."""

import contextlib
import ctypes
import functools
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from flame_rl.actor.simulators.repeatable import SEED

# What episodes of the check at a run's start are reset with.
CHECKED = (SEED, SEED + 1)

ONE = np.ones(1, np.float32)


class Base(gymnasium.Env):
    """One number observed, two actions, ends after `horizon` steps."""

    observation_space: spaces.Space = spaces.Box(-10, 10, (1,), np.float32)
    action_space: spaces.Space = spaces.Discrete(2)
    horizon = 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.observation = self.first_observation()
        return self.observation, {}

    def step(self, action):
        reward = self.reward(action)
        self.t += 1
        self.observation = self.next_observation()
        return self.observation, reward, self.t >= self.horizon, False, {}

    def first_observation(self):
        return ONE

    def next_observation(self):
        return ONE

    def reward(self, action) -> float:
        return 1.0


class ActionReward(Base):
    """Action 1 pays."""

    def reward(self, action) -> float:
        return float(action == 1)


class ObservationAction(Base):
    """The action that names the sign of the observation pays."""

    horizon = 4

    def first_observation(self):
        return np.where(self.np_random.random(1) < 0.5, -1.0, 1.0).astype(np.float32)

    next_observation = first_observation

    def reward(self, action) -> float:
        return float((self.observation[0] > 0) == (action == 1))


class LargeObservationAction(ObservationAction):
    """The same, observed on a scale of 1000 around 500."""

    observation_space = spaces.Box(-1e4, 1e4, (1,), np.float32)

    def first_observation(self):
        return 500 + 1000 * super().first_observation()

    next_observation = first_observation

    def reward(self, action) -> float:
        return float((self.observation[0] > 500) == (action == 1))


class ObservationReward(ObservationAction):
    """One step; the reward is twice the observation, whatever the action."""

    horizon = 1

    def reward(self, action) -> float:
        return 2.0 * float(self.observation[0])


class TwoSteps(Base):
    """Observed 0, then 1; only the second step pays, 1."""

    horizon = 2

    def first_observation(self):
        return 0 * ONE

    def reward(self, action) -> float:
        return float(self.t)


class DelayedReward(Base):
    """The first of two actions decides about the reward of the second step."""

    horizon = 2

    def next_observation(self):
        return ONE * self.t

    def reward(self, action) -> float:
        if self.t == 0:
            self.chosen = action
            return 0.0
        return float(self.chosen == 1)


class Target(Base):
    """A continuous action close to the best one, 0.2, pays; bounds of 1."""

    action_space = spaces.Box(-1, 1, (1,), np.float32)
    horizon = 3
    best = 0.2

    def reward(self, action) -> float:
        assert self.action_space.contains(action), "an action outside the bounds"
        return -float((action[0] - self.best) ** 2)


class FarTarget(Target):
    """The best one is 6; bounds of 5 and 10."""

    action_space = spaces.Box(5, 10, (1,), np.float64)
    best = 6


class Recall(Base):
    """-1 or 1 is observed at first and 0 from then on; the last action pays if it names the first
    observation. What does not remember it is paid half the time."""

    horizon = 5

    def first_observation(self):
        self.shown = 1.0 if self.np_random.random() < 0.5 else -1.0
        return self.shown * ONE

    def next_observation(self):
        return 0 * ONE

    def reward(self, action) -> float:
        return float(self.t == self.horizon - 1 and (self.shown > 0) == (action == 1))


class Catch(Base):
    """A ball falls straight down a picture of 10 x 5, and a paddle in the lowest row can be moved
    left, not at all, or right: 1 if it is under the ball in the end, else -1."""

    observation_space = spaces.Box(0, 255, (10, 5), np.uint8)
    action_space = spaces.Discrete(3)
    horizon = 9

    def first_observation(self):
        self.ball, self.paddle = int(self.np_random.integers(5)), 2
        return self.picture(0)

    def next_observation(self):
        return self.picture(self.t)

    def reward(self, action) -> float:
        self.paddle = min(max(self.paddle + int(action) - 1, 0), 4)
        if self.t + 1 < self.horizon:
            return 0.0
        return 1.0 if self.paddle == self.ball else -1.0

    def picture(self, row: int) -> np.ndarray:
        picture = np.zeros((10, 5), np.uint8)
        picture[row, self.ball] = picture[9, self.paddle] = 255
        return picture


class BrightCatch(Catch):
    """Catch in pictures of 40 x 40 whose background is almost as bright as ball and paddle."""

    observation_space = spaces.Box(0, 255, (40, 40), np.uint8)

    def picture(self, row: int) -> np.ndarray:
        small = np.where(super().picture(row) > 0, 230, 200).astype(np.uint8)
        return small.repeat(4, axis=0).repeat(8, axis=1)


class BooleanCatch(Catch):
    """The same as bool with a channel for the ball and one for the paddle."""

    observation_space = spaces.Box(0, 1, (10, 5, 2), bool)

    def picture(self, row: int) -> np.ndarray:
        picture = np.zeros((10, 5, 2), bool)
        picture[row, self.ball, 0] = picture[9, self.paddle, 1] = True
        return picture


class ChannelsFirst(BrightCatch):
    """The same with three channels before rows and columns, as torch has pictures; the second one
    is dark."""

    observation_space = spaces.Box(0, 255, (3, 40, 40), np.uint8)

    def picture(self, row: int) -> np.ndarray:
        return super().picture(row) * np.array([1, 0, 1], np.uint8)[:, None, None]


class WholeNumbers(Catch):
    """Promises uint8 and returns float64, of which some are no such numbers."""

    wrong = 7.0

    def picture(self, row: int) -> np.ndarray:
        picture = super().picture(row).astype(float)
        picture[4, 4] = self.wrong if row == 3 else 7
        return picture


class Wandering(Base):
    """Random numbers are observed; an episode ends by chance, after 10 steps on average."""

    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def first_observation(self):
        return self.np_random.standard_normal(1).astype(np.float32)

    def next_observation(self):
        self.horizon = self.t if self.np_random.random() < 0.1 else self.t + 1
        return self.first_observation()

    def step(self, action):
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, self.t >= self.horizon, truncated, info


class Endless(Base):
    """1 per step for ever: only a time limit cuts it."""

    horizon = 1 << 60


class Ten(Base):
    """Ends by itself, and has no time limit."""

    horizon = 10


class Drifting(Base):
    """A place drifts by chance and by the actions, and the distance from 0 costs; an episode ends
    by chance, after 40 steps on average."""

    ends = 1 / 40
    drift = 0.5

    def reset(self, *, seed=None, options=None):
        self.chance = np.random.default_rng(seed)
        return super().reset(seed=seed)

    def first_observation(self):
        self.going = True
        return self.chance.normal(size=1).astype(np.float32)

    def step(self, action):
        moved = self.observation + (0.4 if action else -0.4)
        self.observation = (moved + self.drift * self.chance.normal(size=1)).astype(np.float32)
        self.observation = np.clip(self.observation, -10, 10)
        ended = bool(self.chance.random() < self.ends)
        return self.observation, -float(abs(self.observation[0])), ended, False, {}


class Unrepeated(Drifting):
    """The same, by chance that no seed sets."""

    def reset(self, *, seed=None, options=None):
        return super().reset()


class Following(Base):
    """Actions move a place in the plane, and chance does; its distance from 0 costs. Only a time
    limit of 20,000 steps ends it."""

    observation_space = spaces.Box(-2, 2, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (2,), np.float32)
    horizon = 1 << 60

    def first_observation(self):
        return self.np_random.uniform(-2, 2, 2).astype(np.float32)

    def next_observation(self):
        return self.observation

    def reward(self, action) -> float:
        moved = self.observation + 0.1 * action + 0.05 * self.np_random.standard_normal(2)
        self.observation = moved.clip(-2, 2).astype(np.float32)
        return -float(np.linalg.norm(self.observation))


class Hoarder(Base):
    """Takes 40 MB."""

    horizon = 3

    def reset(self, *, seed=None, options=None):
        self.hoard = np.ones(5_000_000)
        return super().reset(seed=seed, options=options)


class Chatty(Base):
    """Prints on standard output, where the worker's answers travel."""

    def reward(self, action) -> float:
        print("hello from the simulator")
        os.write(1, b"and from its C code\n")
        return 1.0


class Forger(Base):
    """Writes where the worker's answers travel that gigabytes are to come."""

    def reward(self, action) -> float:
        for descriptor in range(3, 256):
            with contextlib.suppress(OSError):
                os.write(descriptor, struct.pack("<QQ", 1 << 60, 0))
        return 1.0


class FourValues(Base):
    """The API of gym before 0.26: `done` in place of terminated and truncated."""

    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


class BarePair(Base):
    """`reset` returns the observation alone, which has two numbers."""

    observation_space = spaces.Box(-10, 10, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32)


class WithoutSeed(Base):
    def reset(self):
        return super().reset()


def first_time(marker: str) -> bool:
    """Whether no process has been here before, which a file remembers; without one, always."""
    if marker and Path(marker).exists():
        return False
    if marker:
        Path(marker).touch()
    return True


def happen(kind: str) -> None:
    """What an environment may do to its process."""
    match kind:
        case "raise":
            raise RuntimeError("the robot fell over")
        case "hang":
            time.sleep(3600)
        case "hang in C":  # without giving other threads of the process a chance
            ctypes.PyDLL(None).sleep(3600)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "SIGUSR1" | "SIGUSR2":
            signal.raise_signal(signal.Signals[kind])
        case "exit":
            sys.exit(3)
        case "interrupt":
            raise KeyboardInterrupt
        case "chdir":
            os.chdir(os.environ["FAULT_FOLDER"])
        case "segfault":
            ctypes.string_at(0)


class Misbehaving(Base):
    """Does what the `fault` says, at step 2."""

    horizon = 5

    def __init__(self, fault: str = "", marker: str = "") -> None:
        self.fault = fault
        self.marker = marker

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        if self.t != 3 or not first_time(self.marker):
            return observation, reward, terminated, truncated, info
        match self.fault:
            case "nan-observation":
                observation = observation * np.nan
            case "nan-reward":
                reward = float("nan")
            case "infinity":
                observation = np.array([1e300])
            case "shape":
                observation = np.zeros(2, np.float32)
            case "text":
                reward = "much"
            case other:
                happen(other)
        return observation, reward, terminated, truncated, info


class Slow(Base):
    """Takes real time, as a robot does, and no core."""

    horizon = 20

    def reward(self, action) -> float:
        time.sleep(0.01)
        return 1.0


class OneIsSlow(Base):
    """Of all processes, the first that makes the file FAULT_MARKER waits fifty times as long."""

    horizon = 10
    seconds: ClassVar[float] = 0.0

    def reset(self, *, seed=None, options=None):
        if not OneIsSlow.seconds:
            OneIsSlow.seconds = 0.002
            with contextlib.suppress(FileExistsError), open(os.environ["FAULT_MARKER"], "x"):  # noqa: PTH123
                OneIsSlow.seconds = 0.1
        return super().reset(seed=seed, options=options)

    def reward(self, action) -> float:
        time.sleep(self.seconds)
        return 1.0


class Drawn(ObservationAction):
    """Can be shown: the picture's red is the time step, its green the number of the reset."""

    metadata: ClassVar = {"render_modes": ["rgb_array", "human"], "render_fps": 25}
    horizon = 6
    resets = 0

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        self.resets += 1
        return super().reset(seed=seed, options=options)

    def render(self):
        return np.full((40, 60, 3), (self.t, self.resets, 0), np.uint8)


class Fast(Drawn):
    """Shows itself more often than a GIF can, and counts its pictures in `drawn`."""

    metadata: ClassVar = Drawn.metadata | {"render_fps": 125}
    drawn: ClassVar[list[int]] = []

    def render(self):
        self.drawn.append(self.t)
        return super().render()


class SlowlyDrawn(Drawn):
    """Takes a third of a second for a picture; its time limit is two steps longer than it lasts."""

    def render(self):
        time.sleep(0.35)
        return super().render()


class Growing(Drawn):
    """Its picture, red on the left and blue on the right, has another size at every step."""

    def render(self):
        picture = np.zeros((40 + 10 * self.t, 60 + 6 * self.t, 3), np.uint8)
        picture[:, : picture.shape[1] // 2, 0] = picture[:, picture.shape[1] // 2 :, 2] = 200
        return picture


class Structured(Base):
    """Every kind of space is observed, nested, and two choices are to be made: the first one pays
    where it is the observed goal, the second one where it is not 2, its lowest value."""

    observation_space = spaces.Dict(
        {
            "goal": spaces.Discrete(3, start=-1),
            "arm": spaces.Tuple(
                (
                    spaces.Box(-10, 10, (2, 2), np.float64),
                    spaces.MultiBinary(3),
                    spaces.Dict({"mode": spaces.MultiDiscrete([2, 3], start=[0, 5])}),
                )
            ),
        }
    )
    action_space = spaces.MultiDiscrete([3, 2], start=[-1, 2])
    horizon = 3

    def first_observation(self):
        return {
            "goal": int(self.np_random.integers(-1, 2)),
            "arm": (
                self.np_random.standard_normal((2, 2)),
                np.array([1, 0, 1], np.int8),
                {"mode": np.array([self.np_random.integers(2), 6])},
            ),
        }

    next_observation = first_observation

    def reward(self, action) -> float:
        assert self.action_space.contains(action), f"not an action: {action!r}"
        return float(action[0] == self.observation["goal"]) + float(action[1] != 2)


class TwoInputs(Base):
    """A camera and an arm: the half of the picture that is bright, and the sign of the arm's second
    number, together say which of four actions pays. The lamp says nothing."""

    observation_space = spaces.Dict(
        arm=spaces.Box(-1, 1, (2,), np.float64),
        camera=spaces.Box(0, 255, (5, 6, 1), np.uint8),
        lamp=spaces.Discrete(2),
    )
    action_space: spaces.Space = spaces.Discrete(4)
    horizon = 4

    def first_observation(self):
        self.right, self.up = self.np_random.integers(2, size=2).tolist()
        camera = np.zeros((5, 6, 1), np.uint8)
        camera[:, 3 * self.right : 3 * self.right + 3] = 200
        camera += self.np_random.integers(0, 30, camera.shape, np.uint8)
        arm = np.array([self.np_random.uniform(-1, 1), 2.0 * self.up - 1])
        return {"arm": arm, "camera": camera, "lamp": int(self.np_random.integers(2))}

    next_observation = first_observation

    def reward(self, action) -> float:
        return float(action == 2 * self.right + self.up)


class TwoInputsAndNumbers(TwoInputs):
    """Two real numbers are to be 0.5 or -0.5, the one as the camera says, the other as the arm
    does."""

    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reward(self, action) -> float:
        wanted = np.array([self.right, self.up]) - 0.5
        return 1.0 - float(np.square(action - wanted).sum())


class HiddenReward(Base):
    """The action that names the sign of what is seen pays 1, beside what is hidden, which no action
    changes and which is far larger."""

    observation_space = spaces.Dict(
        hidden=spaces.Box(-9, 9, (1,), np.float32), seen=spaces.Box(-1, 1, (1,), np.float32)
    )
    horizon = 4

    def first_observation(self):
        hidden, seen = self.np_random.choice([-1.0, 1.0], 2)
        return {
            name: np.array([x], np.float32) for name, x in (("hidden", 9 * hidden), ("seen", seen))
        }

    next_observation = first_observation

    def reward(self, action) -> float:
        seen, hidden = (float(self.observation[name][0]) for name in ("seen", "hidden"))
        return hidden + float(action == (seen > 0))


class Broken(Structured):
    """What it observes at step 2 is wrong in one place."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def next_observation(self):
        observation = self.first_observation()
        if self.t != 2:
            return observation
        box, bits, modes = observation["arm"]
        match self.fault:
            case "missing":
                del observation["goal"]
            case "below":
                observation["goal"] = -2
            case "above":
                observation["goal"] = 2
            case "float":
                observation["goal"] = 0.5
            case "list":
                observation = [1, 2]
            case "short":
                observation["arm"] = (box, bits)
            case "nan":
                box[1, 0] = np.nan
            case "shape":
                observation["arm"] = (box.ravel(), bits, modes)
            case "bits":
                bits[1] = 2
            case "mode":
                modes["mode"][1] = 8
            case "text":
                modes["mode"] = "fast"
        return observation


class Switches(Base):
    """Three switches, of which those that are observed are to be set."""

    observation_space = spaces.MultiBinary(3)
    action_space = spaces.MultiBinary(3)
    horizon = 2

    def first_observation(self):
        return self.np_random.integers(2, size=3, dtype=np.int8)

    next_observation = first_observation

    def reward(self, action) -> float:
        assert self.action_space.contains(action), f"not an action: {action!r}"
        return float((action == self.observation).sum())


class ScalarAction(Base):
    """A Box of one number and no axis."""

    action_space = spaces.Box(-2, 2, (), np.float32)

    def reward(self, action) -> float:
        assert np.shape(action) == () and -2 <= action <= 2
        return float(action)


class WithoutSpaces(gymnasium.Env):
    """What a first environment may forget."""

    action_space = spaces.Discrete(2)


class OfGym:
    """Of no class of Gymnasium's."""


class DiscreteObservation(Base):
    """A number from 0 to 2 is observed; the actions are called 5 and 6."""

    observation_space = spaces.Discrete(3)
    action_space = spaces.Discrete(2, start=5)
    horizon = 3

    def first_observation(self):
        return 0

    def next_observation(self):
        return self.t % 3

    def reward(self, action) -> float:
        assert action in (5, 6)
        return float(action)


class Picture(Base):
    """A two-dimensional observation."""

    observation_space = spaces.Box(-10, 10, (2, 3), np.float64)

    def first_observation(self):
        return np.arange(6.0).reshape(2, 3)

    next_observation = first_observation


class Poisoned(ObservationAction):
    """FAULT_KIND happens in the episode whose reset seed is FAULT_SEED, or in the first one to come
    if that is "any"; with a FAULT_MARKER file, once. A step takes FAULT_SLEEP seconds."""

    horizon = 5

    def reset(self, *, seed=None, options=None):
        self.enormous = False
        # Not in the episodes of the check at a run's start.
        self.poisoned = seed not in CHECKED and os.environ.get("FAULT_SEED") in (str(seed), "any")
        self.sleep = float(os.environ.get("FAULT_SLEEP", "0"))
        return super().reset(seed=seed, options=options)

    def reward(self, action) -> float:
        time.sleep(self.sleep)
        if self.poisoned and self.t == 2:
            self.poisoned = False
            if first_time(os.environ.get("FAULT_MARKER", "")):
                kind = os.environ.get("FAULT_KIND", "")
                self.enormous = kind == "enormous"
                happen(kind)
        return 1.7e308 if self.enormous else super().reward(action)


class Server(Poisoned):
    """Says in SERVER_LOG when it is made and closed, and by which process. Its `close` does what
    SERVER_CLOSE says; where SERVER_PORT names a file, only one can exist at a time, and where
    SERVER_RIVAL does, the one that exists plays its first episode after another was refused, which
    makes that file."""

    def __init__(self) -> None:
        self.port = os.environ.get("SERVER_PORT", "")
        self.rival = os.environ.get("SERVER_RIVAL", "")
        if self.port:
            try:
                Path(self.port).touch(exist_ok=False)
            except FileExistsError:
                if self.rival:
                    Path(self.rival).touch()
                raise
        self.log("made")

    def reset(self, *, seed=None, options=None):
        # Not in the episodes of the check at a run's start.
        while self.rival and seed not in CHECKED and not Path(self.rival).exists():
            time.sleep(0.01)
        return super().reset(seed=seed, options=options)

    def close(self) -> None:
        self.log("closed")
        if self.port:
            Path(self.port).unlink()
        if os.environ.get("SERVER_CLOSE") == "raise":
            raise RuntimeError("no such window")

    def log(self, event: str) -> None:
        with Path(os.environ.get("SERVER_LOG", os.devnull)).open("a") as file:
            file.write(f"{event} {os.getpid()}\n")


class Leaking(ObservationAction):
    """Keeps 20 MB of every episode for ever; says in FAULT_LOG which process played it."""

    def reset(self, *, seed=None, options=None):
        kept = int(os.environ.get("FAULT_LEAK_MEGABYTES", "20"))
        _LEAK.append(b"x" * (kept * 1_000_000))
        if "FAULT_LOG" in os.environ and seed not in CHECKED:
            with Path(os.environ["FAULT_LOG"]).open("a") as file:
                file.write(f"{os.getpid()}\n")
        return super().reset(seed=seed, options=options)


_LEAK: list[bytes] = []


class Family(Slow):
    """A simulator that is a process of its own, as game engines are."""

    def reset(self, *, seed=None, options=None):
        if os.environ.get("FAULT_KIND") == "hang":
            time.sleep(3600)
        return super().reset(seed=seed, options=options)

    def __init__(self) -> None:
        self.engine = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL)


class NeverMade(Base):
    """Takes for ever to be made, and makes the file FAULT_MARKER when that begins."""

    def __init__(self) -> None:
        first_time(os.environ.get("FAULT_MARKER", ""))
        time.sleep(3600)


class Forking(Base):
    """Starts a process, which inherits all pipes, and dies by itself in its second step."""

    horizon = 5

    def reward(self, action) -> float:
        if self.t == 1:
            pid = os.fork()
            if pid == 0:
                time.sleep(300)
                os._exit(0)
            Path(os.environ["FORKED"]).write_text(str(pid))
            os.kill(os.getpid(), signal.SIGKILL)
        return 1.0


class OfForks(Base):
    """Each step is taken beside a fork, which raises an exception."""

    def step(self, action):
        if (child := os.fork()) == 0:
            raise ValueError("in the fork")
        os.waitpid(child, 0)
        return super().step(action)


class Shouting(Base):
    """Raises an exception of the `text` because of another one."""

    def __init__(self, text: str = "") -> None:
        self.text = text

    def step(self, action):
        try:
            raise ValueError(self.text)
        except ValueError as error:
            raise RuntimeError(self.text) from error


class Sampled(Base):
    """Observes what its space samples, of any kind, which says nothing."""

    horizon = 4

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed=None, options=None):
        self.observation_space.seed(seed)
        return super().reset(seed=seed)

    def first_observation(self):
        return self.observation_space.sample()

    next_observation = first_observation


class Parts(Base):
    """A reward of two parts, 2 for action 1 and -1 for every step before, named in `info`."""

    horizon = 3

    def reward(self, action) -> float:
        return 2.0 * float(action) - self.t

    def step(self, action):
        info = {"gain": 2.0 * float(action), "cost": -self.t, "note": "text"}
        return (*super().step(action)[:-1], info)


class Arriving(Base):
    """`info` says at an episode's end alone whether it was a success, which the seed decides, and
    what a monitor counts."""

    horizon = 3

    def first_observation(self):
        self.arrives = bool(self.np_random.random() < 0.4)
        return ONE

    def step(self, action):
        *others, info = super().step(action)
        if self.t == self.horizon:
            info = {"is_success": self.arrives, "episode": {"r": 3.0 - 5 * self.arrives, "l": 3}}
        return (*others, info)


class TwoRewards(Base):
    """A vector: the action pays in the first number and costs in the second; `info` has a part,
    too."""

    reward_space: spaces.Space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    horizon = 3

    def reward(self, action) -> np.ndarray:
        return np.array([float(action), -3.0 * action + self.t])

    def step(self, action):
        info = {"cost": -self.t}
        return (*super().step(action)[:-1], info)


class AlteredParts(Parts):
    """The `info` of its second step is another one."""

    def step(self, action):
        *others, info = super().step(action)
        return (*others, self.info if self.t == 2 else info)


# Environments that differ from another class in one attribute: its value by the class's name.
_VARIANTS = {
    (Base, "observation_space"): {
        "TextObservation": spaces.Dict({"said": spaces.Text(5), "a": spaces.Discrete(2)}),
        "SequenceObservation": spaces.Sequence(spaces.Discrete(2)),
        "GraphObservation": spaces.Tuple(
            [spaces.Discrete(2), spaces.Graph(spaces.Box(-1, 1, (2,)), spaces.Discrete(2))]
        ),
        "EmptyObservation": spaces.Dict({}),
        "Nothing": spaces.Box(-1, 1, (0,), np.float32),
    },
    (Base, "action_space"): {
        "DictActions": spaces.Dict({"a": spaces.Discrete(2)}),
        "TupleActions": spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)]),
        "ABillionActions": spaces.Discrete(10**9),
        "IntegerActions": spaces.Box(0, 5, (2,), np.int64),
    },
    (AlteredParts, "info"): {
        "WithoutCost": {"gain": 1.0},
        "WithoutInfo": None,
        "InfiniteCost": {"gain": 1.0, "cost": -np.inf},
        "CostInWords": {"gain": 1.0, "cost": "much"},
        "CostOfTwo": {"gain": 1.0, "cost": np.ones(2)},
    },
    (WholeNumbers, "wrong"): {"Fractions": 7.5, "Beyond": 256.0, "NotANumber": np.nan},
    (Endless, "horizon"): {"Unlimited": 1 << 60},
    # Ends by itself, after more steps than the default limit.
    (Base, "horizon"): {"Long": 1200},
    (Base, "reward"): {"ConstantReward": lambda env, action: 3.0},
    (ActionReward, "reward"): {"ArrayReward": lambda env, action: np.array([float(action == 1)])},
    (Base, "next_observation"): {"Ragged": lambda env: [1, [2, 3]]},
    # A Discrete of which -1 is observed.
    (DiscreteObservation, "next_observation"): {"Outside": lambda env: -1},
    # The right number of numbers in the wrong shape.
    (Picture, "next_observation"): {"WrongPicture": lambda env: np.arange(6.0).reshape(3, 2)},
    (Base, "step"): {
        "WithoutReturn": lambda env, action: None,
        # Neither ended nor not.
        "Undecided": lambda env, action: (ONE, 1.0, np.array([True, False]), False, {}),
    },
    (Base, "__init__"): {"StillBorn": lambda env: os.kill(os.getpid(), signal.SIGKILL)},
    (Drawn, "render"): {"WronglyDrawn": lambda env: "a robot"},
    (TwoRewards, "reward"): {
        "ThreeRewards": lambda env, action: np.ones(3),
        # Not in the last step.
        "OneRewardAtFirst": lambda env, action: 0.5 if env.t < env.horizon else np.ones(2),
    },
    (TwoRewards, "reward_space"): {"TableOfRewards": spaces.Box(-1, 1, (2, 2), np.float64)},
}


def _register() -> None:
    # The same object at every call.
    gymnasium.register("OnlyOne-v0", entry_point=functools.cache(Base))
    gymnasium.register("WithoutSpaces-v0", entry_point=WithoutSpaces)
    gymnasium.register("OfGym-v0", entry_point=OfGym)
    pole = "gymnasium.envs.classic_control.cartpole:CartPoleEnv"
    gymnasium.register("ShortPole-v0", entry_point=pole, max_episode_steps=3)
    gymnasium.register("LimitedTen-v0", entry_point=Ten, max_episode_steps=20)
    gymnasium.register("CutTen-v0", entry_point=lambda: TimeLimit(Ten(), 5))
    for (base, attribute), values in _VARIANTS.items():
        for name, value in values.items():
            globals()[name] = type(name, (base,), {attribute: value, "__module__": __name__})
    own = [each for each in globals().values() if isinstance(each, type) and issubclass(each, Base)]
    for cls in {*own} - {Misbehaving, Broken, AlteredParts, Shouting, Sampled}:
        limit = {Endless: 7, SlowlyDrawn: 8, Following: 20_000}.get(cls)
        gymnasium.register(f"{cls.__name__}-v0", entry_point=cls, max_episode_steps=limit)
    parts = "missing below above float list short nan shape bits mode text"
    for fault in parts.split():
        name = f"{fault.title()}Broken-v0"
        gymnasium.register(name, entry_point=Broken, kwargs={"fault": fault})
    escapes = "\x1b[31m\x1b]0;title\x07"
    texts = {"Lengthy": "x" * 400_000, "Lines": "x\n" * 400_000, "Escapes": escapes}
    for name, text in texts.items():
        gymnasium.register(f"{name}Shouting-v0", entry_point=Shouting, kwargs={"text": text})
    faults = "raise nan-observation nan-reward infinity shape text hang exit kill segfault"
    # With a marker file in the environment, the fault happens only once.
    marker = os.environ.get("FAULT_MARKER", "")
    for fault in faults.split():
        kwargs = {"fault": fault, "marker": marker}
        name = fault.title().replace("-", "")
        gymnasium.register(f"{name}Fault-v0", entry_point=Misbehaving, kwargs=kwargs)


_register()
