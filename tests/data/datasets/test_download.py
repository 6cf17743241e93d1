from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path

import pytest
import requests
from platformdirs.macos import MacOS
from platformdirs.unix import Unix
from platformdirs.windows import Windows

from talos.data import datasets
from talos.data.datasets import Counts, DatasetInfo, Download
from talos.data.datasets.cache import ChecksumError
from talos.errors import ArgumentError, DataError, DownloadError

CSV = b"user,item\n" + b"".join(b"%d,%d\n" % (n % 50, n) for n in range(20_000))


def sha256(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def dataset(*downloads: Download, **options) -> DatasetInfo:
    known = {"name": "made-up", "title": "Made up", "homepage": "", "licence": "Do as you like."}
    return DatasetInfo(**known | options, downloads=downloads)


def get(url, cache, checksum=None):
    """Fetch a dataset of one file."""
    return datasets.fetch(dataset(Download(url=url, layout="table", checksum=checksum)), cache=cache)


def test_a_whole_file(server, tmp_path):
    server.files["x.csv"] = CSV
    md5 = "md5:" + hashlib.md5(CSV, usedforsecurity=False).hexdigest()
    for number, checksum in enumerate((None, sha256(CSV), md5)):
        (file,) = get(f"{server.url}/x.csv", tmp_path / str(number), checksum).files
        assert file.read_bytes() == CSV
        assert sorted(path.name for path in file.parent.iterdir()) == ["source.json", "x.csv"]


def test_a_server_that_does_not_say_the_length(server, tmp_path):
    server.files["x.csv"], server.says_length = CSV, False
    assert get(f"{server.url}/x.csv", tmp_path).files[0].read_bytes() == CSV


@pytest.mark.parametrize("noticed", [True, False], ids=["by urllib3", "by its length"])
@pytest.mark.parametrize("checksum", [None, sha256(CSV)])
def test_a_broken_download_is_an_error_and_leaves_nothing(server, tmp_path, monkeypatch, noticed, checksum):
    if not noticed:  # as with urllib3 before 2
        monkeypatch.setattr("urllib3.response.HTTPResponse._init_length", lambda *_: None)
    server.files["x.csv"], server.break_after = CSV, 1000
    with pytest.raises(DownloadError, match=r"/x\.csv: (IncompleteRead|the connection broke after 1,000 of)"):
        get(f"{server.url}/x.csv", tmp_path, checksum)
    assert not list(tmp_path.iterdir())


def test_ctrl_c_leaves_nothing(server, tmp_path, monkeypatch):
    server.files["x.csv"] = CSV
    pieces = requests.Response.iter_content

    def stop(self, size):
        yield next(pieces(self, 1000))
        raise KeyboardInterrupt

    monkeypatch.setattr("requests.Response.iter_content", stop)
    with pytest.raises(KeyboardInterrupt):
        get(f"{server.url}/x.csv", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_wrong_checksum_names_both(server, tmp_path):
    server.files["x.csv"] = CSV
    with pytest.raises(ChecksumError, match=f"/x.csv: .*expected sha256:00 but got {sha256(CSV)}"):
        get(f"{server.url}/x.csv", tmp_path, "sha256:00")
    assert not list(tmp_path.iterdir())


def test_no_such_file_and_no_such_server(server, tmp_path):
    with pytest.raises(DownloadError, match="/gone: 404 "):
        get(f"{server.url}/gone", tmp_path)
    with pytest.raises(DownloadError, match=r"127\.0\.0\.1:1/x: \[Errno 111\] Connection refused$"):
        get("http://127.0.0.1:1/x", tmp_path)
    with pytest.raises(DownloadError, match=r"file:///etc/hosts: No connection adapters"):
        get("file:///etc/hosts", tmp_path)
    try:
        raise RuntimeError("of the caller")
    except RuntimeError:
        with pytest.raises(DownloadError, match="Connection refused"):
            get("http://127.0.0.1:1/x", tmp_path)
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------ datasets


def test_the_next_source_is_tried_and_the_one_that_worked_is_said(server, tmp_path):
    server.files |= {"wrong.csv": b"user,item\n1,1\n", "x.csv": CSV}
    good = Download(
        url=f"{server.url}/x.csv", layout="table", checksum=sha256(CSV), counts=Counts(50, 20_000, 20_000)
    )
    one = dataset(
        Download(url=f"{server.url}/gone.csv", layout="table"),
        Download(url=f"{server.url}/wrong.csv", layout="table", checksum="md5:00"),
        good,
    )
    news: list[str] = []
    data = datasets.load(one, cache=tmp_path, notify=news.append)
    assert len(data) == 20_000
    assert data.provenance.source == "made-up"
    assert data.provenance.notes[0] == f"source: {good.url}"
    assert "404" in data.provenance.notes[1]
    assert "expected md5:00" in data.provenance.notes[2]
    assert news == ["Made up. Do as you like.", f"made-up: downloaded from {good.url}"]
    asked = len(server.requests)
    again = datasets.load(one, cache=tmp_path, notify=news.append)
    assert len(again) == 20_000
    assert len(server.requests) == asked  # from the cache
    assert len(news) == 2  # the licence is shown once


def test_no_source_works(server, tmp_path):
    one = dataset(
        Download(url=f"{server.url}/a", layout="table"), Download(url=f"{server.url}/b", layout="table")
    )
    with pytest.raises(DownloadError, match=r"made-up could not be fetched: .*/a: .*404.*/b: .*404"):
        datasets.fetch(one, cache=tmp_path, notify=lambda _: None)
    assert not list(tmp_path.iterdir())
    assert not datasets.is_cached(one, cache=tmp_path)


def test_without_a_published_checksum_that_of_the_download_is_recorded(server, tmp_path):
    server.files["x.csv"] = CSV
    fetched = get(f"{server.url}/x.csv", tmp_path)
    assert "no checksum is published" in fetched.notes[0]
    fetched.files[0].write_bytes(CSV + b"1,1\n")
    with pytest.raises(ChecksumError, match=rf"was changed \(sha256:.*, expected {sha256(CSV)}\): delete "):
        get(f"{server.url}/x.csv", tmp_path)


def test_a_wrong_checksum_ends_with_2(server, tmp_path):
    server.files["x.csv"] = CSV
    with pytest.raises(DownloadError, match=r"made-up could not be fetched: .*expected sha256") as caught:
        get(f"{server.url}/x.csv", tmp_path, sha256(b""))
    assert caught.value.exit_code == 2


def test_a_changed_file_in_the_cache_is_noticed(server, tmp_path):
    server.files["x.csv"] = CSV
    one = dataset(Download(url=f"{server.url}/x.csv", layout="table"))
    (file,) = datasets.fetch(one, cache=tmp_path).files
    file.write_bytes(b"user,item\n1,1\n")
    with pytest.raises(DownloadError, match="was changed"):
        datasets.load(one, cache=tmp_path)
    file.unlink()
    with pytest.raises(DownloadError, match="no such file"):
        datasets.load(one, cache=tmp_path)
    (tmp_path / "made-up" / "source.json").unlink()
    assert len(datasets.fetch(one, cache=tmp_path).files) == 1
    for damaged in ("[", "[" * 100_000, '{"files": 3}', "ÿ"):
        (tmp_path / "made-up" / "source.json").write_text(damaged, encoding="latin-1")
        assert len(datasets.load(one, cache=tmp_path)) == 20_000


def test_counts_are_checked(server, tmp_path):
    server.files["x.csv"] = CSV
    one = dataset(Download(url=f"{server.url}/x.csv", layout="table", counts=Counts(50, 20_000, 7)))
    with pytest.raises(DataError, match="20,000 interactions; expected 50, 20,000 and 7"):
        datasets.load(one, cache=tmp_path)


def zipped(**members: bytes) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return target.getvalue()


@pytest.mark.parametrize(
    ("layout", "ratings", "films"),
    [
        ("movielens-100k", "1\t2\t3\t881250949\n1\t1\t3\t881250949\n", "1|Alien (1979)|x\n2|Été (1996)|x\n"),
        (
            "movielens-1m",
            "1::2::3::978300760\n1::1::3::978300760\n",
            "1::Alien (1979)::x\n2::Été (1996)::x\n",
        ),
    ],
)
def test_movielens_archives_come_with_titles(server, tmp_path, layout, ratings, films):
    content = zipped(
        **{"ml/ratings": ratings.encode(), "ml/films": films.encode("latin-1"), "ml/README": b"x"}
    )
    server.files["ml.zip"] = content
    one = dataset(
        Download(
            url=f"{server.url}/ml.zip",
            layout=layout,
            checksum=sha256(content),
            files=("ml/ratings", "ml/films"),
        )
    )
    data = datasets.load(one, cache=tmp_path)
    assert data.item_titles.to_list() == ["Alien (1979)", "Été (1996)"]
    assert sorted(path.name for path in (tmp_path / "made-up").iterdir()) == [
        "films",
        "ratings",
        "source.json",
    ]


def test_archives_that_cannot_be_unpacked(server, tmp_path):
    server.files |= {"a.zip": b"no zip", "b.zip": zipped(x=b"1")}
    downloads = [Download(url=f"{server.url}/{n}.zip", layout="table", files=("y",)) for n in "ab"]
    with pytest.raises(DownloadError, match=r"a\.zip.*cannot be unpacked.*b\.zip.*cannot be unpacked"):
        datasets.fetch(dataset(*downloads), cache=tmp_path)


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    one = dataset(Download(url="http://127.0.0.1:1/x", layout="table"))
    with pytest.raises(DownloadError, match="cannot write"):
        datasets.fetch(one, cache=tmp_path / "file")


def test_movielens_100k_from_the_package_index(tmp_path):
    one = datasets.info("movielens-100k")
    wheel = DatasetInfo(**vars(one) | {"downloads": one.downloads[1:]})
    try:
        data = datasets.load(wheel, cache=tmp_path)
    except DownloadError as error:
        pytest.skip(f"no package index: {error}")
    assert (data.num_users, data.num_items, len(data)) == (943, 1682, 100_000)
    assert data.item_titles[0] == "Toy Story (1995)"
    assert data.item_titles.null_count() == 0
    assert data.provenance.notes[0] == "source: pip:recbole==1.2.1"
    assert data.timestamps.min() == 874724710


def test_a_package_that_is_not_there(tmp_path):
    with pytest.raises(DownloadError, match=r"pip:talos-no-such-package==0\.0\.1"):
        get("pip:talos-no-such-package==0.0.1", tmp_path)
    assert not list(tmp_path.iterdir())


# ----------------------------------------------------------------------- catalogue


def test_the_catalogue_is_complete():
    names = [one.name for one in datasets.available()]
    assert names == [
        "movielens-100k",
        "movielens-1m",
        "gowalla",
        "amazon-beauty",
        "amazon-games",
        "amazon-electronics",
    ]
    for one in datasets.available():
        assert one.licence
        assert one.homepage.startswith("https://")
        assert one.k_core in (5, 10)
        assert one.downloads
        for source in one.downloads:
            assert source.checksum is None or len(source.checksum) in (len("sha256:") + 64, len("md5:") + 32)
    with pytest.raises(ArgumentError, match="did you mean 'gowalla'"):
        datasets.info("gowala")


@pytest.mark.parametrize(
    ("platform", "environment", "expected"),
    [
        (Unix, {"XDG_CACHE_HOME": "/x"}, "/x/talos"),
        (Unix, {}, "/home/me/.cache/talos"),
        (MacOS, {}, "/home/me/Library/Caches/talos"),
        (Windows, {}, "/local/talos"),
        (Unix, {"TALOS_CACHE": "/mine", "XDG_CACHE_HOME": "/x"}, "/mine"),
        (Unix, {"TALOS_DATA": "/for/benchmarks"}, "/home/me/.cache/talos"),
    ],
)
def test_cache_folder(monkeypatch, platform, environment, expected):
    for name in ("XDG_CACHE_HOME", "TALOS_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("platformdirs.PlatformDirs", platform)
    monkeypatch.setattr("platformdirs.windows.get_win_folder", lambda name: "/local")
    assert datasets.cache_folder() == Path(expected)


def test_the_record_says_where_the_files_came_from(server, tmp_path):
    server.files["x.csv"] = CSV
    one, moved = (dataset(Download(url=f"{server.url}/{name}.csv", layout="table")) for name in "xy")
    datasets.fetch(one, cache=tmp_path)
    assert datasets.is_cached(one, cache=tmp_path)
    assert not datasets.is_cached(moved, cache=tmp_path)  # of the same name, from elsewhere
    record = json.loads((tmp_path / "made-up" / "source.json").read_text())
    assert record["url"] == f"{server.url}/x.csv"
    assert record["files"] == {"x.csv": sha256(CSV)}
