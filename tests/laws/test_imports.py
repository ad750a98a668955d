"""The folders of the package: who may import whom, without a circle."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.helpers import ROOT, run_anew

# Each folder, model.py and the command line, and which others they may import. Those that are sent
# to a cluster come with nothing else.
PLACES = {
    "system": set(),
    "wire": set(),
    "settings": {"system", "wire"},
    "nets": {"wire"},
    "actor": {"wire", "nets"},
    "backends": {"system", "wire", "settings", "actor"},
    "modules": {"system", "wire", "settings", "nets"},
    "model": {"wire", "settings", "modules"},
    "learner": {"system", "wire", "settings", "nets", "actor", "modules"},
    "run": {"system", "wire", "settings", "nets", "actor", "backends", "modules", "learner"},
    "report": {"system", "wire", "settings", "actor", "backends", "run"},
    "tools": {"system", "wire", "settings", "nets", "actor", "backends", "run", "report"},
    "__main__": {"system", "commands"},
    "main": {"__main__"},
}
PLACES["commands"] = PLACES["tools"] | {"tools"}
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (ROOT / "main.py", *(ROOT / "flame_rl").rglob("*.py"))
}
# flame_rl/model.py runs this one.
FILES["flame_rl.model"] = ROOT / "model.py"


def place_of(module: str) -> str:
    """The folder of a module, or model or main; empty for the package itself."""
    return "".join(module.removeprefix("flame_rl").lstrip(".").split(".")[:1])


def imports_of(module: str) -> set[str]:
    """Modules of the package that a module imports, in functions too; not for type checkers."""
    tree = ast.parse(FILES[module].read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and place_of(node.module or "") in PLACES:
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


def test_every_folder_has_its_place():
    assert {place_of(module) for module in FILES} == {*PLACES, ""}
    own = {path.name for path in (ROOT / "flame_rl").glob("*.py")}
    assert own == {"__init__.py", "__main__.py", "model.py"}


def test_the_packages_networks_are_model_py():
    """In the clone it runs the file that people edit; a wheel holds its text."""
    from flame_rl import model

    assert Path(model.policy.__code__.co_filename) == ROOT / "model.py"


@pytest.mark.parametrize("place", PLACES)
def test_a_folder_imports_only_what_stands_below_it(place):
    for module in FILES:
        if place_of(module) == place:
            others = {place_of(name) for name in imports_of(module)} - {place, ""}
            assert others <= PLACES[place], f"{module} imports {sorted(others - PLACES[place])}"


def test_model_py_is_seen():
    """The learner imports it by name."""
    assert "flame_rl.modules.networks" in imports_of("flame_rl.model")


def test_settings_wire_and_actor_need_no_torch(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('torch')")
    wanted = [m for m in FILES if place_of(m) in ("settings", "nets", "actor", "wire")]
    code = f"import importlib\nfor name in {wanted}:\n  importlib.import_module(name)"
    done = run_anew("-c", code, cwd=tmp_path, environment={"PYTHONPATH": f"{tmp_path}:{ROOT}"})
    assert done.returncode == 0, done.stderr
