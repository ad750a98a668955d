"""`main.py export RUN policy.onnx`: write a policy for use in other programs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from flame_rl.settings.parse import parse_command
from flame_rl.system.errors import say, warn
from flame_rl.system.files import refuse_unless_file, write_atomically
from flame_rl.system.machine import require


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

    trust: bool = False
    """Run modules that lie in the run folder, too; it may be anybody's code."""


def export(arguments: Sequence[str]) -> None:
    """Run the command. Raises UsageError without a policy, a writable FILE or a package."""
    command = parse_command(ExportCommand, arguments, "export")
    refuse_unless_file(command.file)
    # Checked before torch is imported, which takes seconds.
    for package in ("onnx", "onnxruntime"):
        require(package, package, "export")
    from flame_rl.run.trainer import Trainer
    from flame_rl.tools.onnx_file import ExportedPolicy, check_onnx, to_onnx

    here = {"local": True, "workers": 0, "device": "cpu", "trust": command.trust}
    with Trainer.load(command.run, command.best, **here) as trainer:
        policy, spec = ExportedPolicy.of_learner(trainer.learner), trainer.spec
    for warning in trainer.warnings:
        warn(f"warning: {warning}")
    choices = spec.choices if spec.masked else ()
    model = to_onnx(policy, spec.env_id, choices)
    difference = check_onnx(model, policy.snapshot, choices)
    write_atomically(command.file, model)
    mask = f", action_mask [batch, {spec.action_dim}]" if spec.masked else ""
    say(
        f"{command.file}: observation [batch, {spec.observation_dim}]{mask} -> "
        f"{', '.join(policy.outputs)} ({spec.action_dim} actions) after "
        f"{trainer.totals.iterations} iterations of {spec.env_id}; greatest relative difference "
        f"from NumPy {difference:.1e}"
    )
