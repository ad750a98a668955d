"""Settings of MuJoCo that hold for a whole process."""

from __future__ import annotations

import subprocess
import sys

import mujoco
import pytest

# Plays an environment of Gymnasium's and then one of this package's, with MuJoCo's clock as it is
# at first or with another; prints whether the bits are the same, then the seconds that MuJoCo has
# counted in each.
PLAY = """
import gymnasium, mujoco
import numpy as np
from flame_rl.actor.simulators.choose import plain_simulator
from flame_rl.wire.messages import Environment

def play(env):
    seen = [env.reset(seed=1)[0]]
    rng = np.random.default_rng(2)
    seen += [env.step(rng.uniform(-1, 1, 3).astype(np.float32))[0] for _ in range(200)]
    return np.array(seen).tobytes(), sum(timer.duration for timer in env.unwrapped.data.timer)

{own}
before, counted_before = play(gymnasium.make("Hopper-v5"))
after, counted_after = play(plain_simulator(Environment("Hopper-v5")).first)
print(before == after, counted_before, counted_after)
"""
OWN = "mujoco.set_mjcb_time(lambda times=iter(range(10**9)): next(times))"


@pytest.mark.skipif(mujoco.__version__ < "4", reason="each MjData installs a clock")
@pytest.mark.parametrize(("own", "stops"), [("", True), (OWN, False)])
def test_mujoco_reads_no_clock_but_the_users(own, stops):
    program = [sys.executable, "-c", PLAY.format(own=own)]
    printed = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    same_bits, before, after = printed.split()
    assert same_bits == "True"
    assert float(before) > 0 and (float(after) == 0) == stops
