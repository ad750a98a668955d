"""The start of a command: packages that take long to import are imported only by those in need."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import flame_rl
from tests.helpers import ROOT, clean_environment, run_here

# torch imports sympy for shapes that are not numbers, which takes half a second.
NEEDLESS = {"sympy", "torch._dynamo", "matplotlib", "tensorboard", "mujoco", "rich"}


def test_a_run_imports_no_package_that_it_does_not_need(tmp_path):
    code = "import main, sys; main.run_command(sys.argv[1:]); print(*sys.modules)"
    flags = ("--local", "--workers", "0", "--iterations", "1", "--episodes-per-iter", "2")
    done = subprocess.run(
        [sys.executable, "-c", code, *flags, "--output", "run"],
        cwd=tmp_path,
        env=clean_environment(tmp_path),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    imported = set(done.stdout.splitlines()[-1].split())
    assert {"torch", "flame_rl.report.console"} <= imported
    assert not NEEDLESS & imported


def test_without_uv_a_line_says_what_to_type(tmp_path):
    for words in ((), ("--help",), ("evaluate", "run")):
        done = subprocess.run(
            # -S: without the packages of this environment.
            [sys.executable, "-S", str(ROOT / "main.py"), *words],
            cwd=tmp_path,
            env=clean_environment(tmp_path),
            capture_output=True,
            text=True,
        )
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
