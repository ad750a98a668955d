"""What several tests need."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np

import main
from flame_rl.wire.messages import (
    CollectRequest,
    EnvironmentSpec,
    Episode,
    Episodes,
    PolicySnapshot,
)

ROOT = Path(__file__).resolve().parent.parent


def environment_id(name: str) -> str:
    """The id of one of the test environments."""
    return f"tests.environments:{name}-v0"


def random_snapshot(
    observation_dim: int,
    action_dim: int,
    continuous: bool,
    hidden: tuple[int, ...] = (64, 64),
    activation: str = "tanh",
    version: int = 0,
    seed: int = 0,
    normalizes: bool = False,
) -> PolicySnapshot:
    rng = np.random.default_rng(seed)
    sizes = (observation_dim, *hidden, action_dim)
    pairs = list(pairwise(sizes))
    return PolicySnapshot(
        version=version,
        activation=activation,
        weights=tuple(
            (rng.standard_normal(pair) / np.sqrt(pair[0])).astype(np.float32) for pair in pairs
        ),
        biases=tuple(rng.standard_normal(pair[1]).astype(np.float32) * 0.1 for pair in pairs),
        log_std=np.full(action_dim, -0.5, np.float32) if continuous else None,
        observation_mean=rng.standard_normal(observation_dim).astype(np.float32)
        if normalizes
        else None,
        observation_std=rng.uniform(0.1, 9, observation_dim).astype(np.float32)
        if normalizes
        else None,
    )


def snapshot_for(spec: EnvironmentSpec, **options) -> PolicySnapshot:
    return random_snapshot(spec.observation_dim, spec.action_dim, spec.continuous, **options)


def request_for(env_id: str, indices=(0, 1, 2), version: int = 0, **options) -> CollectRequest:
    values = {"max_episode_steps": None, "run_seed": 3, "iteration": 2} | options
    return CollectRequest(env_id=env_id, indices=tuple(indices), policy_version=version, **values)


def together(episodes: list[Episode]) -> Episodes:
    """Single episodes as one message."""
    return Episodes(
        index=np.array([e.index for e in episodes]),
        lengths=np.array([e.length for e in episodes]),
        terminated=np.array([e.terminated for e in episodes]),
        truncated=np.array([e.truncated for e in episodes]),
        observations=np.concatenate([e.observations for e in episodes]),
        actions=np.concatenate([e.actions for e in episodes]),
        rewards=np.concatenate([e.rewards for e in episodes]),
    )


def assert_same_episodes(left, right) -> None:
    """Equal to the bit."""
    assert [e.index for e in left] == [e.index for e in right]
    for a, b in zip(left, right, strict=True):
        for name in ("observations", "actions", "rewards"):
            x, y = getattr(a, name), getattr(b, name)
            assert x.dtype == y.dtype and x.shape == y.shape
            assert x.tobytes() == y.tobytes(), f"episode {a.index}: {name}"
        assert (a.terminated, a.truncated) == (b.terminated, b.truncated)


def start_main(
    *arguments: str, cwd: Path, environment: dict[str, str] | None = None, **pipes
) -> subprocess.Popen[str]:
    """main.py as a user runs it, without any Flame configuration of this machine."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / "main.py"), *arguments],
        cwd=cwd,
        env=clean_environment(cwd) | (environment or {}),
        text=True,
        **pipes,
    )


def run_main(
    *arguments: str, cwd: Path, timeout: float = 120, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`start_main`, and wait for its end."""
    process = start_main(
        *arguments,
        cwd=cwd,
        environment=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    output, errors = process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


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
        try:
            code = main.main()
        except SystemExit as error:  # a flag that cannot be parsed
            code = error.code
    return subprocess.CompletedProcess(arguments, code, output.getvalue(), errors.getvalue())


def clean_environment(home: Path) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("FLAME")}
    return inherited | {"HOME": str(home), "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
