"""Look at a policy: the very episodes of an evaluation, in a window or as a film."""

from __future__ import annotations

import ctypes.util
import importlib
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from flame_rl.actor.collect import collect_episodes
from flame_rl.actor.failure import SimulatorError
from flame_rl.actor.simulators.plain import PlainSimulator
from flame_rl.system.display import has_display
from flame_rl.system.errors import Interrupted, RunError, UsageError
from flame_rl.tools.film import GROUP, Film, make_film
from flame_rl.wire.messages import CollectFailure, CollectRequest, Episode, PolicySnapshot

_FPS = 30
_OPENGL = (
    "MuJoCo draws with OpenGL. Without a display, on Debian or Ubuntu: "
    "`apt-get install libegl1 libgl1` (with MUJOCO_GL=egl, the default here) or "
    "`apt-get install libosmesa6` (with MUJOCO_GL=osmesa)"
)


def show(
    snapshot: PolicySnapshot, request: CollectRequest, video: Path | None, stop: threading.Event
) -> Iterator[Episode]:
    """Play the requested episodes one after another and show them; yields each when it is over.

    They are played by the same code as everywhere, so they are the same to the bit.

    Args:
        snapshot: the policy.
        request: which episodes.
        video: the film to write; None: a window.
        stop: looked at after every step.

    Raises:
        UsageError: the environment cannot be drawn, or the film not be written.
        RunError: the environment failed.
        Interrupted: `stop` was set; the film shows what was played until then.
    """
    if video is not None and not has_display():
        # pygame, which draws Gymnasium's classic control, would look for a display and complain.
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    simulator = _drawing_simulator(request, "human" if video is None else "rgb_array")
    film = None
    try:
        fps = float(simulator.first.metadata.get("render_fps") or _FPS)
        film = None if video is None else make_film(video, fps)
        look = _Clock(fps).wait if film is None else _filming(simulator.first, film)
        shown = _Shown(simulator, look)
        for index in request.indices:
            alone = replace(request, indices=(index,))
            played = collect_episodes(snapshot, alone, shown, stop.is_set)
            if stop.is_set():
                raise Interrupted
            if isinstance(played, CollectFailure):
                raise RunError(str(played))
            yield from played
    finally:
        if film is not None:
            film.close()
        simulator.close()


def _drawing_simulator(request: CollectRequest, mode: str) -> PlainSimulator:
    try:
        simulator = PlainSimulator(request.environment, mode)
    except SimulatorError as error:
        raise UsageError(
            f"{error}. An environment that can be shown has a parameter render_mode, and {mode!r} "
            "in metadata['render_modes']"
        ) from error
    env = simulator.first
    if env.render_mode != mode:
        modes = ", ".join(env.metadata.get("render_modes", [])) or "nothing"
        env_id = request.environment.env_id
        raise UsageError(
            f"{env_id} cannot be shown: metadata['render_modes'] has {modes}, not {mode}"
        )
    renderer = getattr(env.unwrapped, "mujoco_renderer", None)
    if renderer is not None:
        _follow(renderer)
        if mode == "rgb_array":
            _find_opengl()
        else:
            _find_display()
    return simulator


def _follow(renderer: Any) -> None:
    """Let the camera go with the robot. By itself, Gymnasium's stands still, and an ant walks out
    of the picture."""
    config = renderer.default_cam_config or {}
    body = config.get("trackbodyid", 1)
    # The world itself is body 0; -1 is a free camera, where the model does not name another.
    if renderer.camera_id == -1 and body > 0:
        tracking = 1  # mujoco.mjtCamera.mjCAMERA_TRACKING
        renderer.camera_id = None
        renderer.default_cam_config = {**config, "trackbodyid": body, "type": tracking}


class _Shown:
    """A simulator that is looked at after every step. With one episode at a time, that is in its
    first slot."""

    def __init__(self, simulator: PlainSimulator, look: Callable[[], None]) -> None:
        self._simulator = simulator
        self._look = look

    def __getattr__(self, name: str) -> object:
        return getattr(self._simulator, name)

    def reset(self, *arguments: object) -> None:
        self._do(self._simulator.reset, arguments)

    def step(self, *arguments: object) -> None:
        self._do(self._simulator.step, arguments)

    def _do(self, action: Callable[..., None], arguments: tuple[object, ...]) -> None:
        try:
            action(*arguments)
            self._look()
        except SimulatorError as error:
            # A window is drawn by the environment's own reset and step.
            if isinstance(error.__cause__, gymnasium.error.DependencyNotInstalled):
                raise _cannot_draw(error.__cause__) from error
            raise


def _filming(env: gymnasium.Env, film: Film) -> Callable[[], None]:
    def look() -> None:
        try:
            picture = env.render()
        except Exception as error:
            raise _cannot_draw(error) from error
        array = np.asarray(picture)
        if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
            raise UsageError(
                f"render returned {array.dtype} {array.shape}, where 'rgb_array' promises a "
                "picture, uint8 (height, width, 3)"
            )
        film.add(array)

    return look


class _Clock:
    """Keeps a window from running faster than life."""

    def __init__(self, fps: float) -> None:
        self._seconds = 1 / fps
        self._next = time.monotonic()

    def wait(self) -> None:
        now = time.monotonic()
        time.sleep(max(0.0, self._next - now))
        self._next = max(self._next, now) + self._seconds


def _find_opengl() -> None:
    """Choose how MuJoCo draws where there is no display, and see that it can."""
    if has_display() or sys.platform != "linux":
        return
    if "MUJOCO_GL" not in os.environ:
        # Left alone, Gymnasium takes glfw, whose windows need a display.
        egl = ctypes.util.find_library("EGL") or not ctypes.util.find_library("OSMesa")
        os.environ["MUJOCO_GL"] = "egl" if egl else "osmesa"
    name = os.environ["MUJOCO_GL"]
    if name not in ("egl", "osmesa"):
        raise UsageError(f"MUJOCO_GL={name} needs a display, and there is none. {_OPENGL}")
    try:
        context = importlib.import_module(f"mujoco.{name}").GLContext(64, 64)
        context.make_current()
        context.free()
    # What a library that is not there leads to: ImportError, AttributeError, an error of OpenGL.
    except Exception as error:
        raise UsageError(
            f"no OpenGL is found (MUJOCO_GL={name}: {type(error).__name__}: {error}). {_OPENGL}"
        ) from error


def _find_display() -> None:
    """A window of MuJoCo's on a display that does not answer would end the process."""
    import glfw

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", glfw.GLFWError)
        if not glfw.init():
            raise UsageError(
                f"the display cannot be used (DISPLAY={os.environ.get('DISPLAY', '')}): start one, "
                "or write a film with --video FILE.mp4"
            )


def _cannot_draw(error: Exception) -> UsageError:
    if isinstance(error, gymnasium.error.DependencyNotInstalled):
        return UsageError(
            f"the environment cannot be drawn: {error}. `uv run --group {GROUP} main.py …` "
            "installs what Gymnasium's classic control needs"
        )
    return UsageError(f"the environment cannot be drawn: {type(error).__name__}: {error}")
