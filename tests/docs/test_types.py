"""The examples of the README and of docs/python.md, and the keywords of settings, as type checkers
see them."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from flame_rl.settings.algorithms import ALGORITHMS
from flame_rl.settings.checks import bare, hints_of, may_be_none
from flame_rl.settings.config import Execution, Output
from flame_rl.settings.experiment import Experiment
from flame_rl.settings.keywords import Settings
from tests.helpers import ROOT

# Names that the examples of a page take from its text.
BEFORE = """
import gymnasium
import numpy as np
from flame_rl import TrainConfig, Trainer
from gymnasium.envs.classic_control import CartPoleEnv as Corridor
path, observation, observations = "some.ckpt", np.zeros(4), np.zeros((2, 4))
"""
WRONG = 'from flame_rl import TrainConfig\nTrainConfig(epoch=3)\nTrainConfig(epochs="three")\n'
# Some libraries take long to read, and no example says anything of them.
MYPY = f"""
[mypy]
mypy_path = {ROOT}
follow_imports = silent
[mypy-torch.*,matplotlib.*,mujoco.*,pandas.*,scipy.*,rich.*,tyro.*,flamepy.*,pyarrow.*,PIL.*]
follow_imports = skip
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
