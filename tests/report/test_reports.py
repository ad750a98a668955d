"""What --verbose and --tensorboard add, and that a report which fails stops no training."""

import json
import re
import shutil
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from flame_rl.report import Reporters
from flame_rl.report.tables import read_columns, refuse_names_of_columns
from flame_rl.system.errors import UsageError
from tests.helpers import environment_id, refusal, run_here, run_ok
from tests.helpers import table as read_table

RUN = (
    *("--env", "cartpole", "--algorithm", "ppo", "--steps-per-iter", "300", "--hidden-sizes", "8"),
    *("--workers", "0", "--iterations", "6", "--checkpoint-every", "2", "--evaluate-every", "2"),
    *("--evaluate-episodes", "4", "--output", "run"),
)


@pytest.fixture(scope="module")
def reported(tmp_path_factory) -> tuple[str, Path]:
    """What a run with both flags prints, and its folder."""
    folder = tmp_path_factory.mktemp("reported")
    done = run_ok(*RUN, "--verbose", "--tensorboard", cwd=folder)
    assert done.stderr == ""
    return done.stdout, folder / "run"


def scalars(run: Path) -> dict[str, dict[int, float]]:
    """By tag, the values by step, as TensorBoard shows them: curves that never step back."""
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    ).EventAccumulator(str(run / "tensorboard"))
    accumulator.Reload()
    curves = {tag: accumulator.Scalars(tag) for tag in accumulator.Tags()["scalars"]}
    for events in curves.values():
        assert all(a.step < b.step for a, b in pairwise(events))
    return {tag: {event.step: event.value for event in curves[tag]} for tag in curves}


def test_tensorboard_shows_the_settings(reported):
    _, run = reported
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    metadata = pytest.importorskip("tensorboard.plugins.hparams.metadata")
    found = accumulators.EventAccumulator(str(run / "tensorboard")).Reload()
    content = found.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    start = metadata.parse_session_start_info_plugin_data(content)
    saved = json.loads((run / "config.json").read_text())
    shown = {
        name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()
    }
    assert shown["algorithm"] == saved["algorithm"]["name"]
    assert shown["learning_rate"] == saved["algorithm"]["learning_rate"]
    assert shown["gamma"] == saved["experiment"]["gamma"]
    assert shown["hidden_sizes"].split() == list(map(str, saved["experiment"]["hidden_sizes"]))
    assert shown["env_steps"] == "none"


def table(run: Path, name: str) -> list[dict[str, float]]:
    return [
        {key: float(value or "nan") for key, value in row.items() if key != "weights_digest"}
        for row in read_table(run / name)
    ]


def test_tensorboard_shows_what_the_files_say(reported):
    _, run = reported
    shown = scalars(run)
    metrics, timing = table(run, "metrics.csv"), table(run, "timing.csv")
    steps = [int(row["env_steps"]) for row in metrics]
    for tag, rows, column in (
        ("reward/mean", metrics, "reward_mean"),
        ("reward/min", metrics, "reward_min"),
        ("reward/max", metrics, "reward_max"),
        ("reward/std", metrics, "reward_std"),
        ("episodes/length_mean", metrics, "length_mean"),
        ("update/loss", metrics, "loss"),
        ("update/value_loss", metrics, "value_loss"),
        ("update/kl", metrics, "kl"),
        ("update/policy_entropy", metrics, "policy_entropy"),
        ("update/explained_variance", metrics, "explained_variance"),
        ("speed/env_steps_per_second", timing, "env_steps_per_second"),
        ("seconds/collecting", timing, "collecting_seconds"),
        ("seconds/updating", timing, "updating_seconds"),
        ("seconds/waiting", timing, "waiting_seconds"),
    ):
        assert list(shown[tag]) == steps
        expected = [row[column] for row in rows]
        assert list(shown[tag].values()) == pytest.approx(expected, rel=1e-2, abs=1e-5), tag
    evaluations = table(run, "evaluations.csv")
    assert shown["evaluation/reward_mean"] == {
        int(row["env_steps"]): pytest.approx(row["reward_mean"]) for row in evaluations
    }


