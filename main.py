"""Train a policy: `uv run main.py --env ant`. `--help` lists every flag and the other commands."""

from flame_rl.__main__ import end, main, run_command

__all__ = ["main", "run_command"]

if __name__ == "__main__":
    end(main())
