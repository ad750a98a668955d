"""The parts of the comparison with other packages that need none of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers import __main__ as peers
from benchmarks.peers import sequences_ours, update_ours
from benchmarks.peers.work import SEQUENCES, SequenceData, UpdateData
from flame_rl.learner.training.device import reproducible


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="not on this system")
def test_a_peer_runs_on_so_many_cores() -> None:
    count = [sys.executable, "-c", "import os; print(len(os.sched_getaffinity(0)))"]
    before = os.sched_getaffinity(0)
    with peers.limited_to(1):
        assert int(subprocess.check_output(count)) == 1
    assert os.sched_getaffinity(0) == before
    assert int(subprocess.check_output(count)) == len(before)


@pytest.mark.filterwarnings("error")
def test_minibatch_steps_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UpdateData, "epochs", 2)
    with reproducible("cpu", seed=0):
        assert update_ours.epochs_of(1_000)() == 8
        assert update_ours.epochs_of(64)() == 2 * 62


@pytest.mark.parametrize("memory", SEQUENCES.values())
def test_gradient_steps_of_sequences_are_counted(
    memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SequenceData, "repeats", 2)
    with reproducible("cpu", seed=0):
        assert sequences_ours.steps_of(memory)() == 2


def test_modules_of_other_environments_do_without_this_package() -> None:
    """Their environments have its requirements only by chance."""
    folder = Path(peers.__file__).parent
    apart = (
        *("work", "sb3", "sbx", "replay_sb3", "replay_sbx", "update_jax", "sequences_jax"),
        *("agents_sb3", "rllib"),
    )
    texts = {name: (folder / f"{name}.py").read_text() for name in apart}
    assert [name for name, text in texts.items() if "from flame_rl" in text] == []
