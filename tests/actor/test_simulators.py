"""The fast simulators against Gymnasium itself, to the bit, and when they are not taken."""

import importlib.metadata
import os
import re
import subprocess
import sys
from dataclasses import replace

import gymnasium
import mujoco
import numpy as np
import pytest
from gymnasium.envs.mujoco import hopper_v5

from flame_rl.actor.failure import SimulatorError
from flame_rl.actor.simulators import cartpole, choose, mujoco_fast
from flame_rl.actor.simulators.choose import choose_simulator, describe
from flame_rl.actor.simulators.plain import PlainSimulator
from flame_rl.wire.messages import Environment
from tests.helpers import environment_id

OTHER = replace(mujoco_fast.ROBOTS["HalfCheetah-v5"], control_cost=0.1001)
# The parts of each reward that Gymnasium names, in some order.
PARTS = {
    "CartPole-v1": (),
    "HalfCheetah-v5": ("reward_ctrl", "reward_forward"),
    "Hopper-v5": ("reward_survive", "reward_forward", "reward_ctrl"),
    "Walker2d-v5": ("reward_forward", "reward_survive", "reward_ctrl"),
    "Ant-v5": ("reward_contact", "reward_forward", "reward_ctrl", "reward_survive"),
}


COMPARED = all(
    importlib.metadata.version(library).startswith(versions)
    for library, versions in (
        ("gymnasium", choose.VERIFIED_GYMNASIUM),
        ("mujoco", choose.VERIFIED_MUJOCO),
    )
)
of_twins = pytest.mark.skipif(not COMPARED, reason="twins are of other versions")


def fast(env_id: str, limit: int | None = None):
    simulator, note = choose_simulator(Environment(env_id, limit, "fast", PARTS[env_id]))
    assert not isinstance(simulator, PlainSimulator) and note == ""
    return simulator


def random_actions(space: gymnasium.Space, shape: tuple[int, ...], rng) -> np.ndarray:
    if isinstance(space, gymnasium.spaces.Box):
        # Some outside the bounds, and some episodes gentle so that they last.
        scale = rng.choice([0.05, 0.5, 1.5], size=(1, shape[1], 1))
        return (rng.standard_normal((*shape, *space.shape)) * scale).astype(np.float32)
    return rng.integers(space.n, size=shape, dtype=np.int32)


def gymnasium_episode(env: gymnasium.Env, seed: int, actions: np.ndarray):
    """Plainly: reset, step until done. Rows of float64 observations, rewards, their parts, ends."""
    observation, _ = env.reset(seed=seed)
    yield observation, None, None, None, None
    for action in actions:
        if isinstance(env.action_space, gymnasium.spaces.Box):
            action = np.clip(action, env.action_space.low, env.action_space.high)
        observation, reward, terminated, truncated, info = env.step(action)
        parts = np.array([info[name] for name in PARTS[env.spec.id]], np.float64)
        yield observation, reward, parts, terminated, truncated
        if terminated or truncated:
            return


@of_twins
@pytest.mark.parametrize(
    ("env_id", "limit", "steps"),
    [
        ("CartPole-v1", None, 1500),
        ("CartPole-v1", 9, 60),
        ("HalfCheetah-v5", None, 1030),
        ("HalfCheetah-v5", 37, 120),
        ("Hopper-v5", None, 600),
        ("Hopper-v5", 15, 60),
        ("Walker2d-v5", None, 600),
        ("Walker2d-v5", 15, 60),
        ("Ant-v5", None, 400),
        ("Ant-v5", 11, 40),
    ],
)
def test_a_twin_has_gymnasiums_bits(env_id, limit, steps):
    """Slots in odd patterns: some never used, some left alone after their end, others reset at
    once; every one compared with an environment of its own."""
    twin = fast(env_id, limit)
    rng = np.random.default_rng([steps, limit or 0])
    used = np.sort(rng.choice(twin.slots, size=5, replace=False))
    env = gymnasium.make(env_id, max_episode_steps=limit)
    actions = random_actions(env.action_space, (steps, twin.slots), rng)
    envs = {slot: gymnasium.make(env_id, max_episode_steps=limit) for slot in used.tolist()}
    expected = {}

    def begin(slots: np.ndarray, t: int) -> None:
        seeds = rng.integers(1 << 31, size=len(slots))
        twin.reset(slots, seeds)
        for slot, seed in zip(slots.tolist(), seeds.tolist(), strict=True):
            expected[slot] = gymnasium_episode(envs[slot], seed, actions[t:, slot])
            compare(slot)

    def compare(slot: int) -> bool:
        observation, reward, parts, terminated, truncated = next(expected[slot])
        assert twin.observations[slot].tobytes() == observation.astype(np.float32).tobytes()
        if reward is None:
            return False
        assert twin.rewards[slot].tobytes() == np.float64(reward).tobytes()
        assert twin.reward_parts[slot].tobytes() == parts.tobytes()
        assert twin.terminated[slot] == terminated and twin.truncated[slot] == truncated
        return bool(terminated or truncated)

    # The others begin while these play.
    running, ends = used[:3], 0
    begin(running, 0)
    for t in range(steps):
        twin.step(actions[t], running)
        ended = np.array([slot for slot in running.tolist() if compare(slot)], np.int64)
        ends += len(ended)
        idle = np.setdiff1d(used, np.setdiff1d(running, ended))
        if len(idle) and (len(idle) >= 3 or rng.random() < 0.5):
            begin(idle, t + 1)
            idle = idle[:0]
        running = np.setdiff1d(used, idle)
        if len(running) == 0:
            begin(used, t + 1)
            running = used
    assert ends >= 5


