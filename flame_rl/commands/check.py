"""`main.py check --env NAME`: what an environment is like, and what is in the way of training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from textwrap import fill, shorten
from typing import TYPE_CHECKING

from flame_rl.settings.checks import Positive
from flame_rl.settings.config import environment_of
from flame_rl.settings.experiment import environment_id
from flame_rl.settings.parse import parse
from flame_rl.system.errors import nothing_but_json, say

if TYPE_CHECKING:
    from flame_rl.tools.checking import Examined, Finding

# Columns of the screen, where the second one of the table begins, and the most of a space.
_WIDTH, _INDENT, _SPACE = 100, 16, 120


DESCRIPTION = """Examine an environment before training in it: what its spaces are taken for, how
fast it is, whether the same seed gives the same episode, and what a random policy earns.

Takes the flags of training. Ends with exit code 1 if training would fail, or could not be
repeated."""


@dataclass(frozen=True)
class CheckFlags:
    """The flags of `check` besides those of training."""

    seconds: Positive = 3.0
    """About how long random actions are played."""

    json: bool = False
    """Print one line of JSON."""


def check(arguments: Sequence[str]) -> int:
    """Run the command. Returns 0, or 1 if the environment has a problem."""
    config, command = parse(arguments, command="check", description=DESCRIPTION, extra=CheckFlags)
    from flame_rl.backends.select import is_distributed, local_workers
    from flame_rl.tools.checking import examine, findings

    environment = environment_of(config, environment_id(config.experiment.env))
    execution, distributed = config.execution, is_distributed(config)
    processes = execution.workers_per_executor if distributed else max(1, local_workers(config))
    # With --hindsight the learner has one of its own.
    processes += getattr(config.algorithm, "hindsight", "none") != "none"
    with nothing_but_json(command.json):
        examined = examine(environment, command.seconds, processes)
        found = findings(examined, config)
    say(_as_json(examined, found) if command.json else _as_text(examined, found))
    return int(any(finding.problem for finding in found))


def _as_json(examined: Examined, found: Sequence[Finding]) -> str:
    """All that was found out, spaces as Gymnasium writes them."""
    from flame_rl.report.header import observed

    data = asdict(examined) | {"environment": examined.environment.env_id, "spec": None}
    if (spec := examined.spec) is not None:
        spaces = {name: str(getattr(spec, name)) for name in ("observation_space", "action_space")}
        names = ("time_limit", "reward_shape", "action_mask", "agents")
        own = {name: getattr(spec, name) for name in names}
        data["spec"] = spaces | {"observed": observed(spec)} | own
    return json.dumps(data | {"findings": [each._asdict() for each in found]})


def _as_text(examined: Examined, found: Sequence[Finding]) -> str:
    """One screen: a table of what was found out, then what is in the way, with remedies."""

    def filled(text: str, first: str, indent: int) -> str:
        uncut = {"break_long_words": False, "break_on_hyphens": False}  # a path is not cut
        first = first.ljust(indent)
        return fill(text, _WIDTH, initial_indent=first, subsequent_indent=" " * indent, **uncut)

    title = examined.environment.env_id
    lines = [f"{title} ({examined.package})" if examined.package else title]
    if examined.spec is not None:
        rows = _rows(examined).items()
        lines += ["", *(filled(text, f"  {name}", _INDENT) for name, text in rows if text)]
    for problem, heading in ((True, "In the way:"), (False, "Worth knowing:")):
        texts = [each.text for each in found if each.problem == problem]
        lines += ["", heading] if texts else []
        lines += [filled(text, "  - ", 4) for text in texts]
    return "\n".join(lines if found else [*lines, "", "Nothing is in the way."])


def _rows(examined: Examined) -> dict[str, str]:
    from flame_rl.report.header import acted, observed

    spec = examined.spec
    spaces = (spec.observation_space, spec.action_space)
    observation, action = (shorten(str(each), _SPACE, placeholder=" …") for each in spaces)
    rows = {
        "observation": f"{observed(spec)}, of {observation}",
        "action": f"{acted(spec)}, of {action}",
        "agents": ", ".join(spec.agents)[:200],
        "time limit": "none" if spec.time_limit is None else f"{spec.time_limit:,} steps",
        "layers": " > ".join(examined.layers),
    }
    if (played := examined.played) is not None:
        memory = "" if examined.bytes is None else f", memory {examined.bytes / 1e6:,.1f} MB"
        returns, lengths, rewards = (played[name] for name in ("returns", "lengths", "rewards"))
        least, most = played["observed"]
        rows |= {
            "speed": f"{played['steps_per_second']:,.0f} steps/s in one environment, a reset "
            f"{played['reset_seconds']:.2g} s, making one {examined.making_seconds:.2g} s{memory}",
            "random policy": f"no episode ended within {played['longest']:,} steps"
            if returns is None
            else f"return {returns['mean']:.4g} ± {returns['std']:.3g}, {returns['least']:.4g} to "
            f"{returns['most']:.4g}, in {returns['count']} episodes of {lengths['least']:.0f} to "
            f"{lengths['most']:.0f} steps, {played['truncated']} of them cut",
            "rewards": f"{rewards['mean']:.3g} ± {rewards['std']:.2g} a step, "
            f"{rewards['least']:.4g} to {rewards['most']:.4g}, in {rewards['count']:,} steps",
            "numbers": f"observed from {least:.4g} to {most:.4g}",
            "masks": "none: no action_mask in info or observation, and no method action_masks"
            if spec.action_mask == "none"
            else f"{spec.action_mask}['action_mask'], read unless --no-action-mask: "
            f"{played['allowed']:.0%} of {spec.action_dim} choices are allowed, on average",
            "info": ", ".join(examined.info)[:150] or "nothing",
        }
    if not examined.failures:
        repeats = "the same episode for one seed, twice, in another object, and beside another one"
        rows["repeats"] = "no, see below" if examined.differs or examined.beside else repeats
    return rows
