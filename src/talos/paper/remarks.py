"""Likely reasons for what came out differently, by (experiment, data set, group, method); `*` stands for any."""

from __future__ import annotations

__all__ = ["REMARKS"]

REMARKS: dict[tuple[str, str, str, str], str] = {}
