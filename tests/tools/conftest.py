"""A short run, for the commands that take one."""

import pytest

from tests.helpers import finished_run


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The folder in which `run` is one."""
    words = ("--local", "--workers", "0", "--iterations", "2", "--episodes-per-iter", "5")
    more = ("--algorithm", "ppo", "--max-episode-steps", "30")
    return finished_run(tmp_path_factory, *words, *more).parent
