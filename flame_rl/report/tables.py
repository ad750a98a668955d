"""metrics.csv and evaluations.csv, the same bytes in a rerun, and timing.csv, which is not."""

import csv
import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from flame_rl.run.results import SPREAD, Evaluation, IterationResult
from flame_rl.settings.checks import name_is_taken
from flame_rl.system.files import open_regular, write_atomically

# The first columns of metrics.csv: the numbers of these names in a result.
_FIRST = ("iteration", "episodes", "env_steps", *(f"reward_{name}" for name in SPREAD))
TIMING_NAME = "timing.csv"

Row = dict[str, object]


class TableReporter:
    """Writes the CSV file `path`, whose header is the first row's keys; each row is on disk before
    the next iteration begins. All is kept in memory as `text`, too: what the disk refuses is
    written as soon as there is room, and checkpoints hold it."""

    def __init__(
        self, path: Path, begun: Mapping[str, bytes], row_of: Callable[[IterationResult], Row]
    ) -> None:
        """`begun` has, by file name, the text from the checkpoint of a resumed run; `row_of` makes
        the row of a result, empty if it has none."""
        self.path = path
        self.text = bytearray(begun.get(path.name, b""))
        self._row_of = row_of
        if self.text:
            # Rows after the checkpoint are computed again, and rows that were lost come back.
            write_atomically(path.resolve(), self.text)
        start = os.O_APPEND if self.text else os.O_CREAT | os.O_TRUNC
        self._file = os.open(path, os.O_WRONLY | start, 0o666)
        self._written = len(self.text)

    def report(self, result: IterationResult) -> None:
        """Add a row. Raises OSError if the disk refuses; the row is then written with the next."""
        row = self._row_of(result)
        if row:
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


def metrics_row(metrics: Sequence[str], result: IterationResult) -> Row:
    """The row of metrics.csv; `metrics` names the algorithm's columns, empty without a value."""
    return {
        **{name: getattr(result, name) for name in _FIRST},
        **result.reward_parts,
        **result.outcomes,
        "length_mean": result.length_mean,
        **{name: result.metrics.get(name, "") for name in metrics},
        "weights_digest": result.weights_digest,
    }


def refuse_names_of_columns(names: Sequence[str], metrics: Sequence[str]) -> None:
    """Raise UsageError for an entry of info that has the name of another column."""
    evaluated = (field.name for field in fields(Evaluation))
    for name in names:
        if name in (*_FIRST, "length_mean", "weights_digest", *metrics, *evaluated):
            raise name_is_taken(name)


def evaluations_row(result: IterationResult) -> Row:
    """The row of evaluations.csv."""
    if result.evaluation is None:
        return {}
    done = {"iteration": result.iteration, "env_steps": result.env_steps}
    return done | result.evaluation.numbers()


def scheduled_evaluations(text: bytes, every: int) -> bytes:
    """evaluations.csv without that of the last policy before the run was given more iterations."""
    header, *rows = text.splitlines(keepends=True) or [b""]
    kept = [row for row in rows if (int(row.split(b",")[0]) + 1) % every == 0]
    return b"".join([header, *kept])


def timing_row(result: IterationResult) -> Row:
    """The row of timing.csv: where the time went."""
    timing, seconds = result.timing, ("collecting", "updating", "waiting", "evaluating")
    return {
        "iteration": result.iteration,
        **{f"{name}_seconds": f"{getattr(timing, name):.6f}" for name in seconds},
        "env_steps_per_second": f"{timing.env_steps_per_second:.1f}",
        **{name: getattr(timing, name) for name in ("bytes_out", "bytes_in", "retries", "dropped")},
    }


def read_columns(path: Path) -> dict[str, list[float]]:
    """The numeric columns of one of these files. Raises OSError or ValueError if it is none."""
    with io.TextIOWrapper(open_regular(path), newline="") as file:
        # A run that goes on, or was killed, may have written a part of its last line.
        try:
            rows = list(csv.DictReader(line for line in file if line.endswith("\n")))
        except csv.Error as error:
            raise ValueError(f"{path.name}: {error}") from error
    names = [name for name in (rows[0] if rows else {}) if name != "weights_digest"]
    return {name: [_number(path, n, row[name]) for n, row in enumerate(rows)] for name in names}


def _number(path: Path, row: int, text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError as error:
        raise ValueError(f"{path.name}, row {row}: {text!r:.40} is no number") from error
