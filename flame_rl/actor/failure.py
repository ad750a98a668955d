"""The error of a simulator, with the slot where it happened."""

from __future__ import annotations

import signal

from flame_rl.wire.messages import FailureKind


class SimulatorError(Exception):
    """A simulator could not be made, failed, or returned invalid data.

    Attributes:
        kind: as in `CollectFailure`.
        slot: the slot at fault; None if no slot is.
        cause: the simulator's own traceback, or "".
    """

    def __init__(
        self, kind: FailureKind, message: str, slot: int | None = None, cause: str = ""
    ) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.slot = slot
        self.cause = cause


def summary(error: BaseException) -> str:
    """The exception's type and text, in one line."""
    return f"{type(error).__name__}: {error}"


def is_interrupt(error: BaseException) -> bool:
    """Whether the user pressed Ctrl-C where nothing else listens, and no simulator raised."""
    listening = signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    return isinstance(error, KeyboardInterrupt) and not listening
