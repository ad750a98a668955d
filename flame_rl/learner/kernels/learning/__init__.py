"""Losses, gradients and epochs of networks as machine code."""
