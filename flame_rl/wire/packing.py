"""A JSON header and named arrays to bytes and back: what messages and checkpoints are made of. The
bytes are `MAGIC`, the header's length (uint32, little-endian), the header, and the arrays in the
format of safetensors, whose own library would copy every array several times; here arrays are views
of the bytes. Malformed bytes raise `WireError`; nothing is unpickled."""

import json
import math
import struct
from itertools import pairwise
from typing import Any

import numpy as np

from flame_rl.wire.fields import WireError

MAGIC = b"flameRL1"
MAX_HEADER_BYTES = 1 << 20
_LENGTH = struct.Struct("<I")
_ARRAYS_LENGTH = struct.Struct("<Q")  # Safetensors begins with the length of its own header
_ALIGNMENT = 8  # the arrays begin at a multiple of the widest type, so that every view is aligned
MAX_RANK = 8
_DTYPES = {f"{c}{8 * n}": np.dtype(f"{c.lower()}{n}") for c in "UI" for n in (1, 2, 4, 8)}
_DTYPES |= {"BOOL": np.dtype(bool)} | {f"F{8 * n}": np.dtype(f"f{n}") for n in (2, 4, 8)}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}

Buffer = bytes | bytearray | memoryview


def pack(kind: str, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> bytes:
    """A message of this `kind`, which `unpack` checks: a header of JSON, and arrays of numbers."""
    return b"".join(pack_buffers(kind, header, arrays))


def pack_buffers(kind: str, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> list[Buffer]:
    """The same bytes as `pack`, to be sent one after another; the arrays are not copied."""
    text = _padded(json.dumps({"type": kind} | header).encode(), len(MAGIC) + _LENGTH.size)
    # The widest first: then each begins at a multiple of its own width.
    ordered = dict(sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize))
    entries, end = {}, 0
    for name, array in ordered.items():
        start, end = end, end + array.nbytes
        entry = {"dtype": _CODES[array.dtype], "shape": array.shape}
        entries[name] = entry | {"data_offsets": (start, end)}
    listed = _padded(json.dumps(entries).encode(), 0)
    headers = MAGIC + _LENGTH.pack(len(text)) + text + _ARRAYS_LENGTH.pack(len(listed)) + listed
    flat = (np.ascontiguousarray(a).reshape(-1) for a in ordered.values() if a.size)
    return [headers, *(memoryview(array.view(np.uint8)) for array in flat)]


def unpack(data: Buffer, kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the arrays of `pack`, whose content the caller checks. The arrays are writable
    views of `data`, or of a copy where it is read-only."""
    found, header, start = _header(data)
    if found != kind:
        raise WireError(f"type: {kind}, not {found[:40]!r}")
    view = memoryview(data)
    view = memoryview(bytearray(view)) if view.readonly else view
    entries, body = _json(view, start, _ARRAYS_LENGTH, "arrays")
    arrays, ranges = {}, [(0, 0), (len(view) - body,) * 2]
    for name, entry in entries.items():
        try:
            arrays[name], start_and_end = _array(view[body:], entry)
        except (KeyError, TypeError, ValueError) as error:
            raise WireError(f"arrays: {name[:40]}: {type(error).__name__}: {error}") from error
        ranges.append(start_and_end)
    if any(left[1] != right[0] for left, right in pairwise(sorted(ranges))):
        raise WireError("arrays: their byte ranges overlap or leave gaps")
    return header, arrays


def message_type(data: Buffer) -> str:
    """The `kind` that the message was packed as. Raises WireError if the bytes are no message."""
    return _header(data)[0]


def _padded(text: bytes, before: int) -> bytes:
    return text + b" " * (-(before + len(text)) % _ALIGNMENT)


def _header(data: Buffer) -> tuple[str, dict[str, Any], int]:
    """The message's type, its header, and where the arrays begin."""
    if bytes(data[: len(MAGIC)]) != MAGIC:
        raise WireError(f"not a message: it does not begin with {MAGIC.decode()}")
    header, end = _json(data, len(MAGIC), _LENGTH, "header")
    kind = header.pop("type", None)
    if not isinstance(kind, str):
        raise WireError("header: it has no type")
    return kind, header, end


def _json(data: Buffer, start: int, length: struct.Struct, name: str) -> tuple[dict[str, Any], int]:
    """The object of JSON that follows its length at `start`, and where it ends."""
    begin = start + length.size
    size = length.unpack(data[start:begin])[0] if begin <= len(data) else MAX_HEADER_BYTES + 1
    if size > MAX_HEADER_BYTES or begin + size > len(data):
        raise WireError(f"{name}: longer than what is allowed or follows")
    try:
        value = json.loads(bytes(data[begin : begin + size]))
    except (ValueError, RecursionError) as error:
        raise WireError(f"{name}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise WireError(f"{name}: not a JSON object")
    return value, begin + size


def _array(body: memoryview, entry: Any) -> tuple[np.ndarray, tuple[int, int]]:
    """One array, and the offsets in `body` where it begins and ends."""
    dtype, shape = _DTYPES[entry["dtype"]], tuple(entry["shape"])
    first, last = entry["data_offsets"]
    valid = all(type(number) is int and number >= 0 for number in (*shape, first, last))
    if not valid or len(shape) > MAX_RANK or last > len(body):
        raise ValueError("a number is out of range")
    if last - first != math.prod(shape) * dtype.itemsize:
        raise ValueError("its bytes do not fit its shape and type")
    array = np.ndarray(shape, dtype, body, first)
    if dtype.kind == "b" and array.view(np.uint8).max(initial=0) > 1:
        raise ValueError("not 0 or 1")
    return array if array.flags.aligned else array.copy(), (first, last)
