"""Settings that decide the result of a run, whichever algorithm learns; names of environments."""

import ast
import contextlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from flame_rl.settings import checks
from flame_rl.settings.checks import Count, CountOrZero, Fraction, Number, Seed
from flame_rl.system.errors import UsageError

if TYPE_CHECKING:
    import gymnasium

    EnvironmentSource = str | Callable[[], gymnasium.Env]
else:
    # A command line can only give a name; `__post_init__` checks a function.
    EnvironmentSource = str


Source = Annotated[str, checks.matching(r"\S", "a file, a run folder or a dataset")]
Digest = Annotated[str, checks.matching(r"^[0-9a-f]{64}$", "a SHA-256, 64 hexadecimal digits")]
Width = Annotated[int, checks.within(1, 1 << 40, "from 1 to 2**40")]
# Short names for --env.
ENVIRONMENTS = {
    "cartpole": "CartPole-v1",
    "halfcheetah": "HalfCheetah-v5",
    "hopper": "Hopper-v5",
    "walker2d": "Walker2d-v5",
    "ant": "Ant-v5",
}

CALLABLE = "callable "  # begins the name, in config.json, of an environment that a function makes


@dataclass(frozen=True)
class Experiment:
    """Settings that decide the result of a run, together with the algorithm's."""

    env: EnvironmentSource = "cartpole"
    """cartpole, halfcheetah, hopper, walker2d, ant, any Gymnasium id, your own as module:EnvId, a
    module of several agents; in Python also a function that makes one."""

    env_kwargs: tuple[str, ...] = ()
    """Arguments of the environment's constructor, name=value as in JSON; in Python a dictionary."""

    wrapper: tuple[checks.Class, ...] = ()
    """Wrappers around the environment, module:Class or module:function, the innermost first."""

    seed: Seed = 0
    """Seed of everything random. The same seed gives the same metrics.csv."""

    from_: Path | None = None
    """Begin with what fits of another run: RUN (its newest state), RUN/best or a checkpoint. On the
    command line, flags of networks, such as --hidden-sizes and --memory, default to that run's."""

    from_digest: str | None = None
    """With --from, the SHA-256 of the state that is begun with; another one is refused."""

    iterations: Count = 100
    """Training iterations. A resumed run may be given more of them."""

    env_steps: Count | None = None
    """Train until N env steps are collected, in place of --iterations."""

    stop_at: Number | None = None
    """End the run once the mean return of an iteration, or evaluation, reaches this."""

    episodes_per_iter: Count = 100
    """Complete episodes collected in each iteration; what several agents play together is one."""

    steps_per_iter: Count | None = None
    """Env steps in each iteration, in place of --episodes-per-iter: whole episodes that reach N."""

    fragment_steps: CountOrZero | None = None
    """Cut episodes after N steps, and go on with them in the next iteration; 0: never; none: an
    eighth of --steps-per-iter, where the time limit is at least twice that."""

    max_episode_steps: CountOrZero | None = None
    """Time limit in steps in place of the environment's; none: 1,000 where it has none; 0: its own
    alone. What a limit cuts off is bootstrapped."""

    observe: tuple[str, ...] = ()
    """Keys of a Dict that are observed, such as image and direction; by default all are."""

    policy_observations: tuple[str, ...] = ()
    """Keys of a Dict that the policy observes, where value networks and critics observe all."""

    agent_number: bool = False
    """Let each of several agents observe its own number, too."""

    action_mask: bool = True
    """Read masks of allowed actions in info or observation (action_mask), or by action_masks()."""

    gamma: Fraction = 0.99
    """Discount of rewards per step. At 1, without a value network, a time limit is an end."""

    reward_parts: tuple[str, ...] = ()
    """Numbers in `info` that are recorded at every step; metrics.csv has a column for each."""

    outcomes: tuple[str, ...] = ()
    """Numbers in `info` at an episode's last step, such as is_success; a column for each mean."""

    reward_weights: tuple[Number, ...] = ()
    """Learn from the sum of the parts of a reward and --reward-parts, with a weight for each."""

    reward: checks.Function | None = None
    """Learn from what your module:function makes of an episode's rewards; evaluations do not."""

    model: Path | None = None
    """File of your own networks, as model.py, from here or by its whole path; none: model.py beside
    the script or here, if any."""

    hidden_sizes: tuple[Width, ...] = (64, 64)
    """Widths of the hidden layers of every network."""

    activation: Literal["tanh", "relu", "silu"] = "tanh"
    """Nonlinearity between the layers."""

    frame_stack: Annotated[int, checks.within(1, 1000)] = 1
    """Latest observations that every network sees side by side."""

    memory: Literal["none", "gru", "lstm"] = "none"
    """Recurrent layer of every network, between the hidden layers and the output."""

    memory_size: Count = 64
    """Width of the recurrent layer."""

    evaluate_every: Count | None = None
    """Evaluate without exploring after every N iterations and the last; best.ckpt is by that."""

    evaluate_episodes: Count = 20
    """Number of episodes in an evaluation."""

    demonstrations: Source | None = None
    """Learn from demonstrations, too: an .npz file, a run with a replay, or a Minari dataset."""

    demonstrations_digest: Digest | None = None
    """SHA-256 of the demonstrations, which config.json keeps: the run learns from no others."""

    def __post_init__(self) -> None:
        named = isinstance(self.env, str) and bool(self.env.strip())
        if not (named or callable(self.env)):
            checks.refuse("env", "a name or Gymnasium id, or in Python a function", self.env)
        if named and ":" in self.env and not re.search(checks.PAIR, self.env):
            checks.refuse("env", "a module and an id, as in my_env:Mine-v0", self.env)
        object.__setattr__(self, "env_kwargs", keyword_texts(self.env_kwargs))
        checks.check_fields(self, but=("env",))
        for field in ("reward_parts", "outcomes", "observe", "policy_observations"):
            names = getattr(self, field)
            if len(set(names)) < len(names) or "" in names:
                checks.refuse(field, "names, each once", names)
        for name, of in (("from_digest", "from_"), ("demonstrations_digest", "demonstrations")):
            if (digest := getattr(self, name)) is not None and getattr(self, of) is None:
                checks.refuse(name, f"with {checks.flag(of)}, what its digest must be", digest)
        if self.reward is not None and self.reward_weights:
            raise UsageError("--reward-weights: --reward replaces them; leave one of the two out")

    @property
    def env_name(self) -> str:
        """`env` as text; for a function "callable " and its qualified name."""
        if isinstance(self.env, str):
            return self.env
        # A callable object has no name of its own.
        named = self.env if hasattr(self.env, "__qualname__") else type(self.env)
        return f"{CALLABLE}{named.__module__}.{named.__qualname__}"


