"""Everything in training that knows of more than one process."""
