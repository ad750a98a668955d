"""What follows from an examined environment: what stands in the way of training, and the remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from flame_rl.run.checks import about_goals, environment_warnings
from flame_rl.settings.algorithms import ALGORITHMS, settings_class
from flame_rl.settings.config import TrainConfig, names_of
from flame_rl.tools.checking import FAR, Examined

# A reset that takes longer than so many steps, and steps a second below which it is slow.
_SLOW_RESET_STEPS, _SLOW = 100, 100
# Memory of a process's environments that is worth a word.
_MUCH_MEMORY = 1e9
_MOST_OF_CHECKER = 4
# What Gymnasium's checker recommends that this package does: it scales actions, and takes any
# bounds of observations.
_OF_BOUNDS = re.compile("is -?infinity|symmetric and normalized space")


class Finding(NamedTuple):
    """A sentence with a cause and a remedy. It is a problem where training fails, or its results
    cannot be repeated, and otherwise advice."""

    problem: bool
    topic: str
    text: str


def findings(examined: Examined, config: TrainConfig) -> list[Finding]:
    """The problems, then the advice; `config` is of a run in the environment."""
    found = [Finding(True, "fails", text) for text in examined.failures]
    differing = [text for text in (examined.differs, examined.beside) if text]
    found += [Finding(True, "repeats", text) for text in differing]
    advice = [("repeats", text) for text in examined.notes]
    advice += [*_of_spec(examined, config), *_of_play(examined), *_of_objects(examined, config)]
    remarks = [text for text in examined.checker if not _OF_BOUNDS.search(text)]
    advice += [("checker", f"Gymnasium: {text}") for text in remarks[:_MOST_OF_CHECKER]]
    return found + [Finding(False, *each) for each in advice]


def _of_spec(examined: Examined, config: TrainConfig) -> Iterator[tuple[str, str]]:
    """Topics and sentences about spaces, the time limit, goals, and rewards that are vectors."""
    spec, played = examined.spec, examined.played
    if spec is None:
        return
    yield from (("spaces", text) for text in environment_warnings(config, spec))
    if spec.time_limit is None or spec.limited_by_default:
        limit, text = spec.time_limit, "Gymnasium knows no time limit"
        if played is not None:
            longest = played["longest"]
            if longest != limit and played["truncated"]:
                text = f"the environment's own code cuts episodes, here by step {longest:,}"
            elif longest != limit and played["returns"]:
                text += f"; here episodes ended by step {longest:,}"
            else:
                text += f", and none ended within {longest:,} steps"
        remedy = "--max-episode-steps N cuts them"
        if limit is not None:
            remedy = f"Episodes are cut after {limit:,}; --max-episode-steps N sets another, 0 none"
        yield "time limit", f"{text}. {remedy}"
    if text := about_goals(spec):
        yield "goals", text
    if spec.reward_shape:
        text = f"a reward is a vector of {spec.reward_shape[0]} numbers: --reward-weights"
        yield "rewards", f"{text}, with a weight for each, says what is learned from"


def _of_play(examined: Examined) -> Iterator[tuple[str, str]]:
    """Topics and sentences about what a random policy met."""
    if (played := examined.played) is None:
        return
    rewards, rate = played["rewards"], played["steps_per_second"]
    if played["far"]:
        name, value = played["far"][0]
        kinds = {each: settings_class(each) for each in ALGORITHMS}
        able = [n for n, kind in kinds.items() if "normalize_observations" in names_of(kind)]
        by_itself = ", ".join(n for n in able if kinds[n]().normalize_observations)
        by_flag = ", ".join(n for n in able if not kinds[n]().normalize_observations)
        yield (
            "observations",
            f"{len(played['far'])} of the numbers go beyond {FAR:.0f}, {name} up "
            f"to {value:,.0f}. Normalised by {by_itself}; by {by_flag} with "
            "--normalize-observations True; for others scale them in a --wrapper of your own",
        )
    largest = max(abs(rewards["least"]), abs(rewards["most"]))
    if not largest:
        yield (
            "rewards",
            f"a random policy got no reward but 0 in {rewards['count']:,} steps, and exploration "
            "begins like one: reward what leads there (--reward), or let episodes begin nearer",
        )
    elif largest > FAR:
        yield (
            "rewards",
            f"a reward of {largest:,.0f} is far from 1: --reward-scale (ddpg, td3, sac), or "
            "scale it in a --wrapper of your own (gymnasium.wrappers.TransformReward)",
        )
    if rate < _SLOW:
        yield (
            "speed",
            f"it is slow: 100,000 steps take a worker {100_000 / rate / 3600:,.1f} hours; look for "
            "a quicker setting (--env-kwargs), and for --workers that are worth it (main.py "
            "profile)",
        )
    steps = played["reset_seconds"] * rate
    if steps > _SLOW_RESET_STEPS and steps > played["longest"]:
        yield (
            "speed",
            f"a reset takes as long as {steps:,.0f} steps, longer than an episode: do in the "
            "constructor what can be done once",
        )


def _of_objects(examined: Examined, config: TrainConfig) -> Iterator[tuple[str, str]]:
    """Topics and sentences about the time and the memory that objects take."""
    making = examined.making_seconds
    if making is not None and making > 1:
        text = f"making an object takes {making:.1f} s: a process begins with one, and makes more"
        yield "speed", f"{text} as the run goes on (--slots)"
    # What is not asked for, training chooses by this memory itself.
    slots, each = config.execution.slots or 1, examined.bytes or 0
    if each * slots > _MUCH_MEMORY:
        noun = "environment takes" if slots == 1 else f"environments of {each / 1e6:,.0f} MB take"
        text = f"{slots} {noun} {each * slots / 1e9:.1f} GB in each worker: fewer --slots or"
        yield "memory", f"{text} --workers take less"
