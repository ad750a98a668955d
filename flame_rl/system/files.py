"""Reading and writing files, and why that is refused."""

import contextlib
import errno
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from flame_rl.system.errors import UsageError


def open_regular(path: Path) -> BinaryIO:
    """Open a file to be read. Raises OSError where there is none: a named pipe would wait; and for
    one that no memory can hold, whose bytes may be holes."""
    from flame_rl.system.machine import physical_bytes  # needs a package, and main.py this module

    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    file = path.open("rb")
    if (size := os.fstat(file.fileno()).st_size) > (there := physical_bytes()):
        file.close()
        has = f"and this machine or container has {there / 1e9:.1f} GB"
        raise OSError(errno.EFBIG, f"a file of {size / 1e9:,.1f} GB, {has}", str(path))
    return file


def refuse_unless_file(path: Path, flag: str = "") -> None:
    """Raise UsageError, which begins with the flag, unless `path` may become a file."""
    if not path.parent.is_dir() or path.is_dir():
        raise UsageError(f"{flag}{path}: name a file in a folder that exists")


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data`: after a crash it holds the old bytes or the new, never a part, and
    the old ones after an OSError, which this raises if the disk refuses."""
    temporary = path.with_name(path.name + ".part")
    try:
        temporary.write_bytes(data)
        sync(temporary)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)  # the rename itself is durable only once the folder is


def sync(path: Path) -> None:
    """Make a file, or a folder's list of files, outlast a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # as of folders on CIFS and WSL
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def refused_as(kind: type[Exception], what: str, remedy: str = "") -> Iterator[None]:
    """Within the block, an OSError becomes one of this kind: what was refused, why, the remedy."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {why_refused(error)}{remedy}") from error


def why_refused(error: OSError) -> str:
    """The error's text; with the remedy where a folder is gone or belongs to somebody else."""
    if error.filename is not None:
        path = Path(error.filename)
        with contextlib.suppress(OSError):
            gone = [parent for parent in path.absolute().parents if not parent.exists()]
            if isinstance(error, FileNotFoundError) and gone:
                moved = "if it was moved, --resume goes on under its new name"
                return f"{error}; {gone[-1]} is gone: {moved}"
            if isinstance(error, PermissionError):
                return f"{error}{_about_owner(path.resolve())}"
    return str(error)


def _about_owner(path: Path) -> str:
    """What to add where another user owns `path`, or the folder in which it cannot be made."""
    while not path.exists():
        path = path.parent
    if (owner := path.stat().st_uid) == os.geteuid():
        return ""
    about, other = f"; {path} belongs to user {owner}", "name another folder with --output"
    if Path.cwd().resolve() not in path.parents:
        return f"{about}: {other}"
    cause = "" if owner else " (root), as after a run in the cluster's console"
    remedy = f'`sudo chown -R "$(id -u):$(id -g)" {shlex.quote(str(path))}` gives it to you'
    return f"{about}{cause}: {remedy}; or {other}"
