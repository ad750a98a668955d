"""The ways in which a run ends early."""


class UsageError(Exception):
    """What the user asked for cannot be done; the message names the field, cause and remedy. The
    command line answers it with exit code 2 and no traceback."""


class RunError(Exception):
    """A run could not go on after it began; the message says what was tried. The command line
    answers it with exit code 1, after saving what was learned. `episode`: the index of the one
    training episode that is to blame, if there is one."""

    def __init__(self, message: str, episode: int | None = None) -> None:
        super().__init__(message)
        self.episode = episode


class Interrupted(Exception):  # noqa: N818 - it is no error
    """The user asked the run to stop, by Ctrl-C or SIGTERM."""


class Answered(SystemExit):
    """--help is answered, or a flag cannot be read. Any other SystemExit is of a user's code."""
