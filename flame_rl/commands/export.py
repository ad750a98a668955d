"""`main.py export RUN policy.onnx`: write a policy for use in other programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from flame_rl.settings.parse import parse_command
from flame_rl.system.errors import UsageError
from flame_rl.system.files import write_atomically
from flame_rl.system.output import say, warn


@dataclass(frozen=True)
class ExportCommand:
    """Write a policy as an ONNX file, normalisation included, and compare it with the original.

    Needs the packages of the dependency group `export`.
    """

    run: tyro.conf.Positional[Path]
    """A run folder, of which the newest checkpoint is taken, or a checkpoint file."""

    file: tyro.conf.Positional[Path]
    """The file to write, such as policy.onnx."""

    best: bool = False
    """Take the best checkpoint of the run folder, not the newest."""


def export(arguments: Sequence[str]) -> None:
    """Run the command. Raises UsageError if RUN has no policy, FILE cannot be written, or a package
    is missing."""
    command = parse_command(ExportCommand, arguments, "main.py export")
    if not command.file.parent.is_dir() or command.file.is_dir():
        raise UsageError(f"{command.file}: name a file in a folder that exists")
    from flame_rl.system.optional import require
    from flame_rl.tools.onnx_file import GROUP, check_onnx, output_names, to_onnx

    # Checked before torch is imported, which takes seconds.
    for package in ("onnx", "onnxruntime"):
        require(package, package, GROUP)
    from flame_rl.run.trainer import Trainer

    here = {"local": True, "workers": 0, "device": "cpu"}
    with Trainer.load(command.run, command.best, **here) as trainer:
        snapshot, spec = trainer.learner.snapshot(), trainer.spec
    for warning in trainer.warnings:
        warn(f"warning: {warning}")
    masked = spec.choices if spec.masked else ()
    model = to_onnx(snapshot, spec.env_id, masked)
    difference = check_onnx(model, snapshot, masked)
    write_atomically(command.file, model)
    say(
        f"{command.file}: observation [batch, {spec.observation_dim}]"
        f"{f', action_mask [batch, {spec.action_dim}]' if spec.masked else ''} -> "
        f"{', '.join(output_names(snapshot))} "
        f"({spec.action_dim} actions) after {trainer.totals.iterations} iterations of "
        f"{spec.env_id}; greatest relative difference from NumPy {difference:.1e}"
    )
