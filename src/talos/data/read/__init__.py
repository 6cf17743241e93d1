"""Readers of the kinds of sources: each yields frames of the needed columns in blocks."""
