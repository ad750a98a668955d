"""`main.py profile --env ant`: what an iteration costs, and how many workers are enough."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from flame_rl.run.folder import saved_config
from flame_rl.settings.parse import parse, resumed_folder
from flame_rl.system.errors import Interrupted
from flame_rl.system.output import say
from flame_rl.system.signals import stop_on_signals
from flame_rl.tools.scaling import enough, iteration_seconds

if TYPE_CHECKING:
    from flame_rl.tools.profiling import Profile

WORKERS = (1, 2, 4, 8, 16, 32, 64)


DESCRIPTION = """Measure what an iteration costs and predict what it would cost with more workers.

Takes the flags of training, runs a few iterations where training would, and writes nothing.
With --resume RUN the policy of that run plays; otherwise an untrained one, whose episodes may
be shorter than those to come."""


@dataclass(frozen=True)
class ProfileFlags:
    """What profile has besides the flags of training."""

    json: bool = False
    """Print one line of JSON."""


def profile(arguments: Sequence[str]) -> int:
    """Returns 0, or 128 and the number of the signal that ended it."""
    folder = resumed_folder(arguments)
    default = None if folder is None else saved_config(folder)
    config, command = parse(
        arguments, default, prog="main.py profile", description=DESCRIPTION, extra=ProfileFlags
    )
    with stop_on_signals() as stop:
        with contextlib.suppress(Interrupted):
            # Here and not above, so that --help and mistakes are answered at once.
            from flame_rl.tools.profiling import profile as measure

            measured = measure(config, stop)
            seconds = predictions(measured)
            say(as_json(measured, seconds) if command.json else as_text(measured, seconds))
        return stop.exit_code


def predictions(measured: Profile) -> dict[int, float]:
    """Seconds of an iteration, by number of workers."""
    counts = sorted({*WORKERS, max(1, measured.workers), measured.costs.cores or 1})
    return {workers: iteration_seconds(measured.costs, workers) for workers in counts}


def as_json(measured: Profile, seconds: Mapping[int, float]) -> str:
    """All that was measured and predicted, in one line."""
    return json.dumps(asdict(measured) | {"predicted_seconds": seconds})


def as_text(measured: Profile, seconds: Mapping[int, float]) -> str:
    """The measured iteration, a table of predictions and a line of advice."""
    phases, costs = measured.phases, measured.costs
    steps = sum(costs.lengths) / len(costs.lengths)
    lines = [
        f"{measured.env_id}, {measured.algorithm}: {phases.episodes} episodes an iteration, "
        f"{steps:.0f} steps each",
        "",
        f"Measured with {where(measured)}:",
    ]
    for name, taken in (
        ("collecting", phases.collecting),
        ("updating", phases.updating),
        ("the rest", phases.rest),
        ("an iteration", phases.seconds),
    ):
        lines.append(f"  {name:<14}{duration(taken):>9}{taken / phases.seconds:>7.0%}")
    lines += [
        f"  {'weights sent':<14}{phases.bytes_out / 1e3:>6,.0f} kB",
        f"  {'episodes read':<14}{phases.bytes_in / 1e3:>6,.0f} kB",
        f"  {'an env step':<14}{duration(costs.step):>9}, {costs.computing:.0%} of it computing",
        "",
        "Predicted for an iteration:",
        f"  {workers_of(measured):<14}{'seconds':>9}{'speedup':>9}",
    ]
    for workers, taken in seconds.items():
        lines.append(f"  {workers:<14}{taken:>9.3f}{seconds[1] / taken:>8.1f}x")
    return "\n".join([*lines, "", advice(measured, seconds)])


def advice(measured: Profile, seconds: Mapping[int, float]) -> str:
    """How many workers to use, in one sentence or two."""
    best, flag = enough(seconds), "--" + workers_of(measured)
    spent = f"{duration(seconds[best])} an iteration"
    if best == measured.workers:
        text = f"Advice: keep {where(measured)}, {spent}."
    else:
        text = f"Advice: {flag} {best}, {spent}."
    share = measured.costs.updating / seconds[best]
    if share > 0.5:
        text += f" The update is {share:.0%} of it, which no number of {flag[2:]} changes."
    return text


def workers_of(measured: Profile) -> str:
    """The name of the flag that says how many collect."""
    return "executors" if measured.costs.cores is None else "workers"


def where(measured: Profile) -> str:
    """Who collected."""
    count, cores = measured.workers, measured.costs.cores
    if count == 0:
        return "no worker: the learner's own process"
    if cores is None:
        return f"{count} executor{'s' * (count > 1)} of the cluster"
    return f"{count} worker{'s' * (count > 1)} on {cores} core{'s' * (cores > 1)} of this machine"


def duration(seconds: float) -> str:
    """With three digits and a unit that suits its size."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"
