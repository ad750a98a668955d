"""Arrays by name in an .npz file, as NumPy writes it: a zip archive with an array in each entry.

A file is untrusted. The size and the type of an array are read first and compared with the bytes
that the entry has; an array of Python objects, which NumPy would unpickle, is refused.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from flame_rl.system.errors import UsageError
from flame_rl.system.files import open_regular, why_refused
from flame_rl.system.machine import physical_bytes

_ENTRY = ".npy"
_KINDS = "biuf"
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
# What reading damaged bytes raises: of the archive, of compressed bytes, and of an array's header.
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    UnicodeError,
    ValueError,
    OverflowError,
)


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file by name. Raises UsageError if it cannot be read, is damaged, or has
    something else than arrays of numbers."""
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            size = sum(entry.file_size for entry in entries)
            if size > physical_bytes():
                raise UsageError(
                    f"arrays of {size / 1e9:.1f} GB, and this machine has "
                    f"{physical_bytes() / 1e9:.1f} GB; write fewer episodes"
                )
            arrays = {}
            for entry in entries:
                name = entry.filename.removesuffix(_ENTRY)
                with archive.open(entry) as stream:
                    arrays[name] = _array(f"{name[:40]!r}", stream, entry.file_size)
            return arrays
    except FileNotFoundError as error:
        raise UsageError("there is no such file") from error
    except OSError as error:
        raise UsageError(f"cannot be read: {why_refused(error)}") from error
    except _DAMAGED as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"no sound .npz file: {reason:.200}; write it anew by np.savez") from error


def _array(where: str, stream: BinaryIO, size: int) -> np.ndarray:
    version = np.lib.format.read_magic(stream)
    if version not in _HEADERS:
        raise ValueError(f"{where} has format {version}")
    shape, in_columns, dtype = _HEADERS[version](stream)
    if dtype.kind not in _KINDS:
        raise UsageError(f"{where}: {dtype} and no numbers; leave it out, or convert it")
    needed = math.prod(shape) * dtype.itemsize
    if not 0 <= needed == size - stream.tell():
        raise ValueError(f"{where} has {size - stream.tell()} bytes, and {shape} needs {needed}")
    flat = np.frombuffer(stream.read(), dtype)
    return flat.reshape(shape[::-1]).T if in_columns else flat.reshape(shape)


def write_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write the arrays; the same ones give the same bytes. Raises OSError if the disk refuses."""
    part = path.with_name(f"{path.name}.part")
    try:
        with zipfile.ZipFile(part, "w", allowZip64=True) as archive:
            for name, array in arrays.items():
                # Of no date, unlike what np.savez writes.
                entry = zipfile.ZipInfo(name + _ENTRY)
                with archive.open(entry, "w", force_zip64=True) as stream:
                    np.lib.format.write_array(stream, array, allow_pickle=False)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
