"""What turns episodes into better weights: one file per algorithm, and their mathematics."""
