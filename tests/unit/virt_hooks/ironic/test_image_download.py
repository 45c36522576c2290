# SPDX-License-Identifier: Apache-2.0
"""FPGA images are fetched whole, from listed hosts, or not at all."""

import gzip
import hashlib
import http.server
import pathlib
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from urllib import parse

import pytest

from nova_accel import errors
from virt_hooks.ironic import image_download

CONTENT = b"an FPGA image"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
SHA512 = hashlib.sha512(CONTENT).hexdigest()
# 50 MiB of zeros in 50 KiB.
BOMB = gzip.compress(bytes(50 << 20))
SECONDS = 1.0
# Longest time of a transfer that is cut off, on a busy machine.
MAX_S = 10 * SECONDS


class Handler(http.server.BaseHTTPRequestHandler):
    """Server of images, good and bad ones, by the name of the path."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        requests.append(dict(self.headers))
        path, _, query = self.path.partition("?")
        ANSWERS.get(path, Handler.send_absence)(self, query)

    def send(
        self,
        content: bytes = CONTENT,
        headers: Mapping[str, str] | None = None,
        status: int = 200,
    ) -> None:
        self.send_response(status)
        sent = {"Content-Length": str(len(content)), **(headers or {})}
        for name, value in sent.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def send_image(self, query: str) -> None:
        self.send()

    def send_absence(self, query: str) -> None:
        self.send(b"", status=404)

    def send_part(self, query: str) -> None:
        self.send(b"", status=206)

    def send_bomb(self, query: str) -> None:
        self.send(BOMB, {"Content-Encoding": "gzip"})

    def send_nameless_bomb(self, query: str) -> None:
        self.send(BOMB)

    def send_redirect(self, query: str) -> None:
        self.send(b"", {"Location": parse.unquote(query)}, 302)

    def send_large(self, query: str) -> None:
        self.send(b"", {"Content-Length": str(3 << 30)})

    def send_digits(self, query: str) -> None:
        self.send(b"", {"Content-Length": "9" * 5000})

    def drip(self, content: bytes, headers: str) -> None:
        """Send a byte each 50 ms, until the client is gone."""
        self.close_connection = True
        try:
            self.wfile.write(headers.encode())
            for number in range(1000):
                self.wfile.write(content[number % len(content) :][:1])
                self.wfile.flush()
                time.sleep(0.05)
        except OSError:
            pass

    def drip_content(self, query: str) -> None:
        self.drip(b"x", "HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n")

    def drip_chunks(self, query: str) -> None:
        head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        self.drip(b"1\r\nx\r\n", head)

    def drip_headers(self, query: str) -> None:
        self.drip(b"x", "HTTP/1.1 200 OK\r\nX-Drip: ")

    def drip_status(self, query: str) -> None:
        self.drip(b"HTTP/1.1 100 Continue\r\n\r\n", "")


requests: list[dict[str, str]] = []
ANSWERS: dict[str, Callable[[Handler, str], None]] = {
    "/image": Handler.send_image,
    "/part": Handler.send_part,
    "/bomb": Handler.send_bomb,
    "/nameless-bomb": Handler.send_nameless_bomb,
    "/redirect": Handler.send_redirect,
    "/large": Handler.send_large,
    "/digits": Handler.send_digits,
    "/drip-content": Handler.drip_content,
    "/drip-chunks": Handler.drip_chunks,
    "/drip-headers": Handler.drip_headers,
    "/drip-status": Handler.drip_status,
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def fetch(url: str, checksum: str = SHA256, *hosts: str) -> None:
    """Download an image from its own host, or from a list of hosts."""
    listed = hosts or (parse.urlsplit(url).netloc.rpartition("@")[2],)
    with image_download.open_image(url, checksum, listed, SECONDS):
        pass


@pytest.mark.parametrize("checksum", [SHA256, SHA512, SHA256.upper()])
def test_an_image_is_removed_after_its_use(url: str, checksum: str) -> None:
    hosts = [parse.urlsplit(url).netloc]
    with image_download.open_image(f"{url}/image", checksum, hosts) as name:
        path = pathlib.Path(name)
        assert path.read_bytes() == CONTENT
        assert path.parent.stat().st_mode & 0o077 == 0
    assert not path.parent.exists()


@pytest.mark.parametrize(
    ("path", "checksum", "text"),
    [
        ("/image", "0" * 64, "its sha256 is"),
        ("/absent", SHA256, "answers 404"),
        ("/part", SHA256, "answers 206"),
        ("/image", "abc", "SHA-256 or SHA-512"),
        ("/bomb", SHA256, "Content-Encoding 'gzip'"),
        ("/nameless-bomb", SHA256, "its sha256 is"),
        ("/large", SHA256, "larger than"),
        ("/digits", SHA256, "larger than"),
    ],
)
def test_another_content_is_refused(
    url: str, path: str, checksum: str, text: str
) -> None:
    with pytest.raises(errors.AcceleratorError, match=text):
        fetch(url + path, checksum)


def test_a_compressed_answer_is_not_decoded(url: str) -> None:
    for path in ("/bomb", "/nameless-bomb"):
        tracemalloc.start()
        with pytest.raises(errors.BitstreamError):
            fetch(url + path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 10 << 20
    assert requests[-1]["Accept-Encoding"] == "identity"


def test_the_content_of_a_compressed_file_is_an_image(url: str) -> None:
    fetch(f"{url}/nameless-bomb", hashlib.sha256(BOMB).hexdigest())


@pytest.mark.parametrize("name", ["content", "chunks", "headers", "status"])
def test_a_slow_server_is_left_at_the_deadline(url: str, name: str) -> None:
    began = time.monotonic()
    with pytest.raises(errors.BitstreamError, match="not complete after 1 s"):
        fetch(f"{url}/drip-{name}")
    assert time.monotonic() - began < MAX_S


# -- hosts and redirects -----------------------------------------------------


@pytest.mark.parametrize(
    "hosts",
    [
        ("images.example.org",),
        ("127.0.0.1",),  # port 80
        ("127.0.0.1:1",),
        ("127.0.0.1.example.org:{port}",),
    ],
)
def test_a_host_that_is_not_listed_is_not_asked(
    url: str, hosts: tuple[str, ...]
) -> None:
    count, port = len(requests), parse.urlsplit(url).port
    with pytest.raises(errors.BitstreamError, match="nova-accel-image-hosts"):
        fetch(f"{url}/image", SHA256, *(h.format(port=port) for h in hosts))
    assert len(requests) == count


def test_without_a_list_no_host_is_asked(url: str) -> None:
    with (
        pytest.raises(errors.BitstreamError, match="there are none"),
        image_download.open_image(f"{url}/image", SHA256, []),
    ):
        pytest.fail("it was opened")


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254\\@images.example.org/image",
        "http://images.example.org@169.254.169.254/image",
        "http://images.example.org:80@169.254.169.254/image",
        "http://169.254.169.254/#@images.example.org/",
        "http://169.254.169.254/?@images.example.org/",
        "http://images.example.org:81/image",
        "http://images.example.org.:80/image",
        "http://169.254.169.254\t@images.example.org/",
        "http:\\\\169.254.169.254/images.example.org/",
    ],
)
def test_a_url_of_two_hosts_is_refused(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing answers there, and a proxy would be asked for any host.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with pytest.raises(errors.AcceleratorError) as caught:
        fetch(url, SHA256, "images.example.org")
    assert "ProxyError" not in str(caught.value)


def test_a_redirect_to_a_listed_host_is_followed(url: str) -> None:
    fetch(f"{url}/redirect?/image")
    fetch(f"{url}/redirect?{parse.quote(f'{url}/redirect?/image')}")


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("http://169.254.169.254/image", "169.254.169.254:80 is not among"),
        ("//169.254.169.254/image", "169.254.169.254:80 is not among"),
        ("file:///etc/shadow", "is not a url"),
        ("http://[", "is not a url"),
        ("", "more than 3 times"),
    ],
)
def test_any_other_redirect_is_refused(
    url: str, target: str, text: str
) -> None:
    with pytest.raises(errors.AcceleratorError, match=text):
        fetch(f"{url}/redirect?{target}")


@pytest.mark.parametrize(
    "url",
    ["file:///etc/shadow", "ftp://host/image", "http://", "http://[", ""],
)
def test_only_http_is_fetched(url: str) -> None:
    with pytest.raises(errors.MalformedError, match="https"):
        fetch(url, SHA256, "host")


def test_an_error_has_no_credentials() -> None:
    url = "http://user:secret@127.0.0.1:1/image?signature=secret"
    for hosts in (("127.0.0.1:1",), ("127.0.0.1:2",)):
        with pytest.raises(errors.BitstreamError) as caught:
            fetch(url, SHA256, *hosts)
        assert "http://127.0.0.1/image" in str(caught.value)
        assert "secret" not in str(caught.value)
