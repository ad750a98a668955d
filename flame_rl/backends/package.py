"""What is shipped to a cluster: the actor's code and the user's environment modules, nothing else.

The package is a staging folder made for the run. Other files beside main.py (runs, checkpoints,
.env files, data) are never sent, and neither is torch.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import gymnasium

from flame_rl.actor.environments.agents import PACKAGES, has_agents
from flame_rl.actor.remote import versions
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import Environment

_PACKAGE = Path(__file__).resolve().parent.parent
_SHIPPED = ("__init__.py", "wire", "nets", "actor")
# Folders that flamepy leaves out of what it sends; `dist` only where it is not within another one.
_LEFT_OUT = ("venv", "node_modules")
# Flame's client leaves a project that is there as it is, and makes one for setuptools otherwise.
_PROJECT = """\
[build-system]
requires = []
build-backend = "flame_rl_wheel"
backend-path = ["."]

[project]
name = "flame-rl-actor"
version = "0.1.0"
dependencies = {dependencies}
"""
_IGNORED = shutil.ignore_patterns("__pycache__", ".*", "*.pyc")


@dataclass(frozen=True)
class Package:
    """The dependencies and the digest of a staged package.

    Attributes:
        dependencies: requirements, pinned to the learner's own versions.
        digest: 12 hexadecimal digits of SHA-256 over all shipped files; one of them names the
            dependencies.
    """

    dependencies: list[str]
    digest: str


def stage_package(folder: Path, environment: Environment, install: bool = True) -> Package:
    """Fill `folder` with what an executor needs to collect episodes of an environment.

    A module named in `module:Name-v0`, or of several agents, or of a wrapper, is copied if it is
    the user's own file or folder; if it came with an installed package, that package becomes a
    dependency.

    Args:
        folder: an empty one.
        environment: names the modules.
        install: whether executors install the dependencies; otherwise they have them.

    Raises:
        UsageError: a module cannot be found.
    """
    env_id = environment.env_id
    target = folder / _PACKAGE.name
    target.mkdir()
    for name in _SHIPPED:
        source = _PACKAGE / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=_IGNORED)
        else:
            shutil.copy(source, target / name)
    pinned = {name: version for name, version in versions().items() if name != "python"}
    several, modules = has_agents(env_id), _modules_of(environment)
    # Gymnasium's MuJoCo environments import more than MuJoCo; Gymnasium's extra lists it.
    present = {*pinned, *(PACKAGES if several else ())}
    pinned[f"gymnasium[{_gymnasium_extras(env_id)}]"] = pinned.pop("gymnasium")
    for top in dict.fromkeys(module.partition(".")[0] for module in modules):
        if top not in present:
            pinned |= _ship_module(top, folder)
    if several:
        pinned |= _packages_of_agents(env_id, modules, folder)
    dependencies = sorted(f"{name}=={version}" for name, version in pinned.items() if install)
    shutil.copy(Path(__file__).with_name("wheel.py"), folder / "flame_rl_wheel.py")
    (folder / "pyproject.toml").write_text(_PROJECT.format(dependencies=json.dumps(dependencies)))
    return Package(dependencies, _digest(folder))


def needs(environment: Environment) -> tuple[tuple[str, ...], str]:
    """The modules and the extras of Gymnasium that an environment needs on an executor."""
    return _modules_of(environment), _gymnasium_extras(environment.env_id)


def _modules_of(environment: Environment) -> tuple[str, ...]:
    """The modules that make the environment and its wrappers, without Gymnasium's own ids."""
    env_id = environment.env_id
    own = env_id if has_agents(env_id) else env_id.rpartition(":")[0]
    wrappers = [name.rpartition(":")[0] for name in environment.wrapper]
    return tuple(dict.fromkeys(filter(None, (own, *wrappers))))


def _gymnasium_extras(env_id: str) -> str:
    """The extras of Gymnasium that its own environments need: LunarLander needs Box2D, say."""
    spec = gymnasium.registry.get(env_id)
    box2d = spec is not None and str(spec.entry_point).startswith("gymnasium.envs.box2d")
    return "box2d,mujoco" if box2d else "mujoco"


def _ship_module(name: str, folder: Path) -> dict[str, str]:
    """Copy the module into `folder`, or return the distributions that provide it, with versions."""
    distributions = importlib.metadata.packages_distributions().get(name, [])
    # A distribution that was installed from a folder or a repository cannot be installed by name:
    # its files are sent.
    published = [d for d in distributions if not _has_direct_url(d)]
    if published:
        return {d: importlib.metadata.version(d) for d in published}
    found = importlib.util.find_spec(name)
    places = list(found.submodule_search_locations or []) if found else []
    if found is None or not (places or Path(found.origin or "").is_file()):
        raise UsageError(
            f"--env, --wrapper: module {name!r} is not found as files, so it cannot be sent to the "
            "cluster; it must lie in the folder of main.py, on PYTHONPATH, or be installed"
        )
    if not places:
        shutil.copy(found.origin, folder / Path(found.origin).name)
        return {}
    source = Path(places[0])
    for path in source.rglob("*"):
        if path.is_symlink():
            raise UsageError(
                f"--env, --wrapper: {path} is a symbolic link; it could lead to files that must "
                "not leave this machine, so a package that holds one is not sent to the cluster"
            )
        if path.name in _LEFT_OUT and (path / "__init__.py").exists():
            _refuse_name(path)
    if name in (*_LEFT_OUT, "dist"):
        _refuse_name(source)
    shutil.copytree(source, folder / name, ignore=_IGNORED)
    return {}


def _refuse_name(path: Path) -> None:
    raise UsageError(
        f"--env, --wrapper: {path}: Flame's client never sends a folder of the name {path.name}; "
        "rename it"
    )


def _packages_of_agents(env_id: str, modules: tuple[str, ...], folder: Path) -> dict[str, str]:
    """PettingZoo with the extras that an environment of several agents needs, and what else of
    `PACKAGES` it or the user's staged files import, with versions."""
    named = set(modules) | {
        name
        for path in folder.rglob("*.py")
        if not path.is_relative_to(folder / _PACKAGE.name)
        for name in _imports(path)
    }
    try:
        known = importlib.metadata.metadata("pettingzoo").get_all("Provides-Extra")
        families = (name.split(".")[1] for name in named if name.startswith("pettingzoo."))
        extras = ",".join(sorted(set(families) & set(known)))
        needed = {"pettingzoo"} | {name.partition(".")[0] for name in named} & set(PACKAGES)
        found = {name: importlib.metadata.version(name) for name in needed}
    except importlib.metadata.PackageNotFoundError as error:
        raise UsageError(
            f"--env: {env_id} needs the package {error.name}, which is not installed; `uv run "
            "--group agents main.py …` installs it"
        ) from error
    if extras:
        found[f"pettingzoo[{extras}]"] = found.pop("pettingzoo")
    return found


def _imports(path: Path) -> set[str]:
    """The dotted names of the modules that a file imports."""
    try:
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
    except SyntaxError:  # importing it says more
        return set()
    named = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    origins = [n for n in nodes if isinstance(n, ast.ImportFrom) and n.module and not n.level]
    # `from pettingzoo import sisl` names a module, too.
    named |= {f"{node.module}.{alias.name}" for node in origins for alias in node.names}
    return named


def _has_direct_url(distribution: str) -> bool:
    return importlib.metadata.distribution(distribution).read_text("direct_url.json") is not None


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(f"\0{path.relative_to(folder)}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
