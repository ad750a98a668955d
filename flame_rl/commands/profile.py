"""`main.py profile --env ant`: measure iterations, and say how many workers are worth it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flame_rl.run.folder import refuse_another_run, saved_config
from flame_rl.settings.experiment import environment_id
from flame_rl.settings.parse import parse, resumed_folder
from flame_rl.system.errors import UsageError
from flame_rl.system.output import say, warn
from flame_rl.system.signals import stop_on_signals

if TYPE_CHECKING:
    from flame_rl.tools.profiling import Measured

DESCRIPTION = """Measure what an iteration costs with one worker and with several, and say how many
are worth it.

Takes the flags of training, runs a few iterations where training would, and writes nothing.
--workers N, or --executors N on a cluster, compares one with N; otherwise N is the number of cores.
With --resume RUN or --from RUN the policy of that run plays; otherwise an untrained one, whose
episodes may be shorter than those to come."""

# Several workers are worth it where an iteration takes this part longer with one.
_WORTH = 0.1


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
    words = {"prog": "main.py profile", "description": DESCRIPTION}
    config, command = parse(arguments, default, **words, extra=ProfileFlags)
    if config.output.seeds:
        raise UsageError("--seeds: a profile is of one run; leave the flag out")
    if default is not None:
        refuse_another_run(default, config)
    with stop_on_signals() as stop:
        # Here and not above, so that --help and mistakes are answered at once.
        from flame_rl.backends.select import is_distributed
        from flame_rl.run.checkpoint import find_checkpoint
        from flame_rl.tools.profiling import measure_both

        # Not the policy with which a run would begin again.
        found = None if folder is None else find_checkpoint(folder)
        for warning in [] if found is None else found[1]:
            warn(f"warning: {warning}")
        one, several = measure_both(config, stop, found)
        if command.json:
            measured = {"one": one._asdict(), "several": several._asdict()}
            say(json.dumps(measured | conclusions(one, several)))
        else:
            title = f"{environment_id(config.experiment.env)}, {config.algorithm_name}"
            noun = "executors" if is_distributed(config) else "workers"
            say(as_text(title, noun, one, several))
    return stop.exit_code


def conclusions(one: Measured, several: Measured) -> dict[str, float]:
    """How many times as fast several workers collect as one, and which number is worth it."""
    seconds = several.collecting + several.updating
    saves = one.collecting + several.updating > (1 + _WORTH) * seconds
    worth = several.workers if saves else one.workers
    return {"speedup": one.collecting / several.collecting, "worth": worth}


def as_text(title: str, noun: str, one: Measured, several: Measured) -> str:
    """A table of what was measured, and what follows; `noun` is the flag that sets the number of
    workers, without its dashes."""
    follows = conclusions(one, several)
    share = several.collecting / (several.collecting + several.updating)
    limit = "The learner is the limit: updating takes longer than collecting."
    if share > 0.5:
        limit = f"Collecting takes longer than updating: more {noun} may shorten an iteration"
        limit += f", by at most {share:.0%}."
    lines = [
        f"{title}: {several.episodes} episodes and {several.env_steps:,.0f} env steps an iteration",
        "",
        f"  {noun:<10}{'collecting':>12}{'updating':>12}{'env steps/s':>14}",
    ]
    for each in (one, several):
        seconds = f"{each.collecting:>10.3g} s{each.updating:>10.3g} s"
        lines.append(f"  {each.workers:<10}{seconds}{each.env_steps_per_second:>14,.0f}")
    faster = f"{several.workers} {noun} collect {follows['speedup']:.2f} times as fast as one."
    return "\n".join([*lines, "", faster, limit, f"Worth it: --{noun} {follows['worth']}"])
