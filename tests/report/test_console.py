"""What the console shows of a run: its size, its progress, evaluations, waits for a cluster."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from gymnasium import spaces

from flame_rl import TrainConfig
from flame_rl.report import console as console_module
from flame_rl.report.console import ConsoleReporter
from flame_rl.run.results import Evaluation, IterationResult, Timing, Totals
from tests.helpers import request_for, shown_on_a_terminal, spec_of

WORDS = "0 of 2 executors are working (2 unbinding, no sign of node flame-node); giving up in {} s"


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """The time, `now`, of consoles that are made after it."""
    clock = SimpleNamespace(now=0.0)
    told = SimpleNamespace(perf_counter=lambda: clock.now)
    monkeypatch.setattr(console_module, "time", told)
    return clock


@pytest.fixture
def console(clock) -> ConsoleReporter:
    return ConsoleReporter(TrainConfig(), spec_of(1, 2, False), True, Totals())


def test_a_wait_gets_few_lines_in_a_pipe(console, clock, capsys):
    capsys.readouterr()
    for wait in (100, 3):
        for second in range(wait):
            clock.now += 1.0
            console.waiting(f"second {second}")
        console.waiting("")
    console.say("An executor was lost")
    lines = ["second 0", "second 30", "second 60", "second 90", "second 0", "An executor was lost"]
    assert capsys.readouterr().out.splitlines() == lines


REQUEST = request_for("CartPole-v1", range(100), run_seed=0, iteration=0)


@pytest.mark.parametrize(
    ("steps", "words"),
    [(None, "30 of 100 episodes, 15,000"), (20_000, "30 episodes, 15,000 of 20,000")],
)
def test_an_iteration_that_takes_long_shows_what_has_come_in(steps, words, console, clock, capsys):
    capsys.readouterr()
    for second in range(41):
        console.collecting(replace(REQUEST, steps=steps), second, 500 * second)
        clock.now += 1.0
    console.report(result_of(0))
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == f"  Iteration   0: {words} env steps, 500 a second, 30 s since the start"
    assert rest[0].startswith("Iteration   0 | Mean Reward: ")
    # 99 times 41 s.
    assert rest[1:] == ["  about 1 h 8 min left"]


@pytest.mark.parametrize(
    ("settings", "seconds", "words"),
    [
        ({"iterations": 5}, 41, ["  about 3 min left"]),  # four times
        ({"iterations": 5}, 4, []),
        ({"steps_per_iter": 20_000}, 41, ["  about 1 h 8 min left"]),
        ({"env_steps": 200_000}, 41, ["  about 6 min left"]),
        ({"env_steps": 200_000, "stop_at": 9.0}, 41, ["  at most about 6 min left"]),
    ],
)
def test_a_long_run_hears_how_much_is_left(settings, seconds, words, clock, capsys):
    console = ConsoleReporter(TrainConfig(**settings), spec_of(1, 2, False), False, Totals())
    clock.now += seconds
    capsys.readouterr()
    warming_up = replace(result_of(0), metrics={"gradient_steps": 0.0})
    console.report(warming_up)  # says nothing of the iterations that learn
    console.report(result_of(0))
    assert [line for line in capsys.readouterr().out.splitlines() if "left" in line] == words


def test_what_is_left_is_said_again_though_lines_about_episodes_are_printed(clock, capsys):
    console = ConsoleReporter(TrainConfig(), spec_of(1, 2, False), False, Totals())
    for iteration in range(3):
        clock.now += 41
        console.collecting(REQUEST, 0, 500)
        console.report(result_of(iteration))
    assert capsys.readouterr().out.count(" left") == 3


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (4000, "a limit of 4,000 steps (see --max-episode-steps)"),
        (None, "no time limit (see --max-episode-steps)"),
    ],
)
def test_a_first_episode_that_takes_long_is_told_once_while_it_plays(limit, words, clock, capsys):
    spec = replace(spec_of(1, 2, False), time_limit=limit)
    console = ConsoleReporter(TrainConfig(), spec, False, Totals())
    capsys.readouterr()
    for second in range(25):
        console.collecting(REQUEST, int(second > 20), 500 * second)
        clock.now += 1.0
    assert capsys.readouterr().out.splitlines() == [
        f"  After 10 s and 5,000 env steps, no episode has ended; they have {words}"
    ]


FEW = "one an iteration; fewer than 20 seldom teach much"
SOONER = "a smaller --steps-per-iter makes more of a run's --env-steps"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"iterations": 19}, f"19, {FEW} (--iterations sets more)"),
        ({"iterations": 20}, None),
        ({"env_steps": 40_000, "steps_per_iter": 2048, "algorithm": "ppo"}, None),  # 19.5
        ({"env_steps": 30_000, "steps_per_iter": 2048}, f"15, {FEW} ({SOONER})"),
        ({"env_steps": 30_000, "episodes_per_iter": 6}, f"10, {FEW} ({SOONER})"),
        # With many gradient steps in each iteration.
        ({"iterations": 2, "algorithm": "dqn"}, None),
    ],
)
def test_a_run_of_few_updates_says_so(settings, words, capsys):
    spec = replace(spec_of(1, 2, False), time_limit=500)
    ConsoleReporter(TrainConfig(**settings), spec, False, Totals())
    lines = [line for line in capsys.readouterr().out.splitlines() if "Few updates" in line]
    assert lines == ([] if words is None else [f"  Few updates: {words}"])


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"algorithm": "ppo"}, True),
        ({"algorithm": "dqn"}, True),
        ({"algorithm": "dqn", "hindsight": "final"}, False),
    ],
)
def test_an_environment_with_goals_is_told_of_hindsight(settings, told, capsys):
    box = spaces.Box(-1, 1, (2,))
    goals = dict.fromkeys(("observation", "achieved_goal", "desired_goal"), box)
    for observed, expected in ((goals, told), ({"observation": box}, False)):
        spec = replace(spec_of(1, 2, False), observation_space=spaces.Dict(observed))
        ConsoleReporter(TrainConfig(**settings), spec, False, Totals())
        assert ("--hindsight future" in capsys.readouterr().out) == expected


def test_evaluations_are_in_the_lines_and_in_the_summary(console, clock, capsys):
    clock.now += 1.0
    evaluation = Evaluation(20, 45.0, 40.0, 50.0, 44.0, 30.0, 60.0, 45.0)
    text = f"  Evaluation after iteration 3: {evaluation}"
    capsys.readouterr()
    for iteration in range(12):
        console.report(result_of(iteration, evaluation if iteration == 3 else None))
    lines = capsys.readouterr().out.splitlines()
    (place,) = [number for number, line in enumerate(lines) if line == text]
    assert lines[place - 1].startswith("Iteration   3 | ")
    console.summary(True, (12.0, 3))
    closing = capsys.readouterr().out.splitlines()
    assert text in closing and "  Best Mean Reward: 12.0, in iteration 3 (--best)" in closing
    console.summary(True, (9.0, 11))
    assert "Best" not in capsys.readouterr().out


def test_the_summary_of_a_resumed_run_says_what_is_of_this_start(clock, capsys):
    done = Totals(iterations=2, episodes=10, env_steps=100, length_mean=10.0)
    console = ConsoleReporter(TrainConfig("cartpole"), spec_of(1, 2, False), False, done)
    clock.now += 2.0
    console.report(replace(result_of(2), episodes=16))
    capsys.readouterr()
    console.summary(False, (0.0, 0))
    closing = capsys.readouterr().out.splitlines()
    assert "  Total time: 2.00s since the run was resumed" in closing
    assert "  Episodes: 16, 6 since the run was resumed (3.0 episodes/sec)" in closing


def test_the_size_of_the_run_is_said_at_once(capsys):
    spec = replace(spec_of(1, 2, False), time_limit=500)
    pair = replace(spec, agents=("left", "right"))
    for settings, where, words in (
        ({}, spec, "Total steps: at most 5,000,000"),
        ({}, replace(spec, time_limit=None), "Total steps: unknown, without a time limit"),
        ({"steps_per_iter": 2000}, spec, "Total steps: about 200,000"),
        ({"env_steps": 300}, spec, "Total steps: 300, to the end of an iteration"),
        (
            {"env_steps": 300, "steps_per_iter": 30},
            spec,
            "Total steps: 300, to the end of an episode",
        ),
        ({"iterations": 3, "episodes_per_iter": 5}, pair, "Total episodes: 30"),
        ({"slots": 8, "workers": 2}, spec, "Environments: at most 8 in each of 2 processes"),
        ({"slots": 8, "workers": 1}, spec, "Environments: at most 8 in a process"),
        ({"slots": 8, "workers": 0}, spec, "Environments: at most 8 in this process"),
        ({"slots": 8}, spec, "Environments: at most 8 in each executor"),
        ({"workers": 2}, spec, "Environments: in a fast simulator in each of 2 processes"),
    ):
        ConsoleReporter(TrainConfig(**settings), where, "executor" in words, Totals())
        assert f"  {words}" in capsys.readouterr().out.splitlines()


def result_of(iteration: int, evaluation: Evaluation | None = None) -> IterationResult:
    numbers = dict.fromkeys(("reward_mean", "reward_std", "reward_min", "reward_max"), 9.0)
    count = iteration + 1
    return IterationResult(
        iteration=iteration,
        episodes=100 * count,
        env_steps=20_000 * count,
        **numbers,
        length_mean=200.0,
        metrics={"loss": 0.5},
        weights_digest="",
        timing=Timing(1.0, 1.0, 0.0, 0.0, 500.0, 0, 0, 0, 0),
        evaluation=evaluation,
        totals=Totals(count, 100 * count, 20_000 * count, 200.0, 9.0),
    )


@pytest.mark.parametrize(
    ("reward", "value", "said"),
    [
        (10.0, 99.5, "--highest-return: values have reached 100, the last atom"),
        (1.0, 99.9, ""),
        (-2.0, -99.5, "--lowest-return: values have reached -100"),
        (10.0, 80.0, ""),
    ],
)
def test_returns_beyond_the_atoms_are_said_once(reward, value, said, capsys):
    """One reward a step, of which 100 are as much as a discounted return ever is."""
    result = replace(result_of(0), reward_mean=200 * reward, metrics={"loss": 0.1, "value": value})
    for options in ({"distribution": "c51"}, {"rainbow": True}, {"distribution": "quantiles"}):
        config = TrainConfig(algorithm="dqn", gamma=0.99, **options)
        console = ConsoleReporter(config, spec_of(1, 2, False), False, Totals())
        capsys.readouterr()
        for iteration in range(3):
            console.report(replace(result, iteration=iteration))
        found = [line for line in capsys.readouterr().out.splitlines() if "C51" in line]
        wanted = bool(said) and config.algorithm.distribution == "c51"
        assert len(found) == wanted and all(line.startswith(f"  {said}") for line in found)


def test_a_bar_moves_within_an_iteration_and_counts_a_wait_down(tmp_path):
    code = f"""
import time
from tests.report.test_console import *
console = ConsoleReporter(TrainConfig(iterations=2), spec_of(1, 2, False), True, Totals())
for episodes in (20, 50):
    console.collecting(REQUEST, episodes, 500 * episodes)
    time.sleep(0.3)
console.report(result_of(0))
for left in (110, 109):
    console.waiting({WORDS!r}.format(left))
    time.sleep(0.3)
console.waiting("")
time.sleep(0.3)
console.say("it goes on")
console.close()
"""
    (tmp_path / "bar.py").write_text(code)
    text = shown_on_a_terminal(tmp_path / "bar.py", columns=60)
    assert "Traceback" not in text, text
    plain = " ".join(text.split())
    assert "20 of 100 episodes, 10,000 env steps" in plain and "50 of 100 episodes" in plain
    # Lines are wrapped at the width of the terminal, and nothing is cut off.
    seen = re.findall(r"giving up in (\d+) s", plain)
    assert list(dict.fromkeys(seen)) == ["110", "109"]
    assert "it goes on" in plain and "giving" not in plain.partition("it goes on")[2]
