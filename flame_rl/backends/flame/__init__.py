"""Collect on the executors of a Flame cluster, through Flame Runner.

The learner's only folder that imports flamepy. One application a run, one session at a time; the
simulator itself runs in a child process of each executor's worker (`flame_rl.actor.worker`).
"""
