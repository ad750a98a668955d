"""What model.py is written with: torch modules that are kinds of layers in flame_rl/nets/, too."""
