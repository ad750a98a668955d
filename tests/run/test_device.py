"""Runs on a graphics card, which a second copy of each network on the CPU stands for here: what is
kept with a run, and what happens where there is no card."""

import json

import pytest
import torch

from flame_rl import TrainConfig, Trainer
from flame_rl.learner.training import device
from flame_rl.system.errors import UsageError
from tests.helpers import environment_id, refusal, run_ok
from tests.learners import make_config
from tests.runs import flags_of

CATCH = environment_id("Catch")
OPTIONS = {
    "algorithm": "ppo",
    "hidden_sizes": (6,),
    "episodes_per_iter": 5,
    "iterations": 3,
    "epochs": 1,
    "local": True,
    "workers": 0,
}
FLAGS = (*flags_of(OPTIONS | {"env": CATCH, "iterations": 2}), "--output", "run")


@pytest.fixture
def card(monkeypatch):
    """Switches the card on and off."""

    def switch(on: bool) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: on)

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some Card")
    monkeypatch.setattr(
        device, "device_of", lambda name: torch.device("cpu") if name == "cuda" else None
    )
    return switch


def device_of_run(folder) -> str:
    return json.loads((folder / "run" / "config.json").read_text())["execution"]["device"]


def test_a_saved_run_goes_on_with_its_device(card, tmp_path, monkeypatch):
    path = tmp_path / "half.ckpt"
    config = TrainConfig(env=CATCH, **OPTIONS)
    card(False)
    with Trainer(config) as trainer:
        assert trainer.config.execution.device == "cpu"
        trainer.save(tmp_path / "cpu.ckpt")
        expected = [result.weights_digest for result in trainer]
    card(True)
    with Trainer.load(tmp_path / "cpu.ckpt") as trainer:
        assert trainer.config.execution.device == "cpu"
    modes = []
    with Trainer(config) as trainer:
        kind = type(trainer.learner.algorithm)
        update = kind.update

        def noting(*arguments):
            modes.append(torch.get_deterministic_debug_mode())
            return update(*arguments)

        monkeypatch.setattr(kind, "update", noting)
        assert trainer.config.execution.device == "cuda"
        assert trainer.train().weights_digest == expected[0]
        trainer.save(path)
    assert modes == [2]  # an error
    with Trainer.load(path) as trainer:
        assert trainer.config.execution.device == "cuda"
        assert trainer.train().weights_digest == expected[1]
    assert device.NETWORK_DEVICE.get() is None
    card(False)
    with pytest.raises(UsageError, match="--device: torch finds no graphics card"):
        Trainer.load(path)
    with Trainer.load(path, device="cpu") as trainer:
        assert trainer.train().weights_digest == expected[1]


def test_a_run_says_where_it_learns(card, tmp_path):
    card(True)
    done = run_ok(*FLAGS, cwd=tmp_path)
    assert "  Device: Some Card (cuda)\n" in done.stdout and device_of_run(tmp_path) == "cuda"

    card(False)
    said = refusal("--resume", "run", "--iterations", "3", cwd=tmp_path)
    assert said.startswith("error: --device: torch finds no graphics card: ")
    done = run_ok("evaluate", "run", "--episodes", "2", "--workers", "0", cwd=tmp_path)
    assert "device" not in done.stderr
    resumed = ("--resume", "run", "--iterations")
    done = run_ok(*resumed, "3", "--device", "cpu", cwd=tmp_path)
    assert "learned with --device cuda, and goes on with --device cpu: " in done.stderr
    assert "  Device: cpu\n" in done.stdout and device_of_run(tmp_path) == "cpu"

    card(True)
    done = run_ok(*resumed, "4", cwd=tmp_path)
    assert "--device" not in done.stderr
    assert device_of_run(tmp_path) == "cpu"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no graphics card")
@pytest.mark.parametrize(
    ("env", "options"),
    [
        (CATCH, {}),
        (CATCH, {"memory": "gru"}),
        (CATCH, {"algorithm": "dqn", "warm_up_steps": 20}),
        ("Pendulum-v1", {"memory": "lstm", "max_episode_steps": 20}),
    ],
)
def test_the_same_seed_gives_the_same_bytes_on_a_card_and_the_loss_of_the_cpu(env, options):
    digests, losses = [], []
    for place in ("cuda", "cuda", "cpu"):
        with Trainer(make_config(env, **OPTIONS | {"device": place} | options)) as trainer:
            results = list(trainer)
        digests.append([result.weights_digest for result in results])
        losses.append(results[0].metrics["loss"])
    assert digests[0] == digests[1]
    assert losses[0] == pytest.approx(losses[2], rel=1e-2, abs=1e-3)
