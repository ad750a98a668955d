"""The start of a command: packages that take long to import are imported only by those in need."""

from __future__ import annotations

import subprocess
import sys

from tests.helpers import clean_environment

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
