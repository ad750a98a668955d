"""The folders of the package: who may import whom, without a circle."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.helpers import ROOT, clean_environment

# Each may import those before it. Those that are sent to a cluster come with nothing else.
FOLDERS = {
    "system": set(),
    "wire": set(),
    "settings": {"system", "wire"},
    "nets": {"wire"},
    "actor": {"wire", "nets"},
    "backends": {"system", "wire", "settings", "nets", "actor"},
    "learner": {"system", "wire", "settings", "nets", "actor"},
    "run": {"system", "wire", "settings", "nets", "actor", "backends", "learner"},
    "report": {"system", "wire", "settings", "run"},
    "tools": {"system", "wire", "settings", "nets", "actor", "backends", "run", "report"},
    "commands": {
        "system",
        "wire",
        "settings",
        "nets",
        "actor",
        "backends",
        "run",
        "report",
        "tools",
    },
}
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (ROOT / "flame_rl").rglob("*.py")
}


def imports_of(module: str) -> set[str]:
    """Modules of the package that a module imports, in functions too; not for type checkers."""
    tree = ast.parse(FILES[module].read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flame_rl"):
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inner & FILES.keys() or {node.module}
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in FILES}
    return found


def test_no_circle():
    graph = {module: imports_of(module) for module in FILES}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"a circle: {' -> '.join(error.args[1])}")


def test_a_circle_would_be_found():
    with pytest.raises(CycleError):
        list(TopologicalSorter({"a": {"b"}, "b": {"a"}}).static_order())


def test_every_folder_has_its_place():
    assert {path.parent.name for path in (ROOT / "flame_rl").glob("*/__init__.py")} == set(FOLDERS)
    assert [path.name for path in (ROOT / "flame_rl").glob("*.py")] == ["__init__.py"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_imports_only_what_stands_below_it(folder):
    for module in FILES:
        if module.split(".")[1:2] != [folder]:
            continue
        others = {name.split(".")[1] for name in imports_of(module) if "." in name} - {folder}
        assert others <= FOLDERS[folder], f"{module} imports {sorted(others - FOLDERS[folder])}"


def test_settings_wire_and_actor_need_no_torch(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('torch')")
    wanted = [
        m for m in FILES if m.split(".")[1:2] in (["settings"], ["nets"], ["actor"], ["wire"])
    ]
    code = f"import importlib\nfor name in {wanted}:\n  importlib.import_module(name)"
    environment = clean_environment(tmp_path) | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
