"""The site: what is broken fails the build, formulas are MathML, and nothing on a page comes from a network."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Build

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_what_is_broken_fails_the_build(build: Build, tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "other.md").write_text("# Other\n\n## Here\n")
    (pages / "index.md").write_text(
        "# Index\n\n[good](other.md#here) [page](nothing.md) [heading](other.md#nowhere) ![picture](none.png)\n\n"
        "$\\nosuchcommand$\n\n```{toctree}\nother\nmissing\n```\n"
    )
    done = build(pages, "--fail-on-warning", "--keep-going")
    assert done.returncode != 0
    for word in ("nothing.md", "nowhere", "none.png", "nosuchcommand", "missing"):
        assert word in done.stderr, (word, done.stderr)
    assert "#here" not in done.stderr


def test_formulas_links_and_search_need_no_network(build: Build, tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "index.md").write_text(
        "# Index\n\nSee $\\beta_u$ and\n\n$$\n\\frac{1}{K} \\sum_{i \\in P_u} s_{ui}\n$$\n\n"
        "```{eval-rst}\n.. autoclass:: talos.losses.Talos\n   :no-members:\n```\n"
    )
    done = build(pages, "--fail-on-warning")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site" / "index.html").read_text()
    assert len(re.findall(r'<math [^>]*display="block">', page)) == 3, (
        "one formula of the page, two of the docstring"
    )
    assert "<msub><mi>β</mi><mi>u</mi></msub>" in re.sub(r"\s", "", page)
    fetched = re.findall(r'<(?:script|link|img|iframe)\b[^>]*?(?:src|href)="([^"]+)"', page)
    assert fetched
    assert not [address for address in fetched if re.match(r"(?:https?:)?//", address)]
    assert "talos" in (tmp_path / "site" / "searchindex.js").read_text()


def test_the_reference_builds_without_a_warning(build: Build, tmp_path: Path) -> None:
    """Formulas of docstrings that cannot be drawn show here, not only in `make docs`."""
    other = shutil.ignore_patterns("command-line.md")  # not from docstrings, and listed on another page
    shutil.copytree(DOCS / "reference", tmp_path / "pages", ignore=other)
    done = build(tmp_path / "pages", "--fail-on-warning", "--keep-going")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_notebook_that_fails_fails_the_build(build: Build, tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    pages.mkdir()
    head = "---\nfile_format: mystnb\nkernelspec:\n  name: python3\n---\n\n# Index\n\n"
    (pages / "index.md").write_text(head + "```{code-cell}\nimport talos\ntalos.no_such_name\n```\n")
    done = build(pages, "--fail-on-warning", "--keep-going")
    assert done.returncode != 0
    assert "no_such_name" in done.stdout + done.stderr


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def links() -> list[tuple[Path, str]]:
    """Every relative link of the Markdown of the repository; docs/results are generated and have tests of their own."""
    pages = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
    return [
        (page, target)
        for page in pages
        for target in re.findall(
            r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)
        )
        if not re.match(r"[a-z]+:", target)
    ]


def test_links_between_pages_lead_somewhere() -> None:
    """Also from README and its like, which are not on the site; images are checked where they are committed."""
    found = links()
    assert len(found) > 100
    for page, target in found:
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), (page.relative_to(ROOT), target)
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), (page.relative_to(ROOT), target)


def test_figures_are_those_that_the_library_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    import figures

    for name, drawn in figures.figures().items():
        stored = (DOCS / "images" / name).read_text("utf-8")
        assert drawn == stored, f"{name}: run python docs/figures.py"
    page = (DOCS / "explanation" / "top-k.md").read_text("utf-8")
    for name, wanted in figures.RANKINGS.items():
        values = [f"{value:.2f}" for value in figures.measure(wanted).values()]
        row = re.search(rf"^\| {name} \|(.*)\|$", page, flags=re.MULTILINE)
        assert row is not None
        assert [cell.strip(" *") for cell in row[1].split("|")] == values
    sys.modules.pop("figures")


@pytest.mark.parametrize(
    ("plain", "latex"),
    [
        ("s_ui ≥ β_u", r"s_{ui} \ge  β_{u}"),
        ("σ(x)^(1/τ)", r"σ(x)^{1/τ}"),
        ("full form   -log x", r"\text{full form}\quad -\log  x"),
        ("mean_j h(q)²", r"\text{mean}_{j} h(q)^2"),
        ("e⁽ˡ⁻¹⁾", r"e^{(l-1)}"),
    ],
)
def test_formulas_of_docstrings(monkeypatch: pytest.MonkeyPatch, plain: str, latex: str) -> None:
    pytest.importorskip("sphinx", reason="sphinx is not installed (extra `docs`)")
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    from docutils.utils.math.latex2mathml import tex2mathml
    from mathml import latex_of

    assert latex_of(plain) == latex
    assert "<math" in "".join(tex2mathml(latex, as_block=True))


def test_docstrings_become_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sphinx", reason="sphinx is not installed (extra `docs`)")
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    from plain_docstrings import as_rst

    text = "Takes `tau` and `a, b` of |I|.\n\n    s ≥ β_u\n\n    [loss]\n\n>>> f(*x)\n1"
    assert as_rst(text.split("\n")) == [
        r"Takes :py:obj:`tau` and ``a, b`` of \|I\|.",
        "",
        *(".. math::", "", r"    s \ge  β_{u}", "", ""),
        *("::", "", "    [loss]", "", ""),
        *(">>> f(*x)", "1"),
    ]
    assert as_rst(["where p. A user weighs n^p and s_ui, *all* of `x`s"]) == [
        r"where p\. A user weighs n\ :sup:`p`\  and s\ :sub:`ui`\ , *all* of :py:obj:`x`\ s"
    ]


@pytest.mark.slow
def test_the_whole_site_builds(build: Build, tmp_path: Path) -> None:
    """With every notebook, from nothing, every warning an error."""
    done = build(DOCS, "--fail-on-warning", "--keep-going")
    assert done.returncode == 0, done.stderr
    for page in ("index", "quickstart", "notebooks/own-loss", "reference/losses", "results/README", "search"):
        assert (tmp_path / "site" / f"{page}.html").is_file(), page
