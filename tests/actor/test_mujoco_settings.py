"""Settings of MuJoCo that hold for a whole process."""

from __future__ import annotations

import os
import subprocess
import sys

import mujoco
import pytest

# Plays an environment of Gymnasium's, one of this package's, and one of Gymnasium's again, with
# MuJoCo's clock as it is at first or with another; prints whether the bits are the same, then the
# seconds that MuJoCo has counted in each.
PLAY = """
import gymnasium, mujoco, threading
import numpy as np
from flame_rl.backends.local import InlineBackend
from flame_rl.wire.messages import Environment

def play(env):
    seen = [env.reset(seed=1)[0]]
    rng = np.random.default_rng(2)
    seen += [env.step(rng.uniform(-1, 1, 3).astype(np.float32))[0] for _ in range(200)]
    return np.array(seen).tobytes(), sum(timer.duration for timer in env.unwrapped.data.timer)

{own}
before, counted_before = play(gymnasium.make("Hopper-v5"))
backend = InlineBackend(threading.Event())
backend.describe(Environment("Hopper-v5", simulator="plain"))
during, counted_during = play(backend._simulator.first)
backend.close()
after, counted_after = play(gymnasium.make("Hopper-v5"))
print(before == during == after, counted_before, counted_during, counted_after)
"""
OWN = "mujoco.set_mjcb_time(lambda times=iter(range(10**9)): next(times))"


@pytest.mark.skipif(mujoco.__version__ < "4", reason="each MjData installs a clock")
@pytest.mark.parametrize(("own", "stops"), [("", True), (OWN, False)])
def test_mujoco_reads_no_clock_but_the_users(own, stops):
    same_bits, before, during, after = run(PLAY.format(own=own)).split()
    assert same_bits == "True"
    assert float(before) > 0 and (float(during) == 0) == stops
    assert float(after) > 0


# Makes an environment without MuJoCo, and tries one with it; prints the error.
NO_RENDERER = """
import sys
from flame_rl.actor.environments.making import make_environment
from flame_rl.actor.failure import SimulatorError
from flame_rl.wire.messages import Environment

make_environment(Environment("tests.environments:ShortPole-v0"))
assert "mujoco" not in sys.modules
try:
    make_environment(Environment("Hopper-v5"))
except SimulatorError as error:
    print(error, repr(error.cause))
"""


def test_a_missing_renderer_concerns_mujoco_alone():
    printed = run(NO_RENDERER, MUJOCO_GL="no_such")
    assert "MUJOCO_GL" in printed and "no_such" in printed and "disabled" in printed
    assert printed.endswith("''\n")  # the sentence says it all, without a traceback


def test_what_a_site_hook_prints_concerns_glfw_alone(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('hello there')")
    printed = run(NO_RENDERER, PYTHONPATH=f"{tmp_path}:.")
    assert "glfw" in printed and "sitecustomize" in printed and printed.endswith("''\n")


def run(program: str, **variables: str) -> str:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | variables)
    assert done.returncode == 0, done.stderr
    return done.stdout
