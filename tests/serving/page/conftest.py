"""A browser, and the service in a thread of this process."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl
import pytest

from talos.data.interactions import Interactions
from talos.model.recommender import Recommender

pytest.importorskip("fastapi")

USERS, ITEMS = 40, 60
SCRIPT = "<script>document.title = 'changed'</script>"
IMAGE = "<img src=x onerror=\"document.title='changed'\">"
HOSTILE = [SCRIPT, "a/b", "../..", "ü ñ 漢", "100%", "?q=1&x", "#", "similar", "a/similar", "'\""]

FLAGS = (
    "headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
    "disable-component-update", "disable-sync", "window-size=1300,900",
)  # fmt: skip
# Seconds after which what did not happen never will; long, because only a test that fails waits for them.
PATIENCE = 300
Start: TypeAlias = Callable[..., str]


def _program(*names: str) -> str:
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no {names[0]}: on Debian, `apt-get install chromium chromium-driver`")
    return found


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One browser for all tests of the page."""
    webdriver = pytest.importorskip("selenium.webdriver")
    binary, driver = _program("chromium", "chromium-browser"), _program("chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.chrome.service.Service(driver)
    browser = webdriver.Chrome(options=options, service=service)
    browser.set_script_timeout(PATIENCE)
    browser.set_page_load_timeout(PATIENCE)
    yield browser
    browser.quit()


class Page:
    """The page in a browser, and what tests ask it."""

    def __init__(self, browser: Any, url: str) -> None:
        self.browser, self.url = browser, url
        self.size(1300, 900)
        self.scheme("light")
        browser.get_log("browser")
        browser.get("about:blank")
        browser.get(url)

    def size(self, width: int, height: int) -> None:
        """The size of the window, in which scroll bars take no room."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def scheme(self, name: str) -> None:
        """Light or dark."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def js(self, code: str, *given: Any) -> Any:
        """The value of an expression; `arguments` are given."""
        return self.browser.execute_script(f"return {code}", *given)

    def until(self, code: str, *given: Any) -> Any:
        """Wait until an expression is true, and return its value."""
        from selenium.webdriver.support.ui import WebDriverWait

        what = f"{code} {given if given else ''}"
        return WebDriverWait(self.browser, PATIENCE, 0.02).until(lambda _: self.js(code, *given), what)

    def changed(self, act: Callable[[], object], what: str = "shown") -> None:
        """Do something and wait until the page has shown what came of it."""
        before = self.js(f"document.body.dataset.{what} ?? null")
        act()
        self.until(f"(document.body.dataset.{what} ?? null) !== arguments[0]", before)

    def text(self, selector: str) -> str:
        """The text of the first element of a selector, as it is in the document."""
        return str(self.js("document.querySelector(arguments[0]).textContent", selector))

    def texts(self, selector: str) -> list[str]:
        """The texts of all elements of a selector."""
        return list(
            self.js("[...document.querySelectorAll(arguments[0])].map((one) => one.textContent)", selector)
        )

    def box(self, selector: str) -> dict[str, float]:
        """Where an element is in the window."""
        return dict(
            self.js("document.querySelector(arguments[0]).getBoundingClientRect().toJSON()", selector)
        )

    def slide(self, name: str, value: float) -> None:
        """Move a slider."""
        code = "(() => { const one = document.getElementById(arguments[0]); one.value = arguments[1];"
        self.js(f"{code} one.dispatchEvent(new Event('input')); }})()", name, value)

    def find(self, selector: str) -> Any:
        """The first element of a selector."""
        return self.browser.find_element("css selector", selector)

    def names(self, selector: str) -> list[str]:
        """The ids of the items in a list, in order; an id is the title of its button."""
        code = "[...document.querySelectorAll(arguments[0] + ' > li > button.name')].map((one) => one.title)"
        return list(self.js(code, selector))

    def choose(self, select: str, value: str) -> None:
        """Choose an option of a select."""
        code = "(() => { const one = document.getElementById(arguments[0]); one.value = arguments[1];"
        self.js(f"{code} one.dispatchEvent(new Event('change')); }})()", select, value)

    def keys(self, *keys: str) -> None:
        """Press keys, one after the other, wherever the focus is."""
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.keys import Keys

        chain = ActionChains(self.browser, duration=0)
        for key in keys:
            chain.send_keys(getattr(Keys, key, key))
        chain.perform()

    def focused(self) -> str:
        """The id, or else the text, of what has the focus."""
        return str(self.js("document.activeElement.id || document.activeElement.textContent.trim()"))

    def look_at(self, user: str) -> None:
        """Type a user's id and press Enter."""
        field = self.find("#user")
        field.clear()
        field.send_keys(user)
        self.changed(lambda: self.keys("ENTER"))

    def faults(self) -> list[str]:
        """What the browser complained about since it was last asked: scripts, the policy, requests."""
        return [one["message"] for one in self.browser.get_log("browser") if one["level"] == "SEVERE"]


def user_name(user: int) -> str:
    return HOSTILE[user] if user < len(HOSTILE) else f"user{user}"


def item_name(item: int) -> str:
    return HOSTILE[item] if item < len(HOSTILE) else f"item{item}"


def title_of(item: str) -> str:
    return IMAGE if item == SCRIPT else f"<b>Title of {item}</b>"


@pytest.fixture(scope="session")
def page_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two runs over the same ids, many of them hostile; users have one of two tastes, and one item was held back."""
    folder = tmp_path_factory.mktemp("page")
    for seed, name in enumerate(("first", "second")):
        rng = np.random.default_rng(seed)
        liked = [rng.permutation(ITEMS // 2)[:10] + ITEMS // 2 * (user % 2) for user in range(USERS)]
        train = Interactions.from_ids(
            [user_name(user) for user in range(USERS) for _ in range(9)],
            [item_name(int(item)) for items in liked for item in items[:9]],
        )
        model = Recommender(k=5, dim=8, epochs=2, seed=seed).fit(train)
        names = [user_name(user) for user in range(USERS)]
        held = Interactions.from_ids(names, [item_name(int(items[9])) for items in liked])
        model.add_known(held).evaluate(held, k=5)
        ids = train.item_ids.ids
        kinds = [["even", "round"] if place % 2 == 0 else ["odd"] for place in range(len(ids))]
        table = {"item_id": ids, "title": [title_of(one) for one in ids], "category": kinds}
        model.add_items(pl.DataFrame(table))
        model.save(folder / name, metrics={"recall@5": 0.5, "recall@10": 0.625, "auc": 0.75})
    return {name: folder / name for name in ("first", "second")}


@pytest.fixture(scope="session")
def models(page_runs: dict[str, Path]) -> dict[str, Recommender]:
    """The same runs as the library loads them."""
    return {name: Recommender.load(path) for name, path in page_runs.items()}


@pytest.fixture(scope="module")
def served() -> Iterator[Start]:
    """Starts the service on a free port: `served(runs…, setting=value)` returns its address."""
    import uvicorn

    from talos.serving.app import create_app
    from talos.serving.settings import Settings

    running: list[tuple[Any, threading.Thread, socket.socket]] = []

    def start(*runs: Path, **settings: Any) -> str:
        listening = socket.create_server(("127.0.0.1", 0))
        app = create_app(Settings(runs=tuple(map(str, runs)), deadline=PATIENCE, **settings))
        config = uvicorn.Config(app, http="h11", ws="none", log_level="warning", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        running.append((server, thread, listening))
        return f"http://127.0.0.1:{listening.getsockname()[1]}/"

    yield start
    for server, thread, listening in running:
        server.should_exit = True
        thread.join()
        listening.close()
