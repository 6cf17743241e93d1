"""Every result that the paper prints, and finding one by what it is about.

The tables are text, laid out as printed, the two largest in files; `NUMBERS` and `IMPROVEMENTS` are read from them.
Where a table does not name its backbone it is MF: its Talos rows repeat those of the main table on MF, or its
hyperparameters are listed for MF alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from talos.errors import ArgumentError

__all__ = ["IMPROVEMENTS", "NUMBERS", "Improvement", "PublishedNumber", "mended", "numbers", "value"]


@dataclass(frozen=True, kw_only=True)
class PublishedNumber:
    """One number of one table of the paper, as printed.

    Attributes:
        table: short name of the table, such as `overall` or `varying-k`.
        dataset: lower-case short name, such as `beauty`.
        backbone: `mf`, `lightgcn`, `xsimgcl`, or empty where none is involved.
        method: short name of the loss; in tables without losses, the name of the row.
        metric: key of the metric, such as `recall@20`.
        value: the number; shares and ratios are fractions of 1.
        setting: whatever else distinguishes the number, such as `n=8`.
        significant: starred in the paper (better than the best rival with p < 0.05).
        misprint: what is wrong with the number or its heading, if anything is.

    >>> PublishedNumber(table="overall", dataset="beauty", backbone="mf", method="sl", metric="recall@20", value=0.1403)
    PublishedNumber(table='overall', dataset='beauty', backbone='mf', method='sl', metric='recall@20', value=0.1403,
    setting='', significant=False, misprint=None)
    """

    table: str
    dataset: str
    backbone: str
    method: str
    metric: str
    value: float
    setting: str = ""
    significant: bool = False
    misprint: str | None = None


@dataclass(frozen=True, kw_only=True)
class Improvement:
    """One printed `Imp.%`: the gain of Talos over the best of its rivals in the same column.

    Attributes:
        table: see `PublishedNumber`.
        dataset: see `PublishedNumber`.
        backbone: see `PublishedNumber`.
        metric: see `PublishedNumber`.
        percent: the printed number, in percent.
        setting: see `PublishedNumber`.
        significant: starred in the paper.
        misprint: what is wrong with it, if anything is.

    >>> Improvement(table="overall", dataset="beauty", backbone="mf", metric="recall@20", percent=4.69).percent
    4.69
    """

    table: str
    dataset: str
    backbone: str
    metric: str
    percent: float
    setting: str = ""
    significant: bool = False
    misprint: str | None = None


def table_rows(block: str, columns: int) -> Iterator[tuple[list[str], list[str]]]:
    """The rows of a table written as text: the words of the label, and the last `columns` words.

    >>> list(table_rows("mf sl 0.1 -", columns=2))
    [(['mf', 'sl'], ['0.1', '-'])]
    """
    for line in block.strip().splitlines():
        words = line.split()
        if len(words) <= columns:
            raise ArgumentError(f"{line!r}", where="block", expected=f"a label and {columns} cells")
        yield words[:-columns], words[-columns:]


def pairs(first: Sequence[str], second: Sequence[str]) -> list[tuple[str, str]]:
    """The columns under a two-line heading: each of `first` with each of `second`.

    >>> pairs(["beauty", "games"], ["precision@20", "recall@20"])[1]
    ('beauty', 'recall@20')
    """
    return [(one, other) for one in first for other in second]


# --------------------------------------------------- the two main tables: every loss on every backbone and data set

_DATASETS = ("gowalla", "beauty", "games", "electronics")
_TOP = ("precision@20", "recall@20")


def _read_overall(name: str, metrics: tuple[str, str]) -> tuple[list[PublishedNumber], list[Improvement]]:
    """A file beside this one: backbone, loss, then two columns for each data set, one for each of the metrics."""
    block = Path(__file__).with_name(name).read_text(encoding="utf-8")
    figures, improvements = [], []
    for (backbone, method), row in table_rows(block, columns=8):
        for (dataset, metric), cell in zip(pairs(_DATASETS, metrics), row, strict=True):
            if cell == "-":
                continue
            if method == "imp%":
                improvements.append(
                    Improvement(
                        table="overall",
                        dataset=dataset,
                        backbone=backbone,
                        metric=metric,
                        percent=float(cell),
                        significant=True,  # every improvement that is printed is starred
                    )
                )
            else:
                figures.append(
                    PublishedNumber(
                        table="overall",
                        dataset=dataset,
                        backbone=backbone,
                        method=method,
                        metric=metric,
                        value=float(cell),
                    )
                )
    starred = {(entry.dataset, entry.backbone, entry.metric) for entry in improvements}
    return [
        replace(entry, significant=True)
        if entry.method == "talos" and (entry.dataset, entry.backbone, entry.metric) in starred
        else entry
        for entry in figures
    ], improvements


_accuracy, _accuracy_gains = _read_overall("precision-recall.txt", ("precision@20", "recall@20"))
# mrr@20 as the paper defines it; no improvement is printed where a rival is better
_rank, _rank_gains = _read_overall("mrr-ndcg.txt", ("mrr@20", "ndcg@20"))


# ------------------------------------------------------------------------------------------------ the smaller tables


# In percent: how often a list better by the metric of the row is worse by that of the column.
_INCONSISTENCY = """
auc      33.17 33.89 34.67 35.46 35.17 34.19 33.32 34.58
llpauc   18.53 18.65 23.81 22.95 23.30 22.34 23.30 22.25
ndcg     26.70 26.88 29.65 29.52 29.52 28.02 29.11 28.53
ndcg@20  19.01 18.24 22.02 22.55 21.14 22.21 17.65 17.51
"""

_ABLATION = """
talos w/o quantile     0.0626 0.2037 0.0175 0.1487 0.0208 0.1931 0.0066 0.0640
talos w/o outside      0.0577 0.1859 0.0166 0.1375 0.0194 0.1799 0.0062 0.0592
talos w/o denominator  0.0278 0.0869 0.0101 0.0841 0.0127 0.1173 0.0018 0.0160
talos                  0.0642 0.2079 0.0179 0.1499 0.0213 0.1967 0.0067 0.0655
"""

# recall at 20, 50 and 80
_VARYING_K = {
    "gowalla": """
        aatp        0.1062 0.2068 0.2160
        rs@k        0.1218 0.1059 0.2406
        smoothi@k   0.1882 0.3027 0.3625
        sl          0.2017 0.3185 0.3900
        bsl         0.2017 0.3185 0.3900
        advinfonce  0.2013 0.3183 0.3900
        llpauc      0.1847 0.2927 0.3640
        psl         0.2038 0.3192 0.3902
        talos@20    0.2078 0.3202 0.3894
        talos@50    0.2078 0.3212 0.3907
        talos@80    0.2074 0.3211 0.3911
        imp%          1.98   0.63   0.22
    """,
    "beauty": """
        aatp        0.1077 0.1850 0.2371
        rs@k        0.0669 0.0989 0.1223
        smoothi@k   0.1352 0.2041 0.2454
        sl          0.1403 0.2163 0.2617
        bsl         0.1401 0.2159 0.2617
        advinfonce  0.1409 0.2160 0.2621
        llpauc      0.1336 0.2047 0.2443
        psl         0.1432 0.2184 0.2625
        talos@20    0.1499 0.2205 0.2620
        talos@50    0.1484 0.2218 0.2637
        talos@80    0.1485 0.2213 0.2674
        imp%          1.85   4.69   1.59
    """,
}

_TEMPORAL_LOSSES = ("aatp", "rs@k", "smoothi@k", "sl", "bsl", "psl", "advinfonce", "llpauc", "talos", "imp%")
_TEMPORAL = """
gowalla precision@20  0.0300 0.0404 0.0544 0.0544 0.0544 0.0542 0.0542 0.0567 0.0574  1.24
gowalla recall@20     0.0807 0.1103 0.1497 0.1497 0.1497 0.1492 0.1499 0.1541 0.1577  2.37
beauty  precision@20  0.0061 0.0046 0.0076 0.0089 0.0089 0.0086 0.0089 0.0087 0.0094  5.51
beauty  recall@20     0.0461 0.0381 0.0589 0.0696 0.0697 0.0679 0.0699 0.0697 0.0738  5.45
"""

_SLATK_TEMPORAL = """
sl@k   0.0567 0.1559 0.0091 0.0708
talos  0.0574 0.1577 0.0094 0.0738
imp%     1.12   1.12   2.95   4.15
"""

# The table does not name its metric; Talos with more negatives has such values of precision@20.
_SLATK_NEGATIVES = """
sl@k   0.0167 0.0159 0.0150 0.2242 0.2265 0.2215
talos  0.0173 0.0162 0.0156 0.2310 0.2311 0.2266
imp%     3.67   1.96   3.50   3.01   2.02   2.28
"""

# MovieLens-100K
_SLATK_K = """
sl@k   0.2287 0.1557 0.1224 0.1067 0.0685 0.0400
talos  0.2349 0.1600 0.1257 0.1101 0.0700 0.0410
imp%     2.70   2.76   2.65   3.21   2.16   2.26
"""

# The paper's rows are SL@K and Talos; here they have the names of the estimators that these use.
_QUANTILE_ERROR = """
monte-carlo  0.1943 0.1948 0.2028 0.1389
regression   0.0131 0.0123 0.0100 0.0059
"""

# seconds an epoch on one RTX 4090
_EFFICIENCY = """
bpr         1.23 0.16 0.14  2.18
aatp        5.38 0.54 0.68  7.84
rs@k        4.58 0.43 0.37  7.30
smoothi@k   7.13 0.93 0.63 10.54
sl          4.79 0.42 0.31  7.01
bsl         4.56 0.43 0.34  7.17
psl         4.96 0.42 0.35  7.15
advinfonce  8.14 0.71 1.00  9.31
llpauc      4.82 0.52 0.37  6.63
talos       5.37 0.54 0.43  7.98
"""

_STATISTICS = """
electronics  150523 52024 1312545 0.0007
gowalla       29858 40988 1027464 0.0007
games         18813  8691  177572 0.0009
beauty        15603  8693  139554 0.0009
"""

_TEMPORAL_NAME = "called Beauty in the table of temporal shift, Games in the comparison with SL@K"
_COLUMNS_EXCHANGED = "the columns headed Games and Gowalla are exchanged: the times under {} are those of {}"
_RS_AT_50 = "below Recall@20 of the same row, which no single model can give"
_DENSITY = "users, items and interactions of the same row give {}"
_GAINS_MOVED = "the three improvements of this row are out of place: this one is Recall@{}'s"


def _inconsistency() -> Iterator[PublishedNumber]:
    for (method,), row in table_rows(_INCONSISTENCY, columns=8):
        for (dataset, metric), cell in zip(pairs(_DATASETS, _TOP), row, strict=True):
            share = round(float(cell) / 100, 4)
            yield PublishedNumber(
                table="inconsistency", dataset=dataset, backbone="", method=method, metric=metric, value=share
            )


def _ablation() -> Iterator[PublishedNumber]:
    for words, row in table_rows(_ABLATION, columns=8):
        for (dataset, metric), cell in zip(pairs(_DATASETS, _TOP), row, strict=True):
            yield PublishedNumber(
                table="ablation",
                dataset=dataset,
                backbone="mf",
                method=" ".join(words),
                metric=metric,
                value=float(cell),
            )


def _varying_k() -> Iterator[PublishedNumber | Improvement]:
    for dataset, block in _VARYING_K.items():
        for (method,), row in table_rows(block, columns=3):
            for k, cell in zip((20, 50, 80), row, strict=True):
                metric = f"recall@{k}"
                if method == "imp%":
                    # The numbers of the table give 4.68, 1.56 and 1.87 for 20, 50 and 80.
                    wrong = _GAINS_MOVED.format({20: 80, 50: 20, 80: 50}[k]) if dataset == "beauty" else None
                    yield Improvement(
                        table="varying-k",
                        dataset=dataset,
                        backbone="mf",
                        metric=metric,
                        percent=float(cell),
                        misprint=wrong,
                    )
                    continue
                yield PublishedNumber(
                    table="varying-k",
                    dataset=dataset,
                    backbone="mf",
                    method=method,
                    metric=metric,
                    value=float(cell),
                    setting=method.replace("talos@", "k=") if method.startswith("talos@") else "",
                    misprint=_RS_AT_50 if (dataset, method, k) == ("gowalla", "rs@k", 50) else None,
                )


def _temporal() -> Iterator[PublishedNumber | Improvement]:
    for (dataset, metric), row in table_rows(_TEMPORAL, columns=len(_TEMPORAL_LOSSES)):
        wrong = _TEMPORAL_NAME if dataset == "beauty" else None
        for method, cell in zip(_TEMPORAL_LOSSES, row, strict=True):
            yield _either("temporal", dataset, method, metric, cell, misprint=wrong)


def _against_slatk() -> Iterator[PublishedNumber | Improvement]:
    for (method,), row in table_rows(_SLATK_TEMPORAL, columns=4):
        for (dataset, metric), cell in zip(pairs(("gowalla", "games"), _TOP), row, strict=True):
            wrong = _TEMPORAL_NAME if dataset == "games" else None
            yield _either("slatk-temporal", dataset, method, metric, cell, misprint=wrong)
    for (method,), row in table_rows(_SLATK_NEGATIVES, columns=6):
        heading = pairs(("beauty", "movielens"), ("n=8", "n=16", "n=32"))
        for (dataset, setting), cell in zip(heading, row, strict=True):
            yield _either("slatk-negatives", dataset, method, "precision@20", cell, setting=setting)
    for (method,), row in table_rows(_SLATK_K, columns=6):
        for k, cell in zip((20, 50, 80, 100, 200, 400), row, strict=True):
            yield _either("slatk-k", "movielens", method, f"precision@{k}", cell)


def _either(
    table: str,
    dataset: str,
    method: str,
    metric: str,
    cell: str,
    *,
    setting: str = "",
    misprint: str | None = None,
) -> PublishedNumber | Improvement:
    """A number of a table on MF, or an improvement if it stands in the row or column `imp%`."""
    if method == "imp%":
        return Improvement(
            table=table,
            dataset=dataset,
            backbone="mf",
            metric=metric,
            percent=float(cell),
            setting=setting,
            misprint=misprint,
        )
    return PublishedNumber(
        table=table,
        dataset=dataset,
        backbone="mf",
        method=method,
        metric=metric,
        value=float(cell),
        setting=setting,
        misprint=misprint,
    )


def _quantile_error() -> Iterator[PublishedNumber]:
    for (method,), row in table_rows(_QUANTILE_ERROR, columns=4):
        for dataset, cell in zip(("gowalla", "beauty", "games", "movielens"), row, strict=True):
            yield PublishedNumber(
                table="quantile-error",
                dataset=dataset,
                backbone="mf",
                method=method,
                metric="error",
                value=float(cell),
            )


def _efficiency() -> Iterator[PublishedNumber]:
    headed = {"games": ("Games", "Gowalla"), "gowalla": ("Gowalla", "Games")}
    for (method,), row in table_rows(_EFFICIENCY, columns=4):
        for dataset, cell in zip(("games", "beauty", "gowalla", "electronics"), row, strict=True):
            yield PublishedNumber(
                table="efficiency",
                dataset=dataset,
                backbone="mf",
                method=method,
                metric="seconds",
                value=float(cell),
                misprint=_COLUMNS_EXCHANGED.format(*headed[dataset]) if dataset in headed else None,
            )


def _statistics() -> Iterator[PublishedNumber]:
    for (dataset,), row in table_rows(_STATISTICS, columns=4):
        users, items, interactions = map(int, row[:3])
        density = f"{interactions / (users * items):.4f}"
        for metric, cell in zip(("users", "items", "interactions", "density"), row, strict=True):
            yield PublishedNumber(
                table="statistics",
                dataset=dataset,
                backbone="",
                method="",
                metric=metric,
                value=float(cell),
                misprint=_DENSITY.format(density) if metric == "density" and cell != density else None,
            )


_mixed = [*_varying_k(), *_temporal(), *_against_slatk()]

NUMBERS: tuple[PublishedNumber, ...] = (
    *_accuracy,
    *_rank,
    *_inconsistency(),
    *_ablation(),
    *(entry for entry in _mixed if isinstance(entry, PublishedNumber)),
    *_quantile_error(),
    *_efficiency(),
    *_statistics(),
)
"""Every number of every table of results, as printed."""

IMPROVEMENTS: tuple[Improvement, ...] = (
    *_accuracy_gains,
    *_rank_gains,
    *(entry for entry in _mixed if isinstance(entry, Improvement)),
)
"""Every printed `Imp.%`."""


# ----------------------------------------------------------------------------------------------------- finding numbers


_KEYS = ("table", "dataset", "backbone", "method", "metric", "setting")


def numbers(
    *,
    table: str | None = None,
    dataset: str | None = None,
    backbone: str | None = None,
    method: str | None = None,
    metric: str | None = None,
    setting: str | None = None,
) -> tuple[PublishedNumber, ...]:
    """The published numbers with these keys; a key that is not given matches everything.

    >>> [entry.method for entry in numbers(table="ablation", dataset="beauty", metric="recall@20")]
    ['talos w/o quantile', 'talos w/o outside', 'talos w/o denominator', 'talos']
    """
    given = (table, dataset, backbone, method, metric, setting)
    wanted = {key: name for key, name in zip(_KEYS, given, strict=True) if name is not None}
    return tuple(
        entry for entry in NUMBERS if all(getattr(entry, key) == name for key, name in wanted.items())
    )


def value(**keys: str | None) -> float | None:
    """The published number with these keys, which are those of `numbers`; None if the paper has none.

    Raises:
        ArgumentError: several numbers match; the message names the keys in which they differ.

    >>> value(table="overall", dataset="beauty", backbone="mf", method="talos", metric="recall@20")
    0.1499
    >>> value(table="overall", dataset="movielens", metric="recall@20") is None
    True
    >>> value(table="quantile-error", dataset="beauty")
    Traceback (most recent call last):
    talos.errors.ArgumentError: value: 2 published numbers match; expected one (they differ in method)
    """
    found = numbers(**keys)
    if len(found) > 1:
        differ = [key for key in _KEYS if len({getattr(entry, key) for entry in found}) > 1]
        raise ArgumentError(
            f"{len(found)} published numbers match",
            where="value",
            expected="one",
            hint="they differ in " + ", ".join(differ),
        )
    return found[0].value if found else None


_EXCHANGED = {"games": "gowalla", "gowalla": "games"}
_MOVED = {"recall@20": "recall@80", "recall@50": "recall@20", "recall@80": "recall@50"}

Entry = TypeVar("Entry", bound=PublishedNumber | Improvement)


def mended(entry: Entry) -> Entry:
    """The entry under the heading where it belongs, if it is known for sure; otherwise the entry as it is.

    Two misprints are known: the training times have their columns Games and Gowalla exchanged, and the
    improvements of the table of varying K on Beauty stand under each other's headings.

    >>> (time,) = numbers(table="efficiency", dataset="games", method="talos")
    >>> time.value, mended(time).dataset, mended(time).misprint
    (5.37, 'gowalla', None)
    """
    if entry.misprint is None:
        return entry
    if isinstance(entry, PublishedNumber) and entry.table == "efficiency":
        return replace(entry, dataset=_EXCHANGED[entry.dataset], misprint=None)
    if isinstance(entry, Improvement) and entry.table == "varying-k":
        return replace(entry, metric=_MOVED[entry.metric], misprint=None)
    return entry
