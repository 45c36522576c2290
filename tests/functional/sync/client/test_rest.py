# SPDX-License-Identifier: Apache-2.0
"""RestClient handles good, malformed, slow and missing responses."""

import pickle
import socket
import threading
import time
from collections.abc import Callable

import pytest
from keystoneauth1 import session, token_endpoint

from nova_accel import errors
from placement_sync.client import cloud_client, rest, service_client
from tests.functional.sync.support import odd, servers

PATH = "/resource_providers?name=a"
UUID = "0f5c2d5e-9a0b-4c7a-8d41-2c1a67d9a001"


def catch_error(url: str, method: str = "GET") -> errors.ServiceError:
    client = cloud_client.from_endpoint(url)
    methods: dict[str, Callable[[str], service_client.Response]] = {
        "GET": client.get,
        "PUT": client.put,
        "POST": client.post,
        "DELETE": client.delete,
    }
    with pytest.raises(errors.ServiceError) as caught:
        methods[method](PATH)
    error = caught.value
    assert (error.method, error.path) == (method, PATH)
    assert client.reads + client.writes == 1
    assert pickle.loads(pickle.dumps(error)).args == error.args  # noqa: S301
    return error


def test_each_method(placement: servers.Server) -> None:
    client = cloud_client.from_endpoint(placement.url)
    made = client.post("/resource_providers", {"name": "a", "uuid": UUID})
    assert made.status == 200
    assert made.body["generation"] == 0
    path = f"/resource_providers/{UUID}"
    assert client.put("/traits/CUSTOM_A").status == 201
    assert client.put("/traits/CUSTOM_A").status == 204
    assert client.get(path).body["name"] == "a"
    assert client.delete(path).status == 204
    missing = client.get(path)
    assert (missing.status, missing.body) == (404, None)
    with pytest.raises(errors.ServiceError) as caught:
        client.delete(path)
    assert caught.value.status == 404
    assert (client.reads, client.writes) == (2, 5)
    methods = [r.method for r in placement.requests()]
    assert methods == ["POST", "PUT", "PUT", "GET", "DELETE", "GET", "DELETE"]


def test_microversion_is_the_newest_of_placement(
    placement: servers.Server,
) -> None:
    versions = (
        cloud_client.from_endpoint(placement.url).get("/").body["versions"]
    )
    assert versions[0]["max_version"] == rest.PLACEMENT.microversion


def test_an_error_quotes_placement(placement: servers.Server) -> None:
    client = cloud_client.from_endpoint(placement.url)
    client.post("/resource_providers", {"name": "a", "uuid": UUID})
    with pytest.raises(errors.ServiceError) as caught:
        client.post("/resource_providers", {"name": "a"})
    assert caught.value.is_conflict
    assert caught.value.code == "placement.duplicate_name"
    assert "already exists" in str(caught.value)
    with pytest.raises(errors.ServiceError) as caught:
        client.put("/traits/lower")
    assert (caught.value.status, caught.value.is_transient) == (400, False)
    assert "CUSTOM_" in caught.value.reason


def test_a_user_without_the_role(placement: servers.Server) -> None:
    client = cloud_client.from_endpoint(placement.url, "reader")
    with pytest.raises(errors.ServiceError, match="role") as caught:
        client.put("/traits/CUSTOM_A")
    assert caught.value.status == 403
    assert not caught.value.is_transient


def test_a_refused_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    error = catch_error(f"http://127.0.0.1:{port}")
    assert error.status is None
    assert error.is_transient
    assert "check whether it runs" in str(error)


def test_no_answer() -> None:
    with odd.answering(None) as url:
        auth = token_endpoint.Token(url, "admin")
        client = cloud_client.from_session(
            session.Session(auth=auth),
            {"placement_endpoint_override": url},
            rest.PLACEMENT,
        )
        client.timeout = (5, 0.2)
        with pytest.raises(errors.ServiceError) as caught:
            client.put(PATH)
    assert caught.value.is_transient
    assert caught.value.status is None
    assert "does not answer" in str(caught.value)


