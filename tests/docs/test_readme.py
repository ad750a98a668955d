"""The README's example is what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from flame_rl import Trainer
from tests.helpers import ROOT, clean_environment

README = (ROOT / "README.md").read_text()
(EXAMPLE,) = re.findall(r"```python\n(# cartpole\.py.*?)```", README, re.DOTALL)


def run_example(code: str, folder: Path) -> list[str]:
    (folder / "cartpole.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "cartpole.py"],
        cwd=folder,
        env=clean_environment(folder),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("algorithm", "factor"),
    [
        ("ppo", 5),
        pytest.param("a2c", 1.5, marks=pytest.mark.slow),
        pytest.param("reinforce", 1.5, marks=pytest.mark.slow),
    ],
)
def test_the_example_learns_and_one_word_makes_it_another_algorithm(algorithm, factor, tmp_path):
    first, *rows, last = run_example(EXAMPLE.replace('"ppo"', f'"{algorithm}"'), tmp_path)
    assert [int(row.split()[0]) for row in rows] == list(range(10))
    rewards = [float(row.split()[1]) for row in rows]
    # A beginner holds the pole for about 20 steps.
    assert 10 < rewards[0] < 40 and rewards[-1] > factor * rewards[0]
    before = float(re.match(r"before: mean ([\d.]+) ", first).group(1))
    after = float(re.match(r"after: mean ([\d.]+) ", last).group(1))
    assert after > factor * before
    assert {path.name for path in tmp_path.iterdir()} == {
        *("cartpole.py", "before.ckpt", "after.ckpt"),
    }
    for name, score in (("before", before), ("after", after)):
        with Trainer.load(tmp_path / f"{name}.ckpt", local=True, workers=0) as trainer:
            assert f"{trainer.evaluate(20).reward_mean:.1f}" == f"{score}"
            assert trainer.config.algorithm_name == algorithm
