"""What several tests need."""

import contextlib
import csv
import functools
import importlib.metadata
import io
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from unittest import mock

import gymnasium
import numpy as np
from gymnasium import spaces

import main
from flame_rl.actor.collect import collect_episodes
from flame_rl.actor.environments.making import describe_environment
from flame_rl.actor.simulators import choose
from flame_rl.actor.simulators.plain import PlainSimulator
from flame_rl.wire.inputs import step_columns
from flame_rl.wire.messages import (
    CollectRequest,
    Column,
    Environment,
    EnvironmentSpec,
    Episode,
    Episodes,
    Layer,
    PolicySnapshot,
)
from tests.environments import Base
from tests.forks import Forked

# They read files at each call; a short run asks for thirty versions.
importlib.metadata.version = functools.cache(importlib.metadata.version)
distributions = functools.cache(importlib.metadata.packages_distributions)
importlib.metadata.packages_distributions = distributions


def once(check):
    """Of Gymnasium's own environments, which no test changes, a check gives in a process what it
    gave the first time; it takes a fork."""
    known = functools.cache(check)

    def checked(environment, *effort):
        own = not effort and environment.env_id in ("CartPole-v1", "Pendulum-v1", "HalfCheetah-v5")
        return (known if own else check)(environment, *effort)

    return checked


choose.check_repeats, choose.check_beside = once(choose.check_repeats), once(choose.check_beside)
# Seconds in which a process ends that was told to, on a slow machine with much other work; it takes
# a second or two where it is alone.
SOON = 100

ROOT = Path(__file__).resolve().parent.parent
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


def environment_id(name: str, module: str = "environments") -> str:
    """The id of one of the test environments."""
    return f"tests.{module}:{name}-v0"


def spec_of(
    observation_dim: int, action_dim: int, continuous: bool, env_id: str = "X-v0"
) -> EnvironmentSpec:
    """A Box observed, and a Box or a Discrete to act in."""
    return EnvironmentSpec(
        env_id,
        spaces.Box(-np.inf, np.inf, (observation_dim,), np.float32),
        spaces.Box(-1, 1, (action_dim,), np.float32) if continuous else spaces.Discrete(action_dim),
    )


def described(env_id: str, max_episode_steps: int | None = None) -> EnvironmentSpec:
    with contextlib.closing(plain(env_id, max_episode_steps)) as simulator:
        return describe_environment(Environment(env_id, max_episode_steps), simulator.first)


def plain(env_id: str, max_episode_steps: int | None = None) -> PlainSimulator:
    return PlainSimulator(Environment(env_id, max_episode_steps))


def random_snapshot(
    observation_dim: int,
    action_dim: int,
    continuous: bool,
    hidden: tuple[int, ...] = (64, 64),
    activation: str = "tanh",
    version: int = 0,
    seed: int = 0,
    normalizes: bool = False,
    choices: tuple[int, ...] = (),
) -> PolicySnapshot:
    """A head of several choices where there are `choices`."""
    rng = np.random.default_rng(seed)
    sizes = (observation_dim, *hidden, action_dim)
    pairs = list(pairwise(sizes))
    weights = [(rng.standard_normal(pair) / np.sqrt(pair[0])).astype(np.float32) for pair in pairs]
    biases = [rng.standard_normal(pair[1]).astype(np.float32) * 0.1 for pair in pairs]
    layers = []
    for weight, bias in zip(weights, biases, strict=True):
        layers += [Layer("dense", {"weight": weight, "bias": bias}), Layer(activation, {})]
    if normalizes:
        mean = rng.standard_normal(observation_dim).astype(np.float32)
        std = rng.uniform(0.1, 9, observation_dim).astype(np.float32)
        layers.insert(0, Layer("normalize", {"mean": mean, "std": std}))
    head = Layer("categorical", {})
    if continuous:
        head = Layer("gaussian", {"log_std": np.full(action_dim, -0.5, np.float32)})
    elif choices:
        head = Layer("factored", {"choices": np.array(choices, np.int32)})
    return PolicySnapshot(version, tuple(layers[:-1]), head)


