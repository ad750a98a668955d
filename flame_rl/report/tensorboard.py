"""Write a run for TensorBoard with TensorBoard's own package, without torch or TensorFlow."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from flame_rl.run.results import IterationResult, Totals

FOLDER_NAME = "tensorboard"


class TensorBoardReporter:
    """Writes scalars over env steps, on disk before the next iteration begins."""

    def __init__(self, folder: Path, done: Totals) -> None:
        """Begin a file of events. From its first step on, it replaces what is in earlier files of a
        run that was resumed or begins again.

        Args:
            folder: the run folder.
            done: totals of a resumed run when it starts again.
        """
        folder = folder / FOLDER_NAME
        folder.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns() // 1000}.{os.getpid()}"
        self._file = (folder / name).open("wb")
        self._records = RecordWriter(self._file)
        self._write(Event(file_version="brain.Event:2"))
        log = SessionLog(status=SessionLog.START)
        first = done.env_steps + 1 if done.iterations else 0
        self._write(Event(session_log=log, step=first))

    def report(self, result: IterationResult) -> None:
        timing = result.timing
        scalars = {
            "reward/mean": result.reward_mean,
            "reward/std": result.reward_std,
            "reward/min": result.reward_min,
            "reward/max": result.reward_max,
            **{f"reward/{name}": value for name, value in result.reward_parts.items()},
            **{f"outcome/{name}": value for name, value in result.outcomes.items()},
            "episodes/length_mean": result.length_mean,
            "episodes/total": result.episodes,
            **{f"update/{name}": value for name, value in result.losses.items()},
            "speed/env_steps_per_second": timing.env_steps_per_second,
            "seconds/collecting": timing.collecting,
            "seconds/updating": timing.updating,
            "seconds/waiting": timing.waiting,
        }
        if result.evaluation is not None:
            scalars["seconds/evaluating"] = timing.evaluating
            evaluation = result.evaluation.numbers()
            scalars |= {f"evaluation/{name}": value for name, value in evaluation.items()}
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._write(Event(summary=Summary(value=values), step=result.env_steps))

    def close(self) -> None:
        self._file.close()

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        self._records.write(event.SerializeToString())
        self._file.flush()
