"""main.py as a user runs it: flags, output, files, mistakes, interrupts."""

import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

import flame_rl
import main
from flame_rl.commands import COMMANDS
from flame_rl.commands.runs import RunsCommand
from flame_rl.run.folder import hold_folder
from flame_rl.settings.algorithms import ALGORITHMS
from flame_rl.settings.config import TrainConfig
from flame_rl.settings.parse import parse, parse_command
from tests.helpers import (
    PIPES,
    ROOT,
    SOON,
    environment_id,
    refusal,
    run_here,
    run_main,
    run_ok,
    start_main,
    table,
)
from tests.runs import RUN, assert_same_run, assert_saved_weights, rows, wait_until

QUICK = ("--env", "cartpole", "--iterations", "12", "--episodes-per-iter", "10", "--seed", "5")

METRICS = (
    "iteration,episodes,env_steps,reward_mean,reward_std,reward_min,reward_max,length_mean,"
    "loss,gradient_norm,policy_entropy,value_loss,explained_variance,policy_steps,kl,update_scale,weights_digest"
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run with a plot: (process, run folder)."""
    folder = tmp_path_factory.mktemp("finished")
    done = run_main(*QUICK, "--workers", "2", "--plot", "--output", "run", cwd=folder)
    assert done.returncode == 0, done.stderr
    return done, folder / "run"


def test_help_is_quick_and_complete_without_torch(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('torch must not be imported')\n")
    seconds = []
    for _ in range(3):
        # Of the processor, so that waiting for it does not count.
        before = os.times()
        done = run_main("--help", cwd=tmp_path, environment={"PYTHONPATH": f"{tmp_path}:{ROOT}"})
        after = os.times()
        seconds.append(sum(after[2:4]) - sum(before[2:4]))
        assert done.returncode == 0, done.stderr
    # Half a second alone; with another test on the same core, it takes up to twice as long.
    assert min(seconds) < 1.0
    flags = "env local iterations episodes-per-iter plot seed workers output learning-rate gamma"
    for flag in [*flags.split(" "), "hidden-sizes"]:
        assert f"--{flag}" in done.stdout
    for default in ("cartpole", "100", "0.99", "64 64"):
        assert f"(default: {default})" in done.stdout


def test_help_fits_a_narrow_terminal_and_shows_commands_but_no_types_of_python(tmp_path):
    algorithms = [("--algorithm", name) for name in ALGORITHMS]
    for words in [*algorithms, *((name,) for name in COMMANDS)]:
        text = run_here(*words, "--help", cwd=tmp_path, environment={"COLUMNS": "80"}).stdout
        assert max(map(len, text.splitlines())) <= 80, words
        assert not re.search(r"--[a-z-]+_", text) and "show this help message" in text, words
        for noise in ("None", "{[", "{True", "[STR", "[INT", "[FLOAT", "[[", "default: )"):
            assert noise not in text, words
        if words[0] == "--algorithm":
            assert "--iterations INT " in text and "--max-episode-steps INT " in text
            flat = " ".join(text.split())
            assert re.search(r"--hidden-sizes INT \.\.\. [^(]*\(default: \d+( \d+)*\)", flat), words
            headings = re.findall(r"^ (\w+) options +$", text, re.MULTILINE)
            assert headings == ["experiment", words[1], "files", "execution"]
        # In one way, whichever command it is.
        assert not re.search(r"│ --(local|json|best)(?!, --no-)", text), words
        if words[0] in ("--algorithm", "train"):
            for name, what in COMMANDS.items():
                assert re.search(rf"^ *{name} +{re.escape(what)}$", text, re.MULTILINE)
    # In one that is too narrow for any text, it ends.
    done = run_ok("runs", "--help", cwd=tmp_path, environment={"COLUMNS": "3"})
    assert max(map(len, done.stdout.splitlines())) > 3


@pytest.mark.parametrize(
    ("words", "on"),
    [
        *(("--json", True), ("--json true", True), ("--json True", True)),
        *(("--no-json --json=true", True), ("--json False", False), ("--json=false", False)),
        *(("--no-json", False), ("--json --no-json", False)),
    ],
)
def test_a_switch_is_said_in_one_way(words, on):
    """By commands as by training."""
    assert parse_command(RunsCommand, words.split(), "").json == on
    assert parse(words.replace("json", "local").split())[0].execution.local == on


def test_help_that_nobody_reads_to_its_end_is_no_error(tmp_path):
    for words in (("--help",), ("evaluate", "--help")):
        process = start_main(*words, cwd=tmp_path, **PIPES)
        process.stdout.close()
        assert (process.wait(300), process.stderr.read()) == (0, "")
        process.stderr.close()


def test_prints_what_the_documentation_shows(finished):
    done, _ = finished
    lines = done.stdout.splitlines()
    rule = "=" * 60
    assert lines[0].startswith("No Flame cluster is configured; collecting with 2 local workers")
    assert lines[2:24] == [
        rule,
        "Local REINFORCE on CartPole-v1",
        rule,
        "",
        "Configuration:",
        "  Environment: CartPole-v1",
        "  Observation dim: 4",
        "  Action dim: 2",
        "  Continuous actions: False",
        "  Actions: one of 2 choices",
        "  Networks: hidden layers of 64, 64 units, tanh",
        "  Device: cpu",
        "  Time limit: 500 steps",
        "  Environments: in a fast simulator in each of 2 processes",
        "  Training iterations: 12",
        "  Episodes per iteration: 10",
        "  Total episodes: 120",
        "  Total steps: at most 60,000",
        "  Few updates: 12, one an iteration; fewer than 20 seldom teach much (--iterations sets "
        "more)",
        "",
        "Starting local training...",
        lines[23],
    ]
    progress = [line for line in lines if line.startswith("Iteration")]
    assert len(progress) == 3
    for line, iteration in zip(progress, (0, 10, 11), strict=True):
        pattern = rf"Iteration +{iteration} \| Mean Reward: +-?\d+\.\d \| Loss: -?\d+\.\d{{4}}"
        assert re.fullmatch(pattern, line)
    end = lines.index("Training Complete!")
    assert re.fullmatch(r"  Total time: \d+\.\d\ds", lines[end + 1])
    assert re.fullmatch(r"  Episodes: 120 \(\d+\.\d episodes/sec\)", lines[end + 2])
    assert re.fullmatch(r"  Final Mean Reward: \d+\.\d", lines[end + 3])
    assert lines[end + 4 :] == [
        rule,
        "Run folder: run",
        "Evaluate it, watch it, or train it for longer:",
        "  uv run main.py evaluate run",
        "  uv run --group video main.py watch run --video film.mp4",
        "  uv run main.py --resume run --iterations 24",
    ]
    assert done.stderr == "" and "\x1b" not in done.stdout


def test_writes_the_run_folder(finished):
    _, folder = finished
    assert {path.name for path in folder.iterdir()} == {
        ".lock",
        "config.json",
        "metrics.csv",
        "timing.csv",
        "weights.safetensors",
        "checkpoints",
        "curves.png",
        "starts.jsonl",
    }
    chosen = TrainConfig.from_json((folder / "config.json").read_text()).experiment
    assert (chosen.env, chosen.seed, chosen.iterations) == ("cartpole", 5, 12)
    rows = table(folder / "metrics.csv")
    assert ",".join(rows[0]) == METRICS and len(rows) == 12
    assert [int(row["episodes"]) for row in rows] == list(range(10, 130, 10))
    for row, previous in zip(rows[1:], rows, strict=False):
        steps = int(row["env_steps"]) - int(previous["env_steps"])
        assert steps == pytest.approx(float(row["length_mean"]) * 10)
        assert float(row["reward_mean"]) == pytest.approx(float(row["length_mean"]))
        assert float(row["reward_min"]) <= float(row["reward_mean"]) <= float(row["reward_max"])
    assert len({row["weights_digest"] for row in rows}) == 12
    timing = table(folder / "timing.csv")
    assert len(timing) == 12
    assert all(float(row["collecting_seconds"]) > 0 for row in timing)
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert_saved_weights(folder)


def test_the_run_folder_tells_how_the_run_was_made(finished, tmp_path):
    _, folder = finished
    run = shutil.copytree(folder, tmp_path / "run")
    run_ok("--resume", "run", "--iterations", "13", "--workers", "0", cwd=tmp_path)
    first, second = map(json.loads, (run / "starts.jsonl").read_text().splitlines())
    assert first["command"] == f"main.py {' '.join(QUICK)} --workers 2 --plot --output run"
    assert second["command"] == "main.py --resume run --iterations 13 --workers 0"
    assert (first["iterations"], second["iterations"]) == (0, 12)
    assert first["flame_rl"].startswith(flame_rl.__version__)
    assert first["versions"]["numpy"] == np.__version__


def test_a_commit_is_named_where_there_is_one(monkeypatch, tmp_path):
    from flame_rl.run.folder import package_version

    monkeypatch.setattr(flame_rl, "__file__", str(tmp_path / "flame_rl" / "__init__.py"))
    assert package_version() == flame_rl.__version__
    name = ("-c", "user.name=a", "-c", "user.email=b")
    for words in (["init", "-q"], [*name, "commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    assert re.fullmatch(rf"{flame_rl.__version__}, commit [0-9a-f]{{40}}", package_version())
    (tmp_path / "file").touch()
    subprocess.run(["git", "-C", str(tmp_path), "add", "file"], check=True)
    assert package_version().endswith("-dirty")


def test_a_finished_run_says_so_and_how_to_go_on(finished, tmp_path):
    shutil.copytree(finished[1], tmp_path / "run")
    done = run_ok("--resume", "run", cwd=tmp_path)
    assert "This run is finished, after 12 iterations." in done.stdout
    assert "uv run main.py --resume run --iterations 24" in done.stdout
    for misleading in ("Starting", "Going on", "Complete", "episodes/sec"):
        assert misleading not in done.stdout


def test_what_cannot_be_drawn_is_not_to_be_watched(tmp_path):
    flags = ("--iterations", "1", "--episodes-per-iter", "2", "--workers", "0", "--local")
    done = run_ok("--env", environment_id("ActionReward"), *flags, cwd=tmp_path)
    assert "Evaluate it, or train it for longer:" in done.stdout and " watch " not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--env-steps", "30"], "--iterations: --env-steps takes its place"),
        (["--env", "hoper"], "nearest names: Hopper-v5"),
        (["--env", environment_id("TextObservation")], "Text"),
        (["--env", environment_id("ShapeFault")], "episode 0, step 2"),
        (["--env", environment_id("NanRewardFault")], "reward: step returned NaN"),
        (["--output", "occupied"], "occupied holds another run"),
        (["--output", "saved"], "saved holds another run"),
        (["--output", "a_file"], "a_file is a file"),
        (["--output", "a_file/below"], "--output: cannot write: "),
    ],
)
def test_mistakes_get_a_clear_error(arguments, words, tmp_path):
    (tmp_path / "occupied").mkdir()
    (tmp_path / "occupied" / "metrics.csv").write_text("iteration\n0\n")
    (tmp_path / "saved" / "checkpoints").mkdir(parents=True)
    (tmp_path / "saved" / "checkpoints" / "00000010.ckpt").touch()
    (tmp_path / "a_file").touch()
    assert words in refusal("--workers", "0", "--iterations", "1", *arguments, cwd=tmp_path)


def test_an_exit_in_foreign_code_is_an_error_that_names_its_place(tmp_path, monkeypatch, capsys):
    (tmp_path / "leaving.py").write_text("import sys\ndef leave(words):\n    sys.exit()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    leave = importlib.import_module("leaving").leave
    monkeypatch.setattr(flame_rl.__main__, "import_command", lambda name: leave)
    monkeypatch.setattr(sys, "argv", ["main.py"])
    assert main.main() == 1
    assert f"sys.exit() in leave ({tmp_path}/leaving.py, line 3)" in capsys.readouterr().err


def test_the_folder_of_a_run_that_failed_in_its_first_iteration_may_be_taken_again(tmp_path):
    flags = ("--iterations", "2", "--episodes-per-iter", "3", "--workers", "0", "--output", "run")
    failed = run_here("--env", environment_id("NanRewardFault"), *flags, cwd=tmp_path)
    assert failed.returncode == 2 and (tmp_path / "run" / "config.json").exists()
    run_ok("--env", environment_id("ActionReward"), *flags, cwd=tmp_path)
    config = TrainConfig.from_json((tmp_path / "run" / "config.json").read_text())
    assert config.experiment.env == environment_id("ActionReward")
    assert rows(tmp_path / "run") == 3


def test_runs_that_begin_at_the_same_moment_get_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda _: "now")
    with hold_folder(TrainConfig()) as first, hold_folder(TrainConfig()) as second:
        assert first.is_dir() and second.is_dir() and first != second


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_batch_systems_warning_saves_also_before_the_first_iteration(number, tmp_path):
    flags = (*RUN, "--iterations", "2", "--workers", "0", "--local")
    warns = {"FAULT_KIND": number.name, "FAULT_SEED": "any"}
    done = run_here(*flags, "--output", "run", cwd=tmp_path, environment=warns)
    assert done.returncode == 128 + number
    assert (tmp_path / "run" / "checkpoints" / "00000000.ckpt").exists()
    run_ok("--resume", "run", cwd=tmp_path)
    run_ok(*flags, "--output", "whole", cwd=tmp_path)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize(
    ("name", "flags", "sign"),
    [
        ("NeverMade", ("--workers", "1"), "No Flame"),
        ("Slow", ("--workers", "0", "--plot"), "Starting"),  # a plot of nothing is no error
        ("Family", ("--workers", "1"), "Starting"),
    ],
    ids=["while the environment is made", "in this process", "with processes of its own"],
)
def test_ctrl_c_is_heard_wherever_it_comes(name, flags, sign, tmp_path):
    process = start_main(
        *("--env", environment_id(name), "--episodes-per-iter", "4000", "--output", "run", *flags),
        cwd=tmp_path,
        environment={"FAULT_MARKER": str(tmp_path / "made")},
        **PIPES,
    )
    for line in process.stdout:
        if line.startswith(sign):
            break
    learner = psutil.Process(process.pid)
    if name == "Family":
        wait_until(lambda: any(p.name() == "sleep" for p in learner.children(recursive=True)))
    if name == "NeverMade":
        wait_until((tmp_path / "made").exists)
    else:
        time.sleep(1)
    descendants = learner.children(recursive=True)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    assert time.monotonic() - began < SOON
    assert process.returncode == 130 and "Traceback" not in errors
    assert psutil.wait_procs(descendants, timeout=SOON)[1] == []


@pytest.mark.parametrize(
    ("variables", "configuration", "words"),
    [
        ({"FLAME_ENDPOINT": "127.0.0.1:8080"}, None, "must begin with http://"),
        ({"FLAME_ENDPOINT": "http://127.0.0.1:99999"}, None, "99999"),
        ({}, "contexts: [", "flame.yaml cannot be used"),
        ({}, "", "flame.yaml cannot be used"),
        ({}, "current-context: nowhere\ncontexts: []\n", "nowhere"),
    ],
)
def test_a_configuration_that_cannot_be_is_explained(variables, configuration, words, tmp_path):
    if configuration is not None:
        (tmp_path / ".flame").mkdir()
        (tmp_path / ".flame" / "flame.yaml").write_text(configuration)
    said = refusal(cwd=tmp_path, environment=variables)
    assert words in said and "--local" in said
