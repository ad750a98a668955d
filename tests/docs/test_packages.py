"""docs/environments-from-packages.md: its commands exist, and work with their packages."""

from __future__ import annotations

import importlib.metadata
import re
import shlex
from pathlib import Path

import pytest

from flame_rl.commands.check import CheckFlags
from flame_rl.settings.parse import parse
from tests.helpers import ROOT, run_main

PAGE = (ROOT / "docs" / "environments-from-packages.md").read_text()
COMMANDS = re.findall(r"^uv run (.*?)main\.py (.*)$", PAGE, re.MULTILINE)
EXAMPLES = [
    re.findall(r"^uv run (.*?)main\.py (.*)$", block, re.MULTILINE)
    for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
]
# The modules of the packages that the commands install.
MODULES = {
    "minigrid": "minigrid",
    "shimmy[dm-control]": "dm_control",
    "gymnasium-robotics": "gymnasium_robotics",
    "highway-env": "highway_env",
}


@pytest.mark.parametrize(("packages", "words"), COMMANDS, ids=lambda text: text[:60])
def test_every_command_is_one(packages, words):
    assert set(shlex.split(packages)[::2]) <= {"--with"}
    name, *others = shlex.split(words)
    if name == "check":
        parse(others, extra=CheckFlags)
    else:
        config, _ = parse(shlex.split(words))
        assert config.experiment.env_name


def test_every_package_has_an_example():
    packages = [shlex.split(options)[1] for (options, _), *_ in EXAMPLES]
    assert packages == list(MODULES)


@pytest.mark.parametrize("example", EXAMPLES, ids=MODULES)
def test_an_example_works(example, tmp_path: Path):
    """The environment is examined, and trained in for two short iterations."""
    for options, words in example:
        for package in shlex.split(options)[1::2]:
            skip_without(package)
        first, *others = shlex.split(words)
        if first == "check":
            done = run_main(first, *others, "--seconds", "0.5", cwd=tmp_path)
            assert done.returncode == 0, done.stdout + done.stderr
            assert "  observation   " in done.stdout and "In the way" not in done.stdout
            continue
        words = shlex.split(words)
        for name, value in {"--iterations": "2", "--steps-per-iter": "60"}.items():
            words[words.index(name) + 1] = value
        short = ("--workers", "0", "--max-episode-steps", "20")
        done = run_main(*words, *short, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "Training Complete!" in done.stdout


def skip_without(package: str) -> None:
    """Skip the test where the package is not installed, or not in the version that it names."""
    name, bound, version = package.partition("<")
    if not bound:
        pytest.importorskip(MODULES[package], reason=f"uv run --with '{package}' pytest")
        return
    here = [int(part) for part in re.findall(r"\d+", importlib.metadata.version(name))]
    if here >= [int(part) for part in version.split(".")]:
        pytest.skip(f"uv run --with '{package}' pytest")
