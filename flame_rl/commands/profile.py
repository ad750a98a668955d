"""`main.py profile --env ant`: measure iterations, and say how many workers are worth it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from flame_rl.run.folder import refuse_another_run, saved_config
from flame_rl.settings.parse import parse, resumed_folder
from flame_rl.system.errors import UsageError
from flame_rl.system.output import say, warn
from flame_rl.system.signals import stop_on_signals

if TYPE_CHECKING:
    from flame_rl.tools.profiling import Profile

DESCRIPTION = """Measure what an iteration costs with one worker and with several, and say how many
are worth it.

Takes the flags of training, runs a few iterations where training would, and writes nothing.
--workers N, or --executors N on a cluster, compares one with N; otherwise N is the number of cores.
With --resume RUN or --from RUN the policy of that run plays; otherwise an untrained one, whose
episodes may be shorter than those to come."""


@dataclass(frozen=True)
class ProfileFlags:
    """The flags of `profile` besides those of training."""

    json: bool = False
    """Print one line of JSON."""


def profile(arguments: Sequence[str]) -> int:
    """Run the command. Returns 0, or 128 plus the number of the signal that ended it. Raises
    UsageError for --seeds, and if the run to resume has no policy."""
    folder = resumed_folder(arguments)
    default = None if folder is None else saved_config(folder)
    config, command = parse(
        arguments, default, prog="main.py profile", description=DESCRIPTION, extra=ProfileFlags
    )
    if config.output.seeds:
        raise UsageError("--seeds: a profile is of one run; leave the flag out")
    if default is not None:
        refuse_another_run(default, config)
    with stop_on_signals() as stop:
        # Here and not above, so that --help and mistakes are answered at once.
        from flame_rl.run.checkpoint import find_checkpoint
        from flame_rl.tools.profiling import measure_profile

        checkpoint = None
        if folder is not None:
            # Not the policy with which the run would begin again.
            checkpoint = find_checkpoint(folder)
            for warning in checkpoint[1]:
                warn(f"warning: {warning}")
        found = measure_profile(config, stop, checkpoint)
        say(as_json(found) if command.json else as_text(found))
    return stop.exit_code


def as_json(found: Profile) -> str:
    """What was measured and what follows; `balance` is None where no number of workers has it."""
    balance = None if math.isinf(found.balance) else found.balance
    follows = {"speedup": found.speedup, "balance": balance, "worth": found.worth}
    return json.dumps(asdict(found) | follows)


def as_text(found: Profile) -> str:
    """A table of what was measured, and sentences on what follows from it."""
    several = found.several
    lines = [
        f"{found.env_id}, {found.algorithm}: {several.episodes} episodes and "
        f"{several.env_steps:,.0f} env steps an iteration",
        "",
        f"  {workers_of(found):<10}{'collecting':>12}{'updating':>12}{'env steps/s':>14}",
    ]
    for each in (found.one, several):
        lines.append(
            f"  {each.workers:<10}{each.collecting:>10.3g} s{each.updating:>10.3g} s"
            f"{each.env_steps_per_second:>14,.0f}"
        )
    return "\n".join([*lines, "", *conclusions(found)])


def conclusions(found: Profile) -> list[str]:
    """What several workers gain, when the learner is the limit, and how many are worth it."""
    one, several, workers = found.one, found.several, workers_of(found)
    lines = [f"{several.workers} {workers} collect {found.speedup:.2f} times as fast as one."]
    if found.balance <= 1:
        share = found.shared / (one.collecting + one.updating)
        lines.append(
            "The learner is the limit: updating takes longer than collecting with one. More "
            f"{workers} shorten an iteration by at most {share:.0%}."
        )
    elif math.isfinite(found.balance):
        lines.append(
            f"From about {math.ceil(found.balance)} {workers} on the learner is the limit: then "
            "updating takes longer than collecting."
        )
    else:
        lines.append(
            f"Collecting takes longer than updating with any number: {workers} share "
            f"{found.shared / one.collecting:.0%} of it."
        )
    lines.append(f"Worth it: --{workers} {found.worth}")
    if found.cores is not None and several.workers <= found.cores:
        lines.append(
            f"More {workers} than cores help where a simulator waits and does not compute: "
            f"--{workers} {8 * found.cores} measures that."
        )
    return lines


def workers_of(found: Profile) -> str:
    """The flag that sets the number of workers, without its dashes."""
    return "executors" if found.cores is None else "workers"
