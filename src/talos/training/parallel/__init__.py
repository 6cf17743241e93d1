"""Training with more than one process."""
