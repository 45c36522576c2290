# SPDX-License-Identifier: Apache-2.0
"""Error responses of services, as text for the operator."""

import json
import re
from typing import Any

from nova_accel import errors
from nova_accel.model import json_codec

_FULL = 200
_OK = 300
_NOT_FOUND = 404
# Characters of a reason; a longer one fills the log.
_MAX_REASON = 400
# User and password of a URL, which clients put into their messages. A
# password may itself contain "@".
_USERINFO = re.compile(r"(?<=://)[^/\s]*@")
# A page of a proxy, as of HAProxy: "<html><body><h1>503 ...".
_PAGE = re.compile(r"\s*<(?:!doctype|html)\b", re.IGNORECASE)
_TAG = re.compile(r"<(/?\w*+)[^<>]*+>")
_HIDDEN = ("head", "style", "script")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

_HINTS = {
    401: "the token is refused; check the credentials, and those with which"
    " the service itself validates tokens at Keystone",
    403: "these credentials may not do that; give their user the role that"
    " nova-compute's has, admin or service",
    _NOT_FOUND: "this address has no such resource; check endpoint_override,"
    " or the endpoint in Keystone's catalog",
    406: "the service is too old for this; upgrade it first",
}


def shorten(text: str) -> str:
    """Return a message in one line of at most 400 characters.

    User and password of URLs are removed, and the tags of a page of HTML.
    """
    # The first characters are enough, and limit the time.
    text = text[: 10 * _MAX_REASON]
    if _PAGE.match(text):
        text = _read_page(text)
    line = _USERINFO.sub("", " ".join(text.split()))
    return line if len(line) <= _MAX_REASON else line[:_MAX_REASON] + "..."


def _read_page(text: str) -> str:
    """Return the text of a page that a browser shows."""
    first, *parts = _TAG.split(text)
    texts, hidden = [first], ""
    for tag, words in zip(parts[::2], parts[1::2], strict=True):
        name = tag.lower()
        if not hidden and name in _HIDDEN:
            hidden = name
        elif hidden and name == f"/{hidden}":
            hidden = ""
        if not hidden:
            texts.append(words)
    return " ".join(texts)


def add_hint(message: str, hint: str) -> str:
    """Return a message without its full stop, and a hint, as one sentence."""
    if hint:
        message = message.rstrip(" .")
    return "; ".join(text for text in (message, hint) if text)


def decode(text: str) -> Any:
    """Return decoded JSON, or the text if it is not JSON.

    Text with lone surrogates counts as not JSON: no stream can encode them.
    """
    try:
        body = json_codec.loads(text or "null")
        if _SURROGATE.search(text):
            json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return text
    return body


def check_response(
    method: str,
    path: str,
    status: int,
    content: Any,
    *,
    is_empty: bool = False,
) -> None:
    """Raise ServiceError unless a response is a success.

    For a GET, a 404 in the service's JSON form is a success; the 404 page
    of a web server is not. A success must be JSON, or have a status without
    content: anything else comes from a broken connection or from another
    server. Nova answers some DELETEs with 200 and ``Content-Length: 0``
    (nova/api/openstack/compute/flavors_extraspecs.py).

    :param is_empty: whether the response has ``Content-Length: 0``.
    :raises ServiceError: with a hint by the status, if the service itself
        gives no reason.
    """
    if status < _OK:
        is_whole = is_empty and method == "DELETE"
        is_short = status == _FULL and content is None and not is_whole
        if isinstance(content, str) or is_short:
            raise errors.ServiceError(
                method, path, None, f"no JSON: {shorten(str(content or ''))}"
            )
        return
    is_absent = status == _NOT_FOUND and isinstance(content, dict)
    if is_absent and method == "GET":
        return
    code, message = parse_error(content)
    hint = "" if is_absent else _HINTS.get(status, "")
    reason = add_hint(message, hint) or "no reason given"
    raise errors.ServiceError(method, path, status, reason, code)


def parse_error(content: Any) -> tuple[str, str]:
    """Return the code and the message of an error response.

    Placement: ``{"errors": [{"code": ..., "detail": ...}]}``; Nova and
    Keystone: ``{"badRequest": {"code": 400, "message": ...}}``.
    """
    if not isinstance(content, dict):
        return "", shorten(content) if isinstance(content, str) else ""
    error = next(iter(content.values()), None)
    if isinstance(error, list):
        error = next(iter(error), None)
    if not isinstance(error, dict):
        return "", ""
    code = error.get("code")
    message = error.get("detail") or error.get("message")
    return (
        code if isinstance(code, str) else "",
        shorten(message) if isinstance(message, str) else "",
    )