def test_parts_of_the_reward_are_shown_where_rewards_are(tmp_path):
    done = run_ok(
        *("--env", environment_id("Parts"), "--reward-parts", "gain", "cost", "--workers", "0"),
        *("--reward-weights", "1", "2", "--iterations", "2", "--episodes-per-iter", "5"),
        *("--hidden-sizes", "8", "--output", "run", "--verbose", "--tensorboard"),
        cwd=tmp_path,
    )
    shown, metrics = scalars(tmp_path / "run"), table(tmp_path / "run", "metrics.csv")
    lines = [line for line in done.stdout.splitlines() if line.startswith("    reward ")]
    assert len(lines) == len(metrics) == 2
    for row, line in zip(metrics, lines, strict=True):
        # In each episode of three steps the costs are 0, 1 and 2.
        assert row["cost"] == -3
        assert row["reward_mean"] == pytest.approx(row["gain"] - 3)
        assert row["reward_learned"] == pytest.approx(row["gain"] - 6)
        for name in ("gain", "cost", "reward_learned"):
            assert shown[f"reward/{name}"][row["env_steps"]] == pytest.approx(row[name])
            assert f"{name} {row[name]:.6g}" in line


def test_outcomes_are_shown_wherever_rewards_are(tmp_path):
    """Two of these episodes' returns are told apart by success: 3 without, -2 with it."""
    done = run_ok(
        *("--env", environment_id("Arriving"), "--outcomes", "is_success", "episode.r"),
        *("--iterations", "2", "--episodes-per-iter", "20", "--hidden-sizes", "8"),
        *("--algorithm", "dqn", "--evaluate-every", "2", "--workers", "0"),
        *("--output", "run", "--verbose", "--tensorboard", "--local"),
        cwd=tmp_path,
    )
    run = tmp_path / "run"
    shown, metrics = scalars(run), table(run, "metrics.csv")
    (evaluation,) = table(run, "evaluations.csv")
    for row in metrics:
        assert 0 < row["is_success"] < 1
        assert row["episode.r"] == pytest.approx(3 - 5 * row["is_success"])
        assert shown["outcome/is_success"][row["env_steps"]] == pytest.approx(row["is_success"])
    assert evaluation["episode.r"] == pytest.approx(3 - 5 * evaluation["is_success"])
    assert f"  Final is_success: {metrics[-1]['is_success']:.2f}" in done.stdout.splitlines()
    assert f", is_success {evaluation['is_success']:.2f}, episode.r " in done.stdout
    assert f"    outcome     is_success {metrics[0]['is_success']:.6g}, " in done.stdout
    judged = run_here("evaluate", "run", "--workers", "0", "--local", cwd=tmp_path)
    assert re.search(r"\n  is_success: 0\.\d\d\n", judged.stdout), judged


@pytest.mark.parametrize("name", ["loss", "env_steps", "reward_mean", "weights_digest"])
def test_a_part_cannot_have_the_name_of_another_column(name):
    with pytest.raises(UsageError, match=f"--reward-parts, --outcomes: '{name}' is another column"):
        refuse_names_of_columns(("gain", name), ("loss", "kl"))


@pytest.mark.parametrize("kept", ["00000002.ckpt", None])
def test_a_resumed_run_is_shown_once(reported, tmp_path, kept):
    """What was computed after the last checkpoint, or without one from the beginning, and is
    computed again, is not shown twice."""
    _, run = reported
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    for path in (copy / "checkpoints").iterdir():
        if path.name != kept:
            path.unlink()
    done = run_ok("--resume", "run", cwd=tmp_path)
    assert ("Going on after iteration 1" in done.stdout) == (kept is not None)
    assert len(list((copy / "tensorboard").iterdir())) == 2
    again, before = scalars(copy), scalars(run)
    assert again.keys() == before.keys()
    for tag in again:
        assert list(again[tag]) == list(before[tag])
        if not tag.startswith(("seconds/", "speed/")):
            assert again[tag] == before[tag]


