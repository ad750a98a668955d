"""The memory of this machine."""

from __future__ import annotations

import os


def physical_bytes() -> int:
    """The size of physical memory, free or not."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
