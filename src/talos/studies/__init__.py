"""Studies: many fits in one folder, compared or searched."""
