"""What is written down of a run as it goes: a file of metrics, and Weights & Biases where it is chosen."""
