"""`main.py --seeds`: each seed's run is that of `--seed` alone; failures and Ctrl-C."""

import os
import re
import signal
from pathlib import Path

import pytest

from flame_rl.run.folder import is_held
from flame_rl.tools import side_runs
from flame_rl.tools.side_runs import exit_code, share_of, without
from tests.forks import Forked
from tests.helpers import PIPES, ROOT, SOON, environment_id, refusal, run_here, run_ok, start_main
from tests.runs import assert_same_run, assert_saved_weights, rows, wait_until


def start_forked(words, prints):
    """Without a new Python; test_install.py and the slow tests start the process that it is."""
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    with prints.open("wb") as file:
        output = {"stdout": file.fileno(), "stderr": file.fileno()}
        return Forked(ROOT / "main.py", words, Path.cwd(), env, **output)


QUICK = ("--env", "cartpole", "--algorithm", "ppo", "--iterations", "2", "--steps-per-iter", "60")


def test_each_seed_has_the_same_bytes_as_alone_and_one_that_fails_stops_no_other(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(side_runs, "available_cores", lambda: 1)
    monkeypatch.setattr(side_runs, "start_process", start_forked)
    # Where weights.safetensors is to be written.
    (tmp_path / "all" / "seed-4" / "weights.safetensors").mkdir(parents=True)
    words = (*QUICK, "--seeds", "4", "5", "--output", "all")
    done = run_here(*words, cwd=tmp_path)
    assert done.returncode == 1
    run_ok(*QUICK, "--seed", "5", "--workers", "0", "--output", "alone", cwd=tmp_path)
    assert_same_run(tmp_path / "all" / "seed-5", tmp_path / "alone")
    assert "Training Complete!" in (tmp_path / "all" / "seed-5.txt").read_text()
    lines = done.stdout.splitlines()
    assert any(re.fullmatch(r"seed 5: done; mean return \S+ after \d+ env steps", x) for x in lines)
    assert any(x.startswith("seed 4: ended with exit code 1; mean return ") for x in lines)
    assert re.fullmatch(r"error: seed 4: see .*all/seed-4\.txt\n", done.stderr)
    # The same command goes on, also where it is a longer one.
    (tmp_path / "all" / "seed-4" / "weights.safetensors").rmdir()
    run_ok(*words, "--iterations", "3", cwd=tmp_path)
    assert [rows(tmp_path / "all" / f"seed-{seed}") for seed in (4, 5)] == [4, 4]  # with the header
    other = run_here(*words, "--learning-rate", "0.1", cwd=tmp_path)
    assert other.returncode == 2 and "would make it another run" in other.stdout
    # Nobody would find seeds within a run.
    within = refusal(*QUICK, "--seeds", "1", "--output", "alone", cwd=tmp_path)
    assert "alone holds another run" in within


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_however_it_is_ended_every_seed_is_saved(how, tmp_path):
    process = start_main(
        *("--env", environment_id("Slow"), "--workers", "0", "--output", "all", "--seeds", "1,2"),
        *("--iterations", "1000", "--episodes-per-iter", "4"),
        cwd=tmp_path,
        **PIPES,
    )
    runs = [tmp_path / "all" / f"seed-{seed}" for seed in (1, 2)]
    wait_until(lambda: all(rows(run) >= 2 for run in runs), SOON, process)
    process.send_signal(how)
    output, errors = process.communicate(timeout=600)
    wait_until(lambda: not any(is_held(run) for run in runs), SOON)
    for run in runs:
        assert_saved_weights(run)
        assert list((run / "checkpoints").glob("0*.ckpt"))
    if how == signal.SIGINT:
        assert process.returncode == 130, errors
        assert output.count("interrupted") == 2 and "main.py runs all" in output
        assert "--seeds 1,2 --iterations 1000 --episodes-per-iter 4 --output all\n" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("profile", "--seeds", "1", "2"), "--seeds: a profile is of one run"),
        (("--seeds", "1", "--seed", "2"), "--seed: --seeds takes its place"),
        (("--seeds", "1", "1"), "--seeds: each once"),
        (("--seeds", "-1"), "--seeds"),
    ],
)
def test_mistakes_are_named(words, message, tmp_path):
    assert message in refusal(*words, cwd=tmp_path)
    assert not (tmp_path / "runs").exists()


def test_what_several_runs_share(monkeypatch):
    monkeypatch.setattr(side_runs, "available_cores", lambda: 8)
    assert [share_of(None, 4), share_of(6, 4), share_of(2, 4), share_of(0, 4)] == [2, 1, 1, 0]
    words = ["--seeds", "1", "2", "--env", "a", "--output=x", "--workers", "3", "--plot"]
    assert without(words, ("--seeds", "--output", "--workers")) == ["--env", "a", "--plot"]
    # That of a mistake only if all made it.
    codes = ([0, 0], [0, 2], [2, 2], [1, 2], [0, -9])
    assert list(map(exit_code, codes)) == [0, 1, 2, 1, 1]
