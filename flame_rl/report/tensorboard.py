"""Write a run for TensorBoard with TensorBoard's own package, without torch or TensorFlow."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.metadata import (
    NULL_TENSOR,
    SESSION_START_INFO_TAG,
    create_summary_metadata,
)
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionStartInfo
from tensorboard.summary.writer.record_writer import RecordWriter

from flame_rl.report.trackers import Settings, scalars_of
from flame_rl.run.results import IterationResult, Totals

FOLDER_NAME = "tensorboard"


class TensorBoardReporter:
    """Writes scalars over env steps, on disk before the next iteration begins."""

    def __init__(self, folder: Path, done: Totals, settings: Settings | None = None) -> None:
        """Begin a file of events in the run folder, whose name is the run's. From its first step
        on, it replaces what is in earlier files of a run that was resumed or begins again; `done`
        are that run's totals. `settings` are for the page of hyperparameters."""
        name = folder.name
        folder = folder / FOLDER_NAME
        folder.mkdir(exist_ok=True)
        file = f"events.out.tfevents.{time.time_ns() // 1000}.{os.getpid()}"
        self._file = (folder / file).open("wb")
        self._records = RecordWriter(self._file)
        self._write(Event(file_version="brain.Event:2"))
        log = SessionLog(status=SessionLog.START)
        first = done.env_steps + 1 if done.iterations else 0
        self._write(Event(session_log=log, step=first))
        if settings:
            self._write(Event(summary=Summary(value=[_hyperparameters(name, settings)])))

    def report(self, result: IterationResult) -> None:
        values = [
            Summary.Value(tag=tag, simple_value=value) for tag, value in scalars_of(result).items()
        ]
        self._write(Event(summary=Summary(value=values), step=result.env_steps))

    def close(self) -> None:
        self._file.close()

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        self._records.write(event.SerializeToString())
        self._file.flush()


def _hyperparameters(name: str, settings: Settings) -> Summary.Value:
    start = SessionStartInfo(group_name=name, start_time_secs=time.time())
    for key, value in settings.items():
        kind = {bool: "bool_value", str: "string_value"}.get(type(value), "number_value")
        setattr(start.hparams[key], kind, value)
    data = create_summary_metadata(HParamsPluginData(session_start_info=start))
    return Summary.Value(tag=SESSION_START_INFO_TAG, metadata=data, tensor=NULL_TENSOR)
