"""Iterations without an update: their cells are empty, and their lines say so."""

from __future__ import annotations

import csv

import numpy as np

from flame_rl.report.tables import read_columns
from tests.helpers import run_here


def test_columns_are_known_before_the_first_update(tmp_path):
    done = run_here(
        *("--env", "cartpole", "--algorithm", "dqn", "--steps-per-iter", "40", "--iterations", "4"),
        *("--warm-up-steps", "200", "--batch-size", "8", "--hidden-sizes", "4", "--local"),
        *("--max-episode-steps", "20", "--workers", "0", "--verbose", "--output", "run"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    path = tmp_path / "run" / "metrics.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["loss"] == "" and float(rows[-1]["loss"]) > 0
    assert rows[0]["weights_digest"] != rows[-1]["weights_digest"]
    assert np.isnan(read_columns(path)["loss"][0])
    lines = [line for line in done.stdout.splitlines() if line.startswith("Iteration")]
    assert lines[0].endswith("Loss: -") and not lines[-1].endswith("Loss: -")
