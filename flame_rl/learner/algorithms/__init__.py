"""One file per algorithm, to be read from top to bottom; its flags are in flame_rl/settings/."""
