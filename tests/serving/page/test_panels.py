"""The map, the metrics and the traffic in a browser; with keys, on a narrow screen, in the dark, with 100,000 items."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import polars as pl
import pytest
import torch

import talos.serving
from talos.data.interactions import Interactions
from talos.model.model import Model, Vectors
from talos.model.recommender import Recommender
from talos.model.store import save_model
from talos.report.page import DARK, LIGHT

from .conftest import PATIENCE, Page, Start

PANELS = ("lists", "map", "quality", "traffic")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "clicks.db"


@pytest.fixture(scope="module")
def address(served: Start, page_runs: dict[str, Path], log: Path) -> str:
    return served(page_runs["first"], page_runs["second"], feedback=str(log))


@pytest.fixture
def page(chromium: Any, address: str) -> Page:
    opened = Page(chromium, address)
    opened.until("document.body.dataset.shown > 0")
    return opened


def open_panel(page: Page, name: str) -> None:
    page.find(f"#tab-{name}").click()
    page.until(f"document.body.dataset.{'shown' if name == 'lists' else name}")


def place_of(page: Page, item: str) -> tuple[float, float]:
    code = "import(arguments[0]).then((one) => arguments[2](one.placeOnScreen(arguments[1])))"
    x, y = page.browser.execute_async_script(code, f"{page.url}page/map.js", item)
    return x, y


def middle_of(page: Page) -> tuple[float, float]:
    box = page.box("#plane")
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def click_at(page: Page, x: float, y: float) -> None:
    for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
        event = {"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1}
        page.browser.execute_cdp_cmd("Input.dispatchMouseEvent", event)


def test_the_map_answers_clicks_and_zooms(page: Page) -> None:
    open_panel(page, "map")
    assert page.js("[...document.getElementById('colour').options].map((one) => one.value)") == [
        "group",
        "popularity",
    ]
    assert page.texts("#map-legend li") == [
        "even", "odd", "others", "history", "list",
    ]  # fmt: skip
    before = place_of(page, "item40")
    page.changed(lambda: click_at(page, *before), "item")
    assert page.js("document.body.dataset.item") == "item40"
    page.keys("ESCAPE")
    page.find("#zoom-in").click()
    middle = middle_of(page)
    after = place_of(page, "item40")
    assert np.subtract(after, middle) == pytest.approx(1.6 * np.subtract(before, middle), abs=0.1)
    page.find("#zoom-all").click()
    assert place_of(page, "item40") == pytest.approx(before, abs=0.01)
    page.choose("colour", "popularity")
    assert "odd" not in page.text("#map-legend")
    # by keys: what is in the middle is named, and Enter opens it
    page.js("document.getElementById('plane').focus()")
    page.keys("+", "ARROW_LEFT", "-", "0")
    page.until("document.getElementById('map-status').textContent.startsWith('Near')")
    said = page.text("#map-status")
    page.changed(lambda: page.keys("ENTER"), "item")
    assert page.text("#drawer-title") in said
    page.keys("ESCAPE")
    assert page.focused() == "plane"
    # and from an item to its place
    open_panel(page, "lists")
    page.changed(lambda: page.find("#first ol button.name").click(), "item")
    item = page.js("document.body.dataset.item")
    page.find("#drawer .row button:nth-child(2)").click()
    page.until("document.body.dataset.panel === 'map'")
    assert place_of(page, item) == pytest.approx(middle_of(page), abs=1)
    # a view of everything stays one in a window of another size
    page.find("#zoom-all").click()
    open_panel(page, "lists")
    page.keys("ESCAPE")
    page.size(500, 900)
    open_panel(page, "map")
    box = page.box("#plane")
    places = [place_of(page, f"item{n}") for n in range(10, 60)]
    assert all(box["left"] < x < box["right"] and box["top"] < y < box["bottom"] for x, y in places)
    assert page.faults() == []


def test_metrics_by_length_and_by_slice(page: Page, address: str) -> None:
    open_panel(page, "quality")
    facts = httpx.get(f"{address}v1/quality", timeout=PATIENCE).json()
    rows = page.js("[...document.querySelectorAll('#quality .wide')][0].innerText")
    assert "0.6250" in rows
    assert "0.7500" in rows
    titles = page.texts("#quality figure h3")
    assert titles[:2] == ["Precision@K", "Recall@K"]
    assert [one for one in titles if "activity" in one or "popularity of" in one] == titles[-2:]
    numbers = [float(one) for one in page.texts("#quality figure:nth-child(2) tbody td:nth-child(2)")]
    assert numbers == pytest.approx(facts["curves"][1]["model"], abs=1e-4)
    page.choose("beside", "second")
    page.until("document.body.dataset.quality === 'first second'")
    assert page.js("document.querySelectorAll('#quality figure:first-child .legend li').length") == 3


def test_traffic_versions_and_feedback(page: Page, address: str) -> None:
    open_panel(page, "traffic")
    events = {"events": [{"user": "eve", "item": "item30"}, {"user": "eve", "item": "never seen"}]}
    httpx.post(f"{address}v1/feedback", json=events, timeout=PATIENCE).raise_for_status()
    page.until("document.getElementById('traffic').innerText.includes('1 of unknown items')")
    version = httpx.get(f"{address}readyz", timeout=PATIENCE).json()["models"]["second"]
    text = page.js("document.getElementById('traffic').innerText")
    assert version in text
    assert re.search(r"^recommend\s+[1-9]", text, re.M)
    open_panel(page, "lists")
    page.look_at("eve")  # whom only the feedback knows
    assert page.names("#history") == ["item30"]
    assert "1 of them new" in page.text("#history-note")


def test_everything_works_with_keys(page: Page) -> None:
    page.js("document.getElementById('tab-lists').focus()")
    for name in ("map", "quality", "traffic", "lists"):
        page.keys("ARROW_RIGHT")
        assert page.focused() == f"tab-{name}"
        assert page.js("document.body.dataset.panel") == name
    order = []
    for _ in range(9):
        page.keys("TAB")
        order.append(page.focused())
        outline = page.js("getComputedStyle(document.activeElement).outline")
        assert "solid 3px" in outline or "3px solid" in outline, order[-1]
        page.keys("ESCAPE")
    assert order[:4] == ["panels", "mode-user", "user", "take-over"] or order[:3] == [
        "mode-user",
        "user",
        "take-over",
    ]
    # from an item of the list to its drawer and back, without a pointer
    page.js("document.querySelector('#first ol button.name').focus()")
    page.changed(lambda: page.keys("ENTER"), "item")
    assert page.focused() == "drawer-title"
    page.keys("ESCAPE")
    assert page.js("document.activeElement === document.querySelector('#first ol button.name')")
    unnamed = page.js("""[...document.querySelectorAll('button, input, select, canvas')].filter((one) =>
      !one.textContent.trim() && !one.getAttribute('aria-label') && !one.labels?.length).map((one) => one.id)""")
    assert unnamed == []


def test_tab_leaves_an_open_finder_to_the_next_control(page: Page) -> None:
    page.find("#user").click()
    page.until(
        "document.getElementById('user-found').scrollHeight > document.getElementById('user-found').clientHeight"
    )
    page.keys("TAB")
    assert page.focused() == "take-over"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen(page: Page, scheme: str) -> None:
    page.size(360, 720)
    page.scheme(scheme)
    page.choose("beside", "second")
    for name in PANELS:
        open_panel(page, name)
        assert page.js("document.documentElement.scrollWidth") <= 360, name
        outside = page.js("""[...document.querySelectorAll('button, input, select, canvas, h2')].filter((one) => {
          const box = one.getBoundingClientRect();
          return box.width && (box.left < -1 || box.right > 361) && !one.closest('.wide');
        }).map((one) => one.id || one.textContent)""")
        assert outside == [], name
    open_panel(page, "lists")
    page.changed(lambda: page.find("#first ol button.name").click(), "item")
    box = page.box("#drawer")
    assert [box["left"], box["right"], box["bottom"]] == pytest.approx([0, 360, 720], abs=1)


def test_colours_are_those_of_the_report_in_light_and_dark(page: Page) -> None:
    for scheme, colours in (("light", LIGHT), ("dark", DARK)):
        page.scheme(scheme)
        names = list(colours)
        code = "arguments[0].map((name) => getComputedStyle(document.documentElement).getPropertyValue('--' + name))"
        assert dict(zip(names, page.js(code, names), strict=True)) == colours
        red, green, blue = (int(colours["back"][at : at + 2], 16) for at in (1, 3, 5))
        assert page.js("getComputedStyle(document.body).backgroundColor") == f"rgb({red}, {green}, {blue})"


def test_nothing_comes_from_elsewhere(page: Page, address: str) -> None:
    for name in PANELS:
        open_panel(page, name)
    loaded = page.js("performance.getEntriesByType('resource').map((one) => one.name)")
    assert loaded
    assert all(one.startswith(address) for one in loaded)
    folder = Path(talos.serving.__file__).parent / "page"
    for file in folder.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text, file
        assert "https://" not in text, file
        assert "innerHTML" not in text, file
    assert page.faults() == []


def test_with_a_key(chromium: Any, served: Start, page_runs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "key").write_text("a-long-secret")
    page = Page(chromium, served(page_runs["first"], read_key_file=str(tmp_path / "key")))
    page.until("document.getElementById('key-dialog').open")
    assert page.focused() == "key"
    page.keys("ESCAPE")
    assert page.js("document.getElementById('key-dialog').open")
    page.find("#key").send_keys("wrong")
    page.keys("ENTER")
    page.until("document.getElementById('key-note').textContent.includes('not accepted')")
    page.find("#key").send_keys("a-long-secret")
    page.keys("ENTER")
    page.until("document.body.dataset.shown > 0")
    assert len(page.names("#first ol")) == 20
    addresses = page.js("[location.href, ...performance.getEntriesByType('resource').map((one) => one.name)]")
    assert not any("secret" in one for one in addresses)
    assert page.js("[localStorage.length, document.cookie]") == [0, ""]
    page.browser.refresh()  # the tab remembers it
    page.until("document.body.dataset.shown > 0")
    assert not page.js("document.getElementById('key-dialog').open")


# ----------------------------------------------------------------------------- 100,000 items


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with 100,000 items whose vectors are in six clusters; nothing was trained."""
    items, users = 100_000, 50
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(6, 8, generator=generator)
    kind = torch.randint(0, 6, (items,), generator=generator)
    vectors = centres[kind] + 0.4 * torch.randn(items, 8, generator=generator)
    # every item once, and the first ones more often
    owner = np.concatenate([np.arange(items) % users, np.repeat(np.arange(users), 40)])
    item = np.concatenate([np.arange(items), np.tile(np.arange(40), users)])
    data = Interactions.from_ids(
        [f"u{one}" for one in owner],
        [f"product {one:06d}" for one in item],
        titles=[f"Product {one}" for one in item],
    )
    model = Model(
        scored_by=Vectors(torch.randn(users, 8, generator=generator), vectors),
        train=data, metadata={"config": Recommender(k=10, dim=8, loss="sl").config.as_dict()},
        attributes=pl.DataFrame({"category": [f"kind {one}" for one in kind.tolist()]}),
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("large") / "large"
    save_model(model, folder)
    return folder


def test_a_hundred_thousand_items(chromium: Any, served: Start, large: Path) -> None:
    page = Page(chromium, served(large))
    page.until("document.body.dataset.shown > 0")
    open_panel(page, "map")
    x, y = place_of(page, "product 000007")
    page.changed(lambda: click_at(page, x, y), "item")
    item = page.js("document.body.dataset.item")
    page.keys("ESCAPE")  # beside the open item the map is narrower
    page.until("document.getElementById('plane').clientWidth > 1200")
    near = place_of(page, item)
    assert np.hypot(near[0] - x, near[1] - y) < 1.5
    # the grid finds what a look at all points finds
    wrong = page.browser.execute_async_script(
        """
        const [path, done] = arguments;
        import(path).then(({ Grid }) => {
          let seed = 1;
          const random = () => (seed = (seed * 48271) % 2147483647) / 2147483647;
          const xs = Uint16Array.from({ length: 100000 }, () => 65535 * random() * random());
          const ys = Uint16Array.from({ length: 100000 }, () => 65535 * random());
          const grid = new Grid(xs, ys, 65535);
          let wrong = 0;
          for (let n = 0; n < 200; n++) {
            const [x, y, reach] = [70000 * random() - 2000, 70000 * random() - 2000, 3000 * random()];
            let best = Infinity;
            for (let i = 0; i < xs.length; i++) best = Math.min(best, (xs[i] - x) ** 2 + (ys[i] - y) ** 2);
            const found = grid.nearest(x, y, reach);
            const right = best <= reach * reach;
            if (right !== found >= 0 || (right && (xs[found] - x) ** 2 + (ys[found] - y) ** 2 !== best)) wrong++;
          }
          done(wrong);
        });
        """,
        f"{page.url}page/grid.js",
    )
    assert wrong == 0
    assert page.faults() == []
