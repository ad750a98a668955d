"""Torch modules for model.py: layers, which are also kinds in flame_rl/nets/, and networks."""
