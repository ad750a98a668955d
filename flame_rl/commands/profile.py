"""`main.py profile --env ant`: what an iteration costs, and with how many workers it is fastest."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated

import tyro

from flame_rl.run.folder import resumed_config
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import Interrupted
from flame_rl.system.output import say
from flame_rl.system.signals import StopSignal, stop_on_signals

if TYPE_CHECKING:
    from flame_rl.tools.profiling import Profile
    from flame_rl.tools.scaling import Prediction

WORKERS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class ProfileCommand:
    """Measure what training costs, without training, and say what to expect of more workers.

    Takes the flags of training. With --resume RUN it is the policy of that run which plays, and
    otherwise an untrained one, whose episodes may be shorter than those to come.
    """

    train: Annotated[TrainConfig, tyro.conf.arg(name="")] = field(default_factory=TrainConfig)

    json: bool = False
    """Print one line of JSON."""


def profile(arguments: Sequence[str]) -> int:
    """Returns 0, or 128 and the number of the signal that ended it."""

    def parse(default: TrainConfig) -> ProfileCommand:
        given = ProfileCommand(default)
        return tyro.cli(ProfileCommand, args=arguments, default=given, prog="main.py profile")

    command = parse(TrainConfig())
    config = command.train
    if config.output.resume is not None:
        config = resumed_config(config.output.resume, lambda default: parse(default).train)
    with stop_on_signals() as stop:
        with contextlib.suppress(Interrupted):
            run(config, command.json, stop)
        return stop.exit_code


def run(config: TrainConfig, as_json: bool, stop: StopSignal) -> None:
    """Measure and print."""
    # Here and not above, so that --help and mistakes are answered at once.
    from flame_rl.tools import profiling as measuring

    measured = measuring.profile(config, stop)
    local, cluster = predictions(measured)
    if as_json:
        measured = asdict(measured)
        measured["config"] = json.loads(config.to_json())
        rows = {"local": local, "cluster": cluster}
        predicted = {name: [asdict(p) for p in row.values()] for name, row in rows.items()}
        say(json.dumps(measured | {"predictions": predicted}))
        return
    say("\n".join([*costs(measured), "", *table(measured, local, cluster), ""]))
    say("\n".join(advice(measured, local, cluster)))


def predictions(measured: Profile) -> tuple[dict[int, Prediction], dict[int, Prediction]]:
    """By number of workers on this machine, and of executors."""
    from flame_rl.tools.scaling import predict

    most = WORKERS[-1]
    here = sorted({*WORKERS, measured.local.cores})
    there = range(1, max(most, measured.executors) + 1)
    costs, work = measured.cluster_costs, measured.workload
    return (
        {n: predict(measured.local, work, n, ahead=1) for n in here},
        {n: predict(costs, work, n, ahead=n) for n in there},
    )


def costs(measured: Profile) -> list[str]:
    """What was measured, in lines for a person."""
    local, work, config = measured.local, measured.workload, measured.config
    length = sum(work.lengths) / len(work.lengths)
    who = "an untrained policy" if config.output.resume is None else "the run's policy"
    tasks = f"{duration(local.task + local.client_task)} here"
    if (there := measured.cluster) is not None:
        tasks += f", {duration(there.task + there.client_task)} on the cluster"
    return [
        f"{measured.env_id}, {config.algorithm_name}: {len(work.lengths)} episodes an iteration of "
        f"{length:.0f} steps as {who} plays",
        f"  an env step   {duration(mean_playing(measured) / length)} of a worker"
        f"{'' if local.computing > 0.5 else ', which mostly waits'}",
        f"  an episode    {duration(mean_playing(measured))} of a worker, "
        f"{work.bytes_per_step * length / 1000:,.1f} kB",
        f"  a task        {tasks}, besides its episodes",
        f"  an update     {duration(work.updating)} of the learner",
    ]


def mean_playing(measured: Profile) -> float:
    """Seconds per episode, of a task with as many as there are slots."""
    lengths, local = measured.workload.lengths, measured.local
    part = lengths[: local.slots]
    return local.playing(part) / len(part)


def table(
    measured: Profile, local: dict[int, Prediction], cluster: dict[int, Prediction]
) -> list[str]:
    """A row for each number of workers, this machine beside a cluster."""
    cores = measured.local.cores
    here = f"this machine, {cores} core{'s' * (cores > 1)}"
    there = "a cluster, a core each"
    heads = f"{'collecting':>12}{'iteration':>12}{'speedup':>9}"
    lines = [f"{'':8}  {here:^33}  {there:^33}", f"{'workers':>8}  {heads}  {heads}"]
    one = local[1].seconds
    for n in sorted({*local, measured.executors} - {0}):
        cells = [
            f"{duration(p.collecting):>12}{duration(p.seconds):>12}{one / p.seconds:>8.1f}x"
            if (p := row.get(n))
            else f"{'':33}"
            for row in (local, cluster)
        ]
        lines.append(f"{n:>8}  {cells[0]}  {cells[1]}".rstrip())
    if measured.cluster is None:
        lines.append("(no cluster is configured; its costs are those of docs/scaling.md)")
    return lines


def advice(
    measured: Profile, local: dict[int, Prediction], cluster: dict[int, Prediction]
) -> list[str]:
    """Which flags to use, and from how many executors on a cluster is faster."""
    from flame_rl.tools.scaling import enough

    best = enough(list(local.values()))
    flags = [] if best.workers == measured.local.cores else [f"--workers {best.workers}"]
    if measured.cluster is not None:
        flags.insert(0, "--local")
    faster = [n for n, prediction in cluster.items() if prediction.seconds < best.seconds]
    lines = [
        f"On this machine: {best.workers} worker{'s' * (best.workers > 1)}, "
        f"{duration(best.seconds)} an iteration ({' '.join(flags) or 'no flag needed'})."
    ]
    if not faster:
        return [*lines, f"Local is faster than a cluster of up to {max(cluster)} executors."]
    lines.append(
        f"Local is faster below {faster[0]} executors."
        if faster[0] > 1
        else "A cluster is faster with any number of executors."
    )
    most = enough(list(cluster.values()))
    if most.workers < max(cluster):
        lines[-1] += (
            f" More than {most.workers} hardly help: then the update takes "
            f"{most.updating / most.seconds:.0%} of an iteration."
        )
    if measured.cluster is not None:
        there = cluster[measured.executors]
        wins = there.seconds < best.seconds
        lines.append(
            f"The cluster now has {measured.executors}: {duration(there.seconds)} an iteration. "
            f"Use {'it (no flag needed)' if wins else ' '.join(flags)}."
        )
        # Its executors are as many as its cores, unless simulators leave those to each other.
        if most.workers > measured.executors >= most.workers * measured.local.computing:
            lines.append(
                f"These simulators mostly wait: --executors {most.workers} would take "
                f"{duration(most.seconds)}."
            )
    return lines


def duration(seconds: float) -> str:
    """With a unit that suits its size."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"
