"""Several processes that train one model: who owns which rows, and how sums are made over all of them.

`start()` reads what torchrun (or SLURM, or Ray Train) left in the environment and gives a `Group`; without
several processes that is `ALONE`, a group of one for which every operation is the identity, so that nobody who
works with a group asks how large it is. Messages are tensors; nothing is pickled.

A process that ends or hangs is noticed by the others when they wait for it: they tell each other who is still
there, and the error names the ranks that are not.
"""

from talos.distributed.group import ALONE, Group, OwnedRows
from talos.distributed.starting import TIMEOUT, current, start, stop
from talos.distributed.torch_group import LostRankError

__all__ = ["ALONE", "TIMEOUT", "Group", "LostRankError", "OwnedRows", "current", "start", "stop"]
