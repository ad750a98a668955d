"""The package in another project, where it is installed and its folder is not the current one."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import flame_rl
from tests.helpers import ROOT, run_anew, run_forked, run_here

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SCRIPT = """
from pathlib import Path
from flame_rl import Policy, TrainConfig, Trainer
from flame_rl.learner.own_model import model_of

config = TrainConfig("cartpole", iterations=1, episodes_per_iter=2, local=True, workers=1)
with Trainer(config) as trainer:
    trainer.train()
    trainer.save("some.ckpt")
    observation = trainer.spec.observation_space.sample()
    assert Policy.load("some.ckpt").act(observation) == trainer.compute_action(observation)
import flame_rl
print(Path(flame_rl.__file__).parent.parent, model_of(config).__file__, sep="\\n")
"""
# As a script that an installer makes.
CONSOLE = """
import sys
from flame_rl.__main__ import command
sys.argv[0] = "flame-rl"
command()
"""
OWN_ENV = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
gymnasium.register("Own-v0", CartPoleEnv, max_episode_steps=20)
"""
OWN_MODEL = "print('own networks')\nfrom flame_rl.model import *\n"


@pytest.fixture
def installed(tmp_path):
    """Where an installer puts what the wheel holds."""
    site = tmp_path / "site"
    site.mkdir()
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    for name in wheel["only-include"]:
        shutil.copytree(ROOT / name, site / name)
    for name, place in wheel["force-include"].items():
        shutil.copy(ROOT / name, site / place)
    return site


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    return folder


def run(folder, site):
    environment = {"PYTHONPATH": str(site)}
    return run_forked(folder / "train.py", cwd=folder, environment=environment)


def test_it_trains_and_acts_in_another_project(installed, project):
    done = run(project, installed)
    found = [str(installed), str(installed / "flame_rl" / "model.py")]
    assert done.returncode == 0 and done.stdout.split() == found, done.stderr


@pytest.mark.parametrize("place", ["beside the script", "in the current folder"])
def test_a_model_of_ones_own_wins(installed, project, tmp_path, place):
    folder = project if place == "beside the script" else tmp_path
    shutil.copy(ROOT / "model.py", folder)
    environment = {"PYTHONPATH": str(installed)}
    done = run_forked(project / "train.py", cwd=tmp_path, environment=environment)
    assert done.stdout.split() == [str(installed), str(folder / "model.py")], done.stderr


def test_a_model_that_is_something_else_is_explained(installed, project):
    (project / "model.py").write_text("class Car:\n    pass\n")
    done = run(project, installed)
    assert done.returncode == 1
    assert f"UsageError: {project / 'model.py'}: " in done.stderr
    assert "or give this file another name" in done.stderr


def test_the_command_needs_nothing_but_its_folder(installed, project, tmp_path):
    """An environment and networks of the user's lie there; what it says next is typed so."""
    (project / "own_env.py").write_text(OWN_ENV)
    (project / "nets.py").write_text(OWN_MODEL)
    (tmp_path / "flame-rl").write_text(CONSOLE)
    environment = {"PYTHONPATH": str(installed)}

    def typed(*words: str, code: int = 0) -> str:
        script = tmp_path / "flame-rl"
        done = run_forked(script, *words, cwd=project, environment=environment)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    flags = ("--iterations", "1", "--episodes-per-iter", "2", "--workers", "1", "--local")
    words = ("--env", "own_env:Own-v0", "--model", "nets.py", *flags, "--seeds", "3")
    said = typed("train", *words, "--output", "runs")
    assert "\n  flame-rl plot runs\n" in said
    printed = (project / "runs" / "seed-3.txt").read_text()
    assert "own networks" in printed and "\n  flame-rl evaluate runs/seed-3\n" in printed
    assert "own networks" in typed("evaluate", "runs/seed-3", "--episodes", "1", "--local")
    assert typed("--help").startswith("usage: flame-rl ")
    if importlib.util.find_spec("Box2D") is None:
        said = typed("--env", "LunarLander-v3", "--local", code=2)
        assert "pip install 'flame-rl[box2d]'" in said


def test_networks_in_a_run_folder_are_not_run_unless_they_are_trusted(project, monkeypatch):
    from flame_rl.run.folder import refuse_modules_in
    from flame_rl.run.policy import Policy
    from flame_rl.run.trainer import Trainer
    from flame_rl.settings.config import TrainConfig
    from flame_rl.system.errors import UsageError

    monkeypatch.chdir(project)
    given = project / "given"
    (given / "checkpoints").mkdir(parents=True)
    (given / "nets.py").write_text("from flame_rl.model import *\n")
    config = TrainConfig(model="given/nets.py", workers=0, local=True)
    with Trainer(config) as trainer:
        trainer.save(given / "checkpoints" / "best.ckpt")
    monkeypatch.delitem(sys.modules, str(given / "nets.py"))
    (given / "nets.py").write_text("raise SystemError('was run')\n")
    for load in (Policy.load, Trainer.load):
        with pytest.raises(UsageError, match=r"file given/nets\.py lies in the run folder and"):
            load("given")
    (given / "nets.py").rename("nets.py")
    for name in ("given/nets.py", "cartpole.json"):
        Path("cartpole.json").touch()
        with pytest.raises(UsageError, match=rf"^--model: {name} is no \.py file"):
            Trainer(config.changed(model=name))
    (given / "model.py").symlink_to(project / "nets.py")
    monkeypatch.chdir(given)
    with pytest.raises(UsageError, match=r"file model\.py lies in the run folder and"):
        refuse_modules_in(Path(), TrainConfig())


