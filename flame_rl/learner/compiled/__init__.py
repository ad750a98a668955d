"""The files of the compiled library: hatch_build.py makes them, library.py loads one. Nothing but
Python's own library is imported, because nothing else is there when the package is built."""

import platform
from pathlib import Path
from zlib import crc32

SOURCE = Path(__file__).with_name("core.c")
# For each processor, the compiler's names of its kinds, the best ones first, and what /proc/cpuinfo
# says of those that can run such a library.
_KINDS: dict[str, dict[str, frozenset[str]]] = {
    "x86_64": {
        "x86_64_v4": frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
        "x86_64_v3": frozenset({"avx2", "fma", "bmi2"}),
        "x86_64_v2": frozenset(),
    },
    "aarch64": {"generic": frozenset()},
}


def targets() -> dict[str, tuple[Path, frozenset[str]]]:
    """For each kind of this machine's processor, its file and the features that it needs. The name
    has the source's checksum: a library of an older one has other structures."""
    checksum = f"{crc32(SOURCE.read_bytes()):08x}"
    return {
        kind: (SOURCE.with_name(f"core_{kind}_{checksum}.so"), features)
        for kind, features in _KINDS.get(platform.machine(), {}).items()
    }
