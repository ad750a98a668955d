"""The error of a simulator, with the slot where it happened."""

import contextlib
import traceback

from flame_rl.wire.messages import CollectFailure, FailureKind, legible

# The most characters of an exception's text, so that it leaves room for the rest of the failure.
_TEXT_CHARACTERS = 1_000


class SimulatorError(Exception):
    """A simulator could not be made, failed, or returned invalid data: `kind` is as in
    `CollectFailure`, `slot` the slot at fault, if one is, `cause` its traceback, or ""."""

    def __init__(
        self, kind: FailureKind, message: str, slot: int | None = None, cause: str = ""
    ) -> None:
        super().__init__(message)
        self.kind, self.slot, self.cause = kind, slot, cause

    def failure(self, env_id: str = "") -> CollectFailure:
        return CollectFailure(self.kind, str(self), env_id, traceback=self.cause)


def unusable(message: str, cause: str = "") -> SimulatorError:
    """The error of an environment that cannot be made, or cannot be learned from."""
    return SimulatorError("environment", message, cause=cause)


def invalid(message: str, slot: int) -> SimulatorError:
    """The error of an environment that returned what it must not."""
    return SimulatorError("invalid", message, slot)


def of_another_api(what: str) -> SimulatorError:
    """The error of an environment with another API than Gymnasium's; `what` says how it differs."""
    return unusable(
        f"the environment does not have the API of Gymnasium and PettingZoo: {what}; reset(seed=…, "
        "options=…) must return observation, info, and step(action) observation, reward, "
        "terminated, truncated, info; one of gym before 0.26 is wrapped by shimmy (`uv add shimmy`)"
    )


def summary(error: BaseException) -> str:
    """The exception's type and text."""
    text = type(error).__name__
    with contextlib.suppress(Exception):  # of a simulator's own exception
        text = f"{text}: {error}".removesuffix(": ")
    return legible(text, _TEXT_CHARACTERS)


def traceback_of(error: BaseException) -> str:
    """The exception's traceback and those of its causes, with every file and line."""
    # One part for each frame and one for each exception's text, which alone may be long.
    parts = traceback.format_exception(error)
    return "".join(legible(part, _TEXT_CHARACTERS) for part in parts)
