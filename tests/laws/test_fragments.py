"""Fragments of an episode are its steps, to the bit, whoever plays them."""

import math
import os
import signal
from dataclasses import replace

import gymnasium
import numpy as np
import pytest

from flame_rl import TrainConfig, Trainer
from flame_rl.actor import fragments
from flame_rl.actor.randomness import reset_seed
from flame_rl.actor.simulators.plain import PlainSimulator
from flame_rl.backends.dispatch import Collected
from flame_rl.learner.learner import Learner
from flame_rl.run.checks import fragment_steps
from flame_rl.run.iteration import training_request
from flame_rl.system.errors import UsageError
from flame_rl.wire import codec, packing
from flame_rl.wire.messages import Start
from tests.helpers import assert_same_episodes, described, environment_id, request_for, spec_of

STEPS, CUT, LIMIT, ITERATIONS = 60, 16, 48, 9


def configured(name: str = "Drifting", **changes) -> TrainConfig:
    settings = {
        "algorithm": "ppo",
        "iterations": ITERATIONS,
        "steps_per_iter": STEPS,
        "fragment_steps": CUT,
        "max_episode_steps": LIMIT,
        "hidden_sizes": (4,),
        "workers": 0,
        "local": True,
    }
    if "env_steps" in changes:
        del settings["iterations"]
    return TrainConfig(environment_id(name), **settings | changes)


class Recorder:
    """A backend that remembers what it has collected."""

    def __init__(self, backend) -> None:
        self._backend, self.collected = backend, []

    def __getattr__(self, name: str):
        return getattr(self._backend, name)

    def collect(self, snapshot, request) -> Collected:
        self.collected.append(self._backend.collect(snapshot, request))
        return self.collected[-1]


def digests(config: TrainConfig, between=lambda trainer: None) -> list[str]:
    """Of the weights after each iteration, with the returns."""
    with Trainer(config) as trainer:
        found = []
        for result in trainer:
            found.append(told(result))
            between(trainer)
        return found


def told(result) -> str:
    return f"{result.weights_digest} {result.reward_mean} {result.outcomes} {result.length_mean}"


@pytest.fixture(scope="module")
def expected() -> list[str]:
    return digests(configured())


@pytest.mark.parametrize("again", [False, True])
def test_fragments_are_the_steps_of_whole_episodes(again, expected, monkeypatch):
    """The oracle steps one Gymnasium environment for each episode from its start to its end, never
    resetting it to play anything again."""
    if again:
        monkeypatch.setattr(fragments, "_done", lambda there, wanted: 0)
    going: dict[int, tuple[gymnasium.Env, np.ndarray, float]] = {}
    ends = {"terminated": 0, "truncated": 0, "cut": 0, "truncated where it is cut": 0}
    with Trainer(configured()) as trainer:
        recorder, results = Recorder(trainer._backend), []
        for number in range(ITERATIONS):
            result = trainer.do_iteration(recorder)
            results.append(told(result))
            following, whole = {}, []
            lengths = [episode.length for episode in recorder.collected[-1].episodes]
            assert sum(lengths) >= STEPS > sum(lengths[:-1])
            for episode in recorder.collected[-1].episodes:
                if episode.index in going:
                    env, observation, so_far = going.pop(episode.index)
                else:
                    seed = reset_seed(0, number, episode.index)
                    env, so_far = gymnasium.make(environment_id("Drifting")), 0.0
                    env = gymnasium.wrappers.TimeLimit(env.unwrapped, LIMIT)
                    observation, _ = env.reset(seed=seed)
                assert episode.observations[0] == observation
                for step, action in enumerate(episode.actions):
                    assert step < CUT
                    observation, reward, terminated, truncated, _ = env.step(action)
                    so_far += reward
                    assert episode.observations[step + 1] == observation
                    assert episode.rewards[step] == reward
                    last = step == episode.length - 1
                    assert last or not (terminated or truncated)
                assert (episode.terminated, episode.truncated) == (terminated, truncated)
                ended = terminated or truncated
                ends["terminated"] += terminated
                ends["truncated"] += truncated
                ends["truncated where it is cut"] += truncated and episode.length == CUT
                ends["cut"] += not ended
                if ended:
                    whole.append(so_far)
                else:
                    assert episode.length == CUT
                    following[episode.index] = env, observation, so_far
            assert not going, "an episode was forgotten"
            if whole:
                assert math.isclose(result.outcomes["whole_return"], np.mean(whole))
            else:
                assert math.isnan(result.outcomes["whole_return"])
            # Four are needed if none ends early; others take the places of those that ended.
            free = [index for index in range(4) if index not in following]
            going = {i if i < 4 else free.pop(0): following[i] for i in sorted(following)}
    assert min(ends.values()) > 0, ends
    assert results == expected


