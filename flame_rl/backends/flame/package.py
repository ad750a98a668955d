"""What is shipped to a cluster: the actor's code and the user's environment modules, nothing else.
The package is a staging folder made for the run. Other files beside main.py (runs, checkpoints,
.env files, data) are never sent, and neither is torch."""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import re
import secrets
import shutil
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlparse

import gymnasium
from flamepy.core import client
from flamepy.core.types import FlameError
from flamepy.runner import Runner
from pyarrow.flight import FlightUnavailableError

from flame_rl.actor.remote import versions
from flame_rl.actor.simulators.agents import PACKAGES, has_agents
from flame_rl.backends.flame import compat
from flame_rl.backends.flame.cleanup import Janitor
from flame_rl.system.errors import RunError, UsageError
from flame_rl.system.program import installs
from flame_rl.system.signals import call_with_timeout
from flame_rl.wire.messages import Environment

DEPLOY_SECONDS = 60.0
DEPLOYMENTS = 3  # attempts to ship the package, of which the last is under a name of its own

_ROOT = Path(__file__).resolve().parent.parent.parent
_SHIPPED = ("wire", "nets", "actor")
_IGNORED = shutil.ignore_patterns("__pycache__", ".*", "*.pyc")
_NAME, _VERSION = "flame-rl-actor", "0.1.0"
_WHEEL = f"flame_rl_actor-{_VERSION}-py3-none-any.whl"
_PROJECT = f"""\
[build-system]
requires = []
build-backend = "flame_rl_wheel"
backend-path = ["."]

[project]
name = "{_NAME}"
version = "{_VERSION}"
dependencies = {{dependencies}}
"""
# A build backend (PEP 517) that needs no package: executors install what is named and nothing else.
_BUILD = f"""\
import shutil


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    shutil.copy("{_WHEEL}", wheel_directory)
    return "{_WHEEL}"
"""


def stage_package(folder: Path, environment: Environment, install: bool = True) -> list[str]:
    """Fill `folder` with what an executor needs to collect episodes of an environment; returns the
    dependencies, pinned to the learner's own versions. A module named in `module:Name-v0`, or of
    several agents, or of a wrapper, is copied if it is the user's own file or folder; if it came
    with an installed package, that package becomes a dependency. Without `install` there are none:
    executors have them. Raises UsageError if a module cannot be found, or sent."""
    target = folder / _ROOT.name
    for name in _SHIPPED:
        shutil.copytree(_ROOT / name, target / name, ignore=_IGNORED)
    shutil.copy(_ROOT / "__init__.py", target)
    pinned = {name: version for name, version in versions().items() if name != "python"}
    env_id, spec = environment.env_id, gymnasium.registry.get(environment.env_id)
    several = has_agents(env_id)
    modules = [name.rpartition(":")[0] for name in environment.wrapper]
    modules += [env_id if several else env_id.rpartition(":")[0]]
    present = {"", *pinned, *(PACKAGES if several else ())}
    box2d = spec is not None and str(spec.entry_point).startswith("gymnasium.envs.box2d")
    # Gymnasium's MuJoCo environments import more than MuJoCo; Gymnasium's extra lists it.
    extras = "box2d,mujoco" if box2d else "mujoco"
    pinned[f"gymnasium[{extras}]"] = pinned.pop("gymnasium")
    for top in {module.partition(".")[0] for module in modules} - present:
        pinned |= _ship_module(top, folder)
    if several:
        pinned |= _packages_of_agents(env_id, modules, folder)
    dependencies = sorted(f"{name}=={version}" for name, version in pinned.items() if install)
    (folder / "flame_rl_wheel.py").write_text(_BUILD)
    (folder / "pyproject.toml").write_text(_PROJECT.format(dependencies=json.dumps(dependencies)))
    _write_wheel(folder / _WHEEL, dependencies)
    return dependencies


def _write_wheel(path: Path, dependencies: list[str]) -> None:
    """Write a wheel that only names dependencies; the code itself is found beside it."""
    needed = "".join(f"Requires-Dist: {each}\n" for each in dependencies)
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: {_NAME}\nVersion: {_VERSION}\n{needed}",
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: {_NAME}\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    names = [f"flame_rl_actor-{_VERSION}.dist-info/{name}" for name in (*files, "RECORD")]
    files["RECORD"] = "".join(f"{name},,\n" for name in names)
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in zip(names, files.values(), strict=True):
            wheel.writestr(zipfile.ZipInfo(name), text)  # of no date, as the digest covers it