def head_of(kind: str, actions: int) -> tuple[Layer, int]:
    """A head of any kind for so many choices, or numbers of an action, and the width of the
    network's output that it takes."""
    rng = np.random.default_rng(0)
    epsilon, repeat = np.array([0.3], np.float32), np.array([0.6], np.float32)
    std = rng.uniform(0.1, 1, actions).astype(np.float32)
    arrays, width = {
        "categorical": ({}, actions),
        "factored": ({"choices": np.array([actions, 3, 1], np.int32)}, actions + 4),
        "gaussian": ({"log_std": rng.standard_normal(actions).astype(np.float32)}, actions),
        "epsilon_greedy": ({"epsilon": epsilon, "repeat": repeat}, actions),
        "epsilon_greedy_distribution": (
            {
                "epsilon": epsilon,
                "repeat": repeat,
                "support": np.linspace(-10, 10, 51, dtype=np.float32),
            },
            51 * actions,
        ),
        "squashed_gaussian": ({}, 2 * actions),
        "noisy": ({"std": std, "theta": np.array([0.15], np.float32)}, actions),
    }[kind]
    return Layer(kind, arrays), width


def snapshot_with(kind: str, observation_dim: int, actions: int, **options) -> PolicySnapshot:
    """A random policy with a head of any kind; the network of a deterministic one ends in tanh."""
    head, width = head_of(kind, actions)
    snapshot = random_snapshot(observation_dim, width, False, **options)
    ends = (Layer("tanh", {}),) if kind == "noisy" else ()
    return replace(snapshot, layers=(*snapshot.layers, *ends), head=head)


def snapshot_for(spec: EnvironmentSpec, **options) -> PolicySnapshot:
    if not isinstance(spec.action_space, spaces.Discrete):
        options["choices"] = spec.choices
    return random_snapshot(spec.observation_dim, spec.action_dim, spec.continuous, **options)


def request_for(
    env_id: str,
    indices=(0, 1, 2),
    version: int = 0,
    max_episode_steps: int | None = None,
    simulator: str = "auto",
    **options,
) -> CollectRequest:
    values = {"run_seed": 3, "iteration": 2, "columns": columns_of(env_id)} | options
    return CollectRequest(
        environment=Environment(env_id, max_episode_steps, simulator),
        indices=tuple(indices),
        policy_version=version,
        **values,
    )


@functools.cache
def columns_of(env_id: str) -> tuple[Column, ...]:
    """Without making an environment, which may be what fails, where its class has the spaces; of
    one that does not exist, as if it were one of the test environments."""
    entry_point = Base
    with contextlib.suppress(gymnasium.error.Error):
        entry_point = gymnasium.spec(env_id.rpartition(":")[2]).entry_point
    if isinstance(entry_point, type):
        spec = EnvironmentSpec(env_id, entry_point.observation_space, entry_point.action_space)
    else:
        spec = described(env_id)
    return step_columns(spec)


def collect(env_id: str, indices=(0, 1, 2), snapshot=None, **options):
    """Episodes, or a failure, of plain environments; by a random policy where none is given."""
    limit = options.get("max_episode_steps")
    snapshot = snapshot or snapshot_for(described(env_id, limit))
    with contextlib.closing(plain(env_id, limit)) as simulator:
        return collect_episodes(snapshot, request_for(env_id, indices, **options), simulator)


def episode_of(
    index: int,
    observations: np.ndarray,
    actions: np.ndarray,
    rewards: np.ndarray,
    terminated: bool,
    truncated: bool,
) -> Episode:
    columns = {"observations": observations, "actions": actions, "rewards": rewards}
    return Episode(index, columns, terminated, truncated)


def together(episodes: list[Episode]) -> Episodes:
    """Single episodes as one message."""
    return Episodes(
        index=np.array([e.index for e in episodes]),
        lengths=np.array([e.length for e in episodes]),
        terminated=np.array([e.terminated for e in episodes]),
        truncated=np.array([e.truncated for e in episodes]),
        columns={
            name: np.concatenate([e.columns[name] for e in episodes])
            for name in episodes[0].columns
        },
    )


