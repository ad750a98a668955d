"""Printing to a standard output that may be closed by its reader."""

from __future__ import annotations

import os
import sys


def say(text: str) -> None:
    """Print and flush. Once the reader is gone (`| head`), stay silent."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
