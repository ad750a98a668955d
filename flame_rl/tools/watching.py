"""Show a policy: the episodes of an evaluation, in a window or as a film."""

import contextlib
import ctypes.util
import importlib
import itertools
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import imageio.v2 as imageio
import numpy as np
from PIL import Image, ImageOps

from flame_rl.actor.collect import collect_episodes
from flame_rl.actor.failure import SimulatorError
from flame_rl.actor.simulators.agents import plain_simulator
from flame_rl.actor.simulators.plain import EnvironmentsSimulator
from flame_rl.system.errors import Interrupted, RunError, UsageError
from flame_rl.system.files import refuse_unless_file
from flame_rl.system.machine import has_display, require
from flame_rl.system.program import installs
from flame_rl.wire import messages

GROUP = "video"
SUFFIXES = (".mp4", ".gif")
_FPS, _GIF_FPS = 30, 50  # pictures per second: by default, and the most of a GIF
_GIF_WIDTH = 320  # in pixels: a GIF is in memory until it is closed
_OPENGL = (
    "MuJoCo draws with OpenGL. Without a display, on Debian or Ubuntu: "
    "`apt-get install libegl1 libgl1` (with MUJOCO_GL=egl, the default here) or "
    "`apt-get install libosmesa6` (with MUJOCO_GL=osmesa)"
)


def show(
    snapshot: messages.PolicySnapshot,
    request: messages.CollectRequest,
    video: Path | None,
    stop: threading.Event,
    on_step: Callable[[], None] = lambda: None,
) -> Iterator[messages.Episode]:
    """Play the requested episodes one after another and show them, in the film `video` (.mp4 or
    .gif) or a window; yields each when it is over, of several agents one for each. They equal an
    evaluation's to the bit. After every step `on_step` is called and `stop` is checked.

    Raises UsageError if the environment cannot be drawn or the film not be written, RunError if the
    environment failed, and Interrupted if `stop` was set; the film shows what was played till then.
    """
    if video is not None and not has_display():
        # pygame, which draws Gymnasium's classic control, would look for a display and complain.
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    simulator = drawing_simulator(request.environment, "human" if video is None else "rgb_array")
    with contextlib.ExitStack() as closing:
        closing.callback(simulator.close)
        looks = []  # a window is drawn by the environment's own reset and step
        if video is not None:
            looks.append(closing.enter_context(filming(video, simulator.first)))
        simulator.reset = _shown(simulator.reset, *looks)
        simulator.step = _shown(simulator.step, *looks, on_step)
        for index in request.indices:
            alone = replace(request, indices=(index,))
            played = collect_episodes(snapshot, alone, simulator, stop.is_set)
            if stop.is_set():
                raise Interrupted
            if isinstance(played, messages.CollectFailure):
                raise RunError(str(played))
            yield from played


def _shown(action: Callable[..., None], *then: Callable[[], None]) -> Callable[..., None]:
    """A simulator's reset or step, with what is called after it."""

    def do(*arguments: object) -> None:
        try:
            action(*arguments)
        except SimulatorError as error:
            if isinstance(error.__cause__, gymnasium.error.DependencyNotInstalled):
                raise _cannot_draw(error.__cause__) from error
            raise
        for each in then:
            each()

    return do


@contextlib.contextmanager
def filming(path: Path, env: Any) -> Iterator[Callable[[], None]]:
    """Within the block, each call adds a picture of an environment to a film, which is complete at
    its end: H.264 in an .mp4; a .gif has at most 50 pictures per second, each at most 320 pixels
    wide. Raises UsageError if `path` cannot be that of a film, or if a package is missing."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(f"--video: {path} must end in {' or '.join(SUFFIXES)}")
    refuse_unless_file(path, "--video: ")
    fps = float(env.metadata.get("render_fps") or _FPS)
    every, max_width = 1, math.inf
    # Colours are stored at half the resolution, so sizes must be even.
    options: dict[str, Any] = {"fps": fps, "macro_block_size": 2}
    if suffix == ".gif":
        every, max_width = math.ceil(fps / _GIF_FPS), _GIF_WIDTH
        options = {"duration": 1000 * every / fps, "loop": 0, "bits": 8}
    else:
        require("imageio_ffmpeg", "imageio-ffmpeg", GROUP)
    counter, writer, size = itertools.count(), None, None

    def add() -> None:
        nonlocal writer, size
        if next(counter) % every:
            return
        image = Image.fromarray(_picture(env))
        image = image.reduce(max(1, math.ceil(image.width / max_width)))
        if writer is None:  # nothing is written before the first picture
            writer, size = closing.enter_context(imageio.get_writer(path, **options)), image.size
        # A film has one size; an environment's pictures may change theirs.
        writer.append_data(np.asarray(ImageOps.pad(image, size)))

    with contextlib.ExitStack() as closing:
        yield add


def _picture(env: Any) -> np.ndarray:
    """What the environment looks like, uint8 [height, width, 3]."""
    try:
        picture = np.asarray(env.render())
    except (Exception, SystemExit) as error:
        raise _cannot_draw(error) from error
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
        promised = "where 'rgb_array' promises a picture, uint8 (height, width, 3)"
        raise UsageError(f"render returned {picture.dtype} {picture.shape}, {promised}")
    return picture


def _cannot_draw(error: BaseException) -> UsageError:
    """The error for the user, with a remedy if a package is missing."""
    why = f"{type(error).__name__}: {error}"
    if isinstance(error, gymnasium.error.DependencyNotInstalled):
        why = f"{error}. `{installs(GROUP)}` installs what Gymnasium's classic control needs"
    return UsageError(f"the environment cannot be drawn: {why}")


def drawing_simulator(environment: messages.Environment, mode: str) -> EnvironmentsSimulator:
    """A simulator whose environment draws itself, in a window ("human") or as pictures
    ("rgb_array"). Raises UsageError if it cannot, or if OpenGL or a display is missing."""
    try:
        simulator = plain_simulator(environment, mode)
    except SimulatorError as error:
        raise UsageError(f"{error}. {cannot_be_shown(environment.env_id, mode)}") from error
    env = simulator.first
    if getattr(env, "render_mode", None) != mode:
        raise cannot_be_shown(environment.env_id, mode)
    if renderer := getattr(env.unwrapped, "mujoco_renderer", None):
        follow_robot(renderer)
        if mode != "human":
            _find_opengl()
    return simulator


def cannot_be_shown(env_id: str, mode: str) -> UsageError:
    """The error for an environment without this mode of drawing."""
    needs = f"it needs a parameter render_mode, and {mode!r} in metadata['render_modes']"
    return UsageError(f"{env_id} cannot be shown: {needs}")


def follow_robot(renderer: Any) -> None:
    """Let MuJoCo's camera follow the robot, which walks out of a picture that stands still."""
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
    # By default Gymnasium takes glfw, whose windows need a display.
    egl = ctypes.util.find_library("EGL") or not ctypes.util.find_library("OSMesa")
    name = os.environ.setdefault("MUJOCO_GL", "egl" if egl else "osmesa")
    if name not in ("egl", "osmesa"):
        raise UsageError(f"MUJOCO_GL={name} needs a display, and there is none. {_OPENGL}")
    try:
        context = importlib.import_module(f"mujoco.{name}").GLContext(64, 64)
        context.make_current()
        context.free()
    # A missing library shows as ImportError, AttributeError or an error of OpenGL.
    except Exception as error:
        why = f"MUJOCO_GL={name}: {type(error).__name__}: {error}"
        raise UsageError(f"no OpenGL is found ({why}). {_OPENGL}") from error
