"""The lowest versions that pyproject.toml promises, in an environment of their own."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.helpers import ROOT

PART = ("tests/wire", "tests/nets", "tests/settings")


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
