"""Collect on the executors of a Flame cluster, through Flame Runner.

This is the only folder that imports flamepy. A run has one application, and one
session at a time; simulators run in a child process of each executor (`flame_rl.actor.worker`).
"""

import os

# In a fork beside its threads gRPC's own handlers may crash. No fork of this process uses gRPC.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
