"""Arguments of an environment's constructor, wrappers, and modules that register environments."""

import os
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from flame_rl import TrainConfig, Trainer
from flame_rl.actor.environments.wrapping import constructor_arguments
from flame_rl.actor.failure import SimulatorError
from flame_rl.actor.simulators.choose import describe
from flame_rl.actor.simulators.plain import PlainSimulator
from flame_rl.wire.messages import Environment
from tests.agents import relay_v0
from tests.environments import Base
from tests.helpers import run_here, run_ok

HERE = "tests.actor.test_wrapping"


class Tunable(Base):
    """Pays `pay`, and observes as many numbers as `sizes` has, each of which is one of them."""

    horizon = 3

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, pay=1.0, sizes=(1,), name="", render_mode=None) -> None:
        self.render_mode = render_mode
        self.pay, self.sizes, self.name = pay, np.array(sizes, np.float32), name
        self.observation_space = spaces.Box(-100, 100, (len(sizes),), np.float32)

    def first_observation(self):
        return self.sizes

    next_observation = first_observation

    def reward(self, action) -> float:
        return self.pay

    def render(self):
        return np.zeros((20, 20, 3), np.uint8)


class Doubled(gymnasium.RewardWrapper):
    def reward(self, reward):
        return 2 * reward


def one_more(env):
    return gymnasium.wrappers.TransformReward(env, lambda reward: reward + 1)


def last_number(env):
    space = spaces.Box(-100, 100, (1,), np.float32)
    return gymnasium.wrappers.TransformObservation(env, lambda seen: seen[-1:], space)


def broken(env):
    raise OSError("no such port")


def none_at_all(env):
    return None


gymnasium.register("Tunable-v0", Tunable, max_episode_steps=100)


def first_step(environment: Environment) -> tuple[list[float], float]:
    """The first observation, and the reward of the first step."""
    simulator = PlainSimulator(environment)
    slots = np.arange(1)
    simulator.reset(slots, slots)
    observed = simulator.observations[0].tolist()
    simulator.step(np.zeros(1, np.int32), slots)
    return observed, float(simulator.rewards[0])


def test_arguments_reach_the_constructor():
    environment = Environment(f"{HERE}:Tunable-v0", env_kwargs=("pay=2.5", "sizes=(3, 4)"))
    assert constructor_arguments(environment, None) == {"pay": 2.5, "sizes": (3, 4)}
    assert first_step(environment) == ([3, 4], 2.5)


@pytest.mark.parametrize(
    ("names", "reward"), [(("Doubled", "one_more"), 3), (("one_more", "Doubled"), 4)]
)
def test_wrappers_are_applied_in_their_order(names, reward):
    wrapper = (*(f"{HERE}:{name}" for name in names), f"{HERE}:last_number")
    environment = Environment(f"{HERE}:Tunable-v0", env_kwargs=("sizes=[3, 4]",), wrapper=wrapper)
    assert first_step(environment) == ([4], reward)
    _, spec = describe(environment)
    assert spec.observation_space.shape == (1,) and spec.time_limit == 100 and not spec.differs


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"env_kwargs": ("speed=2",)}, r"cannot be made: TypeError: .* argument 'speed'"),
        ({"wrapper": ("nowhere:Small",)}, "--wrapper: module 'nowhere' cannot.*PYTHONPATH"),
        ({"wrapper": (f"{HERE}:Small",)}, f"module '{HERE}' has no class or function 'Small'"),
        ({"wrapper": (f"{HERE}:broken",)}, f"--wrapper: {HERE}:broken raised OSError: no such"),
        ({"wrapper": (f"{HERE}:none_at_all",)}, "none_at_all returned a NoneType, which is no Env"),
        ({"wrapper": ("gymnasium.wrappers:TimeLimit",)}, "TimeLimit raised TypeError.*of your own"),
    ],
)
def test_what_is_wrong_with_them_is_named(fields, words):
    with pytest.raises(SimulatorError, match=words) as caught:
        describe(Environment(f"{HERE}:Tunable-v0", **fields))
    assert caught.value.kind == "environment"


def test_a_fast_twin_is_the_registered_environment_alone():
    plain = Environment("CartPole-v1", wrapper=("gymnasium.wrappers:FlattenObservation",))
    simulator, spec = describe(plain)
    assert isinstance(simulator, PlainSimulator) and "--env-kwargs, --wrapper:" in spec.note
    simulator, spec = describe(Environment("CartPole-v1", env_kwargs=("sutton_barto_reward=true",)))
    assert isinstance(simulator, PlainSimulator) and "--env-kwargs, --wrapper:" in spec.note


def of_three_steps(env):
    from pettingzoo.utils.wrappers import BaseParallelWrapper

    class Short(BaseParallelWrapper):
        def step(self, actions):
            *returned, truncations, infos = super().step(actions)
            ended = self.unwrapped.number >= 3
            self.env.agents = [] if ended else self.env.agents
            return *returned, dict.fromkeys(truncations, ended), infos

        @property
        def agents(self):
            return self.env.agents

    return Short(env)


