"""Environments of several agents, named as `--env` takes them: `tests.agents.relay_v0`."""
