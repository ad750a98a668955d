"""The package in another project, where it is installed and its folder is not the current one."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
import venv
import zipfile

import pytest

from tests.helpers import ROOT, run_forked

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SCRIPT = """
from pathlib import Path
from flame_rl import Policy, TrainConfig, Trainer

config = TrainConfig("cartpole", iterations=1, episodes_per_iter=2, local=True, workers=1)
with Trainer(config) as trainer:
    trainer.train()
    trainer.save("some.ckpt")
    observation = trainer.spec.observation_space.sample()
    assert Policy.load("some.ckpt").act(observation) == trainer.compute_action(observation)
import flame_rl, model
print(Path(flame_rl.__file__).parent.parent, Path(model.__file__).parent, sep="\\n")
"""


@pytest.fixture
def installed(tmp_path):
    """Where an installer puts what the wheel holds."""
    site = tmp_path / "site"
    site.mkdir()
    for name in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, site / name)
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
    assert done.returncode == 0 and done.stdout.split() == [str(installed)] * 2, done.stderr


def test_a_model_beside_the_script_wins(installed, project):
    shutil.copy(ROOT / "model.py", project)
    done = run(project, installed)
    assert done.stdout.split() == [str(installed), str(project)], done.stderr


def test_a_model_that_is_something_else_is_explained(installed, project):
    (project / "model.py").write_text("class Car:\n    pass\n")
    done = run(project, installed)
    assert done.returncode == 1
    assert f"UsageError: {project / 'model.py'}: " in done.stderr
    assert "or give this file another name" in done.stderr


def test_uv_takes_the_project_as_a_package():
    """Without a build system, or with package = false, `uv add` succeeds and installs nothing."""
    assert PROJECT["build-system"]["build-backend"]
    assert PROJECT["tool"].get("uv", {}).get("package", True)


@pytest.mark.slow
def test_pip_builds_and_installs_it(project, tmp_path):
    """Needs a package registry, for the build backend."""
    builder = tmp_path / "builder"
    venv.create(builder, with_pip=True)
    pip = [builder / "bin" / "python", "-m", "pip", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", tmp_path, ROOT], check=True)
    (wheel,) = tmp_path.glob("flame_rl-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"model.py", "flame_rl/run/policy.py"} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    site = tmp_path / "site"
    subprocess.run([*pip, "install", "--no-deps", "--target", site, wheel], check=True)
    done = run(project, site)
    assert done.returncode == 0 and done.stdout.split() == [str(site)] * 2, done.stderr
