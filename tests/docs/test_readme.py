"""The README is short, its commands and its code map are true, and its examples do what it says."""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from flame_rl import Trainer
from flame_rl.settings.algorithms import ALGORITHMS
from flame_rl.settings.checks import bare, hints_of, may_be_none
from flame_rl.settings.config import Execution, Output
from flame_rl.settings.experiment import Experiment
from flame_rl.settings.keywords import Settings
from tests.helpers import ROOT, run_forked

README = (ROOT / "README.md").read_text()
(EXAMPLE,) = re.findall(r"```python\n(# cartpole\.py.*?)```", README, re.DOTALL)

(ENVIRONMENT,) = re.findall(r"```python\n(# my_env\.py.*?)```", README, re.DOTALL)
(MAP,) = re.findall(r"```\n(main\.py .*?)```", README, re.DOTALL)


def test_it_is_a_front_door():
    assert len(README.splitlines()) <= 250


@pytest.mark.parametrize("command", ["uv run main.py --env ant", "uv run pytest"])
def test_two_commands_are_all_that_is_needed(command):
    assert f"```\npip install uv && {command}\n```" in README


def test_the_code_map_names_every_folder_and_only_what_exists():
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


def test_the_environment_can_be_learned(tmp_path):
    (tmp_path / "my_env.py").write_text(ENVIRONMENT)
    words = ("--env", "my_env:Corridor-v0", "--iterations", "12")
    environment = {"PYTHONPATH": str(tmp_path)}
    done = run_forked(ROOT / "main.py", *words, cwd=tmp_path, environment=environment)
    assert done.returncode == 0, done.stderr
    rewards = [float(reward) for reward in re.findall(r"Mean Reward: +([-\d.]+) \|", done.stdout)]
    assert rewards[-1] > rewards[0] + 5


@pytest.mark.parametrize(
    ("algorithm", "factor"),
    [
        ("ppo", 5),
        pytest.param("a2c", 1.5, marks=pytest.mark.slow),
        pytest.param("reinforce", 1.5, marks=pytest.mark.slow),
    ],
)
def test_the_example_learns_and_one_word_makes_it_another_algorithm(algorithm, factor, tmp_path):
    (tmp_path / "cartpole.py").write_text(EXAMPLE.replace('"ppo"', f'"{algorithm}"'))
    done = run_forked(tmp_path / "cartpole.py", cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    first, *rows, last = done.stdout.splitlines()
    assert [int(row.split()[0]) for row in rows] == list(range(10))
    rewards = [float(row.split()[1]) for row in rows]
    # A beginner holds the pole for about 20 steps.
    assert 10 < rewards[0] < 40 and rewards[-1] > factor * rewards[0]
    before = float(re.match(r"before: mean ([\d.]+) ", first).group(1))
    after = float(re.match(r"after: mean ([\d.]+) ", last).group(1))
    assert after > factor * before
    assert {path.name for path in tmp_path.iterdir()} == {
        *("cartpole.py", "before.ckpt", "after.ckpt")
    }
    for name, score in (("before", before), ("after", after)):
        with Trainer.load(tmp_path / f"{name}.ckpt", local=True, workers=0) as trainer:
            assert f"{trainer.evaluate(20).reward_mean:.1f}" == f"{score}"
            assert trainer.config.algorithm_name == algorithm


# Names that the examples of a page take from its text.
BEFORE = """
import gymnasium
import numpy as np
from flame_rl import TrainConfig, Trainer
from gymnasium.envs.classic_control import CartPoleEnv as Corridor
path, observation, observations = "some.ckpt", np.zeros(4), np.zeros((2, 4))
"""
WRONG = 'from flame_rl import TrainConfig\nTrainConfig(epoch=3)\nTrainConfig(epochs="three")\n'
# What takes long to read, and of which no example says anything.
SKIPPED = "torch matplotlib mujoco pandas scipy rich tyro flamepy pyarrow PIL gymnasium.envs "
SKIPPED += "gymnasium.utils gymnasium.vector gymnasium.wrappers flame_rl.actor flame_rl.backends "
SKIPPED += "flame_rl.learner flame_rl.modules flame_rl.nets"
CART_POLE = "gymnasium.envs.classic_control"
MYPY = f"""
[mypy]
mypy_path = {ROOT}
follow_imports = silent
[mypy-{",".join(f"{name}.*" for name in SKIPPED.split())}]
follow_imports = skip
[mypy-{CART_POLE},{CART_POLE}.cartpole]
follow_imports = silent
"""
COMMANDS = {
    "mypy": ["mypy", "--config-file", "mypy.ini"],
    "basedpyright": ["basedpyright", "--project", ".", "--pythonpath", sys.executable],
}


@pytest.fixture(scope="module")
def examples(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    for page in (ROOT / "README.md", ROOT / "docs" / "python.md"):
        text = page.read_text()
        calls = re.findall(r"`((?:TrainConfig|Trainer\.load)\([^`…]*\))`", text)
        assert calls
        (folder / f"{page.stem}_calls.py").write_text(BEFORE + "\n".join(calls))
        for number, block in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL)):
            before = BEFORE if page.stem == "python" else ""
            (folder / f"{page.stem}_{number}.py").write_text(before + block)
    (folder / "wrong.py").write_text(WRONG)
    (folder / "mypy.ini").write_text(MYPY)
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    return folder


@pytest.mark.parametrize("checker", COMMANDS)
def test_examples_are_sound_and_a_wrong_keyword_is_not(checker, examples):
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed: uv run --group types pytest")
    names = sorted(path.name for path in examples.glob("*.py"))
    assert len(names) == 6
    words = [sys.executable, "-m", *COMMANDS[checker], *names]
    if checker == "basedpyright":
        words = words[: -len(names)]
    done = subprocess.run(words, cwd=examples, capture_output=True, text=True)
    errors = [line for line in done.stdout.splitlines() if "error: " in line]
    assert len(errors) == 2, done.stdout + done.stderr
    assert all(re.search(r'wrong\.py:[23]:.*"(epoch|epochs|three)"|wrong\.py:3', e) for e in errors)


def keyword_type(name: str, hint: Any) -> Any:
    """What people may give for a field of this type."""
    kind = bare(hint)
    if name == "env_kwargs":
        kind = Mapping[str, Any] | Sequence[str]
    elif get_origin(kind) is tuple:
        kind = Sequence[bare(get_args(kind)[0])]
    elif kind is Path:
        kind = str | Path
    return kind | None if may_be_none(hint) else kind


def test_keywords_are_the_fields_of_all_settings():
    kinds = (Experiment, *ALGORITHMS.values(), Execution, Output)
    expected = {
        name: keyword_type(name, hint)
        for kind in kinds
        for name, hint in hints_of(kind).items()
        if name != "env"
    }
    assert get_type_hints(Settings) == expected
    assert Literal["auto", "cpu", "cuda", "gpu"] == expected["device"]
