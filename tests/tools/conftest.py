"""A short run, for the commands that take one."""

from __future__ import annotations

import pytest

from tests.helpers import run_here


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The folder in which `run` is one."""
    folder = tmp_path_factory.mktemp("trained")
    done = run_here(
        *("--local", "--workers", "0", "--iterations", "2", "--episodes-per-iter", "5"),
        *("--algorithm", "ppo", "--output", "run"),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return folder
