"""Prepare an environment that draws itself: render mode, camera, OpenGL and display."""

from __future__ import annotations

import ctypes.util
import importlib
import os
import sys
import warnings
from typing import Any

import gymnasium

from flame_rl.actor.failure import SimulatorError
from flame_rl.actor.simulators.agents import AgentsSimulator
from flame_rl.actor.simulators.choose import plain_simulator
from flame_rl.actor.simulators.plain import PlainSimulator
from flame_rl.system.errors import UsageError
from flame_rl.system.machine import has_display
from flame_rl.tools.film import GROUP, reduction
from flame_rl.wire.messages import Environment

_OPENGL = (
    "MuJoCo draws with OpenGL. Without a display, on Debian or Ubuntu: "
    "`apt-get install libegl1 libgl1` (with MUJOCO_GL=egl, the default here) or "
    "`apt-get install libosmesa6` (with MUJOCO_GL=osmesa)"
)


def drawing_simulator(environment: Environment, mode: str) -> PlainSimulator | AgentsSimulator:
    """A simulator whose environment draws itself.

    Args:
        environment: the environment of the episodes to show.
        mode: "human" for a window, "rgb_array" for pictures.

    Raises:
        UsageError: the environment cannot be drawn in this mode, or OpenGL or a display is missing.
    """
    try:
        simulator = plain_simulator(environment, mode)
    except SimulatorError as error:
        raise UsageError(
            f"{error}. An environment that can be shown has a parameter render_mode, and {mode!r} "
            "in metadata['render_modes']"
        ) from error
    env = simulator.first
    if getattr(env, "render_mode", None) != mode:
        modes = ", ".join(env.metadata.get("render_modes", [])) or "nothing"
        raise UsageError(
            f"{environment.env_id} cannot be shown: metadata['render_modes'] has {modes}, "
            f"not {mode}"
        )
    renderer = getattr(env.unwrapped, "mujoco_renderer", None)
    if renderer is not None:
        _follow(renderer)
        if mode == "rgb_array":
            _find_opengl()
        else:
            _find_display()
    return simulator


def shrink_pictures(env: gymnasium.Env, max_width: float) -> None:
    """Let MuJoCo draw the pictures at most `max_width` wide, as `reduction` would make them.

    Without a graphics card, shadows are most of the work: their resolution is reduced alike. Other
    environments draw at a size of their own.
    """
    renderer = getattr(env.unwrapped, "mujoco_renderer", None)
    if renderer is not None:
        divisor = reduction(renderer.width, max_width)
        # All three are read when the first picture is drawn.
        renderer.width, renderer.height = renderer.width // divisor, renderer.height // divisor
        renderer.model.vis.quality.shadowsize //= divisor


def _follow(renderer: Any) -> None:
    """Let the camera follow the robot. Gymnasium's default camera stands still, and an ant walks
    out of the picture."""
    config = renderer.default_cam_config or {}
    body = config.get("trackbodyid", 1)
    # Body 0 is the world, which does not move; camera -1 is free, not one that the model names.
    if renderer.camera_id == -1 and body > 0:
        tracking = 1  # mujoco.mjtCamera.mjCAMERA_TRACKING
        renderer.camera_id = None
        renderer.default_cam_config = {**config, "trackbodyid": body, "type": tracking}


def _find_opengl() -> None:
    """Choose how MuJoCo draws without a display, and check that it can."""
    if has_display() or sys.platform != "linux":
        return
    if "MUJOCO_GL" not in os.environ:
        # By default Gymnasium takes glfw, whose windows need a display.
        egl = ctypes.util.find_library("EGL") or not ctypes.util.find_library("OSMesa")
        os.environ["MUJOCO_GL"] = "egl" if egl else "osmesa"
    name = os.environ["MUJOCO_GL"]
    if name not in ("egl", "osmesa"):
        raise UsageError(f"MUJOCO_GL={name} needs a display, and there is none. {_OPENGL}")
    try:
        context = importlib.import_module(f"mujoco.{name}").GLContext(64, 64)
        context.make_current()
        context.free()
    # A missing library shows as ImportError, AttributeError or an error of OpenGL.
    except Exception as error:
        raise UsageError(
            f"no OpenGL is found (MUJOCO_GL={name}: {type(error).__name__}: {error}). {_OPENGL}"
        ) from error


def _find_display() -> None:
    """Check that the display answers: if not, opening a window of MuJoCo's ends the process."""
    import glfw

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", glfw.GLFWError)
        if not glfw.init():
            raise UsageError(
                f"the display cannot be used (DISPLAY={os.environ.get('DISPLAY', '')}): start one, "
                "or write a film with --video FILE.mp4"
            )


def cannot_draw(error: Exception) -> UsageError:
    """The error for the user, with a remedy if a package is missing."""
    if isinstance(error, gymnasium.error.DependencyNotInstalled):
        return UsageError(
            f"the environment cannot be drawn: {error}. `uv run --group {GROUP} main.py …` "
            "installs what Gymnasium's classic control needs"
        )
    return UsageError(f"the environment cannot be drawn: {type(error).__name__}: {error}")
