"""How the page is served: to browsers only, from memory, under a policy that lets nothing else in."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx
import pytest

from services.frontend.page.assets import TYPES, assets
from tests.frontend.conftest import Deployment

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"
ROOT = Path(__file__).resolve().parents[2]


def get(scripted: Deployment, path: str, **headers: str) -> httpx.Response:
    return scripted.chat.client.get(path, headers={name.replace("_", "-"): value for name, value in headers.items()})


@pytest.mark.parametrize(
    ("accept", "page"),
    [
        (BROWSER, True),
        ("text/html", True),
        ("*/*", False),
        ("application/json", False),
        ("application/json, text/html;q=0.1", False),
        ("text/html;q=0", False),
        ("text/html;q=nonsense", False),
        ("", False),
    ],
)
def test_only_who_shows_html_gets_the_page(scripted: Deployment, accept: str, page: bool) -> None:
    response = get(scripted, "/", accept=accept)
    assert response.status_code == 200
    assert response.headers["vary"] == "accept"
    assert response.headers["content-type"] == ("text/html; charset=utf-8" if page else "application/json")
    assert response.text.startswith("<!doctype html>") == page


@pytest.mark.parametrize("path", ["/", *(f"/page/{name}" for name in assets())])
def test_every_part_is_served_under_the_policy_and_not_sent_twice(scripted: Deployment, path: str) -> None:
    first = get(scripted, path, accept=BROWSER)
    assert first.status_code == 200
    assert first.headers["content-type"] == TYPES[Path(path).suffix or ".html"]
    policy = first.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert first.headers["x-content-type-options"] == "nosniff"
    assert first.headers["referrer-policy"] == "no-referrer"
    again = get(scripted, path, accept=BROWSER, if_none_match=f'"other", W/{first.headers["etag"]}')
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert get(scripted, path, accept=BROWSER, if_none_match='"other"').content == first.content


@pytest.mark.parametrize("name", ["assets.py", "__init__.py", "nothing.js", "..%2fassets.py", "app.js/", ""])
def test_nothing_else_of_the_folder_is_served(scripted: Deployment, name: str) -> None:
    response = get(scripted, f"/page/{name}")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"


def test_the_page_names_only_what_lies_beside_it() -> None:
    named = re.findall(r'(?:src|href)="([^"#]+)"', assets()["index.html"].body.decode())
    assert len(named) > 4
    assert {name.removeprefix("page/") for name in named} <= set(assets())
    for asset in assets().values():
        text = asset.body.decode().replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text
        assert not re.search(r"\bon[a-z]+=\"|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text)


def test_every_part_is_in_the_wheel(tmp_path: Path) -> None:
    subprocess.run(
        (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)),
        cwd=ROOT,
        check=True,
        timeout=60,
    )
    packed = set(zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist())
    assert {f"services/frontend/page/{name}" for name in assets()} <= packed
