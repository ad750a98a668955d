"""Closing environments, which may hang or raise."""

from __future__ import annotations

from collections.abc import Callable

from flame_rl.system.output import warn
from flame_rl.system.signals import call_with_timeout


def close_within(seconds: float, close: Callable[[], None]) -> None:
    """Close environments. If that takes longer, or raises an exception, it costs a line."""
    try:
        call_with_timeout(seconds, close)
    except TimeoutError:
        warn(f"the environments did not close within {seconds:.0f} s and are left open")
    except Exception as error:
        warn(str(error))
