"""Settings: defaults and presets, the command line, what is refused."""

import dataclasses
import json
import re
from typing import get_args, get_type_hints

import numpy as np
import pytest

from flame_rl.nets.kinds import LAYERS
from flame_rl.settings.algorithms import ALGORITHMS, settings_class
from flame_rl.settings.config import TrainConfig, names_of
from flame_rl.settings.experiment import ENVIRONMENTS, environment_id
from flame_rl.settings.parse import parse
from flame_rl.settings.presets import PRESETS
from flame_rl.system.errors import UsageError
from tests.helpers import ROOT, table


def options_of(algorithm: str, capsys, *more: str) -> str:
    with pytest.raises(SystemExit):
        parse(("--algorithm", algorithm, *more, "--help"))
    return capsys.readouterr().out


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_help_shows_the_flags_of_one_algorithm_and_says_what_each_is(algorithm, capsys):
    text = options_of(algorithm, capsys)
    own = set(names_of(settings_class(algorithm)))
    for other in ALGORITHMS:
        for name in names_of(settings_class(other)):
            shown = re.search(rf"--{name.replace('_', '-')}[ ,]", text) is not None
            assert shown == (name in own), name
    parts = re.split(r" \((?:default: |repeatable)", " ".join(text.split()))[:-1]
    sections = vars(TrainConfig(algorithm=algorithm)).values()
    assert len(parts) == sum(len(names_of(type(each))) for each in sections) + 1
    assert [part[-80:] for part in parts if not part.endswith(".")] == []


def test_help_shows_the_preset_of_the_environment(capsys):
    def rate(*more: str) -> str:
        words = options_of("ppo", capsys, *more).split()
        place = words.index("--learning-rate")
        return next(word for word in words[place:] if word.startswith(("0.", "3e", "7e")))

    assert rate().startswith("0.001")  # CartPole's
    assert rate("--env", "ant").startswith("0.0003")
    assert rate("--env=Ant-v5").startswith("0.0003")
    assert rate("--env", "hopper").startswith("0.0007")


def test_python_says_the_same_as_the_command_line():
    words = "--env walker2d --algorithm ppo --epochs 3 --workers 2 --seed 4 --plot"
    config, _ = parse(words.split())
    assert config == TrainConfig(
        env="walker2d", algorithm="ppo", epochs=3, workers=2, seed=4, plot=True
    )
    assert config.algorithm.clip_range == 0.3  # the preset, which the flags leave alone


NOT_LOCAL = {"algorithm": "ppo", "recompute_advantages": False, "overlap": True}


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("--env-steps 1e6", {"env_steps": 1_000_000}),
        ("--env-steps=2_000", {"env_steps": 2000}),
        ("--seed 9007199254740993", {"seed": 9007199254740993}),
        ("--hidden-sizes 64,32", {"hidden_sizes": (64, 32)}),
        ("--hidden-sizes=64, 32 16", {"hidden_sizes": (64, 32, 16)}),
        ("--reward-parts a,b", {"reward_parts": ("a", "b")}),
        ("--algorithm PPO --activation ReLU", {"algorithm": "ppo", "activation": "relu"}),
        ("--local true --plot False", {"local": True}),
        ("--algorithm ppo --overlap=true", {"algorithm": "ppo", "overlap": True}),
        ("--device gpu", {"device": "cuda"}),
        (
            "--env-kwargs b=True a=[1,2] c=stairs",
            {"env_kwargs": {"b": True, "a": [1, 2], "c": "stairs"}},
        ),
        (
            '--env-kwargs=a={"x":1,"y":[null,"p,q"]}',
            {"env_kwargs": {"a": {"x": 1, "y": [None, "p,q"]}}},
        ),
        (
            "--env-kwargs n=none d=None f=1e-3 t=(1,2) e=",
            {"env_kwargs": {"n": "none", "d": None, "f": 1e-3, "t": (1, 2), "e": ""}},
        ),
        (
            "--wrapper a:A b.c:D --seed 3 --wrapper e:f",
            {"wrapper": ("a:A", "b.c:D", "e:f"), "seed": 3},
        ),
        (
            "--reward-parts a b --reward-weights 1 -0.5 --seed 4",
            {"reward_parts": ("a", "b"), "reward_weights": (1.0, -0.5), "seed": 4},
        ),
        ("--local --no-local --algorithm ppo --no-recompute-advantages --overlap", NOT_LOCAL),
        (
            "--overlap=False --algorithm ppo --learning_rate_decay False --plot --seed 2",
            {"algorithm": "ppo", "learning_rate_decay": False, "plot": True, "seed": 2},
        ),
        ("--steps-per-iter None", {}),
        ("--output 1e6", {"output": "1e6"}),
    ],
)
def test_values_are_taken_in_the_forms_that_people_type(words, values):
    config, _ = parse(words.split())
    assert config == TrainConfig(**values)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--env-steps many", "--env-steps: an integer or None, not many"),
        ("--env-steps 1.5", "--env-steps: an integer or None, not 1.5"),
        ("--iterations 1,000", "--iterations: an integer, not 1,000"),
        ("--iterations nan", "--iterations: an integer, not nan"),
        ("--hidden-sizes wide", "--hidden-sizes: a list of integers, not wide"),
        ("--learning-rate fast", "--learning-rate: a number, not fast"),
        ("--learning-rate", "--learning-rate: a value is missing"),
        ("--output=", "--output: a value is missing"),
        ("--learning-rate-decay no", "--learning-rate-decay: True or False, not no"),
        ("--memory rnn", "--memory: none, gru, lstm, not rnn"),
        ("--enviroment ant", "--enviroment: there is no such flag; did you mean --env?"),
        ("--env_step 9", "--env-step: there is no such flag; did you mean --env-steps?"),
        ("--algo ppo", "did you mean --algorithm?"),
        ("--lr 0.1", "did you mean --learning-rate?"),
        ("--zzz", "--zzz: there is no such flag; --help lists them all"),
        ("--no-seed", "--no-seed: there is no such flag"),
        ("--clip-range 0.3", "--clip-range: a setting of ppo; "),
        ("--clip_range=0.3", "--clip-range: a setting of ppo; "),
        ("--algorithm ppo --baseline none", "--baseline: a setting of reinforce; "),
        ("--algorithm ppo --value-epochs 2", "--value-epochs: a setting of reinforce and a2c; "),
        ("--gae-lambda 1", "--gae-lambda: a setting of a2c and ppo; "),
    ],
)
def test_mistakes_are_named_in_plain_words(words, text):
    with pytest.raises(UsageError) as caught:
        parse(words.split())
    assert text in str(caught.value)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("env", [*ENVIRONMENTS, "Pendulum-v1"])
