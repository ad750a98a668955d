"""Show a policy: the episodes of an evaluation, in a window or as a film."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np

from flame_rl.actor.collect import collect_episodes
from flame_rl.actor.failure import SimulatorError
from flame_rl.actor.simulators.simulator import Simulator
from flame_rl.backends.dispatch import refuse_unless_it_can_act
from flame_rl.system.errors import Interrupted, RunError, UsageError
from flame_rl.system.machine import has_display
from flame_rl.tools.drawing import cannot_draw, drawing_simulator, shrink_pictures
from flame_rl.tools.film import Film
from flame_rl.wire.messages import CollectFailure, CollectRequest, Episode, PolicySnapshot

# Pictures per second of an environment that does not say.
_FPS = 30


def show(
    snapshot: PolicySnapshot,
    request: CollectRequest,
    video: Path | None,
    stop: threading.Event,
    on_step: Callable[[], None] = lambda: None,
) -> Iterator[Episode]:
    """Play the requested episodes one after another and show them; yields each when it is over, of
    several agents one for each.

    The collector of training plays them, so they equal an evaluation's to the bit.

    Args:
        snapshot: the policy.
        request: names the episodes.
        video: the film to write; None: a window.
        stop: checked after every step.
        on_step: called after every step is shown.

    Raises:
        UsageError: the policy has layers that actors do not have, the environment cannot be drawn,
            or the film cannot be written.
        RunError: the environment failed.
        Interrupted: `stop` was set; the film shows what was played until then.
    """
    refuse_unless_it_can_act(snapshot)
    if video is not None and not has_display():
        # pygame, which draws Gymnasium's classic control, would look for a display and complain.
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    simulator = drawing_simulator(request.environment, "human" if video is None else "rgb_array")
    film = None
    try:
        fps = float(simulator.first.metadata.get("render_fps") or _FPS)
        if video is None:
            look = _Clock(fps).wait
        else:
            film = Film(video, fps)
            shrink_pictures(simulator.first, film.max_width)
            look = partial(film.add, partial(_picture, simulator.first))
        watched = _Watched(simulator, look, on_step)
        for index in request.indices:
            alone = replace(request, indices=(index,))
            played = collect_episodes(snapshot, alone, watched, stop.is_set)
            if stop.is_set():
                raise Interrupted
            if isinstance(played, CollectFailure):
                raise RunError(str(played))
            yield from played
    finally:
        if film is not None:
            film.close()
        simulator.close()


class _Watched:
    """A simulator that calls `look` after every reset and step, and `on_step` after every step. One
    episode is played at a time, in the simulator's first environment."""

    def __init__(
        self, simulator: Simulator, look: Callable[[], None], on_step: Callable[[], None]
    ) -> None:
        self._simulator = simulator
        self._look = look
        self._on_step = on_step

    def __getattr__(self, name: str) -> object:
        return getattr(self._simulator, name)

    def reset(self, *arguments: object) -> None:
        self._do(self._simulator.reset, arguments)

    def step(self, *arguments: object) -> None:
        self._do(self._simulator.step, arguments)
        self._on_step()

    def _do(self, action: Callable[..., None], arguments: tuple[object, ...]) -> None:
        try:
            action(*arguments)
            self._look()
        except SimulatorError as error:
            # A window is drawn by the environment's own reset and step.
            if isinstance(error.__cause__, gymnasium.error.DependencyNotInstalled):
                raise cannot_draw(error.__cause__) from error
            raise


def _picture(env: gymnasium.Env) -> np.ndarray:
    """What the environment looks like, uint8 [height, width, 3]."""
    try:
        picture = np.asarray(env.render())
    except Exception as error:
        raise cannot_draw(error) from error
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
        raise UsageError(
            f"render returned {picture.dtype} {picture.shape}, where 'rgb_array' promises a "
            "picture, uint8 (height, width, 3)"
        )
    return picture


class _Clock:
    """Keeps a window from running faster than real time."""

    def __init__(self, fps: float) -> None:
        self._seconds = 1 / fps
        self._next = time.monotonic()

    def wait(self) -> None:
        now = time.monotonic()
        time.sleep(max(0.0, self._next - now))
        self._next = max(self._next, now) + self._seconds
