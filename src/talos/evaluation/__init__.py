"""Ranking, metrics, reports and significance tests."""
