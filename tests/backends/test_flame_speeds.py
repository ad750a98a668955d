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
SECONDS = 96 * 20 * 0.01


@pytest.mark.parametrize(
    ("third", "speeds"), [("gamma", 2.1), ("delta", 3.0)], ids=["slow", "equal"]
)
def test_a_slow_node_sets_nobodys_pace(
    third: str, speeds: float, project: Path, local, tmp_path: Path
) -> None:
    with FlameNodes(tmp_path / "cluster") as flame:
        for name in ("alpha", "beta", third):
            flame.start_node(name, cores=1)
        limit = time.monotonic() + 100
        while sorted(flame.nodes()) != sorted(("alpha", "beta", third)):
            assert time.monotonic() < limit
            time.sleep(0.1)
        finished = run(project, tmp_path, flame.environment, *PACE)
    assert finished.code == 0, finished.err
    assert finished.metrics == local(*PACE)
    # Next to what the sum of speeds allows.
    took = [seconds * speeds / SECONDS for seconds in finished.collecting]
    print([round(each, 3) for each in took])
    assert statistics.median(took[4:]) <= 1.15
