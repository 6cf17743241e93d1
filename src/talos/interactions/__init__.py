"""Who interacted with what: the one data structure that everything else in Talos reads.

`Interactions` is an immutable sparse matrix of users × items (CSR) together with the caller's own ids.
Positions ("codes") are internal; ids go in and ids come out.
"""

from __future__ import annotations

from talos.interactions.description import Description, gini
from talos.interactions.matrix import Interactions, Provenance
from talos.interactions.vocabulary import Codes, Ids, Vocabulary, as_id_series

__all__ = ["Codes", "Description", "Ids", "Interactions", "Provenance", "Vocabulary", "as_id_series", "gini"]
