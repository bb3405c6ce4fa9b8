"""API keys and CORS: who is let in, what a refusal looks like, and that no key is told to anybody (B55, B66)."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from services.frontend.api.access import Keys
from services.frontend.config import FrontendConfig
from shared.errors import ProcessError
from tests.frontend.client import MESSAGES, PATH
from tests.frontend.conftest import Deployment, deploy
from tests.frontend.scripted_scheduler import SOON_S, Script
from tests.frontend.test_refusals import check_error

KEYS = ("sk-first-6cfa", "sk-second-91d2")
SITE = "https://chat.example"
OPEN = ("/", "/health", "/ready", "/metrics", "/version", "/openapi.json")


@pytest.fixture(scope="module")
def guarded(core: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A frontend with two keys, for pages of one site."""
    run_dir = tmp_path_factory.mktemp("run")
    with deploy(core, run_dir, api_keys=KEYS, cors_origins=(SITE,)) as deployed:
        deployed.scheduler.script = Script(tokens=tuple(b"hello"))
        yield deployed


def post(guarded: Deployment, headers: dict[str, str], **fields: object) -> httpx.Response:
    body = {"messages": MESSAGES, "max_tokens": 5, **fields}
    return guarded.chat.client.post(PATH, json=body, headers=headers)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("key", KEYS)
def test_each_key_opens_the_api(guarded: Deployment, key: str) -> None:
    assert post(guarded, bearer(key)).json()["choices"][0]["message"]["content"] == "hello"
    assert guarded.chat.client.get("/v1/models", headers={"authorization": f"bearer   {key}"}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("wrong"),
        bearer(KEYS[0][:-1]),
        bearer(KEYS[0] + "x"),
        bearer(KEYS[0].upper()),
        bearer(",".join(KEYS)),
        {"authorization": KEYS[0]},
        {"authorization": f"Basic {KEYS[0]}"},
        {"x-api-key": KEYS[0]},
    ],
)
def test_without_a_known_key(guarded: Deployment, headers: dict[str, str]) -> None:
    response = post(guarded, headers)
    check_error(response, 401, "invalid_api_key", None)
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.headers["x-request-id"]
    assert not any(key in response.text for key in KEYS)


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({}, "this server needs an API key: `Authorization: Bearer KEY`"),
        ({"authorization": "Bearer"}, "this server needs an API key: `Authorization: Bearer KEY`"),
        ({"authorization": KEYS[0]}, "this server needs an API key: `Authorization: Bearer KEY`"),
        ({"authorization": f"Basic {KEYS[0]}"}, "this server needs an API key: `Authorization: Bearer KEY`"),
        (bearer("wrong"), "this API key is not valid"),
        ({"authorization": "bearer  wrong"}, "this API key is not valid"),
    ],
)
def test_a_wrong_key_is_told_from_none(guarded: Deployment, headers: dict[str, str], message: str) -> None:
    assert post(guarded, headers).json()["error"]["message"] == message


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/small", "/tokenize", "/detokenize", "/v1/nothing", "/x"])
def test_all_that_is_not_open_needs_a_key(guarded: Deployment, path: str) -> None:
    """Deny by default, so that a new route is not open because somebody forgot it."""
    check_error(guarded.chat.client.get(path), 401, "invalid_api_key")
    assert guarded.chat.client.get(path, headers=bearer(KEYS[0])).status_code != 401


@pytest.mark.parametrize("path", [*(p + "%20" for p in OPEN), "/health/", "/%2e/health", "/V1/models"])
def test_nearly_open_paths_are_closed(guarded: Deployment, path: str) -> None:
    assert guarded.chat.client.get(path).status_code == 401


@pytest.mark.parametrize("path", OPEN)
def test_probes_and_descriptions_are_open(guarded: Deployment, path: str) -> None:
    assert guarded.chat.client.get(path).status_code == 200


