"""Runs with demonstrations: the same bytes wherever they collect, however often they stop, and
from whatever kind of file; and no others once they have begun."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from flame_rl import Trainer
from flame_rl.run.checkpoint import list_checkpoints, read_checkpoint
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from tests.helpers import environment_id, refusal, run_ok
from tests.runs import assert_same_run, flags_of

pytestmark = pytest.mark.faults

SMALL = {
    "seed": 7,
    "iterations": 5,
    "episodes_per_iter": 6,
    "hidden_sizes": (8,),
    "checkpoint_every": 2,
    "learning_rate_decay": False,
    "workers": 0,
    "local": True,
}
REPLAY = {"warm_up_steps": 60, "capacity": 160, "batch_size": 8, "updates_per_step": 0.2}
POLE = {"env": "CartPole-v1", "max_episode_steps": 20}
TARGET = {"env": environment_id("Target"), "max_episode_steps": 2}
RUNS = {
    "bc": POLE | {"clone_epochs": 2},
    "dqn": POLE | REPLAY | {"prioritized": True, "n_step": 2},
    "sac": TARGET | REPLAY | {"warm_up_steps": 12, "normalize_observations": True},
}
FILES = {POLE["env"]: "pole.npz", TARGET["env"]: "target.npz"}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """A folder with the demonstrations of each environment, which evaluations have recorded."""
    folder = tmp_path_factory.mktemp("files")
    for task in (POLE, TARGET):
        with Trainer(TrainConfig(**task, hidden_sizes=(4,), workers=0, local=True)) as trainer:
            trainer.evaluate(6, explore=True, record=folder / FILES[task["env"]])
    return folder


def options_of(run: str, files: Path, **more) -> dict:
    chosen = {"algorithm": run} | SMALL | RUNS[run]
    return chosen | {"demonstrations": str(files / FILES[chosen["env"]])} | more


def train(folder: Path, run: str, files: Path, **more) -> Path:
    folder.mkdir(exist_ok=True)
    done = run_ok(*flags_of(options_of(run, files, **more)), "--output", "run", cwd=folder)
    assert "Demonstrations: 6 episodes of " in done.stdout
    return folder / "run"


@pytest.fixture(scope="module")
def wholes(files, tmp_path_factory):
    """`wholes(run)` is the folder of the run that nothing interrupts."""
    runs: dict[str, Path] = {}

    def whole(run: str) -> Path:
        if run not in runs:
            runs[run] = train(tmp_path_factory.mktemp("whole"), run, files)
        return runs[run]

    return whole


def test_a_run_learns_from_no_other_demonstrations(files, wholes, tmp_path):
    """config.json keeps path and digest, and no checkpoint holds an episode."""
    run = "sac"
    config = json.loads((wholes(run) / "config.json").read_text())["experiment"]
    assert config["demonstrations"] == options_of(run, files)["demonstrations"]
    assert len(config["demonstrations_digest"]) == 64
    own = Path(shutil.copytree(files, tmp_path / "own"))
    train(tmp_path, run, own, iterations=3)
    newest, *_ = list_checkpoints(tmp_path / "run" / "checkpoints")
    name = Path(config["demonstrations"]).name
    with np.load(own / name) as file:
        arrays = dict(file)
    saved = read_checkpoint(newest).learner.values()
    assert not any(array.shape == arrays["observations"].shape for array in saved)

    arrays["rewards"] = arrays["rewards"] + 1e-3
    np.savez(own / name, **arrays)
    said = refusal("--resume", "run", "--iterations", "5", cwd=tmp_path)
    words = f"error: --demonstrations: {own / name}: not what the run began with: the digest is "
    assert said.startswith(words) and said.count("\n") == 1
    (own / name).unlink()
    said = refusal("--resume", "run", "--iterations", "5", cwd=tmp_path)
    assert "there is no such file" in said
    # Whoever only looks at the policy needs none.
    run_ok("evaluate", "run", "--local", "--workers", "0", "--episodes", "2", cwd=tmp_path)
    shutil.copy(files / name, own / name)
    run_ok("--resume", "run", "--iterations", "5", cwd=tmp_path)
    assert_same_run(tmp_path / "run", wholes(run))
    other = files / FILES[POLE["env"]]
    said = refusal("--resume", "run", "--demonstrations", str(other), cwd=tmp_path)
    assert "would make it another run: --demonstrations" in said


@pytest.mark.parametrize("run", ["bc", "dqn"])
def test_a_run_with_a_replay_memory_is_demonstrations(run, files, wholes, tmp_path):
    """All of its episodes, as its journal has them."""
    source = wholes("dqn")
    with Trainer(TrainConfig(**options_of(run, files, demonstrations=str(source)))) as trainer:
        episodes = trainer.learner.algorithm.demonstrations.episodes
        assert len(episodes) == 30
        list(trainer)
    shutil.rmtree(shutil.copytree(source, tmp_path / "run") / "replay")
    with pytest.raises(UsageError, match=r"no run with a replay memory.*evaluate RUN --record FIL"):
        Trainer(TrainConfig(**options_of(run, files, demonstrations=str(tmp_path / "run"))))
    target = options_of("sac", files, demonstrations=str(source))
    with pytest.raises(UsageError, match=r"replay: .*observations: shape .*; take another run"):
        Trainer(TrainConfig(**target))
