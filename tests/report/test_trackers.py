"""--track: what trackers get, with each of them where it is installed, and with a stand-in."""

import json
import sqlite3
import sys
from pathlib import Path

import pytest

from flame_rl.report import trackers
from tests.helpers import environment_id, finished_run, refusal, run_here, run_ok, run_script, table

RUN = (
    *("--env", "cartpole", "--algorithm", "ppo", "--steps-per-iter", "60", "--iterations", "3"),
    *("--evaluate-every", "2", "--evaluate-episodes", "2", "--max-episode-steps", "30"),
    *("--learning-rate-decay", "False", "--workers", "0", "--local", "--output", "run"),
)
# An environment that can be drawn without a further package.
DRAWN = (
    *("--env", environment_id("Drawn"), "--iterations", "2", "--episodes-per-iter", "2"),
    *("--learning-rate-decay", "False", "--workers", "0", "--local", "--output", "run"),
)

# Writes down all that it gets; `wandb` as far as it is used.
STAND_IN = """
import json, os, signal, sys, threading
from pathlib import Path
log = Path(os.environ["TOLD"])
def tell(*what):
    with log.open("a") as file:
        print(json.dumps(what, default=str), file=file)
release = threading.Event()
def fail(where):
    how, place = os.environ.get("FAILS", " ").split(" ")
    if place == where:
        if how == "raises": raise RuntimeError("no route to the tracker")
        if how == "exits": sys.exit(0)
        if how == "terminated": os.kill(os.getpid(), signal.SIGTERM)
        release.wait()
class Settings:
    def __init__(self, **_): pass
class Video:
    def __init__(self, path): self.path = path
    def __str__(self): return "video " + self.path
class Run:
    def define_metric(self, *names, **how): tell("metric", names, how)
    def log(self, numbers):
        fail("log")
        tell("log", numbers)
    def finish(self):
        fail("finish")
        tell("finish")
def init(**options):
    fail("init")
    tell("init", options)
    return Run()
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    (tmp_path / "wandb.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    yield tmp_path / "told.txt"
    sys.modules.pop("wandb", None)


def test_a_tracker_gets_settings_metrics_and_evaluations_and_the_same_run_again(stand_in, tmp_path):
    environment = {"TOLD": str(stand_in)}
    done = run_ok(*RUN, "--track", "wandb", cwd=tmp_path, environment=environment)
    assert not done.stderr
    told = [json.loads(line) for line in stand_in.read_text().splitlines()]
    (_, options), *_ = told
    assert options["config"]["algorithm"] == "ppo" and options["config"]["hidden_sizes"] == "64 64"
    assert options["name"] == "run" and options["project"] == "flame-rl"
    logs = [what[1] for what in told if what[0] == "log"]
    rows = table(tmp_path / "run" / "metrics.csv")
    assert [log["reward/mean"] for log in logs] == [float(row["reward_mean"]) for row in rows]
    assert [log["env_steps"] for log in logs] == [int(row["env_steps"]) for row in rows]
    assert ["evaluation/reward_mean" in log for log in logs] == [False, True, True]
    assert told[-1] == ["finish"]
    run_ok(*("--resume", "run", "--iterations", "4"), cwd=tmp_path, environment=environment)
    told = [json.loads(line) for line in stand_in.read_text().splitlines()]
    again = [what[1]["id"] for what in told if what[0] == "init"]
    assert len(again) == 2 and again[0] == again[1]


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    """The folder of the run without a tracker."""
    return finished_run(tmp_path_factory, *RUN)


RAISES, EXITS = "RuntimeError: no route to the tracker", "SystemExit: 0"
BLOCKS = "TimeoutError: wandb does not answer; the run no longer waits for it"


@pytest.mark.parametrize(
    ("fails", "warning"),
    [
        ("raises log", f"TrackReporter stops reporting: {RAISES}"),
        ("exits init", f"TrackReporter stops reporting: {EXITS}"),
        ("exits log", f"TrackReporter stops reporting: {EXITS}"),
        ("exits finish", f"TrackReporter: {EXITS}"),
        ("blocks init", f"TrackReporter cannot write for now: {BLOCKS[14:]}"),
        ("blocks log", f"TrackReporter cannot write for now: {BLOCKS[14:]}"),
        ("blocks finish", f"TrackReporter: {BLOCKS}"),
    ],
)
def test_a_tracker_that_fails_costs_no_run(fails, warning, plain, stand_in, tmp_path, monkeypatch):
    monkeypatch.setattr(trackers, "_LOG_SECONDS", 0.2)
    monkeypatch.setattr(trackers, "_START_SECONDS", 0.2)
    done = run_here(
        *(*RUN, "--track", "wandb"),
        cwd=tmp_path,
        environment={"TOLD": str(stand_in), "FAILS": fails},
    )
    sys.modules["wandb"].release.set()
    assert done.returncode == 0
    assert done.stderr == f"warning: {warning}\n"
    for name in ("metrics.csv", "evaluations.csv"):
        assert (tmp_path / "run" / name).read_bytes() == (plain / name).read_bytes()


@pytest.mark.parametrize("where", ["init", "log", "finish"])
def test_a_signal_ends_a_run_whose_tracker_blocks(where, stand_in, tmp_path, monkeypatch):
    monkeypatch.setattr(trackers, "_STOP_SECONDS", 0.2)
    done = run_here(
        *(*RUN, "--track", "wandb"),
        cwd=tmp_path,
        environment={"TOLD": str(stand_in), "FAILS": f"terminated {where}"},
    )
    sys.modules["wandb"].release.set()
    assert done.returncode == 143 and "wandb does not answer" in done.stderr
    assert any((tmp_path / "run" / "checkpoints").glob("*.ckpt"))


def test_a_tracker_gets_the_films_of_its_run(stand_in, tmp_path):
    environment = {"TOLD": str(stand_in)}
    assert run_here(*DRAWN, "--track", "wandb", cwd=tmp_path, environment=environment).stderr == ""
    film = ("watch", "run", "--video", "film.gif")
    watched = run_ok(*film, cwd=tmp_path, environment=environment)
    assert watched.stderr == ""
    assert watched.stdout.splitlines()[-1] == "Film: film.gif, which wandb has, too"
    told = [json.loads(line) for line in stand_in.read_text().splitlines()]
    first, again = (what[1] for what in told if what[0] == "init")
    assert first["id"] == again["id"] and first["name"] == again["name"] == "run"
    assert told[-2] == ["log", {"film": f"video {tmp_path / 'film.gif'}"}]
    assert told[-1] == ["finish"]
    failed = run_ok(*film, cwd=tmp_path, environment=environment | {"FAILS": "raises log"})
    assert (tmp_path / "film.gif").exists()
    assert failed.stderr == f"warning: wandb has not got the film: {RAISES}\n"


def test_a_tracker_that_is_not_there_is_named_at_once(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    said = refusal(*RUN, "--track", "mlflow", cwd=tmp_path)
    assert "uv run --group mlflow main.py" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_each_tracker_has_the_run_and_its_film_offline(name, tmp_path):
    """In one process, because most of them take seconds to import."""
    pytest.importorskip(name, reason=f"uv run --group {name} pytest")
    commands = [
        [*DRAWN, "--track", name],
        ["--resume", "run", "--iterations", "3"],
        ["watch", "run", "--video", "film.gif"],
    ]
    code = f"import main\nfor words in {commands}:\n    assert main.run_command(words) == 0, words"
    done = run_script(code, cwd=tmp_path, environment=offline(tmp_path))
    assert done.returncode == 0 and "TrackReporter" not in done.stderr, done.stderr
    assert "has not got the film" not in done.stderr
    last = float(table(tmp_path / "run" / "metrics.csv")[-1]["reward_mean"])
    assert READ[name](tmp_path) == pytest.approx(last)
    film = (tmp_path / "film.gif").read_bytes()
    copies = [path for path in tmp_path.rglob("*.gif") if path.read_bytes() == film]
    assert len(copies) == 2, list(tmp_path.rglob("*"))


def offline(folder: Path) -> dict[str, str]:
    """Variables with which trackers write into this folder alone."""
    return {
        "WANDB_MODE": "offline",
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "TRACKIO_DIR": str(folder / "trackio"),
    }


def _in_wandb(folder: Path) -> float:
    """The last row's, if it is somewhere in the files, which have a form of their own."""
    files = list(folder.glob("run/wandb/offline-run-*/*.wandb"))
    assert len({file.name for file in files}) == 1
    last = table(folder / "run" / "metrics.csv")[-1]["reward_mean"]
    data = b"".join(file.read_bytes() for file in files)
    assert b"reward/mean" in data
    return float(last) if last.encode() in data else float("nan")


def _in_mlflow(folder: Path) -> float:
    rows = _rows(folder / "mlflow.db", "select value from latest_metrics where key='reward/mean'")
    assert len(_rows(folder / "mlflow.db", "select run_uuid from runs")) == 1
    return rows[-1][0]


def _in_trackio(folder: Path) -> float:
    (file,) = folder.glob("trackio/*.db")
    rows = _rows(file, "select metrics from metrics order by id")
    (*_, last) = [row for row in (json.loads(text) for (text,) in rows) if "reward/mean" in row]
    return last["reward/mean"]


def _rows(path: Path, query: str) -> list[tuple]:
    with sqlite3.connect(path) as connection:
        return connection.execute(query).fetchall()


READ = {"wandb": _in_wandb, "mlflow": _in_mlflow, "trackio": _in_trackio}
