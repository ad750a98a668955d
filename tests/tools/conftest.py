"""A short run, for the commands that take one."""

import pytest

from tests.helpers import run_ok


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The folder in which `run` is one."""
    folder = tmp_path_factory.mktemp("trained")
    run_ok(
        *("--local", "--workers", "0", "--iterations", "2", "--episodes-per-iter", "5"),
        *("--algorithm", "ppo", "--max-episode-steps", "30", "--output", "run"),
        cwd=folder,
    )
    return folder
