"""Talos."""
