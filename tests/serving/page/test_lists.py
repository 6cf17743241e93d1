"""The panel of lists in a browser: search, visitors, sliders, two runs, reasons, one item; ids may be anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from talos.data.interactions import Interactions
from talos.model.recommender import Recommender

from .conftest import HOSTILE, IMAGE, SCRIPT, Page, Start, item_name, title_of


@pytest.fixture(scope="module")
def address(served: Start, page_runs: dict[str, Path]) -> str:
    return served(page_runs["first"], page_runs["second"])


@pytest.fixture
def page(chromium: Any, address: str) -> Page:
    opened = Page(chromium, address)
    opened.until("document.body.dataset.shown > 0")
    return opened


def top(model: Recommender, user: str, **options: Any) -> list[str]:
    return [str(item) for item in model.recommend([user], k=20, **options)["item_id"].to_list()]


def test_a_user_is_found_by_typing(page: Page, models: dict[str, Recommender]) -> None:
    page.find("#user").send_keys("user2")
    wanted = [f"user{n}" for n in range(20, 30)]
    names = "[...document.querySelectorAll('#user-found [role=option] .name')].map((one) => one.textContent)"
    page.until(f"{names}.join() === arguments[0]", ",".join(wanted))
    page.keys("ARROW_DOWN", "ARROW_DOWN")
    active = page.js("document.getElementById('user').getAttribute('aria-activedescendant')")
    assert page.text(f"#{active} .name") == "user21"
    page.changed(lambda: page.keys("ENTER"))
    assert page.text("#history-title") == "History of user21"
    model = models["first"]
    assert page.names("#history") == [str(one) for one in model.fitted_model().seen.items_of("user21")]
    assert page.names("#first ol") == top(model, "user21")
    assert page.find("#user").get_attribute("aria-expanded") == "false"
    page.look_at("nobody at all")
    assert "does not know" in page.text("#history-note")
    assert "most popular" in page.text("#first .note")
    assert all("404" in one for one in page.faults())


def test_a_visitor_is_built_by_clicking(page: Page, models: dict[str, Recommender]) -> None:
    page.look_at("user20")
    chosen = []
    for _ in range(2):
        chosen.append(page.names("#first ol")[0])
        page.changed(lambda: page.find("#first ol > li button.small").click())
    first, second = chosen
    assert page.names("#history") == [first, second]
    assert page.js("document.getElementById('mode-visitor').checked")
    wanted = models["first"].recommend(history=[first, second], k=20)["item_id"].to_list()
    assert page.names("#first ol") == [str(item) for item in wanted]
    page.find("#item").send_keys("item33")
    page.until("document.querySelector('#item-found .more')?.textContent === 'item33'")
    page.keys("ARROW_DOWN")
    page.changed(lambda: page.keys("ENTER"))
    assert page.names("#history") == [first, second, "item33"]
    page.changed(lambda: page.find("#history > li:nth-child(2) button.small").click())
    assert page.names("#history") == [first, "item33"]
    page.changed(lambda: page.find("#clear-visitor").click())
    assert "most popular" in page.text("#first .note")
    page.changed(lambda: page.find("#mode-user").click())
    history = page.names("#history")
    page.changed(lambda: page.find("#take-over").click())
    assert page.names("#history") == history
    assert page.faults() == []


def test_sliders_act_at_once(page: Page, models: dict[str, Recommender]) -> None:
    page.look_at("user20")
    names = "[...document.querySelectorAll('#first ol button.name')].map((one) => one.title)"
    page.find("#diversity").click()  # in its middle
    page.until("document.getElementById('diversity-value').textContent === '0.50'")
    wanted = top(models["first"], "user20", diversity=0.5)
    page.until(f"{names}.join() === arguments[0]", ",".join(wanted))
    page.keys("HOME", "TAB", "END")  # by keys: the first to 0, the second to 1
    assert page.focused() == "popularity"
    wanted = top(models["first"], "user20", popularity=1.0)
    page.until(f"{names}.join() === arguments[0]", ",".join(wanted))
    assert [page.text(f"#{one}-value") for one in ("diversity", "popularity")] == ["0.00", "1.00"]


def test_an_answer_that_comes_too_late_is_dropped(page: Page, models: dict[str, Recommender]) -> None:
    page.look_at("user20")
    # the answer to the first request is held until that to the second is shown, whatever the order of the service
    page.js("""(() => {
      const real = window.fetch;
      window.late = [];
      window.fetch = (path, options) => {
        const answer = real(path, { ...options, signal: undefined });
        if (!options.body || JSON.parse(options.body).diversity !== 0.3) return answer;
        return new Promise((resolve) => window.late.push(() => resolve(answer)));
      };
    })()""")
    page.slide("diversity", 0.3)
    page.until("late.length === 1")
    page.changed(lambda: page.slide("diversity", 0.9))
    wanted = top(models["first"], "user20", diversity=0.9)
    assert page.names("#first ol") == wanted
    shown = page.js("document.body.dataset.shown")
    page.browser.execute_async_script("late[0](); setTimeout(arguments[0], 50)")
    assert page.names("#first ol") == wanted
    assert page.js("document.body.dataset.shown") == shown


def test_two_runs_beside_each_other(page: Page, models: dict[str, Recommender]) -> None:
    page.look_at("user20")
    assert page.js("document.getElementById('second').hidden")
    page.changed(lambda: page.choose("beside", "second"))
    ours, theirs = (top(models[name], "user20") for name in ("first", "second"))
    assert page.names("#first ol") == ours
    assert page.names("#second ol") == theirs
    mark_of = "(one) => one.querySelector('.mark')?.textContent ?? ''"
    marks = page.js(f"[...document.querySelectorAll('#first ol > li')].map({mark_of})")
    for place, (item, mark) in enumerate(zip(ours, marks, strict=True)):
        if item not in theirs:
            assert mark == "only here"
        elif (by := theirs.index(item) - place) != 0:
            assert mark == f"{'▲' if by > 0 else '▼'} {abs(by)}"
        else:
            assert mark == ""
    both = len(set(ours) & set(theirs))
    assert page.text("#difference").startswith(f"{both} of 20 items are in both")
    # without a second run: the sliders against the scores alone
    page.changed(lambda: page.choose("beside", "/same"))
    assert page.names("#second ol") == ours
    assert page.js("document.querySelectorAll('.mark').length") == 0
    page.slide("diversity", 1)
    page.until("document.querySelectorAll('.mark').length > 0")
    assert page.names("#second ol") == ours


def test_reasons_are_those_of_the_library(page: Page, models: dict[str, Recommender]) -> None:
    page.look_at("user20")
    item = page.names("#first ol")[0]
    table = models["first"].explain("user20", item, k=3)
    first = "#first ol > li:first-child"
    assert page.texts(f"{first} .because") == [title_of(one) for one in table["item_id"]]
    shares = [float(text.removesuffix(" %")) for text in page.texts(f"{first} .share")]
    assert shares == pytest.approx([100 * one for one in table["contribution"]], abs=0.51)
    page.changed(lambda: page.find("#why").click())
    assert page.js("document.querySelectorAll('.why').length") == 0


def test_an_item_has_neighbours_popularity_and_a_share_of_lists(
    page: Page, models: dict[str, Recommender]
) -> None:
    page.look_at("user20")
    item = page.names("#first ol")[0]
    page.changed(lambda: page.find("#first ol button.name").click(), "item")
    assert page.js("document.body.dataset.item") == item
    near = models["first"].similar_items(item, k=12)["item_id"].to_list()
    assert page.names("#drawer .near") == [str(one) for one in near]
    train = models["first"].fitted_model().train
    degree = int(train.item_degrees[train.item_ids.encode([item])[0]])
    assert f"{degree} interactions, place" in page.text(".facts")
    page.until("document.querySelector('.facts').textContent.includes('of 40 lists of 5')")
    assert page.text(".facts").count("category") == 1
    page.changed(lambda: page.find("#drawer .near button.name").click(), "item")
    assert page.js("document.body.dataset.item") == str(near[0])
    assert page.focused() == "drawer-title"
    page.keys("ESCAPE")
    assert page.js("document.getElementById('drawer').hidden")
    assert page.js("document.activeElement.title") == item  # back to where it was opened


def test_ids_of_every_kind_are_shown_as_they_are(page: Page, models: dict[str, Recommender]) -> None:
    for user in HOSTILE:
        page.look_at(user)
        assert page.text("#history-title") == f"History of {user}"
        assert page.names("#first ol") == top(models["first"], user)
    for item in (*HOSTILE, item_name(40)):
        code = "import(arguments[0]).then((one) => one.openItem(arguments[1])).then(arguments[2])"
        page.browser.execute_async_script(code, f"{page.url}page/drawer.js", item)
        assert page.text(".facts .id") == item
    assert page.faults() == []


def test_a_script_tag_is_shown_and_not_run(page: Page) -> None:
    """As the id of a user and of an item, and with markup as the title, in every place where it is shown."""
    page.changed(lambda: page.find("#mode-visitor").click())
    page.find("#item").send_keys("<script")
    page.until("document.querySelector('#item-found .more')?.textContent === arguments[0]", SCRIPT)
    assert page.text("#item-found .name") == IMAGE
    page.keys("ARROW_DOWN")
    page.changed(lambda: page.keys("ENTER"))
    assert page.names("#history") == [SCRIPT]
    assert page.text("#history button.name") == IMAGE
    page.changed(lambda: page.find("#history button.name").click(), "item")
    assert page.text("#drawer-title") == IMAGE
    assert page.text(".facts .id") == SCRIPT
    page.changed(lambda: page.find("#tab-map").click(), "map")
    page.find("#drawer-close").click()
    assert page.js("document.querySelectorAll('body script, img, b').length") == 0
    assert page.js("document.title") == "Talos"
    # and the policy would stop what the page does not do
    assign = "document.body.innerHTML = '<p>'"
    assert (
        page.js(f"(() => {{ try {{ {assign}; return 'done' }} catch {{ return 'refused' }} }})()")
        == "refused"
    )
    assert all("TrustedHTML" in one for one in page.faults())


def test_ids_beyond_the_whole_numbers_of_javascript(chromium: Any, served: Start, tmp_path: Path) -> None:
    """Neighbours of 2**60 are one number to JavaScript; the page must not mix them up."""
    users = [2**60 + user for user in range(12) for _ in range(4)]
    items = [2**62 + (3 * user + n) % 20 for user in range(12) for n in range(4)]
    model = Recommender(k=5, dim=4, epochs=1).fit(Interactions.from_ids(users, items))
    model.save(tmp_path / "large-ids")
    page = Page(chromium, served(tmp_path / "large-ids"))
    page.until("document.body.dataset.shown > 0")
    user = 2**60 + 7
    page.look_at(str(user))
    assert page.text("#history-title") == f"History of {user}"
    assert page.names("#history") == [str(one) for one in model.fitted_model().seen.items_of(user)]
    wanted = model.recommend([user], k=20)["item_id"].to_list()
    assert page.names("#first ol") == [str(item) for item in wanted]
    page.changed(lambda: page.find("#first ol button.name").click(), "item")
    assert page.text("#drawer .id") == str(wanted[0])
    page.changed(lambda: page.find("#first ol button.small").click())  # a visitor with one item
    assert page.names("#history") == [str(wanted[0])]
    history = model.recommend(history=[wanted[0]], k=20)["item_id"].to_list()
    assert page.names("#first ol") == [str(item) for item in history]
    assert page.faults() == []
