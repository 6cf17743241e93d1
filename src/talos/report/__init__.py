"""Reports: one self-contained HTML file for a run, a comparison or a tuning study; and a model card of a run.

The HTML files need no network and hold no scripts: plots are SVG drawn by `talos.report.svg`, each with a table of its
numbers below it. They are readable on a phone, and in light and dark mode.
"""

from __future__ import annotations

from talos.report.page import check_target, is_card, is_page, standalone, write_page
from talos.report.run import model_card, run_report
from talos.report.studies import comparison_report, tuning_report

__all__ = [
    "check_target",
    "comparison_report",
    "is_card",
    "is_page",
    "model_card",
    "run_report",
    "standalone",
    "tuning_report",
    "write_page",
]