def _ship_module(name: str, folder: Path) -> dict[str, str]:
    """Copy the module into `folder`, or return the distributions that provide it, with versions."""
    names = importlib.metadata.packages_distributions().get(name, [])
    found = map(importlib.metadata.distribution, names)
    # Of what was installed from a folder or a repository, the files are sent.
    published = [each for each in found if each.read_text("direct_url.json") is None]
    if published:
        return {each.name: each.version for each in published}
    found = importlib.util.find_spec(name)
    places = list(found.submodule_search_locations or []) if found else []
    if found is None or not (places or Path(found.origin or "").is_file()):
        raise UsageError(
            f"--env, --wrapper: module {name!r} is not found as files, so it cannot be sent to the "
            "cluster; it must lie beside main.py, in the current folder of flame-rl, on "
            "PYTHONPATH, or be installed"
        )
    if not places:
        shutil.copy(found.origin, folder / Path(found.origin).name)
        return {}
    for path in Path(places[0]).rglob("*"):
        if path.is_symlink():
            raise UsageError(
                f"--env, --wrapper: {path} is a symbolic link; it could lead to files that must "
                "not leave this machine, so a package that holds one is not sent to the cluster"
            )
    shutil.copytree(places[0], folder / name, ignore=_IGNORED)
    return {}


def _packages_of_agents(env_id: str, modules: list[str], folder: Path) -> dict[str, str]:
    """PettingZoo with the extras that an environment of several agents needs, and what else of
    `PACKAGES` its module or the user's staged files name, with versions."""
    own = [path for path in folder.rglob("*.py") if not path.is_relative_to(folder / _ROOT.name)]
    sources = "\n".join(path.read_text("utf-8", "replace") for path in own)
    text = "\n".join([*modules, *re.findall(r"(?m)^\s*(?:import|from) .*", sources)])
    try:
        known = importlib.metadata.metadata("pettingzoo").get_all("Provides-Extra")
        families = re.findall(r"\bpettingzoo(?:\.| import )(\w+)", text)
        extras = ",".join(sorted(set(families) & set(known)))
        needed = {"pettingzoo"} | set(PACKAGES) & set(re.findall(r"\w+", text))
        found = {name: importlib.metadata.version(name) for name in needed}
    except importlib.metadata.PackageNotFoundError as error:
        raise UsageError(f"--env: {env_id} needs {error.name}: `{installs('agents')}`") from error
    if extras:
        found[f"pettingzoo[{extras}]"] = found.pop("pettingzoo")
    return found


def digest_of(folder: Path) -> str:
    """12 hexadecimal digits of SHA-256 over all files; one of them names the dependencies."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"\0{path.relative_to(folder)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


@dataclass(frozen=True)
class Application:
    """A package on the cluster, under a name."""

    name: str
    runner: Runner
    dependencies: list[str]


def deploy(environment: Environment, janitor: Janitor, install: bool, shared: bool) -> Application:
    """Ship the package as an application, or find it there. Nodes install a package once for each
    name of an application. The name holds a digest of the content, so that all runs of equal
    content share an install, and what runs is what was shipped; unless `shared`, it is this run's
    alone. Raises RunError if Flame does not take the package, and UsageError as `stage_package`
    does, or if the object cache is out of reach."""
    with tempfile.TemporaryDirectory(prefix="flame-rl-") as folder:
        dependencies = stage_package(Path(folder), environment, install)
        shared_name = f"flame-rl-{digest_of(Path(folder))}"
        # Runner packs the current directory and offers no other way.
        with contextlib.chdir(folder):
            for attempt in range(DEPLOYMENTS):
                # Another run may register or remove the shared one meanwhile, or have lost it.
                own = not shared or attempt == DEPLOYMENTS - 1
                name = f"{shared_name}-{secrets.token_hex(4)}" if own else shared_name
                janitor.remember("application", name)
                try:
                    runner = call_with_timeout(DEPLOY_SECONDS, lambda name=name: Runner(name))
                    if _has_package(name):
                        return Application(name, runner, dependencies)
                    reason = "its package is not in the object cache"
                    with contextlib.suppress(FlameError):  # refused where others use it
                        client.unregister_application(name)
                except UsageError:
                    raise
                except Exception as error:
                    reason = str(error)
                    if "already exists" not in reason:
                        break
    raise RunError(f"Flame did not accept the application {name}: {reason}")


def _has_package(application: str) -> bool:
    """Whether the package is where executors look for it. Raises UsageError if nothing answers."""
    found = client.get_application(application)
    if found is None:  # removed just now
        return False
    url = urlparse(found.url)
    endpoint, key = f"{url.scheme}://{url.netloc}", url.path.lstrip("/")
    try:
        return call_with_timeout(compat.CALL_SECONDS, lambda: compat.has_object(endpoint, key))
    except (TimeoutError, FlightUnavailableError) as error:
        raise UsageError(
            f"Flame's object cache calls itself {endpoint}, which does not answer here: {error}. "
            "The learner must be in a network in which that address leads there, or use --local"
        ) from error
