"""Tables that are freed and taken again: from the system every time, or from what the process kept."""

from __future__ import annotations

import ctypes
import resource

import pytest
import torch

from talos.training.memory import _mallopt, freed_memory_kept

PAGE = resource.getpagesize()
pytestmark = pytest.mark.skipif(_mallopt() is None, reason="the C library is not glibc")


def faults(megabytes: int, times: int) -> int:
    """Fresh pages that it takes to write to a block, let it go, and so on."""
    torch.ones(megabytes << 18)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        torch.ones(megabytes << 18)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_blocks_are_kept_inside_and_given_back_after() -> None:
    ctypes.CDLL(None).malloc_trim(0)
    pages = (40 << 20) // PAGE  # of one block, which is too large to be kept usually
    with freed_memory_kept(40 << 20):
        assert faults(40, times=5) < pages / 10
    assert faults(40, times=5) >= 5 * min(
        pages / 10, (40 << 20) / (2 << 20)
    )  # in large pages fewer, but some each time


def test_an_error_sets_it_back_too() -> None:
    with pytest.raises(ValueError, match="inside"), freed_memory_kept(1 << 30):
        raise ValueError("inside")
    assert faults(40, times=5) > 0
