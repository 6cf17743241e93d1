"""Readers: a class for each kind of file, frame or database, and what they share to find and clean columns."""
