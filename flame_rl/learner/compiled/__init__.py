"""The files of the compiled library: hatch_build.py makes them, library.py loads one. Nothing but
Python's own library is imported, because nothing else is there when the package is built."""

import platform
from pathlib import Path
from zlib import crc32

SOURCE = Path(__file__).with_name("core.c")
# The compiler's names of the kinds of each processor.
_KINDS = {"x86_64": ("x86_64_v4", "x86_64_v3", "x86_64_v2"), "aarch64": ("generic",)}


def targets() -> dict[str, Path]:
    """The file for each kind of this machine's processor. Its name has the source's checksum: a
    library of an older one has other structures."""
    checksum = f"{crc32(SOURCE.read_bytes()):08x}"
    kinds = _KINDS.get(platform.machine(), ())
    return {kind: SOURCE.with_name(f"core_{kind}_{checksum}.so") for kind in kinds}
