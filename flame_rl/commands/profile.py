"""`main.py profile --env ant`: measure iterations, and say how many workers are worth it."""

import json
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import mean
from typing import NamedTuple

from flame_rl.backends.select import is_distributed, local_workers, make_backend
from flame_rl.commands.train import networks_of
from flame_rl.run.checkpoint import Checkpoint, find_checkpoint
from flame_rl.run.folder import refuse_another_run, saved_config
from flame_rl.settings.algorithms import ReplaySettings
from flame_rl.settings.config import TrainConfig, environment_of
from flame_rl.settings.experiment import environment_id
from flame_rl.settings.parse import parse, read_first
from flame_rl.system.errors import UsageError, nothing_but_json, say, warn
from flame_rl.system.machine import available_cores
from flame_rl.system.signals import StopSignal, stop_on_signals

DESCRIPTION = """Measure what an iteration costs with one worker and with several, and say how many
are worth it.

Takes the flags of training, runs a few iterations where training would, and writes nothing.
--workers N, or --executors N on a cluster, compares one with N; otherwise N is the number of cores.
With --resume RUN or --from RUN the policy of that run plays; otherwise an untrained one, whose
episodes may be shorter than those to come."""

_ITERATIONS, _SECONDS = 3, 10.0  # iterations, fewer where they take these seconds
_WORTH = 0.1  # several workers are worth it where an iteration takes this part longer with one


@dataclass(frozen=True)
class ProfileFlags:
    """The flags of `profile` besides those of training."""

    json: bool = False
    """Print one line of JSON."""


class Measured(NamedTuple):
    """A mean iteration with a number of workers, or executors: its size, seconds of collecting and
    of updating, and env steps per second of collecting."""

    workers: int
    episodes: int
    env_steps: float
    collecting: float
    updating: float
    env_steps_per_second: float


def profile(arguments: Sequence[str]) -> int:
    """Run the command. Returns 0, or 128 plus the number of the signal that ended it. Raises
    UsageError for --seeds, and if the run to resume has no policy."""
    folder = read_first(arguments).get("resume")
    default = None if folder is None else saved_config(folder)
    options = {"description": DESCRIPTION, "networks": networks_of, "extra": ProfileFlags}
    config, command = parse(arguments, default, command="profile", **options)
    if config.output.seeds:
        raise UsageError("--seeds: a profile is of one run; leave the flag out")
    if default is not None:
        refuse_another_run(default, config)
    with stop_on_signals() as stop:
        with nothing_but_json(command.json):
            one, several = measure_both(config, stop)
        if command.json:
            measured = {"one": one._asdict(), "several": several._asdict()}
            say(json.dumps(measured | conclusions(one, several)))
        else:
            title = f"{environment_id(config.experiment.env)}, {config.algorithm_name}"
            noun = "executors" if is_distributed(config) else "workers"
            say(as_text(title, noun, one, several))
    return stop.exit_code


def measure_both(config: TrainConfig, stop: StopSignal) -> list[Measured]:
    """Run the same few iterations as training would, with one worker or executor, and with as many
    as `config` asks for, by default all. The policy is that of the run to resume, or untrained;
    then replay has no warm-up, in which there is no gradient step. Raises as training does."""
    found = None
    if config.output.resume is not None:
        found = find_checkpoint(config.output.resume)  # raises without a policy
        for warning in found[1]:
            warn(f"warning: {warning}")
    elif isinstance(config.algorithm, ReplaySettings):
        config = config.changed(warm_up_steps=0)
    both = [config.changed(executors=1), config]
    if not is_distributed(config):
        asked = config.execution.workers or 0
        several = asked if asked > 1 else max(2, available_cores())
        both = [config.changed(workers=number) for number in (1, several)]
    return [_measure(each, found, stop) for each in both]


def _measure(
    config: TrainConfig, found: tuple[Checkpoint, list[str]] | None, stop: StopSignal
) -> Measured:
    with closing(make_backend(config, stop)) as backend:
        from flame_rl.run.trainer import Trainer  # workers start while torch is imported

        here = config.changed(local=True, workers=0)
        with Trainer(here, stop=stop, reports=True) as trainer:
            trainer.begin(found)
            backend.describe(environment_of(trainer.config, trainer.spec.env_id))
            workers = backend.executors if is_distributed(config) else local_workers(config)
            begun, began = trainer.totals, time.monotonic()
            results = [trainer.do_iteration(backend)]
            # The first, in which workers start, counts only where an iteration takes long.
            if results[0].timing.collecting < _SECONDS:
                begun, results = results[0].totals, [trainer.do_iteration(backend)]
            while len(results) < _ITERATIONS and time.monotonic() < began + _SECONDS:
                results.append(trainer.do_iteration(backend))
    episodes = round((results[-1].episodes - begun.episodes) / len(results))
    steps = (results[-1].env_steps - begun.env_steps) / len(results)
    collecting = mean(result.timing.collecting for result in results)
    updating = mean(result.timing.updating for result in results)
    warn(f"Measured with {workers}: {collecting:.3g} s of collecting, {updating:.3g} of updating")
    return Measured(workers, episodes, steps, collecting, updating, steps / collecting)


def conclusions(one: Measured, several: Measured) -> dict[str, float]:
    """How many times as fast several workers collect as one, and which number is worth it."""
    seconds = several.collecting + several.updating
    saves = one.collecting + several.updating > (1 + _WORTH) * seconds
    worth = several.workers if saves else one.workers
    return {"speedup": one.collecting / several.collecting, "worth": worth}


def as_text(title: str, noun: str, one: Measured, several: Measured) -> str:
    """A table of what was measured, and what follows; `noun` is the flag for the number, bare."""
    rows = "".join(
        f"  {workers:<10}{collecting:>10.3g} s{updating:>10.3g} s{speed:>14,.0f}\n"
        for workers, _, _, collecting, updating, speed in (one, several)
    )
    follows = conclusions(one, several)
    share = several.collecting / (several.collecting + several.updating)
    limit = "The learner is the limit: updating takes longer than collecting."
    if share > 0.5:
        limit = f"Collecting takes longer than updating: more {noun} may shorten an iteration, by "
        limit += f"at most {share:.0%}."
    return (
        f"{title}: {several.episodes} episodes and {several.env_steps:,.0f} env steps an iteration"
        f"\n\n  {noun:<10}{'collecting':>12}{'updating':>12}{'env steps/s':>14}\n{rows}\n"
        f"{several.workers} {noun} collect {follows['speedup']:.2f} times as fast as one.\n"
        f"{limit}\nWorth it: --{noun} {follows['worth']}"
    )
