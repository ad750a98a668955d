"""A network in training: gradients, Adam, minibatches, slices, losses, normalisation, device."""
