"""`main.py profile --env ant`: measure an iteration, and advise how many workers to use."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import TYPE_CHECKING

from flame_rl.run.resumed_config import refuse_another_run, saved_config
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
    """The flags of `profile` besides those of training."""

    json: bool = False
    """Print one line of JSON."""


def profile(arguments: Sequence[str]) -> int:
    """Run the command. Returns 0, or 128 plus the number of the signal that ended it."""
    folder = resumed_folder(arguments)
    default = None if folder is None else saved_config(folder)
    config, command = parse(
        arguments, default, prog="main.py profile", description=DESCRIPTION, extra=ProfileFlags
    )
    if default is not None:
        refuse_another_run(default, config)
    with stop_on_signals() as stop:
        with contextlib.suppress(Interrupted):
            # Here and not above, so that --help and mistakes are answered at once.
            from flame_rl.tools.profiling import profile as measure

            measured = measure(config, stop)
            seconds = predictions(measured)
            if command.json:
                say(json.dumps(asdict(measured) | {"predicted_seconds": seconds}))
            else:
                say(as_text(measured, seconds))
        return stop.exit_code


def predictions(measured: Profile) -> dict[int, float]:
    """Predicted seconds of an iteration, by number of workers."""
    counts = sorted({*WORKERS, max(1, measured.workers), measured.costs.cores or 1})
    return {workers: iteration_seconds(measured.costs, workers) for workers in counts}


def as_text(measured: Profile, seconds: Mapping[int, float]) -> str:
    """The measured iteration, a table of predictions and a line of advice."""
    timing, costs = measured.timing, measured.costs
    total = timing.collecting + costs.updating + costs.rest

    def phase(name: str, taken: float) -> str:
        return f"  {name:<14}{duration(taken):>9}{taken / total:>7.0%}"

    lines = [
        f"{measured.env_id}, {measured.algorithm}: {len(costs.lengths)} episodes an iteration, "
        f"{mean(costs.lengths):.0f} steps each",
        "",
        f"Measured with {where(measured)}:",
        phase("collecting", timing.collecting),
        phase("updating", costs.updating),
        phase("the rest", costs.rest),
        phase("an iteration", total),
        f"  {'weights sent':<14}{timing.bytes_out / 1e3:>6,.0f} kB",
        f"  {'episodes read':<14}{timing.bytes_in / 1e3:>6,.0f} kB",
        f"  {'an env step':<14}{duration(costs.step):>9}, {costs.computing:.0%} of it computing",
        "",
        "Predicted for an iteration:",
        f"  {workers_of(measured):<14}{'seconds':>9}{'speedup':>9}",
    ]
    for workers, taken in seconds.items():
        lines.append(f"  {workers:<14}{taken:>9.3f}{seconds[1] / taken:>8.1f}x")
    return "\n".join([*lines, "", advice(measured, seconds)])


def advice(measured: Profile, seconds: Mapping[int, float]) -> str:
    """A sentence or two on how many workers to use."""
    best, workers = enough(seconds), workers_of(measured)
    choice = f"keep {where(measured)}" if best == measured.workers else f"--{workers} {best}"
    text = f"Advice: {choice}, {duration(seconds[best])} an iteration."
    share = measured.costs.updating / seconds[best]
    if share > 0.5:
        text += f" The update is {share:.0%} of it, which more {workers} do not shorten."
    return text


def workers_of(measured: Profile) -> str:
    """The flag that sets the number of workers, without its dashes."""
    return "executors" if measured.costs.cores is None else "workers"


def where(measured: Profile) -> str:
    """The workers that collected, and where."""
    who, cores = counted(measured.workers, workers_of(measured)), measured.costs.cores
    if cores is None:
        return f"{who} of the cluster"
    return f"{who} on this machine ({counted(cores, 'cores')})"


def counted(number: int, plural: str) -> str:
    """1 core, 2 cores."""
    return f"{number} {plural.removesuffix('s') if number == 1 else plural}"


def duration(seconds: float) -> str:
    """The seconds with three digits, in s, ms or us."""
    unit, size = next((u for u in (("s", 1.0), ("ms", 1e-3)) if seconds >= u[1]), ("us", 1e-6))
    return f"{seconds / size:.3g} {unit}"
