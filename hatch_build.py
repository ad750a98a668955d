"""Compiles flame_rl/learner/compiled/core.c when the package is built or installed, with the
compiler in the package ziglang: a library for each kind of processor in compiled/__init__.py. And
makes of the README what a package index shows."""

from __future__ import annotations

import platform
import re
import runpy
import subprocess
import sys
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

FLAGS = ["-O3", "-shared", "-fPIC", "-fno-sanitize=undefined", "-mprefer-vector-width=512"]
FLAGS += ["-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros"]
# The oldest C library that the libraries run with.
LIBC = "linux-gnu.2.17"


class CompileHook(BuildHookInterface):
    """Without a compiler for this machine, the package has no library, and torch trains."""

    def initialize(self, version: str, build_data: dict) -> None:
        folder, machine = Path(self.root, "flame_rl", "learner", "compiled"), platform.machine()
        found = runpy.run_path(str(folder / "__init__.py"))
        for old in folder.glob("core_*.so"):
            old.unlink()
        for kind, library in found["targets"]().items() if sys.platform == "linux" else ():
            words = ["-target", f"{machine}-{LIBC}", f"-mcpu={kind}", "-o", library]
            try:
                command = [sys.executable, "-m", "ziglang", "cc", *FLAGS, *words, found["SOURCE"]]
                subprocess.run(command, check=True, capture_output=True, text=True)
            except (OSError, subprocess.CalledProcessError) as error:
                reason = getattr(error, "stderr", "") or error
                self.app.display_warning(f"{library.name} is not compiled: {reason}")
                continue
            build_data["artifacts"].append(str(library.relative_to(self.root)))
            build_data["pure_python"] = False
            # Any Python 3, on this processor.
            build_data["tag"] = f"py3-none-manylinux_2_17_{machine}"


class ReadmeHook(MetadataHookInterface):
    """The README without what lies beside it: of links the text, and no pictures."""

    def update(self, metadata: dict) -> None:
        text = Path(self.root, "README.md").read_text()
        text = re.sub(r"^!\[.*\n|^<img .*\n", "", text, flags=re.MULTILINE)
        text = re.sub(r"\[([^\]]*)\]\((?!\w+:)[^)]*\)", r"\1", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
