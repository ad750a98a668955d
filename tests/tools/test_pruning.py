"""Scores at rungs, and pruning, beside Optuna's own pruners."""

from __future__ import annotations

import numpy as np
import pytest

from flame_rl.tools.study.pruning import RUNGS, goes_on, score_at


def test_the_score_is_the_mean_of_a_tenth_of_the_steps_before_the_rung():
    rng = np.random.default_rng(0)
    steps = np.cumsum(rng.integers(5, 40, 100))
    returns = rng.standard_normal(100)
    total = 1600
    assert steps[-1] > total
    for rung in range(1, RUNGS + 1):
        place = 200 * rung
        last = np.flatnonzero(steps >= place)[0]
        some = [i for i in range(last + 1) if i == last or steps[i] > place - 160]
        assert score_at(steps, returns, rung, total) == pytest.approx(np.mean(returns[some]))


def test_a_rung_that_is_not_reached_has_no_score():
    assert score_at([10, 20], [1.0, 2.0], 3, 80) is None
    assert score_at([], [], 1, 80) is None
    assert score_at([10, 30], [1.0, 2.0], 3, 80) == 2


@pytest.mark.parametrize("pruner", ["median", "halving"])
def test_what_is_pruned_is_what_optuna_prunes(pruner):
    optuna = pytest.importorskip("optuna", reason="uv run --group tune pytest")
    pruners = {
        "median": optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=2),
        "halving": optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=2),
    }
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", pruner=pruners[pruner])
    rng = np.random.default_rng(1)
    others: list[list[float]] = []
    ends = []
    for _ in range(60):
        level, values = rng.standard_normal(), []
        trial = study.ask()
        for rung in range(1, RUNGS + 1):
            values.append(float(level + rung / 2 + rng.standard_normal()))
            trial.report(values[-1], rung)
            if rung == RUNGS:
                study.tell(trial, values[-1])
                break
            pruned = trial.should_prune()
            assert goes_on(pruner, values, others) == (not pruned)
            if pruned:
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                break
        others.append(values)
        ends.append(rung)
    assert len(set(ends)) > 2


def test_without_a_pruner_every_trial_goes_on():
    assert goes_on("none", [-1e9, -1e9], [[1.0] * RUNGS] * 20)
    assert not goes_on("median", [-1e9, -1e9], [[1.0] * RUNGS] * 20)
