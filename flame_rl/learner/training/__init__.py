"""Gradients of losses: by torch for any network, by hand for the usual ones."""
