"""The PPO of sbx, which is Stable-Baselines3 in JAX. Argument: `ENV_ID`."""

from __future__ import annotations

import sys

from sbx import PPO

from benchmarks.peers.sb3 import main

if __name__ == "__main__":
    main(sys.argv[1], PPO)