def test_several_agents_have_arguments_and_wrappers_too(monkeypatch):
    made = []

    def parallel_env(render_mode=None, length=5):
        made.append(length)
        return relay_v0.Relay(render_mode)

    monkeypatch.setattr(relay_v0, "parallel_env", parallel_env)
    named = {"env_kwargs": ("length=7",), "wrapper": (f"{HERE}:of_three_steps",)}
    simulator, spec = describe(Environment("tests.agents.relay_v0", **named))
    assert set(made) == {7} and len(spec.agents) == 2
    running = np.arange(2)
    simulator.reset(running, np.full(2, 4))
    for _ in range(3):
        simulator.step(np.zeros(2, np.int32), running)
        running = running[~(simulator.terminated | simulator.truncated)[running]]
    assert not len(running)
    with pytest.raises(
        SimulatorError, match=r"cannot be made: TypeError: .*unexpected keyword argument 'size'"
    ):
        describe(Environment("tests.agents.relay_v0", env_kwargs=("size=1",)))
    with pytest.raises(SimulatorError, match="returned a NoneType, which is no ParallelEnv"):
        describe(Environment("tests.agents.relay_v0", wrapper=(f"{HERE}:none_at_all",)))


FLAGS = ("--env", f"{HERE}:Tunable-v0", "--local", "--iterations", "2", "--episodes-per-iter", "3")
GIVEN = (
    "--env-kwargs",
    "pay=3",
    "sizes=[2,9]",
    "--wrapper",
    f"{HERE}:Doubled",
    f"{HERE}:last_number",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    done = run_ok(*FLAGS, *GIVEN, "--workers", "0", "--output", "run", cwd=folder)
    assert "Observation dim: 1" in done.stdout and "Final Mean Reward: 18.0" in done.stdout
    return folder / "run"


def test_a_run_keeps_them(run):
    evaluated = run_here("evaluate", str(run), "--episodes", "2", "--workers", "0", cwd=run.parent)
    assert "Mean return: 18.0" in evaluated.stdout
    watched = run_here("watch", str(run), "--video", "film.gif", cwd=run.parent)
    assert "Episode 0: return 18.0 in 3 steps" in watched.stdout, watched.stderr
    before = (run / "config.json").read_bytes(), (run / "metrics.csv").read_bytes()
    for more in (("--env-kwargs", "pay=3"), ("--wrapper", f"{HERE}:Doubled")):
        refused = run_here("--resume", str(run), "--iterations", "3", *more, cwd=run.parent)
        assert refused.returncode == 2 and f"another run: {more[0]} (" in refused.stderr
    assert ((run / "config.json").read_bytes(), (run / "metrics.csv").read_bytes()) == before
    resumed = run_ok("--resume", str(run), "--iterations", "3", *GIVEN, cwd=run.parent)
    assert "Final Mean Reward: 18.0" in resumed.stdout


def test_a_function_that_makes_environments_gets_the_arguments():
    def make(pay: float = 1.0) -> gymnasium.Env:
        return Tunable(pay)

    config = TrainConfig(
        env=make, env_kwargs={"pay": 5}, episodes_per_iter=2, local=True, workers=0
    )
    with Trainer(config) as trainer:
        assert trainer.train().reward_mean == 15


def told_its_slot(env):
    env.slot = os.environ["FLAME_RL_SLOT"]
    return env


def test_what_records_can_learn_its_process_and_slot():
    arguments = {"env_kwargs": ('name="log-{slot}.csv"',), "wrapper": (f"{HERE}:told_its_slot",)}
    simulator = PlainSimulator(Environment(f"{HERE}:Tunable-v0", **arguments))
    simulator.reset(np.arange(2), np.arange(2))
    for place, env in enumerate(simulator._envs):
        mine = f"{os.getpid()}-{place}"
        assert (env.slot, env.unwrapped.name) == (mine, f"log-{mine}.csv")


def test_films_of_every_slot_in_one_folder_are_told_of(monkeypatch):
    """Gymnasium's own wrapper needs a package that is not installed here."""
    monkeypatch.setattr("flame_rl.actor.simulators.choose.RecordVideo", Doubled)
    _, spec = describe(Environment(f"{HERE}:Tunable-v0", wrapper=(f"{HERE}:Doubled",)))
    assert "RecordVideo" in spec.note and "FLAME_RL_SLOT" in spec.note


def test_a_package_that_registers_by_a_function_has_it_called(tmp_path, monkeypatch):
    """In a worker, too."""
    (tmp_path / "called_pkg").mkdir()
    (tmp_path / "called_pkg" / "__init__.py").touch()
    (tmp_path / "called_pkg" / "games.py").write_text(
        "import gymnasium, tests.environments as ours\n\n\ndef register_all():\n"
        "    gymnasium.register('Called/Inner-v0', ours.ConstantReward, max_episode_steps=4)\n"
    )
    about = tmp_path / "called_pkg-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: called_pkg\nVersion: 1.0\n")
    names = "[gymnasium.envs]\nCalled = called_pkg.games:register_all\n"
    (about / "entry_points.txt").write_text(names)
    monkeypatch.syspath_prepend(tmp_path)
    flags = ("--local", "--workers", "1", "--iterations", "1", "--episodes-per-iter", "2")
    run_ok("--env", "called_pkg:Called/Inner-v0", *flags, "--output", "run", cwd=tmp_path)


def test_a_function_that_registers_is_named_where_nothing_says_that_it_is_to_be_called(
    tmp_path, monkeypatch
):
    (tmp_path / "uncalled.py").write_text("def register_envs(): ...")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        SimulatorError, match=r"call uncalled\.register_envs\(\) in .* my_env:My-v0"
    ):
        describe(Environment("uncalled:My-v0"))
