# SPDX-License-Identifier: Apache-2.0
"""Download of FPGA images in the ramdisk, with a checksum.

The URL is that of a deploy template or of a runbook, which a project may own,
and the ramdisk is in a network of the cloud. So only hosts are asked that the
operator has listed, also after a redirect. The file system of the ramdisk is
its memory: the content is not decoded, as a few bytes of gzip can become any
number before a checksum is known.
"""

import contextlib
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Collection, Iterator
from typing import IO, Any
from urllib import parse

import requests
import urllib3.exceptions

from nova_accel import errors
from virt_hooks.ironic import deadlines

# Seconds for a connection, and for the whole transfer.
_CONNECT_S, _TRANSFER_S = 60, 900
_CHUNK = 1 << 20
# The largest bitstream that the privileged code loads.
_MAX_BYTES = 2 << 30
_MAX_DIGITS = 12
_MAX_REDIRECTS = 3
_DIGEST = re.compile(r"[0-9a-f]{64}|[0-9a-f]{128}")
_ALGORITHMS = {64: "sha256", 128: "sha512"}
_PORTS = {"http": 80, "https": 443}
# Parsers of URLs differ on backslashes, spaces and control characters.
_URL = re.compile(r"[!-\[\]-~]{1,4096}")


@contextlib.contextmanager
def open_image(
    url: str,
    checksum: str,
    hosts: Collection[str],
    seconds: float = _TRANSFER_S,
) -> Iterator[str]:
    """Download an image; yield its path, which is removed afterwards.

    :param checksum: SHA-256 or SHA-512 of the content, in hexadecimal.
    :param hosts: hosts to download from, with a port unless it is the
        default one of the URL's scheme.
    :param seconds: limit of the whole transfer.
    :raises BitstreamError: it can't be fetched, or has another checksum.
    :raises MalformedError: an argument has another form.
    """
    digest = str(checksum).strip().lower()
    if not _DIGEST.fullmatch(digest):
        raise errors.MalformedError(
            "checksum", digest[:20], "a SHA-256 or SHA-512 in hexadecimal"
        )
    with tempfile.TemporaryDirectory(prefix="nova-accel-") as directory:
        path = os.path.join(directory, "image")
        _Download(hosts, seconds).fetch(str(url), path, digest)
        yield path