def test_uv_takes_the_project_as_a_package():
    """Without a build system, or with package = false, `uv add` succeeds and installs nothing."""
    assert PROJECT["build-system"]["build-backend"]
    assert PROJECT["tool"].get("uv", {}).get("package", True)


def test_each_extra_is_a_group_of_the_clone():
    extras, groups = PROJECT["project"]["optional-dependencies"], PROJECT["dependency-groups"]
    assert groups.keys() - {"dev", "types", "docs", "learning"} == extras.keys()
    assert all(groups[name] == [f"flame-rl[{name}]"] for name in extras)


@pytest.mark.slow
def test_pip_builds_and_installs_it(project, tmp_path):
    """Needs a package registry, for the build backend."""
    builder = tmp_path / "builder"
    venv.create(builder, with_pip=True)
    pip = [builder / "bin" / "python", "-m", "pip", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", tmp_path, ROOT], check=True)
    (wheel,) = tmp_path.glob("flame_rl-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert archive.read("flame_rl/model.py") == (ROOT / "model.py").read_bytes()
        (metadata,) = (archive.read(each).decode() for each in names if each.endswith("METADATA"))
    assert {name.partition("/")[0] for name in names if "dist-info" not in name} == {"flame_rl"}
    assert {"flame_rl/py.typed", "flame_rl/run/policy.py"} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert "# Flame RL" in metadata and "](docs/" not in metadata and "<img" not in metadata
    assert "Provides-Extra: tune" in metadata
    site = tmp_path / "site"
    subprocess.run([*pip, "install", "--no-deps", "--target", site, wheel], check=True)
    done = run(project, site)
    found = [str(site), str(site / "flame_rl" / "model.py")]
    assert done.returncode == 0 and done.stdout.split() == found, done.stderr
    script, environment = str(site / "bin" / "flame-rl"), {"PYTHONPATH": str(site)}
    done = run_anew(script, "--version", cwd=tmp_path, environment=environment)
    assert done.stdout.startswith("flame-rl "), done.stderr


# torch imports sympy for shapes that are not numbers, which takes half a second.
NEEDLESS = {"sympy", "torch._dynamo", "matplotlib", "tensorboard", "mujoco", "rich"}


def test_a_run_imports_no_package_that_it_does_not_need(tmp_path):
    code = "import main, sys; main.run_command(sys.argv[1:]); print(*sys.modules)"
    flags = ("--local", "--workers", "0", "--iterations", "1", "--episodes-per-iter", "2")
    done = run_anew("-c", code, *flags, "--output", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    imported = set(done.stdout.splitlines()[-1].split())
    assert {"torch", "flame_rl.report.console"} <= imported
    assert not NEEDLESS & imported


def test_without_uv_a_line_says_what_to_type(tmp_path):
    for words in ((), ("--help",), ("evaluate", "run")):
        # -S: without the packages of this environment.
        done = run_anew("-S", str(ROOT / "main.py"), *words, cwd=tmp_path)
        assert done.returncode == 2 and done.stdout == ""
        assert done.stderr.startswith("error: No module named ")
        assert "`uv run main.py …` installs what is missing" in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_the_version_is_one(tmp_path):
    done = run_here("--version", cwd=tmp_path)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert done.returncode == 0
    assert done.stdout == f"flame-rl {flame_rl.__version__}\n"
    assert project["license"] == "Apache-2.0" and (ROOT / "LICENSE").is_file()
    assert project.get("version", flame_rl.__version__) == flame_rl.__version__


PART = ("tests/wire", "tests/nets", "tests/settings")
PART += ("tests/run/test_trainer.py::test_what_is_set_around_it_changes_nothing",)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not installed")
def test_the_lowest_versions_pass_a_part_of_the_suite(tmp_path):
    project = tmp_path / "project"
    kept = shutil.ignore_patterns(".*", "runs", "uv.lock", "__pycache__")
    shutil.copytree(ROOT, project, ignore=kept)
    own = {"VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT"}
    environment = {name: text for name, text in os.environ.items() if name not in own}
    for words in (
        ("uv", "sync", "--quiet", "--resolution", "lowest-direct"),
        (project / ".venv/bin/python", "-m", "pytest", "-q", "-n", "1", *PART),
    ):
        done = subprocess.run(
            words, cwd=project, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
