"""The first lines of a run: what is trained, on what, and for how long."""

from gymnasium import spaces

from flame_rl.actor.environments.converting import has_bounds
from flame_rl.backends.select import local_workers
from flame_rl.run import checks
from flame_rl.run.results import Totals, ended, reached
from flame_rl.settings.algorithms import OnPolicySettings
from flame_rl.settings.config import TrainConfig
from flame_rl.settings.experiment import Experiment
from flame_rl.wire.inputs import is_channels_first, observation_inputs, observation_parts
from flame_rl.wire.messages import EnvironmentSpec

RULE = "=" * 60
FEW_UPDATES = 20  # a policy gradient moves a policy only so far in an update
_SHOWN = 6  # parts of an observation, or of an action, that are named


def header(config: TrainConfig, spec: EnvironmentSpec, distributed: bool, done: Totals) -> str:
    """The text; `done` are the totals of a resumed run when it starts again."""
    experiment, mode = config.experiment, "distributed" if distributed else "local"
    limit, wanted = spec.time_limit, experiment.stop_at
    judged = "an iteration" if experiment.evaluate_every is None else "an evaluation"
    keys, space = ", ".join(experiment.policy_observations), spec.observation_space
    alone = f"; the policy observes {keys} alone" if keys else ""
    vector = isinstance(space, spaces.Box) and len(space.shape) == 1
    hindsight = getattr(config.algorithm, "hindsight", "none") != "none"
    masks = "" if experiment.action_mask else "ignored"
    if spec.masked:
        masks = f'{spec.action_mask}["action_mask"], obeyed (--no-action-mask ignores them)'
    device = "cpu"
    if config.execution.device == "cuda":
        import torch  # which the run has imported

        device = f"{torch.cuda.get_device_name()} (cuda)"
    rows: dict[str, object] = {
        "Environment": spec.env_id,
        "Observation dim": spec.observation_dim if vector else "",  # for programs that read it
        "Observation": "" if vector else f"{observed(spec)}{alone}",
        "Action dim": spec.action_dim,
        "Continuous actions": spec.continuous,
        "Actions": acted(spec),
        "Action masks": masks,
        "Goals": "" if hindsight else checks.about_goals(spec),
        "Networks": _networks(experiment),
        "Device": device,
        "Agents": f"{len(spec.agents)}, with an episode and a return each" if spec.agents else "",
        "Stops at": "" if wanted is None else f"a mean return of {wanted:g} in {judged}",
        "Time limit": "none" if limit is None else f"{limit:,} steps",
        "Environments": _environments(config, spec, distributed),
    }
    rows |= _amounts(config, spec)
    where = " using Flame Runner" if distributed else ""
    start = f"Starting {mode} training..."
    if ended(experiment, done):
        why = f"; {reached_in_words(experiment, done)}" if reached(experiment, done) else ""
        start = f"This run is finished, after {done.iterations} iterations{why}."
    elif done.iterations:
        start += f"\nGoing on after iteration {done.iterations - 1}"
    title = f"{RULE}\n{mode.title()} {config.algorithm.title} on {spec.env_id}{where}\n{RULE}"
    shown = [f"  {name}: {value}" for name, value in rows.items() if value != ""]
    return "\n".join([title, "", "Configuration:", *shown, "", start])


def _networks(experiment: Experiment) -> str:
    """What the functions of the networks' file are asked for."""
    memory = f", {experiment.memory} of {experiment.memory_size}"
    asked = f"hidden layers of {', '.join(map(str, experiment.hidden_sizes))} units, "
    asked += f"{experiment.activation}{memory if experiment.memory != 'none' else ''}"
    return asked if experiment.model is None else f"{experiment.model}, asked for {asked}"


def reached_in_words(experiment: Experiment, totals: Totals) -> str:
    """That the run ended by --stop-at."""
    return f"the mean return {totals.mean_return:.1f} reached --stop-at {experiment.stop_at:g}"


def _environments(config: TrainConfig, spec: EnvironmentSpec, distributed: bool) -> str:
    slots, workers = config.execution.slots, local_workers(config)
    where = "in each executor" if distributed else f"in each of {workers} processes"
    if not distributed and workers < 2:
        where = "in a process" if workers else "in this process"
    number = "in a fast simulator" if slots is None else f"at most {slots // spec.agent_count or 1}"
    return f"{number} {where}"


