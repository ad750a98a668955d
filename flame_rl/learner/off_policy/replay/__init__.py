"""Replay: steps of earlier episodes, kept and drawn again to learn from."""
