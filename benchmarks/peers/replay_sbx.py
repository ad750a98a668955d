"""The SAC, TD3 and DQN of sbx, which is Stable-Baselines3 in JAX. No arguments."""

from __future__ import annotations

from sbx import DQN, SAC, TD3

from benchmarks.peers.replay_sb3 import main

if __name__ == "__main__":
    main({"sac": SAC, "td3": TD3, "dqn": DQN})
