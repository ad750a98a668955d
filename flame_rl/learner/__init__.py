"""Learning from episodes: one file per algorithm, and the mathematics that they share."""
