"""Iterations without an update, and such with other metrics than the first."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from flame_rl import TrainConfig, Trainer
from flame_rl.learner.learner import Learner
from flame_rl.report.console import ConsoleReporter
from flame_rl.report.tables import TableReporter, metrics_row, read_columns
from flame_rl.wire.messages import Episodes, PolicySnapshot


@dataclass
class LateStarter:
    """An algorithm of two parts, a network and a count, that learns from its third iteration on."""

    network: torch.nn.Module
    snapshot_of: object
    seen: np.ndarray = field(default_factory=lambda: np.zeros(()))
    metrics: tuple[str, ...] = ("loss", "target_norm")
    lag: int = 0

    @property
    def parts(self):
        return {"policy": self.network, "seen": self}

    def state_dict(self):
        return {"episodes": self.seen}

    def load_state_dict(self, state) -> None:
        self.seen = state["episodes"].copy()

    def snapshot(self) -> PolicySnapshot:
        return self.snapshot_of()

    collector_snapshot = snapshot

    def update(self, episodes: Episodes, generator: np.random.Generator, progress: float):
        self.seen = self.seen + len(episodes)
        if self.seen < 9:
            return {}
        with torch.no_grad():
            next(self.network.parameters()).add_(0.1)
        return {"target_norm": 2.0} if self.seen < 12 else {"loss": 1.0, "target_norm": 3.0}


def test_columns_are_known_before_the_first_update(tmp_path, capsys):
    config = TrainConfig(local=True, workers=0, episodes_per_iter=3, iterations=4, verbose=True)
    with Trainer(config, reports=True) as trainer:
        policy = trainer.learner.parts["policy"]
        trainer.learner = Learner(config, LateStarter(policy, policy.snapshot))
        row_of = partial(metrics_row, trainer.learner.algorithm.metrics)
        metrics = TableReporter(tmp_path / "metrics.csv", {}, row_of)
        console = ConsoleReporter(config, trainer.spec, False, trainer.totals)
        digests = []
        for result in trainer:
            metrics.report(result)
            console.report(result)
            digests.append(result.weights_digest)
        metrics.close()
        console.close()
    with (tmp_path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["loss"] for row in rows] == ["", "", "", "1.0"]
    assert [row["target_norm"] for row in rows] == ["", "", "2.0", "3.0"]
    assert digests[0] == digests[1] != digests[2] != digests[3]
    assert np.isnan(read_columns(tmp_path / "metrics.csv")["loss"][0])
    shown = capsys.readouterr().out
    assert "Loss: -" in shown and "Loss: 1.0000" in shown


def test_a_part_is_saved_by_being_named():
    module = torch.nn.Linear(2, 2)
    config = TrainConfig()
    learner = Learner(config, LateStarter(module, None))
    learner.algorithm.seen += 5
    other = Learner(config, LateStarter(torch.nn.Linear(2, 2), None))
    other.load_state_dict(learner.state_dict())
    assert other.algorithm.seen == 5 and other.weights_digest() == learner.weights_digest()
    assert set(learner.weights()) == {"policy.weight", "policy.bias"}
