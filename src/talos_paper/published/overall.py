"""The two main tables: every loss on every backbone and dataset, split at random."""

from __future__ import annotations

from dataclasses import replace

from talos_paper.published.entries import Figure, Improvement, cells, pairs

__all__ = ["FIGURES", "IMPROVEMENTS"]

_DATASETS = ("gowalla", "beauty", "games", "electronics")

# backbone, loss, then two columns for each dataset: precision@20 and recall@20
_ACCURACY = """
mf       bpr        0.0438 0.1511 0.0146 0.1267 0.0142 0.1334 0.0058 0.0566
mf       aatp       0.0327 0.1078 0.0120 0.1044 0.0142 0.1330 0.0028 0.0272
mf       rs@k       0.0397 0.1218 0.0094 0.0669 0.0104 0.0872 0.0020 0.0159
mf       smoothi@k  0.0586 0.1882 0.0163 0.1352 0.0192 0.1778 0.0059 0.0565
mf       sl         0.0625 0.2017 0.0172 0.1403 0.0208 0.1918 0.0064 0.0626
mf       bsl        0.0625 0.2017 0.0171 0.1401 0.0210 0.1934 0.0065 0.0630
mf       psl        0.0631 0.2031 0.0174 0.1432 0.0210 0.1935 0.0066 0.0637
mf       advinfonce 0.0623 0.2012 0.0171 0.1403 0.0210 0.1935 0.0063 0.0616
mf       llpauc     0.0562 0.1847 0.0157 0.1336 0.0187 0.1748 0.0059 0.0583
mf       talos      0.0642 0.2079 0.0179 0.1499 0.0213 0.1967 0.0067 0.0655
mf       imp%         1.71   2.35   2.69   4.69   1.19   1.62   3.04   2.75
lightgcn bpr        0.0527 0.1761 0.0159 0.1385 0.0192 0.1801 0.0050 0.0482
lightgcn aatp       0.0249 0.0754 0.0121 0.1067 0.0127 0.1175 0.0030 0.0289
lightgcn rs@k       0.0536 0.1735 0.0151 0.1192 0.0168 0.1511 0.0038 0.0357
lightgcn smoothi@k  0.0590 0.1898 0.0169 0.1427 0.0196 0.1801 0.0065 0.0630
lightgcn sl         0.0628 0.2025 0.0172 0.1433 0.0211 0.1942 0.0065 0.0629
lightgcn bsl        0.0628 0.2025 0.0172 0.1433 0.0210 0.1931 0.0064 0.0626
lightgcn psl        0.0634 0.2042 0.0173 0.1425 0.0210 0.1925 0.0065 0.0627
lightgcn advinfonce 0.0627 0.2028 0.0172 0.1433 0.0210 0.1936 0.0064 0.0626
lightgcn llpauc     0.0516 0.1722 0.0170 0.1423 0.0202 0.1882 0.0066 0.0642
lightgcn talos      0.0642 0.2080 0.0178 0.1489 0.0212 0.1960 0.0068 0.0662
lightgcn imp%         1.26   1.85   3.08   3.87   0.68   0.95   3.48   3.06
xsimgcl  bpr        0.0584 0.1917 0.0170 0.1450 0.0194 0.1810 0.0064 0.0625
xsimgcl  aatp       0.0451 0.1515 0.0153 0.1264 0.0173 0.1619 0.0051 0.0501
xsimgcl  rs@k       0.0515 0.1669 0.0151 0.1221 0.0174 0.1590 0.0040 0.0373
xsimgcl  smoothi@k  0.0532 0.1731 0.0077 0.0560 0.0144 0.1320 0.0040 0.0395
xsimgcl  sl         0.0623 0.2010 0.0171 0.1418 0.0208 0.1915 0.0065 0.0627
xsimgcl  bsl        0.0625 0.2013 0.0169 0.1413 0.0209 0.1931 0.0063 0.0619
xsimgcl  psl        0.0630 0.2023 0.0172 0.1407 0.0207 0.1910 0.0066 0.0636
xsimgcl  advinfonce 0.0623 0.2010 0.0171 0.1415 0.0209 0.1923 0.0064 0.0622
xsimgcl  llpauc     0.0612 0.1980 0.0171 0.1443 0.0207 0.1910 0.0064 0.0635
xsimgcl  talos      0.0638 0.2057 0.0180 0.1506 0.0212 0.1961 0.0067 0.0654
xsimgcl  imp%         1.27   1.68   4.87   3.81   1.32   1.60   2.65   2.81
"""

