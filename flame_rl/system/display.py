"""Is there a screen?"""

from __future__ import annotations

import os
import sys


def has_display() -> bool:
    """Whether there is a screen, as far as can be told without opening a window."""
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
