"""`main.py tune`: whole studies, with trials that train."""

import re
import shlex
import signal
import subprocess
import sys

import pytest

pytest.importorskip("optuna", reason="uv run --group tune pytest")

from flame_rl.run.folder import read_config
from flame_rl.tools import side_runs
from tests.helpers import SOON, refusal, run_ok, start_main
from tests.runs import assert_same_run, rows, wait_until

QUICK = ("--env", "cartpole", "--algorithm", "ppo", "--env-steps", "240", "--local")
SEARCH = ("--search", "learning-rate", "epochs")
FIRST = ("--steps-per-iter", "60", "--learning-rate", "1e-6")


@pytest.mark.slow
def test_a_study_ends_with_a_command_that_repeats_its_best_run(tmp_path):
    words = ("tune", *QUICK, *FIRST, *SEARCH, "--trials", "2", "--finalists", "0")
    words += ("--output", "study")
    done = run_ok(*words, cwd=tmp_path)
    study = tmp_path / "study"
    first, second = (read_config(study / f"trial-00{number}") for number in (0, 1))
    assert first.algorithm.learning_rate == 1e-6 and first.algorithm.epochs == 10
    assert second.algorithm.learning_rate > 1e-6
    assert (
        second.changed(learning_rate=1e-6, epochs=10).to_data()["algorithm"]
        == (first.to_data()["algorithm"])
    )
    assert {"best.png"} <= {path.name for path in study.iterdir()}
    score, best = max(
        (float(score), int(number))
        for number, score in re.findall(r"^(\d)\s+([\d.]+) ", done.stdout, re.MULTILINE)
    )
    (command,) = re.findall(r"^  uv run main\.py (.*) --seeds 101 102 103$", done.stdout, re.M)
    run_ok(*shlex.split(command), "--workers", "0", "--output", "again", cwd=tmp_path)
    assert_same_run(tmp_path / "again", study / f"trial-00{best}")
    rows_of_best = (study / f"trial-00{best}" / "metrics.csv").read_text().splitlines()
    returns = [float(row.split(",")[3]) for row in rows_of_best[1:]]
    assert min(returns) <= score + 0.05 and score - 0.05 <= max(returns)

    more = run_ok("tune", "--resume", "study", cwd=tmp_path)
    assert command in more.stdout
    assert "Best of 2 trials" in more.stdout
    assert "study holds another study" in refusal(*words, cwd=tmp_path)


@pytest.mark.slow
def test_a_killed_study_goes_on(tmp_path):
    words = ("tune", *QUICK[:4], "--env-steps", "1500", "--local", *SEARCH, "--trials", "5")
    words += ("--steps-per-iter", "30", "--parallel", "2")
    words += ("--pruner", "none", "--finalists", "2", "--final-seeds", "2")
    words += ("--final-env-steps", "2000", "--checkpoint-every", "2", "--workers", "0")
    words += ("--output", "study")
    study, settings = tmp_path / "study", {}
    # Killed when so many rows of that run are there.
    for run, row in (("trial-000", 3), ("trial-002", 0), ("trial-003", 5), ("final-*", 5)):
        process = start_main(*words, cwd=tmp_path, stdout=subprocess.DEVNULL)
        # Several runs come before it.
        wait_until(
            lambda run=run, row=row: any(rows(each) >= row for each in study.glob(f"{run}/")),
            5 * SOON,
            process,
        )
        process.send_signal(signal.SIGKILL)
        process.wait()
        for each in study.glob("trial-*/config.json"):
            config = read_config(each.parent).algorithm
            assert settings.setdefault(each, config) == config
        words = ("tune", "--resume", "study")
    done = run_ok(*words, cwd=tmp_path)
    assert "Best of 5 trials, 0 of them pruned and 0 failed" in done.stdout
    assert "Final, each for 2,000 env steps" in done.stdout
    assert len(list(study.glob("final-*/evaluations.csv"))) == 4
    # Each trial is as long as one that was never killed.
    for run in study.glob("trial-*/"):
        assert int((run / "metrics.csv").read_text().splitlines()[-1].split(",")[2]) >= 1500


@pytest.mark.slow
def test_ctrl_c_saves_the_trials(tmp_path):
    words = ("tune", *QUICK[:4], "--env-steps", "1000000", "--local", "--output", "study")
    process = start_main(*words, cwd=tmp_path, stdout=subprocess.PIPE)
    trials = [tmp_path / "study" / f"trial-00{number}" for number in (0, 1)]
    wait_until(lambda: all(rows(trial) > 2 for trial in trials), SOON, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 130 and "tune --resume study" in output
    assert (tmp_path / "study" / "trial-001" / "weights.safetensors").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--env-steps: the env steps of each trial"),
        (("--env-steps", "9", "--seeds", "1", "2"), "--seeds: all trials have the one --seed"),
        (("--env-steps", "9", "--search", "learning-rat"), "did you mean learning_rate"),
        (("--env-steps", "9", "--search", "plot"), "--search: 'plot' has no range"),
        (("--env-steps", "9", "--trials", "0"), "--trials: at least 1"),
        (("--env-steps", "9", "--parallel", "-1"), "--parallel: at least 1"),
        (("--resume", "nowhere"), "nowhere holds no study: there is no study.json"),
        (("--resume", ".", "--pruner", "none"), "--pruner: a resumed study has its own"),
        (("--env-steps", "9", "--tau", "0.1"), "--tau: a setting of"),
    ],
)
def test_mistakes_are_named(words, message, tmp_path):
    assert message in refusal("tune", *words, cwd=tmp_path)
    assert not (tmp_path / "runs").exists()


def test_a_command_with_a_mistake_can_be_corrected_in_the_same_folder(tmp_path, monkeypatch):
    def refused(words, prints):
        prints.write_text("error: unknown environment\n")
        return subprocess.Popen([sys.executable, "-IS", "-c", "raise SystemExit(2)"])

    monkeypatch.setattr(side_runs, "start_process", refused)
    for seed in ("1", "2"):
        said = refusal("tune", *QUICK, "--seed", seed, "--output", "study", cwd=tmp_path)
        assert said == "error: unknown environment\n"
    (tmp_path / "study" / "trial-003").mkdir()
    said = refusal("tune", *QUICK, "--output", "study", cwd=tmp_path)
    assert "study holds another study" in said


def test_a_damaged_study_is_named(tmp_path):
    (tmp_path / "study").mkdir()
    for text in ("{", "[]", '{"words": "x"}', "[" * 100_000):
        (tmp_path / "study" / "study.json").write_text(text)
        assert "study.json is no study" in refusal("tune", "--resume", "study", cwd=tmp_path)
