"""Actor-learner reinforcement learning on Flame Runner.

Importing this package imports nothing else: an executor imports `flame_rl.actor` where torch is
not installed.
"""