def test_a_connection_is_used_again(placement: servers.Server) -> None:
    """A timeout is that of one answer."""
    client = cloud_client.from_endpoint(placement.url)
    client.timeout = (5, 2.0)
    for _ in range(4):
        client.get(PATH)
        time.sleep(0.6)
    assert client.reads == 4


CUT = odd.http("200 OK", b'{"resource_providers": []}')


@pytest.mark.parametrize(
    "answer", [b"", CUT[:40], CUT[:-5]], ids=["nothing", "head", "half"]
)
@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "DELETE"])
def test_a_connection_that_breaks(answer: bytes, method: str) -> None:
    with odd.answering(answer) as url:
        error = catch_error(url, method)
    assert error.status is None
    assert error.is_transient


@pytest.mark.parametrize(
    ("answer", "status", "is_transient"),
    [
        (odd.http("503 Service Unavailable", b""), 503, True),
        (odd.http("500 Oops", b'{"errors": []}'), 500, True),
        (odd.http("500 Oops", b'{"errors": "broken"}'), 500, True),
        (odd.http("502 Bad", b"<html>Bad Gateway", "text/html"), 502, True),
        (odd.http("429 Slowly", b"[]"), 429, True),
        (odd.http("404 Not Found", b"<html>", "text/html"), 404, False),
        (odd.http("405 No", b""), 405, False),
        (odd.http("200 OK", b"<html>Hello", "text/html"), None, True),
        (odd.http("200 OK", b""), None, True),
        (odd.http("200 OK", b'{"a":'), None, True),
    ],
)
def test_odd_answers(
    answer: bytes, status: int | None, is_transient: bool
) -> None:
    with odd.answering(answer) as url:
        error = catch_error(url)
    assert (error.status, error.is_transient) == (status, is_transient)


def test_too_old_a_placement() -> None:
    body = b'{"errors": [{"status": 406, "detail": "Version 1.39 ..."}]}'
    with odd.answering(odd.http("406 Not Acceptable", body)) as url:
        error = catch_error(url)
    assert "upgrade" in str(error)


def test_a_long_page_is_shortened() -> None:
    page = b"x" * 10_000
    with odd.answering(odd.http("400 Bad", page, "text/html")) as url:
        assert len(str(catch_error(url))) < 600


def test_an_untrusted_certificate(placement: servers.Server) -> None:
    error = catch_error(placement.url.replace("http:", "https:"))
    assert not error.is_transient
    assert "cafile" in str(error)


def test_a_password_in_the_url_is_not_printed() -> None:
    error = catch_error("http://me:s3cret@127.0.0.1:1")
    assert "s3cret" not in str(error)


def test_a_client_reconnects(placement: servers.Server) -> None:
    """The same client works once the service runs."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    client = cloud_client.from_endpoint(f"http://127.0.0.1:{port}")
    with pytest.raises(errors.ServiceError):
        client.get(PATH)
    with odd.answering(odd.http("200 OK", b'{"a": 1}'), port):
        assert client.get(PATH).body == {"a": 1}


def test_threads_share_a_client(mariadb_placement: servers.Server) -> None:
    client = cloud_client.from_endpoint(mariadb_placement.url)

    def send(number: int) -> None:
        for other in range(5):
            client.put(f"/traits/CUSTOM_{number}_{other}")
            client.get(PATH)

    threads = [threading.Thread(target=send, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (client.reads, client.writes) == (40, 40)
    answered = mariadb_placement.requests()
    assert len(answered) == 80
    assert {r.status for r in answered} == {200, 201}


def test_nova_by_its_own_version() -> None:
    """Nova's errors have another form than Placement's."""
    gone = b'{"itemNotFound": {"code": 404, "message": "no server"}}'
    bad = b'{"badRequest": {"code": 400, "message": "Bad marker."}}'
    with odd.answering(odd.http("404 Not Found", gone)) as url:
        client = cloud_client.from_endpoint(url, service=rest.COMPUTE)
        assert client.get("/servers/1") == service_client.Response(404)
    with odd.answering(odd.http("400 Bad Request", bad)) as url:
        client = cloud_client.from_endpoint(url, service=rest.COMPUTE)
        with pytest.raises(errors.ServiceError, match="Bad marker"):
            client.get("/servers/detail?all_tenants=1")
