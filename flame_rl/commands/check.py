"""`main.py check --env NAME`: what an environment is like, and what is in the way of training."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from textwrap import fill
from typing import TYPE_CHECKING

from flame_rl.settings.config import TrainConfig, environment_of
from flame_rl.settings.experiment import environment_id
from flame_rl.settings.parse import parse_command
from flame_rl.system.output import say

if TYPE_CHECKING:
    from flame_rl.tools.checking import Examined
    from flame_rl.tools.findings import Finding

_WIDTH = 100
# Where the second column of the table begins.
_INDENT = 16
# The most characters of a space.
_SPACE = 120


@dataclass(frozen=True)
class CheckCommand:
    """Examine an environment before training in it: what its spaces are taken for, how fast it is,
    whether the same seed gives the same episode, and what a random policy earns.

    Two objects of it are played alone and in turns, and Gymnasium's own checker is asked. Ends with
    exit code 1 if training would fail, or could not be repeated.
    """

    env: str = "cartpole"
    """The environment, named as for training."""

    env_kwargs: tuple[str, ...] = ()
    """Arguments of its constructor, name=value, as for training."""

    wrapper: tuple[str, ...] = ()
    """Wrappers around it, module:Class, as for training."""

    observe: tuple[str, ...] = ()
    """Keys of a Dict that are observed, as for training."""

    action_mask: bool = True
    """Read masks of allowed actions, as for training; with --no-action-mask they are ignored."""

    max_episode_steps: int | None = None
    """A time limit in steps, as for training."""

    seconds: float = 3.0
    """About how long random actions are played."""

    json: bool = False
    """Print one line of JSON."""


def check(arguments: Sequence[str]) -> int:
    """Run the command. Returns 0, or 1 if the environment has a problem."""
    command = parse_command(CheckCommand, arguments, "main.py check")
    # All but these are as for training.
    own = ("seconds", "json")
    given = {each.name: getattr(command, each.name) for each in fields(command)}
    config = TrainConfig(**{name: given[name] for name in given if name not in own})
    # Here and not above, so that --help and mistakes are answered at once.
    from flame_rl.tools.checking import examine
    from flame_rl.tools.findings import findings

    environment = environment_of(config, environment_id(command.env))
    examined = examine(environment, command.seconds)
    found = findings(examined, config)
    say(_as_json(examined, found) if command.json else _as_text(examined, found))
    return int(any(finding.problem for finding in found))


def _as_json(examined: Examined, found: Sequence[Finding]) -> str:
    """All that was found out, spaces as Gymnasium writes them."""
    from flame_rl.report.header import observed

    data = asdict(examined)
    data["environment"] = examined.environment.env_id
    data["spec"] = None
    if (spec := examined.spec) is not None:
        data["spec"] = {
            "observation_space": str(spec.observation_space),
            "action_space": str(spec.action_space),
            "observed": observed(spec),
            "time_limit": spec.time_limit,
            "reward_shape": spec.reward_shape,
            "action_mask": spec.action_mask,
            "agents": spec.agents,
        }
    return json.dumps(data | {"findings": [asdict(each) for each in found]})


def _as_text(examined: Examined, found: Sequence[Finding]) -> str:
    """One screen: a table of what was found out, then what is in the way, with remedies."""

    def filled(text: str, first: str, indent: int) -> str:
        # A path is not cut.
        uncut = {"break_long_words": False, "break_on_hyphens": False}
        first = first.ljust(indent)
        return fill(text, _WIDTH, initial_indent=first, subsequent_indent=" " * indent, **uncut)

    title = examined.environment.env_id
    lines = [f"{title} ({examined.package})" if examined.package else title]
    lines += [""] if examined.spec is not None else []
    lines += [filled(text, f"  {name}", _INDENT) for name, text in _rows(examined, found)]
    for problem, heading in ((True, "In the way:"), (False, "Worth knowing:")):
        texts = [each.text for each in found if each.problem == problem]
        lines += ["", heading] if texts else []
        lines += [filled(text, "  - ", 4) for text in texts]
    if not found:
        lines += ["", "Nothing is in the way."]
    return "\n".join(lines)


def _rows(examined: Examined, remarks: Sequence[Finding]) -> list[tuple[str, str]]:
    """The rows of the table: a name, and what was found out."""
    from flame_rl.report.header import acted, observed

    spec = examined.spec
    if spec is None:
        return []
    rows = [
        ("observation", f"{observed(spec)}, of {_space(spec.observation_space)}"),
        ("action", f"{acted(spec)}, of {_space(spec.action_space)}"),
        ("agents", ", ".join(spec.agents)[:200]),
        ("time limit", "none" if spec.time_limit is None else f"{spec.time_limit:,} steps"),
        ("layers", " > ".join(examined.layers)),
        *_of_play(examined),
    ]
    if not examined.failures:
        repeats = "the same episode for one seed, twice, in another object, and beside another one"
        differs = examined.differs or examined.beside
        rows.append(("repeats", "no, see below" if differs else repeats))
        remarked = any(each.topic == "checker" for each in remarks)
        said = "not content, see below" if remarked else "content"
        rows += [] if spec.agents else [("gymnasium", f"its checker is {said}")]
    return [(name, text) for name, text in rows if text]


def _of_play(examined: Examined) -> Iterator[tuple[str, str]]:
    """The rows about what a random policy did."""
    played, spec = examined.played, examined.spec
    if played is None:
        return
    memory = "" if examined.bytes is None else f", memory {examined.bytes / 1e6:,.1f} MB"
    yield (
        "speed",
        f"{played['steps_per_second']:,.0f} steps/s in one environment, a reset "
        f"{_seconds(played['reset_seconds'])}, making one {_seconds(examined.making_seconds)}"
        f"{memory}",
    )
    returns, lengths, rewards = (played[name] for name in ("returns", "lengths", "rewards"))
    earned = f"no episode ended within {played['longest']:,} steps"
    if returns is not None:
        earned = (
            f"return {returns['mean']:.4g} ± {returns['std']:.3g}, {returns['least']:.4g} to "
            f"{returns['most']:.4g}, in {returns['count']} episodes of {lengths['least']:.0f} to "
            f"{lengths['most']:.0f} steps, {played['truncated']} of them cut"
        )
    yield "random policy", earned
    yield (
        "rewards",
        f"{rewards['mean']:.3g} ± {rewards['std']:.2g} a step, {rewards['least']:.4g} to "
        f"{rewards['most']:.4g}, not 0 in {played['paid']:.1%} of {rewards['count']:,} steps",
    )
    least, most = played["observed"]
    constant = f"{played['constant']} of {played['numbers']} never changed"
    yield "numbers", f"observed from {least:.4g} to {most:.4g}; {constant}"
    masks = "none: no action_mask in info or observation"
    if spec.action_mask != "none":
        masks = (
            f"{spec.action_mask}['action_mask'], read unless --no-action-mask: "
            f"{played['allowed']:.0%} of {spec.action_dim} choices are allowed, on average"
        )
    yield "masks", masks
    yield "info", ", ".join(examined.info)[:150] or "nothing"


def _space(space: object) -> str:
    """A space as Gymnasium writes it, in one line, and not too long."""
    text = " ".join(str(space).split())
    return text if len(text) <= _SPACE else f"{text[:_SPACE]} …"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
