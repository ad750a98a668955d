"""The build backend of what is sent to a cluster (PEP 517): a wheel that only names dependencies.

The code itself is found beside it. Copied into the package; with it an executor installs nothing
that the package does not name, as setuptools and what that needs.
"""

from __future__ import annotations

import tomllib
import zipfile
from pathlib import Path

_METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
_WHEEL = "Wheel-Version: 1.0\nGenerator: {name}\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None) -> str:
    """Write the wheel of the project in the current folder; returns its file's name."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    stem = f"{project['name'].replace('-', '_')}-{project['version']}"
    needed = "".join(f"Requires-Dist: {each}\n" for each in project["dependencies"])
    files = {
        "METADATA": _METADATA.format(**project) + needed,
        "WHEEL": _WHEEL.format(**project),
    }
    names = [f"{stem}.dist-info/{name}" for name in (*files, "RECORD")]
    files["RECORD"] = "".join(f"{name},,\n" for name in names)
    with zipfile.ZipFile(Path(wheel_directory, f"{stem}-py3-none-any.whl"), "w") as wheel:
        for name, text in zip(names, files.values(), strict=True):
            wheel.writestr(name, text)
    return f"{stem}-py3-none-any.whl"
