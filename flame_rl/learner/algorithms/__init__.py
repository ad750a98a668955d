"""One algorithm a file, to be read from top to bottom; its flags are in flame_rl/settings/."""