def test_refused_before_the_body_comes(guarded: Deployment) -> None:
    url = guarded.chat.client.base_url
    head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: 900000\r\nexpect: 100-continue\r\n\r\n"
    with socket.create_connection((url.host, url.port or 80), timeout=SOON_S) as connection:
        connection.sendall(head.encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 401 ")


def test_two_authorizations_are_none(guarded: Deployment) -> None:
    headers = [("authorization", f"Bearer {key}") for key in KEYS]
    assert guarded.chat.client.get("/v1/models", headers=headers).status_code == 401


def test_keys_are_told_to_nobody(guarded: Deployment, capfd: pytest.CaptureFixture[str]) -> None:
    post(guarded, bearer(KEYS[0]))
    post(guarded, bearer("sk-" + "wrong" * 5))
    post(guarded, bearer(KEYS[1]), temperature=9)
    text = guarded.chat.client.get("/metrics").text + "".join(capfd.readouterr())
    assert not any(secret in text for secret in (*KEYS, "sk-wrong"))
    config = FrontendConfig(core=Path("/"), run_dir=Path("/"), api_keys=KEYS)
    assert not any(key in repr(config) + repr(Keys.of(config.api_keys)) for key in KEYS)


@pytest.mark.parametrize("key", ["", "a b", "a,b", "ключ", "a\n"])
def test_a_key_that_no_header_can_bear(key: str) -> None:
    with pytest.raises(ProcessError, match="printable ASCII") as refusal:
        FrontendConfig(core=Path("/"), run_dir=Path("/"), api_keys=("fine-key", key))
    assert "fine-key" not in str(refusal.value)


def preflight(guarded: Deployment, origin: str, method: str = "POST") -> httpx.Response:
    return guarded.chat.client.options(
        PATH,
        headers={
            "origin": origin,
            "access-control-request-method": method,
            "access-control-request-headers": "authorization, content-type, x-stainless-os",
        },
    )


def test_preflight_of_an_allowed_site(guarded: Deployment) -> None:
    """It bears no key, and must be answered all the same."""
    response = preflight(guarded, SITE)
    assert (response.status_code, response.content) == (204, b"")
    assert response.headers["access-control-allow-origin"] == SITE
    assert "POST" in response.headers["access-control-allow-methods"]
    assert "authorization" in response.headers["access-control-allow-headers"]
    assert "Origin" in response.headers["vary"]


@pytest.mark.parametrize(
    ("origin", "method"), [("https://evil.example", "POST"), (SITE + ".evil", "POST"), ("null", "POST"), (SITE, "PUT")]
)
def test_preflight_that_is_refused(guarded: Deployment, origin: str, method: str) -> None:
    response = preflight(guarded, origin, method)
    check_error(response, 400, "origin_not_allowed")
    if origin != SITE:
        assert "access-control-allow-origin" not in response.headers


def check_readable(response: httpx.Response) -> None:
    """Whether a page of the site may read this answer."""
    assert response.headers["access-control-allow-origin"] == SITE
    assert "x-request-id" in response.headers["access-control-expose-headers"].lower()
    assert "access-control-allow-credentials" not in response.headers


def test_the_site_may_read_answers_errors_and_streams(guarded: Deployment) -> None:
    own = {"origin": SITE, **bearer(KEYS[0])}
    check_readable(post(guarded, own))
    check_readable(post(guarded, {"origin": SITE}))  # 401
    check_readable(post(guarded, own, temperature=9))  # 400
    check_readable(guarded.chat.client.get("/nothing", headers=own))  # 404
    with guarded.chat.client.stream("POST", PATH, json={"messages": MESSAGES, "stream": True}, headers=own) as response:
        check_readable(response)
        assert response.headers["content-type"].startswith("text/event-stream")


def test_other_sites_may_read_nothing(guarded: Deployment) -> None:
    response = post(guarded, {"origin": "https://evil.example", **bearer(KEYS[0])})
    assert "access-control-allow-origin" not in response.headers


def test_off_by_default(served: Deployment) -> None:
    response = served.chat.client.get("/v1/models", headers={"origin": SITE})
    assert response.status_code == 200
    assert not any(name.startswith("access-control") for name in response.headers)
    check_error(preflight(served, SITE), 405)


@pytest.mark.parametrize("origin", ["example.org", "https://example.org/", "https://*.example.org", "", "a b"])
def test_an_origin_that_no_browser_sends(origin: str) -> None:
    with pytest.raises(ProcessError, match="is not an origin"):
        FrontendConfig(core=Path("/"), run_dir=Path("/"), cors_origins=(origin,))
