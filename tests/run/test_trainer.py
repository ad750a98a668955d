"""The Python API: the same training as the command line's, and nothing left behind."""

import contextlib
import functools
import json
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import gymnasium
import numpy as np
import psutil
import pytest
import threadpoolctl
import torch
from gymnasium import spaces

from flame_rl import Policy, TrainConfig, Trainer
from flame_rl.settings.experiment import CALLABLE, ENVIRONMENTS
from flame_rl.system.errors import Interrupted, RunError, UsageError
from flame_rl.system.signals import unless_stopped
from tests.environments import Base
from tests.helpers import environment_id, refusal, run_anew, run_script

Result = TypeVar("Result")
SMALL = {"episodes_per_iter": 6, "hidden_sizes": (8,), "local": True, "workers": 0}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """No run folder of this machine, no cluster of this machine."""
    monkeypatch.chdir(tmp_path)
    for name in ("FLAME_ENDPOINT", "FLAME_CACHE_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def make(env: object = "cartpole", **options) -> Trainer:
    callback = options.pop("callback", None)
    settings = SMALL | {"iterations": 4} | options
    if "steps_per_iter" in options:
        del settings["episodes_per_iter"]
    if "env_steps" in options:
        del settings["iterations"]
    return Trainer(TrainConfig(env=env, **settings), callback)


@contextlib.contextmanager
def set_after(seconds: float, event: threading.Event) -> Iterator[None]:
    """Set the event later, unless the body ends earlier; its thread does not outlive the body."""
    timer = threading.Timer(seconds, event.set)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def digests(trainer: Trainer) -> list[str]:
    return [result.weights_digest for result in trainer]


def test_importing_is_light(tmp_path):
    for statement, absent in (
        ("import flame_rl", ("torch", "numpy", "tyro", "flame_rl.settings.config")),
        ("from flame_rl import TrainConfig, Trainer", ("torch", "tyro", "flamepy", "matplotlib")),
    ):
        code = f"{statement}\nimport sys\nprint(sorted(set({absent}) & set(sys.modules)))"
        done = run_anew("-c", code, cwd=tmp_path)
        assert done.stdout == "[]\n", done.stderr


# Training


def test_one_iteration_at_a_time_or_all_that_are_left():
    with make() as trainer:
        assert (
            trainer.config.algorithm.learning_rate == 0.003 and trainer.spec.env_id == "CartPole-v1"
        )
        first = trainer.train()
        assert (first.iteration, first.episodes) == (0, 6)
        assert first.reward_min <= first.reward_mean <= first.reward_max
        assert first.env_steps == round(6 * first.length_mean)
        assert np.isfinite(list(first.metrics.values())).all() and first.timing.collecting > 0
        assert [result.iteration for result in trainer] == [1, 2, 3]
        assert trainer.totals.iterations == 4 and trainer.totals.episodes == 24
        assert list(trainer) == []
        with pytest.raises(UsageError, match="all 4 are done"):
            trainer.train()


@pytest.mark.parametrize("overlap", [False, True])
def test_as_many_env_steps_as_are_wanted(overlap, tmp_path):
    options = {"algorithm": "ppo", "overlap": overlap, "epochs": 1}
    with make(iterations=5, **options) as trainer:
        fixed = [result.env_steps for result in trainer]
    # The last iteration begins before that number.
    wanted = {"env_steps": fixed[4] - 1, "learning_rate_decay": False}
    with make(**options, **wanted) as trainer:
        whole = [(result.env_steps, result.weights_digest) for result in trainer]
        assert whole[0][0] == fixed[0] and len(whole) >= 3
        assert whole[-2][0] < wanted["env_steps"] <= whole[-1][0]
        with pytest.raises(UsageError, match=f"--env-steps: all {wanted['env_steps']} are done"):
            trainer.train()
    with make(**options, **wanted | {"env_steps": whole[1][0]}) as trainer:
        assert len(digests(trainer)) == 2
        trainer.save(tmp_path / "some")
    with Trainer.load(tmp_path / "some", **SMALL, env_steps=wanted["env_steps"]) as trainer:
        assert digests(trainer) == [digest for _, digest in whole[2:]]


def test_learning_rates_fall_over_env_steps():
    """Adam's first step has the size of the learning rate, whatever the gradient."""
    options = {"algorithm": "a2c", "value_epochs": 1, "minibatches": 1, "max_kl": 1e9}
    with make(learning_rate_decay=True, env_steps=400, **options) as trainer:
        trainer.train()
        policy, before = trainer.learner.parts["policy_adam"], trainer.totals.env_steps
        policy.load_state_dict({name: 0 * array for name, array in policy.state_dict().items()})
        parameters = policy.parameters.copy()
        trainer.train()
        rate = trainer.config.algorithm.learning_rate * (1 - before / 400)
        assert np.abs(policy.parameters - parameters).max() == pytest.approx(rate, rel=1e-3)


def test_a_callback_sees_every_result_and_may_stop():
    seen = []

    def callback(result):
        seen.append(result.iteration)
        return "stop" if result.iteration == 1 else None

    with make(callback=callback) as trainer:
        assert [result.iteration for result in trainer] == seen == [0, 1]
        assert trainer.train().iteration == 2


def test_stop_is_heard_while_networks_are_made(monkeypatch):
    """A million inputs take a minute."""
    stop, ended = threading.Event(), threading.Event()

    def policy(*_):
        stop.set()
        ended.wait(20)

    monkeypatch.setattr("flame_rl.model.policy", policy)
    try:
        with pytest.raises(Interrupted):
            Trainer(TrainConfig(env="cartpole", workers=0), stop=stop)
    finally:
        ended.set()


def test_stop_from_elsewhere_ends_the_iteration():
    stop = threading.Event()
    config = TrainConfig(env=environment_id("Slow"), **SMALL)
    with Trainer(config, stop=stop) as trainer:
        with set_after(0.5, stop), pytest.raises(Interrupted):
            list(trainer)
        assert list(trainer) == []


def test_a_model_that_ends_the_program_is_not_waited_for():
    stop = threading.Event()
    # After 5 s: a failure, not a test without end.
    with set_after(5, stop), pytest.raises(SystemExit):
        unless_stopped(stop, lambda: sys.exit(3))


def test_an_iteration_that_failed_is_tried_again_as_if_nothing_had_been(monkeypatch):
    """Also when it failed after the update, in the evaluation."""
    with make(algorithm="ppo", evaluate_every=2) as trainer:
        expected = digests(trainer)
    with make(algorithm="ppo", evaluate_every=2) as trainer:
        trainer.train()
        collect = trainer._backend.collect
        before = trainer.learner.weights_digest()

        def refuse(snapshot, request):
            if request.stream == "validation":
                raise RunError("the cluster is lost")
            return collect(snapshot, request)

        with monkeypatch.context() as patch:
            patch.setattr(trainer._backend, "collect", refuse)
            with pytest.raises(RunError):
                trainer.train()
        assert trainer.learner.weights_digest() == before and trainer.totals.iterations == 1
        assert digests(trainer) == expected[1:]


# Acting


def test_actions_are_torchs_mean_within_the_bounds():
    rng = np.random.default_rng(0)
    with make("Pendulum-v1", algorithm="a2c", iterations=1) as trainer:
        list(trainer)
        with torch.no_grad():
            trainer.learner.parts["policy"].network[-1].weight.mul_(500)
        policy = trainer.learner.parts["policy"]
        clipped = 0
        for observation in rng.standard_normal((50, 3)).astype(np.float32) * 3:
            with torch.no_grad():
                mean = policy(torch.from_numpy(observation[None])).numpy()[0]
            action = trainer.compute_action(observation)
            assert action.dtype == np.float32 and action.shape == (1,)
            np.testing.assert_allclose(action, np.clip(2 * mean, -2, 2), rtol=1e-5, atol=1e-6)
            clipped += abs(mean[0]) > 2
        assert 0 < clipped < 50


def test_noise_that_depends_on_the_step_before_goes_on_from_call_to_call():
    """Ornstein-Uhlenbeck noise: steps k apart have the correlation (1 - theta)^k."""
    observation, options = np.array([0.1, -0.2, 0.3], np.float32), {"warm_up_steps": 0}
    options |= {"noise_process": "ornstein-uhlenbeck", "noise": 0.01, "noise_theta": 0.15}
    with make("Pendulum-v1", algorithm="ddpg", **options) as trainer:
        plain = trainer.compute_action(observation)
        actions = [trainer.compute_action(observation, explore=True) for _ in range(2_500)]
    noise = (np.array(actions) - plain)[:, 0] / 2  # in the units of the action's bounds, -2 and 2
    assert np.std(noise) == pytest.approx(0.01 / np.sqrt(1 - 0.85**2), rel=0.05)
    for lag in (1, 4):
        correlation = np.mean(noise[:-lag] * noise[lag:]) / np.var(noise)
        assert correlation == pytest.approx(0.85**lag, abs=0.05)


def test_sampled_actions_are_not_what_an_environment_of_the_same_seed_draws():
    class Guess(Base):
        def reward(self, action) -> float:
            return float(action == int(2 * self.np_random.random()))

    with make(Guess, seed=0) as trainer:
        for act in (trainer.compute_action, Policy(trainer.learner.snapshot(), trainer.spec).act):
            observation, _ = (env := Guess()).reset(seed=0)
            paid = [env.step(act(observation, explore=True))[1] for _ in range(200)]
            assert np.mean(paid) < 0.7


def test_actions_for_spaces_of_other_kinds():
    with make(environment_id("DiscreteObservation"), iterations=1) as trainer:
        assert {trainer.compute_action(observation) for observation in range(3)} <= {5, 6}
    with make(environment_id("Picture"), iterations=1) as trainer:
        env = gymnasium.make(trainer.spec.env_id)
        observation, _ = env.reset()
        assert env.action_space.contains(trainer.compute_action(observation))


@pytest.mark.parametrize("wrong", [np.zeros(3), np.zeros((1, 4)), np.full(4, np.nan), 1.0])
def test_what_is_no_observation_is_refused(wrong):
    with make() as trainer, pytest.raises(ValueError, match="observation: "):
        trainer.compute_action(wrong)


def test_what_cannot_be_loaded(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.ckpt").write_text("hello")
    for name, words in (
        ("missing.ckpt", "No such file"),
        ("text.ckpt", "not a checkpoint"),
        ("empty", "holds no sound checkpoint"),
    ):
        with pytest.raises(UsageError, match=words):
            Trainer.load(name)
    with make() as trainer:
        trainer.save("run.ckpt")
    with pytest.raises(UsageError, match=r"--gamma 0\.99 in the run, 0\.5 now"):
        Trainer.load("run.ckpt", gamma=0.5)
    with pytest.raises(UsageError, match="--env cartpole in the run"):
        Trainer.load("run.ckpt", env="ant")


def test_an_environment_that_has_changed_is_noticed(tmp_path, monkeypatch):
    with make() as trainer:
        trainer.save("run.ckpt")
    monkeypatch.setitem(ENVIRONMENTS, "cartpole", "Acrobot-v1")
    with pytest.raises(UsageError, match="was another one"):
        Trainer.load("run.ckpt")


# Environments that a function makes


class Corridor(Base):
    """The further to the right the better."""

    action_space = spaces.Discrete(2)
    horizon = 5

    def __init__(self, pay: float = 1.0) -> None:
        self.pay = pay
        self.lock = threading.Lock()  # cannot be copied

    def reward(self, action) -> float:
        return self.pay * float(action)


class Factory:
    """A function with a memory, that cannot be copied either."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self) -> gymnasium.Env:
        return Corridor()


def twice_the_pay() -> gymnasium.Env:
    return Corridor(2.0)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (Corridor, "tests.run.test_trainer.Corridor"),
        (lambda: Corridor(), "tests.run.test_trainer.<lambda>"),
        (functools.partial(Corridor, pay=1.0), "functools.partial"),
        (Factory(), "tests.run.test_trainer.Factory"),
    ],
    ids=["class", "lambda", "partial", "object"],
)
def test_a_function_may_make_the_environment(function, name):
    known = set(gymnasium.registry)
    one_step = {"baseline": "none", "minibatches": 1, "max_kl": 10, "max_grad_norm": 1}
    options = one_step | {"normalize_observations": False, "learning_rate_decay": False}
    with make(function, iterations=8, workers=None, learning_rate=0.1, **options) as trainer:
        results = list(trainer)
        assert results[0].length_mean == 5 and results[0].reward_max <= 5
        assert results[-1].reward_mean > results[0].reward_mean
        assert trainer.compute_action(np.zeros(1, np.float32)) == 1
        assert trainer.evaluate(3).reward_mean == 5
        assert trainer.config.experiment.env_name == CALLABLE + name
    assert set(gymnasium.registry) == known


def test_a_time_limit_also_holds_for_a_function():
    with make(Corridor, max_episode_steps=3, iterations=1) as trainer:
        assert trainer.train().length_mean == 3


@pytest.mark.parametrize(
    ("variables", "options"),
    [
        ({}, {"workers": 2}),
        ({"FLAME_ENDPOINT": "http://127.0.0.1:1"}, {"local": False, "workers": None}),
    ],
    ids=["workers", "cluster"],
)
def test_a_function_crosses_to_no_other_process(variables, options, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=r"twice_the_pay makes environments in this process alone"):
        make(twice_the_pay, **options)


def test_a_functions_run_goes_on_only_where_it_is_given(tmp_path):
    with make(twice_the_pay) as trainer:
        trainer.train()
        trainer.save("run.ckpt")
        assert json.loads(trainer.config.to_json())["experiment"]["env"] == (
            "callable tests.run.test_trainer.twice_the_pay"
        )
        expected = digests(trainer)
    with pytest.raises(UsageError, match=r"twice_the_pay made this run.*Trainer.load"):
        Trainer.load("run.ckpt")
    with Trainer.load("run.ckpt", env=twice_the_pay) as trainer:
        assert digests(trainer) == expected
    assert "twice_the_pay made this run" in refusal("evaluate", "run.ckpt", cwd=tmp_path)


# What is left


def threads_of_runs() -> set[threading.Thread]:
    """The threads of this process, but for those of the pool that `slices` keeps."""
    return {each for each in threading.enumerate() if not each.name.startswith("slices")}


@pytest.mark.parametrize("workers", [0, 2])
def test_nothing_is_left_behind(workers, tmp_path):
    make(iterations=1).close()  # what torch keeps for itself
    process = psutil.Process()
    children = set(process.children(recursive=True))
    threads = threads_of_runs()
    torch_threads = torch.get_num_threads()
    with make(workers=workers) as trainer:
        assert len(set(process.children()) - children) == workers
        list(trainer)
        trainer.evaluate(3)
        trainer.compute_action(np.zeros(4))
    trainer.close()
    assert set(process.children(recursive=True)) == children
    assert threads_of_runs() == threads
    assert torch.get_num_threads() == torch_threads
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_behind_by_one_that_cannot_be_made():
    process = psutil.Process()
    children = set(process.children(recursive=True))
    with pytest.raises(UsageError, match="nearest names"):
        make("hoper", workers=2)
    assert set(process.children(recursive=True)) == children


def test_a_closed_trainer_reproduces_nothing():
    with make() as trainer:
        trainer.save("a.ckpt")
    with Trainer.load("a.ckpt", resume=Path(), reproduce=0, workers=0) as trainer:
        pass
    with pytest.raises(UsageError, match="this Trainer is closed"):
        trainer.reproduce()


def test_an_environment_alone_is_a_configuration():
    with Trainer("cartpole") as trainer:
        assert trainer.config == TrainConfig("cartpole", device="cpu")


@pytest.mark.parametrize("name", ["tensorboard", "track", "plot", "verbose", "output"])
def test_settings_that_a_trainer_would_ignore_are_refused(name, tmp_path):
    value = {"output": tmp_path, "track": "wandb"}.get(name, True)
    with pytest.raises(UsageError, match=f"^{name}: a Trainer prints nothing.* --{name}$"):
        make(**{name: value})
    with make() as trainer:
        trainer.save(tmp_path / "some.ckpt")
    with pytest.raises(UsageError, match=f"^{name}: "):
        Trainer.load(tmp_path / "some.ckpt", **{name: value})


# Beside other work of the same process


def in_two_threads(*functions: Callable[[], Result]) -> list[Result]:
    with ThreadPoolExecutor(2) as pool:
        return [each.result() for each in [pool.submit(function) for function in functions]]


def test_in_threads_they_train_as_if_alone():
    """By torch, which has one generator for all threads, in environments of functions that have one
    name."""

    def train(pay: float) -> list[object]:
        options = {"algorithm": "ppo", "shared_torso": True, "epochs": 5, "seed": int(pay)}
        made = []
        for _ in range(3):
            with make(lambda: Corridor(pay), iterations=2, **options) as trainer:
                made.append([(each.weights_digest, each.reward_max) for each in trainer])
        return made

    functions = [functools.partial(train, pay) for pay in (1.0, 100.0)]
    alone, threads = [function() for function in functions], torch.get_num_threads()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        assert in_two_threads(*functions) == alone
    finally:
        sys.setswitchinterval(before)
    assert torch.get_num_threads() == threads


def test_products_have_one_thread_until_the_last_of_them_has_collected():
    """Also where the thread that made them has set another number: threadpoolctl lets one thread
    alone set it."""
    made, first, second, ended = (threading.Event() for _ in range(4))
    seen = set()

    def blas_threads() -> set[int]:
        found = threadpoolctl.threadpool_info()
        return {each["num_threads"] for each in found if each["user_api"] == "blas"}

    class First(Corridor):
        def reward(self, action) -> float:
            first.set()
            return float(not made.is_set() or second.wait(20))

    class Second(Corridor):
        def reward(self, action) -> float:
            second.set()
            if made.is_set() and ended.wait(20):
                seen.update(blas_threads())
            return 0.0

    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        with make(First) as one, make(Second) as other:
            for event in (first, second):  # environments are tried when they are described
                event.clear()
            made.set()
            in_two_threads(
                lambda: (one.train(), ended.set()), lambda: first.wait(20) and other.train()
            )
        assert seen == {1} and blas_threads() == {2}


def test_a_model_py_that_ends_the_program_is_named(monkeypatch):
    monkeypatch.setattr("flame_rl.model.policy", lambda *_: sys.exit(0))
    with pytest.raises(UsageError, match=r"^model\.py raised SystemExit: 0\n\nTraceback"):
        make()


@contextlib.contextmanager
def torch_set(name: str, value: object) -> Iterator[None]:
    """With one of torch's settings, which is not changed by what is in the block."""
    before = getattr(torch, f"get_{name}")()
    getattr(torch, f"set_{name}")(value)
    try:
        yield
        assert getattr(torch, f"get_{name}")() == value
    finally:
        getattr(torch, f"set_{name}")(before)


@contextlib.contextmanager
def without_onednn() -> Iterator[None]:
    torch.backends.mkldnn.enabled = False
    try:
        yield
        assert not torch.backends.mkldnn.enabled
    finally:
        torch.backends.mkldnn.enabled = True


# What a program may have begun around its Trainer.
AROUND = {
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "bfloat16": functools.partial(torch.autocast, "cpu", torch.bfloat16),
    "a device": functools.partial(torch.device, "meta"),
    "float64": functools.partial(torch_set, "default_dtype", torch.float64),
    "precision": functools.partial(torch_set, "float32_matmul_precision", "medium"),
    "no oneDNN": without_onednn,
}


def use(path: Path) -> list[object]:
    """What a Trainer does while it is made, trains, evaluates, is loaded and acts."""
    options = {"algorithm": "ppo", "memory": "lstm", "hidden_sizes": (64,), "epochs": 2}
    with make(iterations=3, **options) as trainer:
        used = [trainer.train().weights_digest, trainer.train().weights_digest]
        trainer.save(path)
        used.append(trainer.evaluate(3))
    with Trainer.load(path) as trainer:
        used += [trainer.evaluate(3), trainer.train().weights_digest]
    policy, space = Policy.load(path), spaces.Box(-1, 1, (4,), seed=1)
    policy.begin(3)
    return [*used, list(policy.act_all([space.sample() for _ in range(3)]))]


@pytest.fixture(scope="module")
def used(tmp_path_factory) -> list[object]:
    return use(tmp_path_factory.mktemp("used") / "some.ckpt")


@pytest.mark.parametrize("around", AROUND)
def test_what_is_set_around_it_changes_nothing(around, used, tmp_path):
    with AROUND[around]():
        assert use(tmp_path / "some.ckpt") == used


FORKS = """
import os, signal
from flame_rl import TrainConfig, Trainer

def forked(function, *arguments):
    reading, writing = os.pipe()
    if not os.fork():
        signal.alarm(60)
        os.write(writing, repr(function(*arguments)).encode())
        os._exit(0)
    os.close(writing)
    return os.fdopen(reading).read()

def config_of(**options):
    return TrainConfig("CartPole-v1", steps_per_iter=600, iterations=2, local=True, **options)

def digests(options):
    with Trainer(config_of(workers=0, **options)) as trainer:
        return trainer.train().weights_digest

def use(trainer):
    with trainer:
        try:
            trainer.train()
        except Exception as error:
            return error

wide = {"algorithm": "ppo", "hidden_sizes": (600, 600), "epochs": 1}
for options in ({"algorithm": "ppo"}, wide, {"algorithm": "ppo", "memory": "gru", "epochs": 1}):
    assert repr(digests(options)) == forked(digests, options)
with Trainer(config_of(workers=1)) as trainer:
    trainer.train()
    assert "UsageError('this Trainer was made before a fork" in forked(use, trainer)
    assert trainer.train().iteration == 1
"""


def test_a_fork_of_a_process_that_has_trained_trains_as_well(tmp_path):
    """Threads do not survive a fork, and a Trainer's workers are the process's that made it."""
    done = run_script(FORKS, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
