"""Write pictures as a film: .mp4, or .gif, which needs no optional package."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import imageio.v2 as imageio
import numpy as np
from PIL import Image, ImageOps

from flame_rl.system.errors import UsageError
from flame_rl.system.machine import require

GROUP = "video"
SUFFIXES = (".mp4", ".gif")
# Viewers play a GIF with more pictures per second at a speed of their own.
_GIF_FPS = 50
# A GIF is in memory until it is closed.
_GIF_WIDTH = 320


class Film:
    """A film of pictures, uint8 [height, width, 3]; complete on disk after `close`.

    An .mp4 is H.264. A .gif has at most 50 pictures per second, each at most 320 pixels wide.

    Attributes:
        max_width: in pixels; wider pictures are reduced by a whole number.
    """

    def __init__(self, path: Path, fps: float) -> None:
        """Nothing is written before the first picture.

        Args:
            path: of the file to write; its suffix is one of `SUFFIXES`.
            fps: pictures per second.

        Raises:
            UsageError: the suffix is unknown, the folder does not exist, or a package is missing.
        """
        suffix = path.suffix.lower()
        if suffix not in SUFFIXES:
            raise UsageError(f"--video: {path} must end in {' or '.join(SUFFIXES)}")
        if not path.parent.is_dir() or path.is_dir():
            raise UsageError(f"--video: {path}: name a file in a folder that exists")
        if suffix == ".gif":
            self.max_width, self._every = _GIF_WIDTH, math.ceil(fps / _GIF_FPS)
            milliseconds = 1000 * self._every / fps
            self._options = {"duration": milliseconds, "loop": 0, "bits": 8}
        else:
            require("imageio_ffmpeg", "imageio-ffmpeg", GROUP)
            self.max_width, self._every = math.inf, 1
            # Colours are stored at half the resolution, so sizes must be even.
            self._options = {"fps": fps, "macro_block_size": 2}
        self._path = path
        self._count = 0

    def add(self, draw: Callable[[], np.ndarray]) -> None:
        """Add the next picture. Calls `draw`, which returns it, only if the film keeps it."""
        if self._count % self._every == 0:
            image = Image.fromarray(draw())
            image = image.reduce(reduction(image.width, self.max_width))
            if self._count == 0:
                self._writer = imageio.get_writer(self._path, **self._options)
                self._size = image.size
            # A film has one size; an environment's pictures may change theirs.
            self._writer.append_data(np.asarray(ImageOps.pad(image, self._size)))
        self._count += 1

    def close(self) -> None:
        if self._count:
            self._writer.close()


def reduction(width: int, max_width: float) -> int:
    """The number by which the sides of a picture are divided, so that it is at most `max_width`
    wide."""
    return max(1, math.ceil(width / max_width))
