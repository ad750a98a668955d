"""The pages in docs/: what they tell the reader to do is done, in a copy of the project."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT, clean_environment

PAGES = sorted((ROOT / "docs").glob("*.md"))


def blocks(page: Path) -> list[tuple[str, str]]:
    """The fenced blocks, language and text."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def project(tmp_path):
    for name in ("main.py", "model.py"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(
        ROOT / "flame_rl", tmp_path / "flame_rl", ignore=shutil.ignore_patterns("__pycache__")
    )
    return tmp_path


@pytest.mark.parametrize("name", ["add-an-environment", "add-an-algorithm"])
def test_a_worked_example_works(project, name):
    for language, text in blocks(ROOT / "docs" / f"{name}.md"):
        match language:
            case "python" if text.startswith("# "):
                first, _, rest = text.partition("\n")
                (project / first.removeprefix("# ")).write_text(rest)
            case "python":
                run(project, "-c", text)
            case "diff":
                change(project, text)
            case "sh":
                for line in text.splitlines():
                    assert line.startswith("uv run main.py ")
                    run(project, *shlex.split(line)[2:])
            case _:
                raise AssertionError(f"a block of {language} is not run")


def run(project: Path, *arguments: str) -> None:
    environment = clean_environment(project) | {"PYTHONPATH": str(project)}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"


def change(project: Path, text: str) -> None:
    """Apply a block of lines that stay, go (-) and come (+)."""
    header, *lines = text.splitlines()
    path = project / header.removeprefix("--- ")
    before = "".join(f"{line[1:]}\n" for line in lines if line[0] in " -")
    after = "".join(f"{line[1:]}\n" for line in lines if line[0] in " +")
    content = path.read_text()
    assert content.count(before) == 1, f"{path.name} has changed:\n{before}"
    path.write_text(content.replace(before, after))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_function_that_a_page_names_exists(page):
    named = re.findall(r"`([\w/]+\.py)::([\w.]+)`", page.read_text())
    assert named or page.name != "reinforce.md"
    for path, name in named:
        body = ast.parse((ROOT / "flame_rl" / path).read_text()).body
        for part in name.split("."):
            found = [node for node in body if getattr(node, "name", None) == part]
            assert found, f"{page.name} names {path}::{name}, which is not there"
            body = found[0].body


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
