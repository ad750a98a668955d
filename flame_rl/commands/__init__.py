"""The commands of main.py besides training, by the first word of the command line.

Each is a function that parses the remaining words with tyro and returns the exit code (None: 0). It
imports heavy modules only after parsing, so that `--help` answers at once.
"""

COMMANDS = {
    "evaluate": "flame_rl.commands.evaluate:evaluate",
    "watch": "flame_rl.commands.watch:watch",
    "plot": "flame_rl.commands.plot:plot",
    "runs": "flame_rl.commands.runs:runs",
    "export": "flame_rl.commands.export:export",
    "check": "flame_rl.commands.check:check",
    "profile": "flame_rl.commands.profile:profile",
    "tune": "flame_rl.commands.tune:tune",
}
