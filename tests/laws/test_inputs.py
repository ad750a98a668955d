"""Runs that see a picture beside numbers are evaluated, watched and exported."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from tests.helpers import environment_id, run_here


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    done = run_here(
        *("--local", "--workers", "0", "--iterations", "2", "--episodes-per-iter", "9"),
        *("--algorithm", "ppo", "--hidden-sizes", "6", "--output", "run"),
        *("--env", environment_id("DrawnInputs"), "--observe", "camera", "arm"),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_it_is_evaluated_watched_and_resumed(trained):
    saved = json.loads((trained / "run" / "config.json").read_text())
    assert saved["experiment"]["observe"] == ["camera", "arm"]
    words = ("evaluate", "run", "--episodes", "3", "--json", "--local", "--workers", "0")
    found = run_here(*words, cwd=trained)
    assert found.returncode == 0 and json.loads(found.stdout)["episodes"] == 3
    shown = run_here("watch", "run", "--video", "film.gif", "--episodes", "1", cwd=trained)
    assert shown.returncode == 0, shown.stderr
    with Image.open(trained / "film.gif") as film:
        assert film.n_frames == 5
    resumed = run_here("--resume", "run", "--iterations", "3", "--local", cwd=trained)
    assert resumed.returncode == 0, resumed.stderr


def test_the_check_takes_pictures_for_pictures(tmp_path):
    """Their numbers are not far from 1, because the network scales them."""
    words = ("--observe", "camera", "arm", "--seconds", "0.2", "--json")
    done = run_here("check", "--env", environment_id("DrawnInputs"), *words, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a picture of 5 x 6, channels: 1 and 2 numbers" in done.stdout
    assert "go beyond 100" not in done.stdout
