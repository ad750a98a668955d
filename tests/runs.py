"""Whole runs for the tests of resuming and of faults."""

import contextlib
import time
from pathlib import Path

import numpy as np
import psutil
import safetensors.numpy

from flame_rl.learner.state import arrays_digest
from flame_rl.settings.config import TrainConfig
from tests.helpers import environment_id

ITERATIONS = 24
RUN = (
    *("--env", environment_id("Poisoned"), "--episodes-per-iter", "12", "--seed", "7"),
    *("--hidden-sizes", "6", "--checkpoint-every", "4"),
    *("--learning-rate", "0.01", "--learning-rate-decay", "False"),
)
WHOLE = (*RUN, "--iterations", str(ITERATIONS))
# Settings with which every algorithm makes several gradient steps in a short iteration.
SMALL = {
    "hidden_sizes": (6,),
    "memory_size": 6,
    "steps_per_iter": None,
    "episodes_per_iter": 12,
    "iterations": 4,
    "minibatches": 2,
    "epochs": 2,
    "learning_rate": 0.01,
    "warm_up_steps": 20,
    "batch_size": 16,
    "updates_per_step": 0.1,
    "capacity": 300,
    "sequence_length": 4,
    "burn_in": 2,
    "epsilon_steps": 100,
    "local": True,
}
# With which tiny problems are learned in seconds.
QUICK = {
    "iterations": 30,
    "steps_per_iter": None,
    "episodes_per_iter": 20,
    "hidden_sizes": (16,),
    "learning_rate": 0.02,
    "max_kl": 1.0,
    "warm_up_steps": 0,
    "batch_size": 32,
    "epsilon_end": 0.0,
    "workers": 0,
    "local": True,
}
# Slow enough that a moment can be picked: three seconds with two workers.
SLOWLY = {"FAULT_SLEEP": "0.004"}


def flags_of(options: dict[str, object]) -> list[str]:
    """The command line of these settings."""
    flags = []
    for name, value in options.items():
        words = () if name == "local" else value if isinstance(value, tuple) else (value,)
        flags += [f"--{name.replace('_', '-')}", *map(str, words)]
    return flags


def processes_with(value: str) -> list[psutil.Process]:
    """The processes that run with this value in their environment; a zombie has none."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if value in process.environ().values():
                found.append(process)
    return found


def survivors(tag: str, seconds: float = 50.0) -> list[psutil.Process]:
    """The processes started with FAULT_TAG=tag that still run after some seconds at most."""
    limit = time.monotonic() + seconds
    while (found := processes_with(tag)) and time.monotonic() < limit:
        time.sleep(0.1)
    return found


def saved_weights(run: Path) -> dict[str, np.ndarray]:
    return safetensors.numpy.load_file(run / "weights.safetensors")


def assert_saved_weights(run: Path) -> None:
    """They are those of the last row of metrics.csv."""
    last = (run / "metrics.csv").read_text().splitlines()[-1]
    assert last.endswith(arrays_digest(saved_weights(run)))


def assert_same_run(run: Path, whole: Path) -> None:
    assert (run / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()
    assert_saved_weights(run)


def wait_until(condition, seconds: float = 600.0, process=None) -> None:
    """Where there is a process, it must go on meanwhile."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not happen in time"
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.02)


def write_run(
    folder: Path,
    config: TrainConfig,
    rewards,
    steps: float = 100,
    seconds: float = 2.0,
    evaluations=(),
) -> Path:
    """The folder with the files that tables and curves of runs are made of: rows of so many steps,
    and of so many seconds without those of evaluating; `evaluations` are pairs of an iteration and
    a mean return."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config.to_json())
    tables = {
        "metrics": ["iteration,env_steps,reward_mean,weights_digest"],
        "timing": ["iteration,collecting_seconds,updating_seconds,evaluating_seconds"],
        "evaluations": ["iteration,reward_mean", *(f"{i},{mean}" for i, mean in evaluations)],
    }
    for i, reward in enumerate(rewards):
        tables["metrics"].append(f"{i},{(i + 1) * steps},{reward},abc")
        tables["timing"].append(f"{i},{0.75 * seconds},{0.25 * seconds},0.25")
    for name, lines in tables.items():
        if name != "evaluations" or evaluations:
            (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return folder


def rows(run: Path) -> int:
    """How many whole rows metrics.csv has, with its header."""
    path = run / "metrics.csv"
    return path.read_bytes().count(b"\n") if path.exists() else 0
