"""Records of a run while it goes on: a file of metrics and, where it is chosen, Weights & Biases."""
