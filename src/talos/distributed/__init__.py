"""The process group: several processes that train one model, each with its own users.

`start()` joins the processes that torchrun (or SLURM, or Ray Train) describes in the environment and returns a
`Group`. Without other processes that is `SINGLE_PROCESS`, for which every operation is the identity. Messages are
tensors; nothing is pickled.

When a process ends or hangs, the others notice it as they wait, ask each other who is still there, and raise an error
that names the missing ranks.
"""

from talos.distributed.group import SINGLE_PROCESS, Group, all_or_none
from talos.distributed.torch_group import TIMEOUT, LostRankError, current, start, stop

__all__ = [
    "SINGLE_PROCESS",
    "TIMEOUT",
    "Group",
    "LostRankError",
    "all_or_none",
    "current",
    "start",
    "stop",
]
