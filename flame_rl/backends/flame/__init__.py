"""Collect on the executors of a Flame cluster, through Flame Runner; nothing else imports flamepy.
Simulators run in a child process of each executor (`flame_rl.actor.worker`)."""

import os

# In a fork beside its threads gRPC's own handlers may crash. No fork of this process uses gRPC.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