def environment_id(env: str) -> str:
    """The Gymnasium id that a short name stands for; any other name is an id already."""
    return ENVIRONMENTS.get(env.lower(), env)


def keyword_texts(given: Any) -> Any:
    """The arguments of an environment's constructor as texts "name=value", ordered by name, in JSON
    or, where that does not keep a value (tuples, keys that are numbers), in Python; given as such
    texts, or as a mapping. Anything else is returned as it is. Raises UsageError."""
    if isinstance(given, list | tuple) and all(isinstance(word, str) for word in given):
        if without := [word for word in given if not re.match(r"[^\W\d]\w*=", word)]:
            checks.refuse("env_kwargs", "name=value, such as use_contact_forces=True", without[0])
        given = {name: _read(text) for name, _, text in (word.partition("=") for word in given)}
    if not isinstance(given, Mapping):
        return given
    try:
        return tuple(f"{name}={_written(_plain(given[name]))}" for name in sorted(given))
    except (TypeError, ValueError) as error:
        what = "numbers, texts, and lists, tuples and dictionaries of them"
        raise UsageError(f"--env-kwargs: {what}: {error}") from error


def _plain(value: Any) -> Any:
    """Python's numbers and lists in place of NumPy's."""
    if isinstance(value, dict):
        return {_plain(key): _plain(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    return value.tolist() if hasattr(value, "tolist") else value


def _written(value: Any) -> str:
    """The value in JSON, or in Python where JSON would not keep it."""
    for write, read in ((json.dumps, json.loads), (repr, ast.literal_eval)):
        text = write(value)
        with contextlib.suppress(ValueError, SyntaxError):
            # NaN differs from itself.
            if (again := read(text)) == value or repr(again) == repr(value):
                return text
    raise ValueError(f"{value!r:.80} cannot be written as text")


def _read(text: str) -> Any:
    """A value as it is written in JSON or Python, or else the text."""
    for read in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            value = read(text)
            json.dumps(value)
            return value
    return text
