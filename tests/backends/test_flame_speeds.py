"""A real Flame cluster whose nodes are of different speeds: the environment waits longer on one."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest

from tests.flame_fixtures import run
from tests.flame_nodes import FlameNodes

pytestmark = [pytest.mark.cluster, pytest.mark.nodes, pytest.mark.slow]

# An episode has 20 steps of 10 ms, on the node gamma ten times as long.
PACE = ("--env", "pace_env:SlowOnGamma-v0", "--iterations", "12", "--episodes-per-iter", "96")


def test_a_slow_node_sets_nobodys_pace(project: Path, local, tmp_path: Path) -> None:
    """What the sum of speeds allows follows from three equal nodes on the same machine."""
    took = {}
    for third in ("delta", "gamma"):
        folder = tmp_path / third
        folder.mkdir()
        with FlameNodes(folder / "cluster") as flame:
            names = {"alpha", "beta", third}
            for name in names:
                flame.start_node(name, cores=1)
            limit = time.monotonic() + 100
            while flame.nodes() != dict.fromkeys(names, "Ready"):
                assert time.monotonic() < limit
                time.sleep(0.1)
            finished = run(project, folder, flame.environment, *PACE)
        assert finished.code == 0, finished.err
        assert finished.metrics == local(*PACE)
        print(third, finished.collecting)
        took[third] = statistics.median(finished.collecting[4:])
    # The environment alone takes 19.2 s at speed 1.
    assert took["delta"] <= 1.15 * 19.2 / 3
    assert took["gamma"] <= 1.15 * took["delta"] * 3 / 2.1
