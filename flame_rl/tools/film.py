"""Write pictures as a film: .mp4, or .gif, which needs no optional package."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Protocol

import numpy as np
from PIL import Image

from flame_rl.system.errors import UsageError
from flame_rl.system.optional import require

GROUP = "video"
# Viewers play a GIF with more pictures per second at a speed of their own.
_GIF_FPS = 50


class Film(Protocol):
    """A film of pictures, uint8 [height, width, 3], all of one size; is on disk after `close`.

    Attributes:
        max_width: in pixels; wider pictures are reduced by a whole number.
    """

    max_width: float

    def add(self, draw: Callable[[], np.ndarray]) -> None:
        """Add the next picture. Calls `draw`, which returns it, only if the film keeps it."""

    def close(self) -> None: ...


def reduction(width: int, max_width: float) -> int:
    """The number by which the sides of a picture are divided, so that it is at most `max_width`
    wide."""
    return max(1, math.ceil(width / max_width))


def make_film(path: Path, fps: float) -> Film:
    """Make a film of the kind that the path's suffix names.

    Args:
        path: of the file to write.
        fps: pictures per second.

    Raises:
        UsageError: the suffix is unknown, the folder does not exist, or a package is missing.
    """
    kinds = {".mp4": Mp4, ".gif": Gif}
    if path.suffix.lower() not in kinds:
        raise UsageError(f"--video: {path} must end in {' or '.join(kinds)}")
    if not path.parent.is_dir() or path.is_dir():
        raise UsageError(f"--video: {path}: name a file in a folder that exists")
    return kinds[path.suffix.lower()](path, fps)


class Mp4:
    """An H.264 file, written as the pictures come."""

    max_width = math.inf

    def __init__(self, path: Path, fps: float) -> None:
        self._ffmpeg = require("imageio_ffmpeg", "imageio-ffmpeg", GROUP)
        self._path = path
        self._fps = fps
        self._writer: Generator[None, np.ndarray, None] | None = None

    def add(self, draw: Callable[[], np.ndarray]) -> None:
        picture = draw()
        if self._writer is None:
            height, width, _ = picture.shape
            self._writer = self._ffmpeg.write_frames(
                str(self._path),
                (width, height),
                fps=self._fps,
                # Colours are stored at half the resolution, so sizes must be even.
                macro_block_size=2,
            )
            self._writer.send(None)
        self._writer.send(np.ascontiguousarray(picture))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class Gif:
    """A GIF. It is in memory until `close`, and therefore small: at most 50 pictures per second and
    320 pixels wide."""

    max_width = 320

    def __init__(self, path: Path, fps: float) -> None:
        self._path = path
        self._every = math.ceil(fps / _GIF_FPS)
        self._milliseconds = 1000 * self._every / fps
        self._pictures: list[Image.Image] = []
        self._count = 0

    def add(self, draw: Callable[[], np.ndarray]) -> None:
        if self._count % self._every == 0:
            image = Image.fromarray(draw())
            self._pictures.append(image.reduce(reduction(image.width, self.max_width)).quantize())
        self._count += 1

    def close(self) -> None:
        if self._pictures:
            first, *others = self._pictures
            first.save(
                self._path,
                save_all=True,
                append_images=others,
                duration=self._milliseconds,
                loop=0,
            )
