"""metrics.csv and evaluations.csv, which a rerun reproduces to the byte, and timing.csv, which it
does not."""

from __future__ import annotations

import csv
from dataclasses import asdict
from pathlib import Path

from flame_rl.run.folder import EVALUATIONS_NAME, METRICS_NAME
from flame_rl.run.results import IterationResult
from flame_rl.system.files import write_atomically

TIMING_NAME = "timing.csv"


class MetricsReporter:
    """Writes metrics.csv, one row per iteration, each on disk before the next iteration begins."""

    def __init__(self, folder: Path, metrics: tuple[str, ...], keep: int = 0) -> None:
        """Begin the file, or go on after its first `keep` rows.

        Args:
            folder: the run folder.
            metrics: names of the algorithm's columns; a cell without a value is empty.
            keep: rows of an earlier file to keep.
        """
        self._metrics = metrics
        self._rows = _Rows(folder / METRICS_NAME, keep)

    def report(self, result: IterationResult) -> None:
        self._rows.write(
            {
                "iteration": result.iteration,
                "episodes": result.episodes,
                "env_steps": result.env_steps,
                "reward_mean": result.reward_mean,
                "reward_std": result.reward_std,
                "reward_min": result.reward_min,
                "reward_max": result.reward_max,
                "length_mean": result.length_mean,
                **{name: result.losses.get(name, "") for name in self._metrics},
                "weights_digest": result.weights_digest,
            }
        )

    def close(self) -> None:
        self._rows.close()


class EvaluationsReporter:
    """Writes evaluations.csv, one row per evaluation."""

    def __init__(self, folder: Path, keep: int = 0) -> None:
        """Begin the file, or go on after its first `keep` rows."""
        self._rows = _Rows(folder / EVALUATIONS_NAME, keep)

    def report(self, result: IterationResult) -> None:
        if result.evaluation is not None:
            done = {"iteration": result.iteration, "env_steps": result.env_steps}
            self._rows.write(done | asdict(result.evaluation))

    def close(self) -> None:
        self._rows.close()


class TimingReporter:
    """Writes timing.csv, one row per iteration: where the time went."""

    def __init__(self, folder: Path, keep: int = 0) -> None:
        """Begin the file, or go on after its first `keep` rows."""
        self._rows = _Rows(folder / TIMING_NAME, keep)

    def report(self, result: IterationResult) -> None:
        timing = result.timing
        self._rows.write(
            {
                "iteration": result.iteration,
                "collecting_seconds": f"{timing.collecting:.6f}",
                "updating_seconds": f"{timing.updating:.6f}",
                "waiting_seconds": f"{timing.waiting:.6f}",
                "evaluating_seconds": f"{timing.evaluating:.6f}",
                "env_steps_per_second": f"{timing.env_steps_per_second:.1f}",
                "bytes_out": timing.bytes_out,
                "bytes_in": timing.bytes_in,
                "retries": timing.retries,
                "dropped": timing.dropped,
            }
        )

    def close(self) -> None:
        self._rows.close()


def read_metrics(folder: Path) -> dict[str, list[float]]:
    """The numeric columns of a run's metrics.csv."""
    return _read_columns(folder / METRICS_NAME)


def read_timing(folder: Path) -> dict[str, list[float]]:
    """The columns of a run's timing.csv."""
    return _read_columns(folder / TIMING_NAME)


def _read_columns(path: Path) -> dict[str, list[float]]:
    with path.open(newline="") as file:
        # A run that goes on, or was killed, may have written a part of its last line.
        rows = list(csv.DictReader(line for line in file if line.endswith("\n")))
    names = [name for name in (rows[0] if rows else {}) if name != "weights_digest"]
    return {name: [float(row[name] or "nan") for row in rows] for name in names}


class _Rows:
    """A CSV file whose header is the first row's keys."""

    def __init__(self, path: Path, keep: int) -> None:
        self._writer: csv.DictWriter[str] | None = None
        kept = _first_rows(path, keep) if keep else b""
        if kept:
            # Rows after the last checkpoint are computed again; a torn last line goes, too.
            write_atomically(path, kept)
        self._has_header = bool(kept)
        self._file = path.open("a" if kept else "w", newline="")

    def write(self, row: dict[str, object]) -> None:
        if self._writer is None:
            self._writer = csv.DictWriter(self._file, row, lineterminator="\n")
            if not self._has_header:
                self._writer.writeheader()
        self._writer.writerow(row)
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _first_rows(path: Path, count: int) -> bytes:
    """The header and the first `count` rows, or all whole rows if there are fewer."""
    if not path.exists():
        return b""
    lines = path.read_bytes().splitlines(keepends=True)[: count + 1]
    return b"".join(line for line in lines if line.endswith(b"\n"))