class _Download:
    """One download, with its redirects, until a deadline."""

    def __init__(self, hosts: Collection[str], seconds: float) -> None:
        """:param hosts: see ``open_image``."""
        self._hosts, self._seconds = hosts, seconds
        self._until = time.monotonic() + seconds

    def fetch(self, url: str, path: str, digest: str) -> None:
        """Download a file and verify its checksum.

        :raises BitstreamError: it can't be fetched, or has another one.
        """
        place = self._check_url(url)
        try:
            with requests.Session() as session:
                deadlines.mount(session)
                with self._open(session, url) as answer:
                    _check_answer(place, answer)
                    with open(path, "wb") as file:
                        self._copy(place, answer, file, digest)
        except (
            requests.RequestException,
            urllib3.exceptions.HTTPError,
        ) as error:
            raise self._explain(place, error) from None

    def _open(self, session: requests.Session, url: str) -> requests.Response:
        """Return the answer of an image's last host."""
        for _ in range(_MAX_REDIRECTS + 1):
            place, remaining = self._check_url(url), self._measure_rest(url)
            try:
                answer = session.get(
                    url,
                    headers={"Accept-Encoding": "identity"},
                    timeout=(min(_CONNECT_S, remaining), remaining),
                    allow_redirects=False,
                    stream=True,
                )
            except requests.RequestException:
                raise
            except ValueError:  # requests parses a redirect's target, too
                url = ""
                continue
            if not answer.is_redirect:
                return answer
            answer.close()
            target = _resolve(url, answer.headers["Location"])
            if url.startswith("https:") and not target.startswith("https:"):
                raise errors.BitstreamError(
                    place, "it is redirected from https to another scheme"
                )
            url = target
        raise errors.BitstreamError(
            place, f"it is redirected more than {_MAX_REDIRECTS} times"
        )

    def _check_url(self, url: str) -> str:
        """Return a URL without credentials and signature, which are secret.

        :raises MalformedError: it is no URL of HTTP.
        :raises BitstreamError: its host is not among those of the operator.
        """
        parts, port = _split(url)
        place = f"{parts.scheme}://{parts.hostname}{parts.path}"[:255]
        if not _URL.fullmatch(url) or not port or not parts.hostname:
            raise errors.MalformedError("url", place, "http://… or https://…")
        hosts = {_parse_host(host, parts.scheme) for host in self._hosts}
        if (parts.hostname, port) not in hosts:
            raise errors.BitstreamError(
                place,
                f"{parts.hostname}:{port} is not among the hosts of images"
                f" ({', '.join(self._hosts) or 'there are none'}); an"
                " operator can add it to the kernel parameter"
                " nova-accel-image-hosts of the ramdisk",
            )
        return place

    def _measure_rest(self, place: str) -> float:
        """Return the seconds until the deadline.

        :raises BitstreamError: it has passed.
        """
        remaining = self._until - time.monotonic()
        if remaining <= 0:
            raise self._explain(place, TimeoutError())
        return remaining

    def _copy(
        self, place: str, answer: Any, file: IO[bytes], digest: str
    ) -> None:
        content = hashlib.new(_ALGORITHMS[len(digest)])
        size = 0
        for chunk in answer.raw.stream(_CHUNK, decode_content=False):
            self._measure_rest(place)
            size += len(chunk)
            if size > _MAX_BYTES:
                raise _build_oversize(place)
            content.update(chunk)
            file.write(chunk)
        if content.hexdigest() != digest:
            raise errors.BitstreamError(
                place,
                f"its {content.name} is {content.hexdigest()[:16]}…, not"
                f" {digest[:16]}…; correct the checksum or upload the image"
                " again",
            )

    def _explain(self, place: str, error: Exception) -> errors.BitstreamError:
        """Return the error of a transfer, whose text has the whole URL."""
        if time.monotonic() >= self._until:
            reason = f"it is not complete after {self._seconds:g} s"
        else:
            reason = f"it can't be fetched ({type(error).__name__})"
        return errors.BitstreamError(
            place, f"{reason}; is the server reachable?"
        )


def _split(url: str) -> tuple[parse.SplitResult, int]:
    """Return the parts and the port of a URL; 0 for one that is malformed."""
    try:
        parts = parse.urlsplit(url)
        return parts, parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:  # its text quotes the URL
        return parse.urlsplit(""), 0


def _resolve(url: str, target: str) -> str:
    """Return the URL of a redirect; empty for a target that is malformed."""
    try:
        return parse.urljoin(url, target)
    except ValueError:
        return ""


def _parse_host(text: str, scheme: str) -> tuple[str | None, int]:
    """Return the host and the port of an entry of the operator's list."""
    parts, port = _split(f"{scheme}://{text.strip()}")
    if not parts.hostname or not port:
        raise errors.MalformedError(
            "host of images", text, "HOST or HOST:PORT"
        )
    return parts.hostname, port


def _check_answer(place: str, answer: requests.Response) -> None:
    """:raises BitstreamError: it is no image."""
    encoding = answer.headers.get("Content-Encoding", "identity")
    length = answer.headers.get("Content-Length", "")
    if answer.status_code != requests.codes.ok:
        reason = f"the server answers {answer.status_code}"
        raise errors.BitstreamError(place, reason)
    if encoding.strip().lower() != "identity":
        raise errors.BitstreamError(
            place,
            f"the server sends it with Content-Encoding {encoding[:20]!r};"
            " store it as it is",
        )
    # Python refuses to convert thousands of digits.
    if length.isdecimal() and int(length[:_MAX_DIGITS]) > _MAX_BYTES:
        raise _build_oversize(place)


def _build_oversize(place: str) -> errors.BitstreamError:
    return errors.BitstreamError(
        place, f"it is larger than {_MAX_BYTES} bytes"
    )
