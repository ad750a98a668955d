"""The README is short, its commands and its code map are true, and its examples do what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flame_rl import Trainer
from tests.helpers import ROOT, run_forked

README = (ROOT / "README.md").read_text()
(EXAMPLE,) = re.findall(r"```python\n(# cartpole\.py.*?)```", README, re.DOTALL)

(ENVIRONMENT,) = re.findall(r"```python\n(# my_env\.py.*?)```", README, re.DOTALL)
(MAP,) = re.findall(r"```\n(main\.py .*?)```", README, re.DOTALL)


def test_it_is_a_front_door() -> None:
    assert len(README.splitlines()) <= 250


@pytest.mark.parametrize("command", ["uv run main.py --env ant", "uv run pytest"])
def test_two_commands_are_all_that_is_needed(command: str) -> None:
    assert f"```\npip install uv && {command}\n```" in README


def test_the_code_map_names_every_folder_and_only_what_exists() -> None:
    named: set[Path] = set()
    above: list[Path] = []
    for line in MAP.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        names, _, _ = line.strip().partition("  ")
        for name in re.findall(r"[\w.-]+/?", names):
            path = Path(*above[:depth][-1:], name)
            assert (ROOT / path).exists(), f"the code map names {path}"
            named.add(path)
            above[depth:] = [path]
    folders = {path.parent.relative_to(ROOT) for path in ROOT.glob("flame_rl/**/__init__.py")}
    folders.discard(Path("flame_rl", "backends", "flame"))
    assert folders <= named


def test_the_environment_can_be_learned(tmp_path: Path) -> None:
    (tmp_path / "my_env.py").write_text(ENVIRONMENT)
    words = ("--env", "my_env:Corridor-v0", "--iterations", "12")
    environment = {"PYTHONPATH": str(tmp_path)}
    done = run_forked(ROOT / "main.py", *words, cwd=tmp_path, environment=environment)
    assert done.returncode == 0, done.stderr
    rewards = [float(reward) for reward in re.findall(r"Mean Reward: +([-\d.]+) \|", done.stdout)]
    assert rewards[-1] > rewards[0] + 5


def run_example(code: str, folder: Path) -> list[str]:
    (folder / "cartpole.py").write_text(code)
    done = run_forked(folder / "cartpole.py", cwd=folder)
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
