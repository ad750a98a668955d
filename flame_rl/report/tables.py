"""metrics.csv and evaluations.csv, which a rerun reproduces to the byte, and timing.csv, which it
does not."""

from __future__ import annotations

import csv
import io
import os
from dataclasses import asdict
from pathlib import Path

from flame_rl.run.folder import EVALUATIONS_NAME, METRICS_NAME
from flame_rl.run.results import IterationResult
from flame_rl.system.errors import UsageError
from flame_rl.system.files import write_atomically

# Columns that metrics.csv always has: the numbers of the same names in a result.
_TOTALS = ("iteration", "episodes", "env_steps")
_REWARDS = ("reward_mean", "reward_std", "reward_min", "reward_max")
_REST = ("length_mean", "weights_digest")
TIMING_NAME = "timing.csv"


class MetricsReporter:
    """Writes metrics.csv, one row per iteration, each on disk before the next iteration begins."""

    def __init__(
        self,
        folder: Path,
        metrics: tuple[str, ...],
        begun: bytes = b"",
        reward_parts: tuple[str, ...] = (),
    ) -> None:
        """
        Args:
            folder: the run folder.
            metrics: names of the algorithm's columns; a cell without a value is empty.
            begun: the text of the file so far, from the checkpoint of a resumed run.
            reward_parts: names of the columns of the reward's parts.

        Raises:
            UsageError: a part of the reward has the name of another column.
        """
        for name in reward_parts:
            if name in (*_TOTALS, *_REWARDS, *_REST, *metrics):
                raise UsageError(
                    f"--reward-parts: {name!r} is the name of another column of {METRICS_NAME}; "
                    "give the entry of info another name in the environment"
                )
        self._metrics = metrics
        self.rows = Rows(folder / METRICS_NAME, begun)

    def report(self, result: IterationResult) -> None:
        self.rows.write(
            {
                **{name: getattr(result, name) for name in (*_TOTALS, *_REWARDS)},
                **result.reward_parts,
                "length_mean": result.length_mean,
                **{name: result.losses.get(name, "") for name in self._metrics},
                "weights_digest": result.weights_digest,
            }
        )

    def close(self) -> None:
        self.rows.close()


class EvaluationsReporter:
    """Writes evaluations.csv, one row per evaluation."""

    def __init__(self, folder: Path, begun: bytes = b"") -> None:
        """Go on with `begun`, as in `MetricsReporter`."""
        self.rows = Rows(folder / EVALUATIONS_NAME, begun)

    def report(self, result: IterationResult) -> None:
        if result.evaluation is not None:
            done = {"iteration": result.iteration, "env_steps": result.env_steps}
            self.rows.write(done | asdict(result.evaluation))

    def close(self) -> None:
        self.rows.close()


class TimingReporter:
    """Writes timing.csv, one row per iteration: where the time went."""

    def __init__(self, folder: Path, begun: bytes = b"") -> None:
        """Go on with `begun`, as in `MetricsReporter`."""
        self.rows = Rows(folder / TIMING_NAME, begun)

    def report(self, result: IterationResult) -> None:
        timing = result.timing
        self.rows.write(
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
        self.rows.close()


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


class Rows:
    """A CSV file whose header is the first row's keys.

    All of it is kept in memory, too: what the disk refuses is written as soon as there is room, and
    checkpoints hold it.

    Attributes:
        path: the file.
        text: what it holds, or should.
    """

    def __init__(self, path: Path, begun: bytes) -> None:
        self.path = path
        self.text = bytearray(begun)
        if begun:
            # Rows after the checkpoint are computed again, and rows that were lost come back.
            write_atomically(path.resolve(), begun)
        start = os.O_APPEND if begun else os.O_CREAT | os.O_TRUNC
        self._file = os.open(path, os.O_WRONLY | start, 0o666)
        self._written = len(begun)

    def write(self, row: dict[str, object]) -> None:
        """Add a row. Raises OSError if the disk refuses; the row is then written with the next."""
        line = io.StringIO(newline="")
        writer = csv.DictWriter(line, row, lineterminator="\n")
        if not self.text:
            writer.writeheader()
        writer.writerow(row)
        self.text += line.getvalue().encode()
        self._catch_up()

    def close(self) -> None:
        """Raises OSError if the disk still refuses a row."""
        try:
            self._catch_up()
        finally:
            os.close(self._file)

    def _catch_up(self) -> None:
        try:
            while self._written < len(self.text):
                self._written += os.write(self._file, bytes(self.text[self._written :]))
        except OSError as error:
            raise OSError(error.errno, f"{self.path}: {error.strerror}") from error