def test_presets_are_values_of_fields_and_reach_training(algorithm, env):
    preset = PRESETS[algorithm].get(environment_id(env), {})
    config = TrainConfig(env=env, algorithm=algorithm)
    assert config.algorithm.name == config.algorithm_name == algorithm
    for name, value in preset.items():
        (found,) = (vars(part)[name] for part in vars(config).values() if hasattr(part, name))
        assert found == value and f'"{name}": {json.dumps(value)}' in str(config)
    other = TrainConfig(env=env, algorithm=algorithm, learning_rate=0.125)
    assert other.algorithm.learning_rate == 0.125


@pytest.mark.parametrize(("env", "algorithm"), [("cartpole", "dqn"), ("hopper", "sac")])
def test_episodes_that_are_asked_for_replace_the_steps_of_a_preset(algorithm, env):
    assert TrainConfig(env=env, algorithm=algorithm).experiment.steps_per_iter
    line, _ = parse(("--env", env, "--algorithm", algorithm, "--episodes-per-iter=3"))
    assert line == TrainConfig(env=env, algorithm=algorithm, episodes_per_iter=3)
    assert (line.experiment.episodes_per_iter, line.experiment.steps_per_iter) == (3, None)
    other = TrainConfig(env=env, algorithm=algorithm, steps_per_iter=500)
    changed = other.changed(episodes_per_iter=3).experiment
    assert (changed.episodes_per_iter, changed.steps_per_iter) == (3, None)
    words = ("--steps-per-iter", "700", "--episodes-per-iter", "3")
    with pytest.raises(UsageError, match="--steps-per-iter takes its place"):
        parse(("--env", env, "--algorithm", algorithm, *words))


def test_plain_flags_train_what_the_page_of_curves_shows():
    rows = table(ROOT / "docs" / "learning" / "results.csv")
    commands = [row["command"] for row in rows if row["name"] in ("a2c", "ppo")]
    assert len(commands) >= 30
    for command in commands[::3]:  # a cell has at least three seeds
        config, _ = parse(command.split())
        experiment = config.experiment
        plain = TrainConfig(experiment.env, config.algorithm_name, seed=experiment.seed)
        assert config == plain, command


def test_rainbow_turns_on_what_it_consists_of():
    config, _ = parse(("--algorithm", "dqn", "--env", "Acrobot-v1", "--rainbow"))
    chosen = config.algorithm
    assert chosen.double and chosen.dueling and chosen.prioritized
    assert (chosen.n_step, chosen.distribution, chosen.learning_rate) == (3, "c51", 6.3e-4)
    other = TrainConfig(algorithm="dqn", rainbow=True, n_step=5, distribution="quantiles")
    assert (other.algorithm.n_step, other.algorithm.distribution) == (5, "quantiles")
    assert not TrainConfig(algorithm="dqn").algorithm.prioritized