CLIPPED = gymnasium.envs.registration.WrapperSpec(
    "ClipReward", "gymnasium.wrappers:ClipReward", {"min_reward": 0.0, "max_reward": 1.0}
)
HOPPER, NOT_ITS_OWN = gymnasium.spec("Hopper-v5"), "not its own"
STEP = mujoco_fast.FastMujoco.step


def another_step(twin, *arguments) -> None:
    STEP(twin, *arguments)
    twin.reward_parts[:, 1] *= -1


def version_of(library: str, version: str):
    real = importlib.metadata.version
    return lambda name: version if name == library else real(name)


@of_twins
@pytest.mark.parametrize(
    ("env_id", "owner", "name", "value", "words"),
    [
        # Another environment of the same name.
        ("Hopper-v5", HOPPER, "kwargs", {"reset_noise_scale": 0.1}, NOT_ITS_OWN),
        ("Hopper-v5", HOPPER, "order_enforce", False, NOT_ITS_OWN),
        ("Hopper-v5", HOPPER, "max_episode_steps", None, NOT_ITS_OWN),
        (
            *("Hopper-v5", HOPPER, "entry_point", "gymnasium.envs.mujoco.hopper_v4:HopperEnv"),
            NOT_ITS_OWN,
        ),
        (
            *("Hopper-v5", HOPPER, "entry_point", lambda: gymnasium.Wrapper(hopper_v5.HopperEnv())),
            NOT_ITS_OWN,
        ),
        ("Hopper-v5", HOPPER, "additional_wrappers", (CLIPPED,), NOT_ITS_OWN),
        # A version that was never compared.
        *(
            ("Ant-v5", importlib.metadata, "version", version_of(*each), each[0])
            for each in (("gymnasium", "1.3.0"), ("mujoco", "3.3.7"), ("mujoco", "4.1.0"))
        ),
        # Another twin, which the comparison at the start notices.
        ("CartPole-v1", cartpole, "HALF_LENGTH", 0.500001, "differs"),
        ("CartPole-v1", cartpole, "MAX_ANGLE", 0.2, "differs"),
        ("Ant-v5", mujoco_fast, "_CONTACT_COST", 6e-4, "differs"),
        ("HalfCheetah-v5", mujoco_fast, "ROBOTS", {"HalfCheetah-v5": OTHER}, "differs"),
        ("Hopper-v5", mujoco_fast.FastMujoco, "step", another_step, "differs"),
        # One that cannot be made, as where MuJoCo has no mujoco.batch.
        ("Hopper-v5", sys.modules, "mujoco.batch", None, "mujoco.batch"),
        # A part of the reward that it lacks.
        ("Ant-v5", PARTS, "Ant-v5", ("x_velocity",), "no 'x_velocity'"),
        ("CartPole-v1", PARTS, "CartPole-v1", ("reward_forward",), "no 'reward_forward'"),
    ],
)
def test_where_a_twin_is_not_sure_the_environment_is_played_plainly(
    env_id, owner, name, value, words, monkeypatch
):
    (monkeypatch.setitem if isinstance(owner, dict) else monkeypatch.setattr)(owner, name, value)
    simulator, note = choose_simulator(Environment(env_id, None, "auto", PARTS[env_id]))
    assert isinstance(simulator, PlainSimulator)
    assert words in note and "\n" not in note
    with pytest.raises(SimulatorError, match=rf"--simulator fast is not possible.*{words}"):
        choose_simulator(Environment(env_id, None, "fast", PARTS[env_id]))


