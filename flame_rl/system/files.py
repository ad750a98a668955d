"""Reading a regular file, writing one so that a crash cannot leave half of it, and saying why it
cannot be written."""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import shlex
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """Open a file to be read. Raises OSError if there is none, and where something else has its
    name: opening a named pipe would wait for a writer."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path.open("rb")


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data`: after a crash it holds the old bytes or the new, never a part.

    Raises:
        OSError: the disk refuses; `path` is then as it was.
    """
    temporary = path.with_name(path.name + ".part")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    # The rename itself is durable only once the folder is.
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def why_refused(error: OSError) -> str:
    """The error's text. Where a file or folder belongs to somebody else, or its folder is gone: the
    likely cause and the remedy, too."""
    with contextlib.suppress(OSError):
        if isinstance(error, FileNotFoundError) and error.filename is not None:
            parents = Path(error.filename).absolute().parents
            if gone := [parent for parent in parents if not parent.exists()]:
                return (
                    f"{error}; {gone[-1]} is gone: if it was moved, --resume goes on under its new "
                    "name"
                )
        if isinstance(error, PermissionError) and error.filename is not None:
            return f"{error}{_whose(Path(error.filename).resolve(), Path.cwd().resolve())}"
    return str(error)


def _whose(path: Path, here: Path) -> str:
    """What to add about the owner of `path`, or of the folder in which it cannot be made."""
    while not path.exists():
        path = path.parent
    owner = path.stat().st_uid
    if owner == os.geteuid():
        return ""
    # The remedy is for all of it, but never for more than what is below the user's own folder.
    below = here in path.parents
    while below and path.parent != here and path.parent.stat().st_uid == owner:
        path = path.parent
    name = path.relative_to(here) if below else path
    cause = ", as after a run in the cluster's console" if owner == 0 and below else ""
    chown = f'`sudo chown -R "$(id -u):$(id -g)" {shlex.quote(str(name))}` gives it to you; or '
    return (
        f"; {name} belongs to {_user(owner)}{cause}: {chown if below else ''}name another folder "
        "with --output"
    )


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