WRONG = [
    ({"baseline": "leave_one_out"}, "--baseline: none, leave-one-out, value, not leave_one_out"),
    ({"activation": "gelu"}, "--activation: tanh, relu, silu, not gelu"),
    ({"algorithm": "trpo"}, "--algorithm: reinforce or a2c or ppo or"),
    ({"learning_rate": float("nan")}, "--learning-rate: above 0"),
    ({"episodes_per_iter": 2.5}, "--episodes-per-iter: an integer, not 2.5"),
    ({"episodes_per_iter": 10**30}, "--episodes-per-iter: at least 1, at most"),
    ({"iterations": True}, "--iterations: an integer, not True"),
    ({"hidden_sizes": 64}, "--hidden-sizes: a list of integers, not 64"),
    ({"hidden_sizes": (64, 2.5)}, "--hidden-sizes: a list of integers, not 64 2.5"),
    ({"env_steps": 2.5}, "--env-steps: an integer or None, not 2.5"),
    ({"learning_rate": 10**400}, "--learning-rate: a number, not 1000"),
    ({"output": 3}, "--output: a path or None, not 3"),
    ({"hidden_sizes": (64, 0)}, "--hidden-sizes: from 1 to 2**40, not 64 0"),
    ({"algorithm": "dqn", "capacity": 0}, "--capacity: at least 1, at most 2**40, not 0"),
    ({"algorithm": "sac", "warm_up_steps": -1}, "--warm-up-steps: 0 or more, at most 2**40, not"),
    ({"algorithm": "td3", "updates_per_step": 0.0}, "--updates-per-step: from 0.001 to 1000"),
    ({"algorithm": "dqn", "tau": 1.1}, "--tau: from 0 to 1, not 1.1"),
    ({"algorithm": "dqn", "distribution": "c51", "atoms": 1}, "--atoms: at least 2 with C51"),
    ({"algorithm": "dqn", "lowest_return": 100.0}, "--lowest-return: less than 100"),
    ({"algorithm": "ddpg", "noise_process": "pink"}, "--noise-process: gaussian, ornstein"),
    ({"algorithm": "sac", "initial_std": 8}, "--initial-std: from 1e-06 to 7"),
    ({"algorithm": "sac", "expected": True}, "expected: a setting of sarsa; sac has none"),
    ({"env": 3}, "--env: a name or Gymnasium id"),
    ({"env": " "}, "--env: a name or Gymnasium id"),
    ({"reproduce": 3}, "--reproduce: with --resume"),
    ({"algorithm": ["ppo"]}, "--algorithm: reinforce or a2c or "),
    ({"output": "a\0b"}, "--output: a path or None, not a\0b"),
    ({"reward_parts": ("a", "a")}, "--reward-parts: names, each once"),
    ({"reward_parts": ("a", "")}, "--reward-parts: names, each once"),
    ({"reward_parts": "a"}, "--reward-parts: a list of texts, not a"),
    ({"reward_weights": (1.0, float("nan"))}, "--reward-weights: finite"),
    ({"env_kwargs": ("a",)}, "--env-kwargs: name=value, such as use_contact_forces=True, not a"),
    ({"env_kwargs": ("=1",)}, "--env-kwargs: name=value, such as use_contact_forces=True, not =1"),
    ({"env": ":Mine-v0"}, "--env: a module and an id"),
    ({"env": "../odd:X"}, "--env: a module and an id, as in my_env:Mine-v0, not ../odd:X"),
    ({"wrapper": (".odd:X",)}, "--wrapper: a module and a class, as in my_module:Shaped, not "),
    ({"env_kwargs": {"a": {1}}}, "--env-kwargs: numbers, texts, and lists, "),
    ({"env_kwargs": "a=1"}, "--env-kwargs: a list of texts, not a=1"),
    ({"env_kwargs": (1,)}, "--env-kwargs: a list of texts, not 1"),
    ({"wrapper": ("Small",)}, "--wrapper: a module and a class, as in my_module:Shaped"),
    ({"reward": "shaped"}, "--reward: a module and a function, as in my_module:shaped, not shaped"),
    ({"reward": ":shaped"}, "--reward: a module and a function"),
    (
        {"reward": "a:b", "reward_parts": ("c",), "reward_weights": (1,)},
        "--reward-weights: --reward replaces them",
    ),
    ({"clip_range": 0.1}, "clip_range: a setting of ppo; reinforce has none of that name"),
    ({"epoch": 3}, "epoch: no such setting"),
    ({"lr": 0.1}, "lr: no such setting; did you mean learning_rate"),
    ({"enviroment": "ant"}, "enviroment: no such setting; did you mean env"),
]


