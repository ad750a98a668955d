"""What is shipped to a cluster, and what is not."""

import importlib
import importlib.metadata
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from flame_rl.backends.flame.package import digest_of, stage_package
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import Environment
from tests.flame_fixtures import CORE, SECRET


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """A folder of the user's, on the path, full of what must not travel."""
    user = tmp_path / "user"
    (user / "runs" / "a").mkdir(parents=True)
    (user / "runs" / "a" / "weights.safetensors").write_text(SECRET)
    (user / ".env").write_text(f"PASSWORD={SECRET}")
    (user / "id_rsa").write_text(SECRET)
    (user / "big.bin").write_bytes(bytes(1_000_000) + SECRET.encode())
    (user / "link").symlink_to("/etc/passwd")
    (user / "my_env.py").write_text("x = 1\n")
    package = user / "my_envs"
    (package / "assets").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "robot.py").touch()
    (package / "assets" / "robot.xml").touch()
    (package / ".env").write_text(SECRET)
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "robot.pyc").write_text(SECRET)
    monkeypatch.syspath_prepend(str(user))
    monkeypatch.chdir(user)
    importlib.invalidate_caches()
    return user


def staged(tmp_path, env_id: str, name: str = "staging", wrapper: tuple[str, ...] = ()):
    folder = tmp_path / name
    folder.mkdir()
    package = stage_package(folder, Environment(env_id, wrapper=wrapper))
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert not any(path.is_symlink() or SECRET.encode() in path.read_bytes() for path in files)
    return package, {path.relative_to(folder).as_posix() for path in files}


FOLDER = {"my_envs/__init__.py", "my_envs/robot.py", "my_envs/assets/robot.xml"}
SMALL, OWN = "gymnasium.wrappers:FlattenObservation", ("my_env:Small", "my_envs.robot:Fast")


@pytest.mark.parametrize(
    ("env_id", "wrapper", "files", "packages"),
    [
        ("ant", (), set(), {"gymnasium[mujoco]"}),
        ("LunarLander-v3", (SMALL,), set(), {"gymnasium[box2d,mujoco]"}),
        ("my_env:Mine-v0", (), {"my_env.py"}, {"gymnasium[mujoco]"}),
        ("my_envs.robot:Mine-v0", (), FOLDER, {"gymnasium[mujoco]"}),
        # What came with an installed package becomes a dependency.
        ("psutil:Mine-v0", OWN, FOLDER | {"my_env.py"}, {"gymnasium[mujoco]", "psutil"}),
    ],
)
def test_what_an_environment_and_its_wrappers_need_travels(
    beside, tmp_path, env_id, wrapper, files, packages
):
    package, found = staged(tmp_path, env_id, wrapper=wrapper)
    assert found == CORE | files
    pinned = dict(requirement.split("==") for requirement in package)
    assert pinned.keys() == packages | {"mujoco", "numpy"}
    for name, version in pinned.items():
        assert version == importlib.metadata.version(name.partition("[")[0])


def test_a_link_in_the_users_package_is_refused(beside, tmp_path):
    (beside / "my_envs" / "data").symlink_to("/etc")
    with pytest.raises(UsageError, match="symbolic link"):
        staged(tmp_path, "my_envs:Mine-v0")


def test_a_module_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UsageError, match="module 'nowhere'"):
        staged(tmp_path, "nowhere:Mine-v0")


def test_the_digest_follows_the_content(beside, tmp_path):
    for name in "123":
        if name == "3":
            (beside / "my_env.py").write_text("x = 2\n")
        staged(tmp_path, "my_env:Mine-v0", name)
    first, again, changed = (digest_of(tmp_path / name) for name in "123")
    assert first == again != changed


def test_a_wheel_of_what_is_shipped_names_the_dependencies_alone(tmp_path, monkeypatch):
    package, _ = staged(tmp_path, "ant")
    monkeypatch.chdir(tmp_path / "staging")
    monkeypatch.syspath_prepend(".")
    project = tomllib.loads(Path("pyproject.toml").read_text())
    assert project["build-system"]["requires"] == []
    backend = importlib.import_module(project["build-system"]["build-backend"])
    with zipfile.ZipFile(tmp_path / backend.build_wheel(tmp_path)) as wheel:
        names = wheel.namelist()
        folder = "flame_rl_actor-0.1.0.dist-info"
        metadata = message_from_bytes(wheel.read(f"{folder}/METADATA"))
        record = wheel.read(f"{folder}/RECORD").decode().split()
    assert {name.partition("/")[0] for name in names} == {folder}
    assert [line.partition(",")[0] for line in record] == names
    assert metadata["Name"] == "flame-rl-actor"
    assert metadata.get_all("Requires-Dist") == package


def test_executors_that_have_the_packages_install_none(tmp_path):
    assert stage_package(tmp_path, Environment("ant"), install=False) == []
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == []


@pytest.mark.parametrize(
    ("env_id", "packages"),
    [
        ("pettingzoo.sisl.multiwalker_v9", {"pettingzoo[sisl]"}),
        ("pettingzoo.butterfly.pistonball_v6", {"pettingzoo[butterfly]"}),
        ("mpe2.simple_spread_v3", {"pettingzoo", "mpe2"}),
        ("own_team_v0", {"pettingzoo"}),
        ("own_pistons_v0", {"pettingzoo[butterfly]", "supersuit"}),
        ("own_teams.both_v3", {"pettingzoo[butterfly,sisl]", "mpe2"}),
    ],
)
def test_several_agents_ask_for_their_packages(beside, tmp_path, monkeypatch, env_id, packages):
    versions = {"pettingzoo": "1.5", "mpe2": "1.6", "supersuit": "3.7"}
    real, extras = importlib.metadata.version, ["atari", "butterfly", "sisl"]
    monkeypatch.setattr(importlib.metadata, "version", lambda n: versions.get(n) or real(n))
    about = Message()
    for extra in extras:
        about["Provides-Extra"] = extra
    monkeypatch.setattr(importlib.metadata, "metadata", lambda name: about)
    (beside / "own_team_v0.py").write_text("from pettingzoo import ParallelEnv\n")
    (beside / "own_pistons_v0.py").write_text(
        "import numpy, supersuit as ss\ndef parallel_env():\n"
        "    from pettingzoo.butterfly import pistonball_v6\n"
    )
    (beside / "own_teams").mkdir()
    (beside / "own_teams" / "__init__.py").write_text("from pettingzoo import butterfly\n")
    (beside / "own_teams" / "both_v3.py").write_text(
        "import pettingzoo.sisl.multiwalker_v9\nimport mpe2.simple_v3\n"
    )
    package, files = staged(tmp_path, env_id)
    asked = dict(requirement.split("==") for requirement in package)
    assert asked.keys() - {"gymnasium[mujoco]", "mujoco", "numpy"} == packages
    assert all(asked[name] == versions[name.partition("[")[0]] for name in packages)
    own = {p for p in files - CORE if p.startswith(env_id.replace(".", "/").partition("/")[0])}
    assert bool(own) == env_id.startswith("own") and files == CORE | own


def test_several_agents_without_their_package_are_refused(beside, tmp_path, monkeypatch):
    def version(name):
        raise importlib.metadata.PackageNotFoundError(name)

    (beside / "own_team_v0.py").write_text("from pettingzoo import ParallelEnv\n")
    monkeypatch.setattr(importlib.metadata, "metadata", version)
    with pytest.raises(UsageError, match=r"needs pettingzoo.*--group agents"):
        staged(tmp_path, "own_team_v0")
