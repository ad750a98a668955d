"""Pong as Gymnasium prepares it: `--env benchmarks.pong:Pong-v0`; needs the group `atari`."""

from __future__ import annotations

import ale_py
import gymnasium
from gymnasium.wrappers import AtariPreprocessing


def pong(render_mode: str | None = None) -> gymnasium.Env:
    """A quarter of the frames, gray, 84 x 84."""
    env = gymnasium.make("ALE/Pong-v5", frameskip=1, render_mode=render_mode)
    return AtariPreprocessing(env, screen_size=84, grayscale_obs=True, frame_skip=4)


gymnasium.register_envs(ale_py)
gymnasium.register("Pong-v0", pong, max_episode_steps=5000)