def test_plain_is_plain_and_others_have_no_twin():
    for env_id, choice in (
        ("CartPole-v1", "plain"),
        ("Pendulum-v1", "auto"),
        (environment_id("Endless"), "auto"),
    ):
        simulator, note = choose_simulator(Environment(env_id, None, choice))
        assert isinstance(simulator, PlainSimulator) and note == ""
    with pytest.raises(SimulatorError, match="no fast simulator of Pendulum-v1"):
        choose_simulator(Environment("Pendulum-v1", None, "fast"))
    with pytest.raises(SimulatorError, match="unknown environment"):
        choose_simulator(Environment("CartPoll-v1", None, "auto"))


@pytest.mark.parametrize(
    ("megabytes", "slots", "held"),
    [(90, None, 2), (10, None, 1), (2000, None, 32), (100, 3, 3), (100, 1, 1)],
)
def test_a_process_holds_as_many_environments_as_memory_allows(megabytes, slots, held, monkeypatch):
    monkeypatch.setattr(choose, "MOST_BYTES", megabytes * 1_000_000)
    simulator, spec = describe(Environment(environment_id("Hoarder"), 3, slots=slots))
    assert (simulator.slots, spec.slots) == (held, held)
    said = re.findall(r"An environment takes (\d+) MB: a process has (\d+) of them", spec.note)
    assert len(said) <= 1
    for size, number in said:
        # Some of its 40 MB may be memory that the process had freed before.
        assert 30 <= int(size) <= 45 and number == f"{held}"
    assert bool(said) == (slots is None and held < 32)


@of_twins
def test_a_fast_simulator_has_no_environments():
    _, spec = describe(Environment("CartPole-v1"))
    assert spec.slots is None


# Plays an environment of Gymnasium's, one of this package's, and one of Gymnasium's again, with
# MuJoCo's clock as it is at first or with another; prints whether the bits are the same, then the
# seconds that MuJoCo has counted in each.
PLAY = """
import gymnasium, mujoco, threading
import numpy as np
from flame_rl.backends.local import InlineBackend
from flame_rl.wire.messages import Environment

def play(env):
    seen = [env.reset(seed=1)[0]]
    rng = np.random.default_rng(2)
    seen += [env.step(rng.uniform(-1, 1, 3).astype(np.float32))[0] for _ in range(200)]
    return np.array(seen).tobytes(), sum(timer.duration for timer in env.unwrapped.data.timer)

{own}
before, counted_before = play(gymnasium.make("Hopper-v5"))
backend = InlineBackend(threading.Event())
backend.describe(Environment("Hopper-v5", simulator="plain"))
during, counted_during = play(backend._simulator.first)
backend.close()
after, counted_after = play(gymnasium.make("Hopper-v5"))
print(before == during == after, counted_before, counted_during, counted_after)
"""
OWN = "mujoco.set_mjcb_time(lambda times=iter(range(10**9)): next(times))"


@pytest.mark.skipif(mujoco.__version__ < "4", reason="each MjData installs a clock")
@pytest.mark.parametrize(("own", "stops"), [("", True), (OWN, False)])
def test_mujoco_reads_no_clock_but_the_users(own, stops):
    same_bits, before, during, after = run(PLAY.format(own=own)).split()
    assert same_bits == "True"
    assert float(before) > 0 and (float(during) == 0) == stops
    assert float(after) > 0


# Makes an environment without MuJoCo, and tries one with it; prints the error.
NO_RENDERER = """
import sys
from flame_rl.actor.environments.making import make_environment
from flame_rl.actor.failure import SimulatorError
from flame_rl.wire.messages import Environment

make_environment(Environment("tests.environments:ShortPole-v0"))
assert "mujoco" not in sys.modules
try:
    make_environment(Environment("Hopper-v5"))
except SimulatorError as error:
    print(error, repr(error.cause))
"""


def test_a_missing_renderer_concerns_mujoco_alone():
    printed = run(NO_RENDERER, MUJOCO_GL="no_such")
    assert "MUJOCO_GL" in printed and "no_such" in printed and "disabled" in printed
    assert printed.endswith("''\n")  # the sentence says it all, without a traceback


def test_what_a_site_hook_prints_concerns_glfw_alone(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('hello there')")
    printed = run(NO_RENDERER, PYTHONPATH=f"{tmp_path}:.")
    assert "glfw" in printed and "sitecustomize" in printed and printed.endswith("''\n")


def run(program: str, **variables: str) -> str:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | variables)
    assert done.returncode == 0, done.stderr
    return done.stdout