def test_verbose_adds_lines_and_changes_none(reported, tmp_path):
    output, run = reported
    plain = run_ok(*RUN, cwd=tmp_path)
    assert not (tmp_path / "run" / "tensorboard").exists()

    def timeless(lines: list[str]) -> list[str]:
        return [re.sub(r"\d+\.\d+ episodes/sec|time: \S+", "", line) for line in lines]

    groups = ("reward", "episodes", "update", "speed", "seconds", "evaluation")
    details = ("  iteration ", *(f"    {group} " for group in groups))
    lines = output.splitlines()
    rest = [line for line in lines if not line.startswith(details)]
    assert timeless(rest) == timeless(plain.stdout.splitlines())
    for start, count in zip(details, (6, 6, 6, 6, 6, 6, 3), strict=True):
        assert sum(line.startswith(start) for line in lines) == count
    row = table(run, "metrics.csv")[0]
    first = lines.index("  iteration 0")
    assert f"mean {row['reward_mean']:.6g}, std {row['reward_std']:.6g}" in lines[first + 1]
    for name in ("loss", "value_loss", "kl", "policy_entropy", "explained_variance"):
        assert f"{name} {row[name]:.6g}" in lines[first + 3]
    assert "env_steps_per_second" in lines[first + 4] and "waiting" in lines[first + 5]
    (evaluated, *_) = table(run, "evaluations.csv")
    assert f"reward_mean {evaluated['reward_mean']:.6g}, " in next(
        line for line in lines if line.startswith("    evaluation")
    )


def test_a_missing_package_is_named_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    said = refusal(*RUN, "--tensorboard", cwd=tmp_path)
    assert "the package tensorboard is needed and cannot be imported" in said
    assert "`uv run --group tensorboard main.py …` installs it" in said
    assert not (tmp_path / "run").exists()


class Sound(list):
    report = list.append

    def close(self) -> None:
        pass


@pytest.mark.parametrize("error", [RuntimeError("it has died"), SystemExit(3), OSError(28)])
def test_whatever_a_report_raises_is_said_once(error, capsys):
    """A disk that is full is asked again; whatever else fails is left out."""
    calls = []

    class Dying:
        def report(self, result):
            calls.append(result)
            raise error

        def close(self):
            raise error

    sound, full = Sound(), isinstance(error, OSError)
    reporters = Reporters([Dying(), sound])
    for number in range(3):
        reporters.report(number)
    reporters.close()
    assert sound == [0, 1, 2] and calls == ([0, 1, 2] if full else [0])
    said = f"cannot write for now: {error}"
    if not full:
        said = f"stops reporting: {type(error).__name__}: {error}"
    assert capsys.readouterr().err == f"warning: Dying {said}\n"


def test_an_iteration_without_an_update_has_empty_cells_and_its_line_says_so(tmp_path):
    done = run_ok(
        *("--env", "cartpole", "--algorithm", "dqn", "--steps-per-iter", "40", "--iterations", "8"),
        *("--warm-up-steps", "200", "--batch-size", "8", "--hidden-sizes", "4", "--local"),
        *("--max-episode-steps", "20", "--workers", "0", "--verbose", "--output", "run"),
        cwd=tmp_path,
    )
    losses = [row["loss"] for row in table(tmp_path / "run", "metrics.csv")]
    assert losses[0] != losses[0] and losses[-1] > 0
    lines = [line for line in done.stdout.splitlines() if line.startswith("Iteration")]
    assert lines[0].endswith("Loss: -") and not lines[-1].endswith("Loss: -")


def test_a_table_with_nul_bytes_is_named_with_its_row(tmp_path):
    (tmp_path / "metrics.csv").write_bytes(b"iteration\n0\n" + bytes(3000) + b"\n")
    with pytest.raises(ValueError, match=r"^metrics\.csv, row 1: .{,42} is no number$"):
        read_columns(tmp_path / "metrics.csv")
