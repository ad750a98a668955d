"""The settings that `main.py tune` searches, and in which range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flame_rl.settings.checks import flag, names_of, suggestion
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError


@dataclass(frozen=True)
class Span:
    """From `low` to `high`: of an integer the whole numbers; with `log`, by the logarithm."""

    low: float
    high: float
    log: bool = False


# A range, or some values in words of a command line; and a value that is chosen from one.
Range = Span | tuple[str, ...]
Value = int | float | str

RANGES: dict[str, Range] = {
    "learning_rate": Span(1e-5, 1e-2, log=True),
    "value_learning_rate": Span(1e-5, 1e-2, log=True),
    "entropy_coefficient": ("0.0", "0.001", "0.003", "0.01", "0.03"),
    "initial_log_std": Span(-2.0, 0.0),
    "minibatches": ("4", "8", "16", "32", "64"),
    "max_kl": Span(0.01, 0.5, log=True),
    "gae_lambda": ("0.8", "0.9", "0.95", "0.98", "1.0"),
    "trace_lambda": ("0.8", "0.9", "0.95", "0.98", "1.0"),
    "epochs": Span(1, 20, log=True),
    "value_epochs": Span(1, 10, log=True),
    "clip_range": Span(0.1, 0.4),
    "batch_size": ("32", "64", "128", "256", "512"),
    "updates_per_step": Span(0.05, 1.0, log=True),
    "tau": Span(0.001, 0.1, log=True),
    "n_step": Span(1, 5),
    "epsilon_end": Span(0.01, 0.2, log=True),
    "epsilon_steps": Span(1_000, 50_000, log=True),
    "noise": Span(0.05, 0.5),
    "target_noise": Span(0.05, 0.5),
    "initial_temperature": Span(0.05, 1.0, log=True),
    "gamma": ("0.95", "0.98", "0.99", "0.995", "0.999"),
    "steps_per_iter": ("512", "1024", "2048", "4096"),
    "hidden_sizes": ("32 32", "64 64", "128 128", "256 256"),
    "activation": ("tanh", "relu"),
}


def ranges_of(config: TrainConfig, given: Sequence[str], search: Sequence[str]) -> dict[str, Range]:
    """The settings to search, by field, each with its range, widened to the value in `config`.

    Args:
        config: where the search begins.
        given: flags of the command line; what they set is not searched.
        search: names of flags, which are searched even if they are given; none: all that are not.

    Raises:
        UsageError: a name in `search` is no setting with a range.
    """
    fields = [*names_of(type(config.algorithm)), *names_of(type(config.experiment))]
    known = [name for name in fields if name in RANGES]
    named = [name.lstrip("-").replace("-", "_") for name in search]
    for name in named:
        if name not in known:
            nearest = suggestion(name, known)
            more = f"did you mean {nearest}?" if nearest else f"there are {', '.join(known)}"
            raise UsageError(f"--search: {name!r} has no range; {more}")
    # A setting that is none has no effect, such as steps_per_iter beside episodes_per_iter.
    wanted = named or [
        name for name in known if flag(name) not in given and value_of(config, name) is not None
    ]
    if not wanted:
        raise UsageError("--search: every setting with a range is given; nothing is left to search")
    return {name: _reaching(RANGES[name], name, value_of(config, name)) for name in wanted}


def value_of(config: TrainConfig, name: str) -> Value | None:
    """The value of a setting with a range, as the range has it."""
    section = config.algorithm if hasattr(config.algorithm, name) else config.experiment
    value = getattr(section, name)
    if value is None or isinstance(RANGES[name], Span):
        return value
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _reaching(mark: Range, name: str, first: Value | None) -> Range:
    """The range with the first value in it."""
    if first is None:
        raise UsageError(f"--search: {flag(name)} is none; give it a number")
    if isinstance(mark, tuple):
        return mark if first in mark else (*mark, first)
    if mark.log and first <= 0:
        raise UsageError(f"--search: {flag(name)} cannot begin with {first}, by its logarithm")
    return replace(mark, low=min(mark.low, first), high=max(mark.high, first))
