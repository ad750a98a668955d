"""A run that begins with another run's networks: what is taken, what begins anew, and the same
bytes wherever it collects and however it goes on."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from flame_rl import TrainConfig, Trainer
from flame_rl.system.errors import UsageError
from tests.helpers import contents, environment_id, refusal, run_ok
from tests.runs import assert_same_run, saved_weights

SMALL = (
    *("--steps-per-iter", "60", "--hidden-sizes", "8", "6", "--max-episode-steps", "20"),
    *("--checkpoint-every", "2"),
)
PPO = ("--env", "CartPole-v1", "--algorithm", "ppo", *SMALL)
REPLAY = ("--warm-up-steps", "40", "--batch-size", "8", "--updates-per-step", "0.2")
DQN = ("--env", "CartPole-v1", "--algorithm", "dqn", *SMALL, *REPLAY)
HERE = {"local": True, "workers": 0, "steps_per_iter": 60, "max_episode_steps": 20}
LIKE = HERE | {"hidden_sizes": (8, 6)}


@pytest.fixture(scope="module")
def old(tmp_path_factory) -> Path:
    """The folder with a run of ppo, "ppo", one of dqn, "dqn", and one of ppo with a Box, "box"."""
    folder = tmp_path_factory.mktemp("old")
    box = ("--env", "Pendulum-v1", *PPO[2:])
    for name, flags in (("ppo", PPO), ("dqn", DQN), ("box", box)):
        words = (*flags, "--iterations", "3", "--workers", "0", "--output", name)
        run_ok(*words, cwd=folder)
    return folder


def state_of(**settings) -> tuple[dict[str, np.ndarray], Trainer]:
    with Trainer(TrainConfig(**settings)) as trainer:
        return trainer.learner.state_dict(), trainer


def test_networks_and_normalisation_are_taken_and_all_else_begins_anew(old):
    state, trainer = state_of(
        env="CartPole-v1", algorithm="ppo", seed=5, from_=old / "ppo", overlap=True, **LIKE
    )
    taken = saved_weights(old / "ppo")
    for name, array in taken.items():
        np.testing.assert_array_equal(state[name], array, name)
        # What collects first is that policy, too.
        if name.startswith("policy."):
            np.testing.assert_array_equal(state[f"collector{name.removeprefix('policy')}"], array)
    assert state["observations.count"] > 100 and state["returns.count"] > 100
    moments = [array for name, array in state.items() if "_adam." in name]
    assert moments and not any(array.any() for array in moments)
    assert state["updates"] == 0 and trainer.totals.env_steps == 0
    assert trainer.warnings == []
    assert trainer.note.endswith(
        "ppo on CartPole-v1 after 3 iterations: policy, value, returns, observations"
    )
    assert len(trainer.config.experiment.from_digest) == 64


def test_of_another_environment_what_fits_is_taken_and_the_rest_is_named(old):
    settings = {"env": "Acrobot-v1", "algorithm": "ppo", **LIKE}
    fresh, _ = state_of(**settings)
    state, trainer = state_of(**settings, from_=old / "ppo")
    taken = saved_weights(old / "ppo")
    for name in taken:
        # The second hidden layer is 8 x 6 in both.
        expected = taken if ".network.2." in name or "value.network.4." in name else fresh
        if name != "value.scale":
            np.testing.assert_array_equal(state[name], expected[name], name)
    assert (
        "--from: policy.network.4.weight is float32 [2, 6] there and float32 [3, 6] here; it "
        "begins anew"
    ) in trainer.warnings
    np.testing.assert_array_equal(state["observations.mean"], np.zeros(6))


def test_a_policy_that_observes_less_than_its_critic_takes_the_layers_that_fit(tmp_path):
    """And gives them to one that observes all: the layer that chooses what it observes has no
    arrays, and only counts the others on by one."""
    settings = {"env": environment_id("HiddenReward"), "algorithm": "ppo", **LIKE}
    # Of each, the settings, the place of the first layer, and how many numbers there are.
    alone = ({"observe": ("seen",)}, 0, 1)
    less = ({"policy_observations": ("seen",)}, 1, 2)
    for old, new in ((alone, less), (less, alone)):
        with Trainer(TrainConfig(**settings, **old[0], seed=1)) as trainer:
            trainer.save(tmp_path / "old.ckpt")
            there = trainer.learner.state_dict()
        here, trainer = state_of(**settings, **new[0], from_=tmp_path / "old.ckpt")
        for place in (0, 2, 4):
            np.testing.assert_array_equal(
                here[f"policy.network.{place + new[1]}.weight"],
                there[f"policy.network.{place + old[1]}.weight"],
            )
        # What sees all the numbers there are.
        for name, form in (
            ("policy.normalizer.mean", "[{}]"),
            ("value.network.0.weight", "[8, {}]"),
        ):
            said = f"{form.format(old[2])} there and float32 {form.format(new[2])} here"
            assert f"--from: {name} is float32 {said}; it begins anew" in trainer.warnings
        assert not any("policy.network" in warning for warning in trainer.warnings)


def test_another_kind_of_algorithm_normalises_by_the_same_statistics(old):
    """In ppo the policy has them, in sac a module of its own."""
    settings = {"env": "Pendulum-v1", **LIKE}
    there = saved_weights(old / "box")
    state, _ = state_of(algorithm="sac", normalize_observations=True, from_=old / "box", **settings)
    mean, count = state["observations.mean"], state["observations.count"]
    std = np.sqrt(state["observations.squares"] / count)
    np.testing.assert_allclose(state["normalizer.mean"], mean, rtol=1e-6)
    np.testing.assert_allclose(state["normalizer.std"], std, rtol=1e-5)
    np.testing.assert_array_equal(
        state["policy.network.0.weight"], there["policy.network.0.weight"]
    )


def test_networks_that_lose_their_normalisation_are_warned_of(old):
    _, trainer = state_of(env="CartPole-v1", algorithm="dqn", from_=old / "ppo", **LIKE)
    assert any("normalises observations, and this run does not" in w for w in trainer.warnings)


C51 = {"algorithm": "dqn", "distribution": "c51", "atoms": 3}


@pytest.mark.parametrize(
    ("env", "there", "here", "says"),
    [
        ("CartPole-v1", "ppo", {"algorithm": "dqn"}, "gives logits there and action values"),
        ("CartPole-v1", "dqn", {"algorithm": "impala"}, "gives action values there and logits he"),
        ("CartPole-v1", C51, C51 | {"distribution": "quantiles"}, "gives atoms of returns from -1"),
        ("CartPole-v1", C51, C51 | {"highest_return": 500.0}, "gives atoms of returns from -100"),
        ("CartPole-v1", "dqn", {"algorithm": "sarsa"}, ""),
        ("CartPole-v1", "dqn", {"algorithm": "pqn", "layer_norm": False}, ""),
        ("CartPole-v1", C51, C51 | {"n_step": 3}, ""),
        ("Pendulum-v1", "ppo", {"algorithm": "td3"}, "gives means there and actions here"),
        ("Pendulum-v1", "td3", {"algorithm": "ddpg"}, ""),
    ],
)
def test_a_last_layer_that_means_another_thing_begins_anew(env, there, here, says, tmp_path):
    there = {"algorithm": there} if isinstance(there, str) else there
    with Trainer(TrainConfig(env=env, **LIKE, **there, seed=1)) as trainer:
        trainer.save(tmp_path / "old.ckpt")
        before = trainer.learner.state_dict()
    state, trainer = state_of(env=env, **LIKE, **here, from_=tmp_path / "old.ckpt")
    for layer in (0, 2, 4):
        name = f"policy.network.{layer}.weight"
        assert np.array_equal(state[name], before[name]) == (layer < 4 or not says)
    last = [warning for warning in trainer.warnings if "policy.network.4" in warning]
    assert len(last) == bool(says) and all(says in warning for warning in last)


def test_target_networks_begin_as_copies(old):
    state, _ = state_of(env="CartPole-v1", algorithm="dqn", from_=old / "dqn", **LIKE)
    taken = saved_weights(old / "dqn")
    different = False
    for name, array in taken.items():
        if name.startswith("target."):
            online = f"policy.{name.removeprefix('target.')}"
            np.testing.assert_array_equal(state[name], taken[online])
            different |= not np.array_equal(array, taken[online])
    assert different
    assert state["gradient_steps.count"] == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_sizes": (5,)}, r"nothing of .*ppo on CartPole-v1.*policy\.network\.0\.weight is"),
        ({"shared_torso": True, **LIKE}, r"nothing of .*: shared is not there\. Give"),
        ({"from_": "nowhere", **LIKE}, "--from: nowhere"),
        ({"from_digest": "0" * 64, **LIKE}, "has gone on or was replaced"),
    ],
)
def test_what_cannot_be_begun_with_is_an_error_by_name(old, settings, message):
    settings = {"env": "CartPole-v1", "algorithm": "ppo", "from_": old / "ppo", **HERE} | settings
    with pytest.raises(UsageError, match=message), Trainer(TrainConfig(**settings)):
        pass


def test_the_best_checkpoint_and_a_file_can_be_named(old):
    for name in ("best", "checkpoints/best.ckpt"):
        settings = {"env": "CartPole-v1", "algorithm": "ppo", **LIKE}
        state, _ = state_of(from_=old / "ppo" / name, **settings)
        with Trainer.load(old / "ppo", best=True, local=True, workers=0) as trainer:
            best = trainer.learner.state_dict()
        np.testing.assert_array_equal(
            state["policy.network.0.weight"], best["policy.network.0.weight"]
        )


# The command


def begin(cwd: Path, name: str, *more: str, flags: tuple[str, ...] = PPO) -> Path:
    words = (*flags, "--seed", "2", "--iterations", "4", "--output", name, *more)
    run_ok(*words, cwd=cwd)
    return cwd / name


@pytest.mark.parametrize(
    ("algorithm", "flags"), [("dqn", DQN), pytest.param("ppo", PPO, marks=pytest.mark.slow)]
)
def test_the_same_bytes_on_any_number_of_workers_and_without_the_old_run(
    old, tmp_path, algorithm, flags
):
    there = shutil.copytree(old / algorithm, tmp_path / "there")
    more = ("--from", "there", *(("--with-replay",) if algorithm == "dqn" else ()))
    whole = begin(tmp_path, "whole", *more, "--workers", "0", flags=flags)
    run = shutil.copytree(whole, tmp_path / "run")
    config = json.loads((run / "config.json").read_text())["experiment"]
    assert config["from_"] == "there" and len(config["from_digest"]) == 64
    # It goes on from before its first iteration, without the run that it began with.
    shutil.rmtree(there)
    begun_only(run)
    run_ok("--resume", str(run), "--workers", "2", cwd=tmp_path)
    assert_same_run(run, whole)


def begun_only(run: Path) -> Path:
    """The run as if it had been killed in its first iteration."""
    assert (run / "checkpoints" / "00000000.ckpt").exists()
    for path in (run / "checkpoints").iterdir():
        if path.name != "00000000.ckpt":
            path.unlink()
    (run / "metrics.csv").unlink()
    return run


def test_a_run_that_saved_nothing_begins_again_with_the_same_state_or_not_at_all(old, tmp_path):
    shutil.copytree(old / "ppo", tmp_path / "there")
    run = begin(tmp_path, "run", "--from", "there", "--workers", "0")
    whole = shutil.copytree(run, tmp_path / "whole")
    begun_only(run)
    (run / "checkpoints" / "00000000.ckpt").unlink()
    done = run_ok("--resume", "run", cwd=tmp_path)
    assert "Begun with there, ppo" in done.stdout
    assert_same_run(run, whole)
    begun_only(run)
    (run / "checkpoints" / "00000000.ckpt").unlink()
    run_ok("--resume", "there", "--iterations", "5", cwd=tmp_path)
    assert "there has gone on or was replaced" in refusal("--resume", "run", cwd=tmp_path)


def test_a_refused_run_leaves_no_folder(old, tmp_path):
    for words in (("--from", "nowhere"), ("--from", str(old / "ppo"), "--hidden-sizes", "5")):
        said = refusal(*PPO, "--workers", "0", "--output", "new", *words, cwd=tmp_path)
        assert "--from: no" in said
        assert not (tmp_path / "new").exists()


# The replay memory


def steps_of(trainer: Trainer) -> np.ndarray:
    store = trainer.replay.store
    return store.read(store.rows(np.arange(store.first, store.steps)))["observations"]


def replaying(old: Path, **settings) -> Trainer:
    usual = {"env": "CartPole-v1", "algorithm": "dqn", "capacity": 500, "from_": old / "dqn"}
    return Trainer(TrainConfig(**usual | LIKE | {"with_replay": True} | settings))


def test_replayed_experience_comes_along_and_the_old_files_stay(old):
    before = contents(old / "dqn" / "replay")
    with Trainer.load(old / "dqn", local=True, workers=0) as trainer:
        trainer.replay.recall()
        expected = steps_of(trainer)
    with replaying(old, warm_up_steps=40, updates_per_step=0.2) as trainer:
        np.testing.assert_array_equal(steps_of(trainer), expected)
        # What was there is learned from at the usual pace, and not at once.
        steps = trainer.train().env_steps
        taken = trainer.learner.state_dict()["policy_adam.steps"]
    assert abs(taken - 0.2 * steps) <= 1
    assert contents(old / "dqn" / "replay") == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"env": "Acrobot-v1"}, r"--with-replay: .*observations: shape .*, not \(\d+, 4\)"),
        ({"env": environment_id("Target"), "algorithm": "td3"}, r"observations: shape"),
        ({"capacity": 5, "max_episode_steps": 5}, "--capacity: 5 steps"),
        ({"from_": None}, "--with-replay: of which run"),
    ],
)
def test_experience_of_another_form_is_refused_by_the_name_of_its_column(old, settings, message):
    with pytest.raises(UsageError, match=message), replaying(old, **settings):
        pass


def test_a_run_without_experience_has_none_to_give(old):
    settings = {"env": "CartPole-v1", "algorithm": "dqn", "with_replay": True, **LIKE}
    with pytest.raises(UsageError, match="has no replay memory"):
        state_of(from_=old / "ppo", **settings)


def test_what_resume_refuses_points_to_from_which_takes_the_networks_settings(old, tmp_path):
    shutil.copytree(old / "ppo", tmp_path / "there")
    refused = refusal("--resume", "there", "--gamma", "0.5", cwd=tmp_path)
    (said,) = re.findall("its networks: (.*) in place of --resume", refused)
    words = (*said.split(), "--gamma", "0.5", "--iterations", "1")
    words += ("--steps-per-iter", "60", "--workers", "0")
    run_ok(*words, "--output", "new", cwd=tmp_path)
    config = json.loads((tmp_path / "new" / "config.json").read_text())["experiment"]
    assert config["hidden_sizes"] == [8, 6] and config["gamma"] == 0.5
    run_ok(*words, "--hidden-sizes", "8", "3", "--output", "told", cwd=tmp_path)
    config = json.loads((tmp_path / "told" / "config.json").read_text())["experiment"]
    assert config["hidden_sizes"] == [8, 3]