@pytest.mark.parametrize(("settings", "words"), WRONG, ids=lambda x: str(x)[:40])
def test_what_a_setting_cannot_be_is_refused(settings, words):
    with pytest.raises(UsageError) as caught:
        TrainConfig(**settings)
    assert words in str(caught.value)
    if settings.keys() <= set(names_of(type(TrainConfig().experiment))) - {"env"}:
        with pytest.raises(UsageError):
            TrainConfig().changed(**settings)


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({"hidden_sizes": np.array([8, 4])}, (8, 4)),
        ({"hidden_sizes": list(np.array([3, 4]))}, (3, 4)),  # as a search draws them
        ({"iterations": np.int64(2)}, 2),
        ({"gamma": np.float32(0.5)}, 0.5),
        ({"hidden_sizes": np.array([8])}, (8,)),
        ({"gamma": np.array([0.5])}, 0.5),
        ({"gamma": np.array(0.5)}, 0.5),
        ({"activation": np.array(["relu"])}, "relu"),
        ({"normalize_observations": np.array(False)}, False),
        ({"env_kwargs": {"g": np.float32(0.5), "n": np.int64(2)}}, ("g=0.5", "n=2")),
        ({"env_kwargs": {"sizes": np.arange(2)}}, ("sizes=[0, 1]",)),
        ({"gamma": np.array([0.5, 0.6])}, "--gamma: a number, not 0.5 0.6"),
        ({"activation": b"relu"}, "--activation: tanh, relu, silu, not b'relu' of type bytes"),
        ({"local": "True "}, "--local: True or False, not 'True '"),
    ],
)
def test_numpys_arrays_and_what_only_looks_like_a_value(given, taken):
    ((name, _),) = given.items()
    try:
        config = TrainConfig("CartPole-v1", "ppo", **given)
    except UsageError as error:
        assert str(error) == taken
    else:
        found = vars(config.experiment) | vars(config.algorithm)
        assert found[name] == taken and TrainConfig.from_json(config.to_json()) == config


def test_arguments_of_an_environment_come_back_from_their_json():
    given = {"b": True, "text": 'say "a=b"', "number": 1.5, "nothing": None, "a": [1, {"x": "1"}]}
    given |= {"keyed": {0: 1.5, True: (1, [2])}, "pair": (3, "x")}
    config = TrainConfig(env_kwargs=given)
    assert config.experiment.env_kwargs == (
        'a=[1, {"x": "1"}]',
        "b=true",
        "keyed={0: 1.5, True: (1, [2])}",
        "nothing=null",
        "number=1.5",
        "pair=(3, 'x')",
        r'text="say \"a=b\""',
    )
    assert TrainConfig.from_json(config.to_json()) == config
    assert config.changed(seed=1).experiment.env_kwargs == config.experiment.env_kwargs
    given, _ = parse(["--env-kwargs", *config.experiment.env_kwargs])
    assert given == config


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_configuration_comes_back_from_its_json(algorithm):
    config = TrainConfig(env="ant", algorithm=algorithm, hidden_sizes=(3, 4), task_timeout=7.5)
    assert TrainConfig.from_json(config.to_json()) == config
    for part in vars(config):
        data = config.to_data()
        data[part]["another"] = 1
        with pytest.raises(UsageError, match="another"):
            TrainConfig.from_data(data)
    for wrong in (None, [], {}, config.to_data() | {"algorithm": {"name": "trpo"}}):
        with pytest.raises(UsageError, match=r"config\.json"):
            TrainConfig.from_data(wrong)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_an_earlier_version_did_not_have_is_at_its_default(algorithm):
    config = TrainConfig.from_data(TrainConfig(algorithm=algorithm, gamma=0.5).to_data())
    for part, settings in vars(config).items():
        for field in dataclasses.fields(settings):
            data = config.to_data()
            data[part].pop(field.name, None)
            found = getattr(getattr(TrainConfig.from_data(data), part), field.name)
            assert found == field.default, field.name


def test_every_activation_that_can_be_chosen_has_a_layer_and_the_other_way_round():
    hint = get_type_hints(type(TrainConfig().experiment))["activation"]
    without_arrays = {name for name, kind in LAYERS.items() if not kind.arrays | kind.integers}
    assert set(get_args(hint)) == without_arrays


def test_a_path_may_begin_at_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parse(["--output=~/run"])[0].output.output == tmp_path / "run"
