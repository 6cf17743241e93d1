"""Interactions: read, clean, split and store them; named datasets."""
