"""Tables that are freed and taken again: from the system every time, or from what the process kept."""

from __future__ import annotations

import resource

import pytest
import torch

from talos.training.memory import _MMAP_THRESHOLD, _mallopt, freed_memory_kept


@pytest.fixture(autouse=True)
def keeps_blocks() -> None:
    set_number = _mallopt()
    if set_number is None:
        pytest.skip("the C library is not glibc, or its numbers are set")
    if not set_number(_MMAP_THRESHOLD, 40 << 20):
        pytest.skip("this glibc does not keep blocks of 40 MB")
    set_number(_MMAP_THRESHOLD, 32 << 20)


def faults(megabytes: int, times: int) -> int:
    """Fresh pages that it takes to write to a block, let it go, and so on."""
    torch.ones(megabytes << 18)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        torch.ones(megabytes << 18)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_blocks_are_kept_inside_and_given_back_after() -> None:
    with freed_memory_kept(40 << 20):
        inside = faults(40, times=10)
    outside = faults(40, times=10)  # too large to be kept usually
    assert 3 * inside < outside  # a hole in what is kept may cost a block or two


def test_an_error_sets_it_back_too() -> None:
    with pytest.raises(ValueError, match="inside"), freed_memory_kept(1 << 30):
        raise ValueError("inside")
    assert faults(40, times=5) > 0
