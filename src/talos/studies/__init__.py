"""Studies: many fits that share one folder, either compared with each other or searched for the best settings."""
