"""Compiles flame_rl/learner/compiled/core.c when the package is built or installed, with the
compiler in the package ziglang: a library for each kind of processor in `TARGETS`."""

from __future__ import annotations

import platform
import subprocess
import sys
import zlib
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("flame_rl") / "learner" / "compiled"
FLAGS = ["-O3", "-shared", "-fPIC", "-fno-sanitize=undefined", "-mprefer-vector-width=512"]
FLAGS += ["-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros"]
# The oldest C library that the libraries run with.
LIBC = "linux-gnu.2.17"


class CompileHook(BuildHookInterface):
    """Without a compiler for this machine, the package has no library, and torch trains."""

    def initialize(self, version: str, build_data: dict) -> None:
        folder = Path(self.root) / FOLDER
        source, machine = folder / "core.c", platform.machine()
        names = {"x86_64": ["x86_64_v2", "x86_64_v3", "x86_64_v4"], "aarch64": ["generic"]}
        for name in names.get(machine, ()) if sys.platform == "linux" else ():
            library = folder / f"core_{name}.so"
            flags = [*FLAGS, f"-DSOURCE={zlib.crc32(source.read_bytes())}u"]
            words = ["-target", f"{machine}-{LIBC}", f"-mcpu={name}", "-o", library, source]
            try:
                command = [sys.executable, "-m", "ziglang", "cc", *flags, *words]
                subprocess.run(command, check=True, capture_output=True, text=True)
            except (OSError, subprocess.CalledProcessError) as error:
                reason = getattr(error, "stderr", "") or error
                self.app.display_warning(f"{library.name} is not compiled: {reason}")
                continue
            build_data["artifacts"].append(str(FOLDER / library.name))
            build_data["pure_python"] = False
            # Any Python 3, on this processor.
            build_data["tag"] = f"py3-none-manylinux_2_17_{machine}"
