"""What main.py does besides training, by its first word.

Each is a function of the words after that one, which reads them with tyro and returns the exit code
(None: 0). It imports what is heavy only after that, so that `--help` answers at once.
"""

COMMANDS = {
    "evaluate": "flame_rl.commands.evaluate:evaluate",
    "watch": "flame_rl.commands.watch:watch",
    "plot": "flame_rl.commands.plot:plot",
    "export": "flame_rl.commands.export:export",
    "profile": "flame_rl.commands.profile:profile",
}