# the same with mrr@20 (in the paper's dialect of it) and ndcg@20; no improvement where a rival is better
_RANK = """
mf       bpr        0.0340 0.1167 0.0374 0.0698 0.0339 0.0699 0.0155 0.0303
mf       aatp       0.0227 0.0795 0.0294 0.0558 0.0318 0.0674 0.0065 0.0135
mf       rs@k       0.0301 0.0972 0.0223 0.0374 0.0232 0.0458 0.0050 0.0088
mf       smoothi@k  0.0449 0.1473 0.0443 0.0778 0.0492 0.0973 0.0180 0.0329
mf       sl         0.0481 0.1585 0.0470 0.0813 0.0511 0.1027 0.0175 0.0339
mf       bsl        0.0481 0.1585 0.0470 0.0813 0.0514 0.1035 0.0177 0.0341
mf       psl        0.0485 0.1595 0.0469 0.0820 0.0514 0.1035 0.0183 0.0350
mf       advinfonce 0.0481 0.1582 0.0468 0.0811 0.0505 0.1027 0.0180 0.0341
mf       llpauc     0.0444 0.1459 0.0395 0.0737 0.0450 0.0922 0.0134 0.0285
mf       talos      0.0513 0.1667 0.0482 0.0851 0.0532 0.1063 0.0190 0.0361
mf       imp%         5.84   4.49   2.39   3.77   3.35   2.69   3.63   3.15
lightgcn bpr        0.0425 0.1398 0.0412 0.0762 0.0467 0.0952 0.0128 0.0251
lightgcn aatp       0.0153 0.0533 0.0290 0.0560 0.0262 0.0574 0.0069 0.0144
lightgcn rs@k       0.0392 0.1321 0.0410 0.0695 0.0414 0.0816 0.0103 0.0195
lightgcn smoothi@k  0.0444 0.1472 0.0456 0.0811 0.0496 0.0981 0.0196 0.0362
lightgcn sl         0.0480 0.1584 0.0458 0.0810 0.0514 0.1035 0.0176 0.0340
lightgcn bsl        0.0480 0.1584 0.0458 0.0810 0.0511 0.1031 0.0175 0.0338
lightgcn psl        0.0490 0.1608 0.0462 0.0813 0.0514 0.1031 0.0179 0.0343
lightgcn advinfonce 0.0481 0.1587 0.0458 0.0811 0.0513 0.1032 0.0175 0.0338
lightgcn llpauc     0.0415 0.1367 0.0447 0.0803 0.0505 0.1012 0.0179 0.0346
lightgcn talos      0.0517 0.1675 0.0478 0.0848 0.0528 0.1056 0.0190 0.0363
lightgcn imp%         5.66   4.17   3.55   4.20   2.71   2.00      -   0.13
xsimgcl  bpr        0.0469 0.1531 0.0447 0.0812 0.0483 0.0976 0.0177 0.0339
xsimgcl  aatp       0.0311 0.1108 0.0396 0.0707 0.0398 0.0833 0.0134 0.0264
xsimgcl  rs@k       0.0364 0.1251 0.0401 0.0697 0.0402 0.0824 0.0100 0.0195
xsimgcl  smoothi@k  0.0379 0.1299 0.0181 0.0312 0.0330 0.0684 0.0118 0.0224
xsimgcl  sl         0.0475 0.1568 0.0457 0.0805 0.0503 0.1017 0.0175 0.0338
xsimgcl  bsl        0.0475 0.1572 0.0438 0.0788 0.0504 0.1023 0.0168 0.0330
xsimgcl  psl        0.0480 0.1583 0.0463 0.0808 0.0505 0.1019 0.0181 0.0348
xsimgcl  advinfonce 0.0475 0.1568 0.0456 0.0803 0.0502 0.1019 0.0175 0.0337
xsimgcl  llpauc     0.0481 0.1571 0.0459 0.0820 0.0517 0.1037 0.0181 0.0347
xsimgcl  talos      0.0506 0.1645 0.0489 0.0858 0.0526 0.1057 0.0189 0.0359
xsimgcl  imp%         5.18   3.88   5.47   4.60   1.84   1.97   4.15   3.25
"""


def _read(block: str, metrics: tuple[str, str]) -> tuple[list[Figure], list[Improvement]]:
    figures, improvements = [], []
    for (backbone, method), row in cells(block, columns=8):
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
                    Figure(
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


_accuracy, _accuracy_gains = _read(_ACCURACY, ("precision@20", "recall@20"))
_rank, _rank_gains = _read(_RANK, ("mrr@20", "ndcg@20"))

FIGURES: tuple[Figure, ...] = (*_accuracy, *_rank)
IMPROVEMENTS: tuple[Improvement, ...] = (*_accuracy_gains, *_rank_gains)