def test_slots_change_no_byte(expected):
    """With one, all fragments but one begin by playing again."""
    assert digests(configured(slots=1)) == expected


def test_who_stands_at_a_start_plays_nothing_again(monkeypatch):
    steps = []

    def counted(simulator, actions, slots):
        steps.append(len(slots))
        return step(simulator, actions, slots)

    step = PlainSimulator.step
    with Trainer(configured("Following", max_episode_steps=400)) as trainer:
        monkeypatch.setattr(PlainSimulator, "step", counted)
        results = list(trainer)
    assert sum(steps) == results[-1].env_steps == ITERATIONS * 4 * CUT


def test_workers_their_deaths_and_evaluations_change_no_byte(expected):
    def disturb(trainer):
        trainer.evaluate(3)
        if trainer.totals.iterations % 3 == 1:
            worker = trainer._backend._workers[trainer.totals.iterations // 3 % 2]
            os.kill(worker.pid, signal.SIGKILL)

    assert digests(configured(workers=3), disturb) == expected


@pytest.mark.parametrize("changes", [{}, {"overlap": True, "workers": 2}])
def test_a_resumed_run_goes_on_with_episodes(changes, expected, tmp_path):
    whole = digests(configured(**changes))
    assert (whole == expected) == (not changes)
    with Trainer(configured(**changes)) as trainer:
        found = [told(trainer.train()) for _ in range(4)]
        trainer.save(tmp_path / "a.ckpt")
    with Trainer.load(tmp_path / "a.ckpt") as trainer:
        assert trainer.totals.starts
        found += [told(result) for result in trainer]
    assert found == whole


def test_a_single_fragment_can_be_reproduced():
    with Trainer(configured()) as trainer:
        for _ in range(4):
            trainer.train()
        index = max(trainer.totals.starts)
        vars(trainer.config.output).update(reproduce=index)
        alone = trainer.reproduce()
        recorder = Recorder(trainer._backend)
        trainer.do_iteration(recorder)
    assert_same_episodes(alone, recorder.collected[0].episodes.between(index, index + 1))


def test_an_update_that_is_undone_leaves_the_starts(expected, monkeypatch):
    update, failed = Learner.update, []

    def failing(learner, *arguments):
        if len(failed) == 3:
            failed.append(1)
            raise ValueError("once")
        failed.append(1)
        return update(learner, *arguments)

    monkeypatch.setattr(Learner, "update", failing)
    with Trainer(configured()) as trainer:
        found = [told(trainer.train()) for _ in range(3)]
        with pytest.raises(ValueError, match="once"):
            trainer.train()
        found += [told(result) for result in trainer]
    assert found == expected


def test_an_environment_that_does_not_repeat_itself_is_told(monkeypatch):
    config = configured("Unrepeated", max_episode_steps=10_000)
    assert len(digests(config)) == ITERATIONS  # nothing was played again
    monkeypatch.setattr(fragments, "_done", lambda there, wanted: 0)
    with pytest.raises(UsageError, match=r"does not repeat itself.*--fragment-steps 0.*seed"):
        digests(config)


def test_every_algorithm_takes_fragments():
    for algorithm in ("reinforce", "a2c", "pqn", "dqn", "r2d2", "impala"):
        settings = {"memory": "lstm"} if algorithm == "r2d2" else {}
        if algorithm in ("dqn", "r2d2", "impala"):
            settings |= {"warm_up_steps": 0, "capacity": 200}
        assert len(digests(configured(algorithm=algorithm, iterations=2, **settings))) == 2


def test_when_episodes_are_played_in_fragments():
    def chosen(limit: int | None, **changes) -> int | None:
        config = configured(**{"fragment_steps": None, "steps_per_iter": 2000} | changes)
        return fragment_steps(config, replace(spec_of(1, 2, False), time_limit=limit))

    assert chosen(20_000) == 250 and chosen(4000) == 250
    assert chosen(3999) is None and chosen(None) is None
    assert chosen(20_000, steps_per_iter=500) is None
    assert chosen(20_000, fragment_steps=0) is None
    assert chosen(1000, fragment_steps=7) == 7
    assert chosen(20_000, memory="gru") is None and chosen(20_000, gamma=1.0) is None
    assert chosen(20_000, algorithm="dqn") is None
    assert chosen(1000, algorithm="dqn", fragment_steps=7) == 7
    with pytest.raises(UsageError, match=r"--fragment-steps.*--max-episode-steps"):
        chosen(None, fragment_steps=7)
    with pytest.raises(UsageError, match=r"--fragment-steps.*--steps-per-iter"):
        chosen(1000, fragment_steps=7, steps_per_iter=None)


def test_the_budget_ends_a_run_of_fragments():
    config = configured(env_steps=100)
    with Trainer(config) as trainer:
        results = list(trainer)
        request = training_request(config, trainer.spec, trainer.totals, 0)
    assert 100 <= results[-1].env_steps < 100 + CUT and request.fragment_steps == CUT


START = Start(5, np.ones(3, np.int32), -7, 1.5)


@pytest.mark.parametrize(
    "altered",
    [
        {"starts": np.array([[1, 5, -7, 4]])},
        {"starts": np.array([[1, 5, -7, 0]])},
        {"starts": np.array([[1, -5, -7, 3]])},
        {"starts": np.array([[9, 5, -7, 3]])},
        {"starts": np.array([[1, 5, 3]])},
        {"starts": np.array([[1.0, 5, -7, 3]])},
        {"starts.actions": np.full(3, 2, np.int32)},
        {"starts.actions": np.ones(3)},
        {"starts.actions": np.ones((3, 1), np.int32)},
        {"starts.so_far": np.array([np.nan])},
    ],
)
def test_starts_that_travel_are_checked(altered):
    request = request_for("CartPole-v1", fragment_steps=CUT, starts={1: START, 7: START})
    found = codec.decode_request(codec.encode_request(request))
    assert found == request and [*found.starts] == [1], "only those of its indices travel"
    assert found.starts[1].actions.tolist() == [1, 1, 1] and found.starts[1].observed == -7
    header, arrays = packing.unpack(codec.encode_request(request), "request")
    with pytest.raises(codec.WireError, match="starts"):
        codec.decode_request(packing.pack("request", header, arrays | altered))


def test_answers_of_other_lengths_are_refused():
    """An episode that neither ends nor is cut."""
    config = configured()
    with Trainer(config) as trainer:
        request = training_request(config, trainer.spec, trainer.totals, 0)
        answer = trainer._backend.collect(trainer.learner.collector_snapshot(), request).episodes
    request = replace(request, indices=tuple(answer.index.tolist()))
    data = b"".join(codec.encode_result(answer, request))
    assert len(codec.decode_result(data, request)) == len(answer)
    for most in (None, CUT - 1, CUT + 1):
        with pytest.raises(codec.WireError, match="fragment_steps"):
            codec.decode_result(data, replace(request, fragment_steps=most))


@pytest.mark.slow
def test_an_endless_task_is_learned_in_fragments():
    """20,000 steps are an episode: whole ones leave two updates."""
    assert described(environment_id("Following")).time_limit == 20_000
    settings = {"steps_per_iter": 2000, "env_steps": 30_000, "seed": 3}
    settings |= {"max_episode_steps": None, "hidden_sizes": (16,)}
    rewards = {}
    for cut in (None, 0):
        with Trainer(configured("Following", fragment_steps=cut, **settings)) as trainer:
            results = list(trainer)
        assert len(results) == (15 if cut is None else 2)
        rewards[cut] = results[-1].reward_mean / results[-1].length_mean
    assert rewards[None] > -0.5 > -1 > rewards[0], rewards
