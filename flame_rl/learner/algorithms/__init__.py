"""One file per algorithm, to be read from top to bottom; their table is in learner/make.py."""