def _amounts(config: TrainConfig, spec: EnvironmentSpec) -> dict[str, object]:
    experiment, most = config.experiment, checks.most_env_steps(config.experiment, spec)
    iterations, steps = experiment.iterations, experiment.steps_per_iter
    rows: dict[str, object] = {}
    if experiment.env_steps is None:
        rows["Training iterations"] = iterations
    if steps is not None:
        parts, total = "in whole episodes", f"about {most:,}"
        if (cut := checks.fragment_steps(config, spec)) is not None:
            parts = (
                f"in fragments of episodes, of at most {cut} steps; returns and lengths are those "
                "of fragments, whole_return that of episodes (--fragment-steps 0: whole episodes)"
            )
        rows["Steps per iteration"] = f"{steps}, {parts}"
    else:
        episodes = experiment.episodes_per_iter * spec.agent_count
        rows["Episodes per iteration"] = episodes
        total = "unknown, without a time limit" if most is None else f"at most {most:,}"
    if experiment.env_steps is not None:
        total = f"{most:,}, to the end of an {'iteration' if steps is None else 'episode'}"
    elif steps is None:
        rows["Total episodes"] = iterations * episodes
    rows["Total steps"] = total
    # With replay, an iteration has many updates.
    if isinstance(config.algorithm, OnPolicySettings):
        rows["Few updates"] = _few_updates(experiment, spec)
    return rows


def _few_updates(experiment: Experiment, spec: EnvironmentSpec) -> str:
    """How few updates a run has, where fewer than `FEW_UPDATES`, and the remedy; else ""."""
    updates, remedy = experiment.iterations, "--iterations sets more"
    if experiment.env_steps is not None:
        each = checks.most_env_steps_of_an_iteration(experiment, spec)
        updates = FEW_UPDATES if each is None else -(-experiment.env_steps // each)
        remedy = "a smaller --steps-per-iter makes more of a run's --env-steps"
    if updates >= FEW_UPDATES:
        return ""
    return f"{updates}, one an iteration; fewer than {FEW_UPDATES} seldom teach much ({remedy})"


def acted(spec: EnvironmentSpec) -> str:
    """What an action is."""
    space = spec.action_space
    if not isinstance(space, spaces.Box):
        return _choice(space)
    bounded = has_bounds(space).sum()
    scaled = {0: "in their own units", space.low.size: "from -1 to 1 at their bounds"}
    numbers = "1 number" if space.low.size == 1 else f"{space.low.size:,} numbers"
    return f"{numbers}, {scaled.get(bounded, f'{bounded} of them from -1 to 1 at their bounds')}"


def observed(spec: EnvironmentSpec) -> str:
    """What an observation is taken for."""
    inputs, space = observation_inputs(spec.observation_space), spec.observation_space
    pictures = [each for each in inputs if each.picture is not None]
    if pictures:
        words = []
        for each in pictures:
            rows, columns, channels = each.picture
            first = " (they come first, and are put last)" if is_channels_first(each.space) else ""
            words.append(f"a picture of {rows} x {columns}, channels: {channels}{first}")
        if count := sum(each.width for each in inputs if each.picture is None):
            words.append(f"{count:,} number{'s' * (count > 1)}")
        return " and ".join(words)
    parts, numbers = observation_parts(space), f"{spec.observation_dim:,} numbers"
    if not parts[0].path:
        return numbers if isinstance(space, spaces.Box) else f"{_choice(space)}, as {numbers}"
    boxes = [isinstance(part.space, spaces.Box) for part in parts]
    words = [
        f"{part.name} {f'{part.stop - part.start:,}' if box else _choice(part.space)}"
        for part, box in zip(parts, boxes, strict=True)
    ]
    return f"{numbers}: {_listed(words)}"


def _choice(space: spaces.Space) -> str:
    if isinstance(space, spaces.Discrete):
        return f"one of {space.n:,} choices"
    if isinstance(space, spaces.MultiDiscrete):
        return f"a choice each among {_listed(list(map(str, space.nvec.ravel())))}"
    return f"{spaces.flatdim(space):,} bits"


def _listed(words: list[str]) -> str:
    more = len(words) - _SHOWN
    return ", ".join(words[:_SHOWN]) + (f", … ({more:,} more)" if more > 0 else "")
