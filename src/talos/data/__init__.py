"""Interactions: reading, cleaning, splitting and storing them."""