def assert_same_episodes(left, right) -> None:
    """Equal to the bit."""
    assert [e.index for e in left] == [e.index for e in right]
    for a, b in zip(left, right, strict=True):
        assert a.columns.keys() == b.columns.keys()
        for name in a.columns:
            x, y = a.columns[name], b.columns[name]
            assert x.dtype == y.dtype and x.shape == y.shape
            assert x.tobytes() == y.tobytes(), f"episode {a.index}: {name}"
        assert (a.terminated, a.truncated) == (b.terminated, b.truncated)


def table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    return list(csv.DictReader(path.read_text().splitlines()))


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of each file below the folder, by its path from there."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def start_main(
    *arguments: str, cwd: Path, environment: dict[str, str] | None = None, **pipes
) -> Forked | subprocess.Popen[str]:
    """main.py as a user runs it, without any Flame configuration of this machine: in a fork, but
    where PYTHONPATH has stand-ins for libraries, by Python anew."""
    script, env = ROOT / "main.py", clean_environment(cwd) | (environment or {})
    if "PYTHONPATH" not in (environment or {}):
        return Forked(script, arguments, cwd, env, **pipes)
    command = [sys.executable, str(script), *arguments]
    return subprocess.Popen(command, cwd=cwd, env=env, text=True, **pipes)


def run_main(
    *arguments: str, cwd: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`start_main`, and wait for its end."""
    return _ended(start_main(*arguments, cwd=cwd, environment=environment, **PIPES))


def _ended(process) -> subprocess.CompletedProcess[str]:
    output, errors = process.communicate(timeout=1200)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def run_script(
    code: str, *words: str, cwd: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run this code with these arguments in a fork."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(code)
        file.flush()
        return run_forked(Path(file.name), *words, cwd=cwd, environment=environment)


def run_forked(
    script: Path, *words: str, cwd: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a script in a fork, as if Python had been started with it in that folder."""
    return _ended(Forked(script, words, cwd, clean_environment(cwd) | (environment or {}), **PIPES))


def run_anew(
    *words: str, cwd: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Python with these words, started anew."""
    env = clean_environment(cwd) | (environment or {})
    return subprocess.run([sys.executable, *words], cwd=cwd, env=env, text=True, **PIPES)


def shown_on_a_terminal(script: Path, *words: str, columns: int) -> str:
    """All that a terminal gets from a script until its end, without control sequences."""
    mine, theirs = pty.openpty()
    environment = clean_environment(ROOT) | {"TERM": "xterm", "COLUMNS": str(columns)}
    process = Forked(script, words, ROOT, environment, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while data := os.read(mine, 4096):
            shown += data
    except OSError:  # the other end is closed
        pass
    process.wait()
    os.close(mine)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())


def run_here(
    *arguments: str, cwd: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """As `run_main`, but in this process, which has imported torch already."""
    output, errors = io.StringIO(), io.StringIO()
    variables = clean_environment(cwd) | (environment or {})
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
        mock.patch.dict(os.environ, variables, clear=True),
        mock.patch.object(sys, "argv", ["main.py", *arguments]),
    ):
        code = main.main()
    return subprocess.CompletedProcess(arguments, code, output.getvalue(), errors.getvalue())


def run_ok(
    *arguments: str, cwd: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """As `run_here`, of a command that must succeed."""
    done = run_here(*arguments, cwd=cwd, environment=environment)
    assert done.returncode == 0, done.stderr
    return done


def refusal(*arguments: str, cwd: Path, environment: dict[str, str] | None = None) -> str:
    """What is said of a command that must be refused, in words and not with a traceback."""
    done = run_here(*arguments, cwd=cwd, environment=environment)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done
    return done.stderr


def finished_run(tmp_path_factory, *arguments: str) -> Path:
    """The folder of a run, which is called `run`, alone in a new one."""
    folder = tmp_path_factory.mktemp("finished")
    run_ok(*arguments, "--output", "run", cwd=folder)
    return folder / "run"


def copied_package(folder: Path) -> Path:
    """The folder, with what people have of the package in theirs."""
    for name in ("main.py", "model.py"):
        shutil.copy(ROOT / name, folder)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "flame_rl", folder / "flame_rl", ignore=ignored)
    return folder


def clean_environment(home: Path) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("FLAME")}
    return inherited | {"HOME": str(home), "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
