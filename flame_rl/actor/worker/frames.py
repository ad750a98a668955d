"""Frames between a worker's supervisor and its child: a fixed head, then a message of
`flame_rl.wire`."""

from __future__ import annotations

import contextlib
import fcntl
import select
import struct
import sys
from collections.abc import Callable
from typing import BinaryIO

from flame_rl.actor.memory import peak_bytes
from flame_rl.wire.packing import Buffer

# The size of the message and the peak memory of its sender, both in bytes.
_HEAD = struct.Struct("<QQ")
# What a child has played of its task: episodes that have ended, and env steps.
PROGRESS = struct.Struct("<QQ")
# Far above any real answer; a child that announces more is not answering.
MAX_FRAME_BYTES = 1 << 34
# The time that a child has to close its environments.
CLOSE_SECONDS = 5.0
# A frame is read in pieces of this size, so that memory is not taken for a size that a broken child
# announces and never sends.
_PIECE_BYTES = 1 << 26

# Waits until a pipe can be read (POLLIN) or written (POLLOUT), or raises.
Wait = Callable[[BinaryIO, int], None]


def enlarge(pipe: BinaryIO, size: int) -> None:
    """Let a pipe hold `size` bytes, so that a large message goes through it in fewer pieces, with
    fewer waits on both sides; Linux's default is 64 KiB. A user's pipes share a limit, so ask for
    no more than helps. Beyond that limit, and on other systems, the pipe stays as it is."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, size)


def write_frame(pipe: BinaryIO, frame: Buffer | list[Buffer], wait: Wait | None = None) -> None:
    """Send a frame, given whole or in parts. `wait` is called where the pipe takes no more for now;
    a pipe that blocks needs none. Raises what `wait` does, and OSError if nobody reads."""
    parts = frame if isinstance(frame, list) else [frame]
    for part in (_HEAD.pack(sum(map(len, parts)), peak_bytes()), *parts):
        view = memoryview(part)
        while view:
            written = pipe.write(view)
            if written is not None:
                view = view[written:]
            else:
                wait(pipe, select.POLLOUT)


def read_frame(
    pipe: BinaryIO, wait: Wait | None = None, most_bytes: int = MAX_FRAME_BYTES
) -> tuple[bytearray, int]:
    """A message and its sender's peak memory in bytes. `wait` is called where nothing can be read
    for now. Raises what `wait` does, and OSError at the end of the pipe or for a larger message."""
    size, memory = _HEAD.unpack(_read_exactly(pipe, _HEAD.size, wait))
    if size > most_bytes:
        raise OSError(f"a frame of {size} bytes is announced")
    return _read_exactly(pipe, size, wait), memory


def _read_exactly(pipe: BinaryIO, size: int, wait: Wait | None) -> bytearray:
    pieces: list[bytearray] = []
    while size > 0:
        piece = bytearray(min(size, _PIECE_BYTES))
        view = memoryview(piece)
        while view:
            count = pipe.readinto(view)
            if count == 0:
                raise BrokenPipeError("the other side is gone")
            if count is not None:
                view = view[count:]
            else:
                wait(pipe, select.POLLIN)
        pieces.append(piece)
        size -= len(piece)
    return pieces[0] if len(pieces) == 1 else bytearray().join(pieces)


def ready(pipe: BinaryIO, event: int, seconds: float) -> bool:
    """Wait until the pipe can be read (POLLIN) or written (POLLOUT), or is broken."""
    poll = select.poll()
    poll.register(pipe, event)
    return bool(poll.poll(max(0.0, seconds) * 1000))
