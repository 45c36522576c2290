# SPDX-License-Identifier: Apache-2.0
"""Error answers of services, as text for the operator."""

import json
import re
from typing import Any

from nova_accel import errors
from nova_accel.model import strict_json

_FULL = 200
_OK = 300
_NOT_FOUND = 404
# Longer words than these are not read, and fill the log.
_MAX_REASON = 400
# The name and password of a URL, which a client puts into its messages. A
# password may itself contain "@".
_USERINFO = re.compile(r"(?<=://)[^/\s]*@")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

_MENDS = {
    401: "the token is refused; see the credentials, and what the service"
    " itself asks Keystone with",
    403: "these credentials may not do that; give their user the role that"
    " nova-compute's has, admin or service",
    _NOT_FOUND: "nothing like this is at this address; see endpoint_override,"
    " or the endpoint in Keystone's catalogue",
    406: "the service is too old for this; upgrade it first",
}


def tidy(text: str) -> str:
    """Return a message in one line, shortened, without credentials."""
    line = _USERINFO.sub("", " ".join(text.split()))
    return line if len(line) <= _MAX_REASON else line[:_MAX_REASON] + "..."


def decode(text: str) -> Any:
    """Return JSON decoded, or the text if it isn't JSON.

    Lone surrogates, which no stream can encode, count as no JSON.
    """
    try:
        found = strict_json.loads(text or "null")
        if _SURROGATE.search(text):
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return text
    return found


def check(
    method: str,
    path: str,
    status: int,
    content: Any,
    *,
    is_empty: bool = False,
) -> None:
    """Raise ServiceError unless an answer is a success.

    For a GET, one that says in the service's own form that something does
    not exist is a success; a web server's page is not. A success must be
    JSON, or have a status of those without content: anything else comes
    from a connection that broke, or from somebody else. Nova tells that
    some DELETEs succeeded by 200 and a content that is none in so many
    words (nova/api/openstack/compute/flavors_extraspecs.py).

    :param is_empty: whether the answer itself says that it has no content.
    """
    if status < _OK:
        is_whole = is_empty and method == "DELETE"
        is_short = status == _FULL and content is None and not is_whole
        if isinstance(content, str) or is_short:
            raise errors.ServiceError(
                method, path, None, f"no JSON: {tidy(str(content or ''))}"
            )
        return
    is_said = status == _NOT_FOUND and isinstance(content, dict)
    if is_said and method == "GET":
        return
    code, words = _words(content)
    mend = "" if is_said else _MENDS.get(status, "")
    reason = "; ".join(text for text in (words, mend) if text)
    raise errors.ServiceError(
        method, path, status, reason or "no word of why", code
    )


def _words(content: Any) -> tuple[str, str]:
    """Return a refusal's code and words.

    Placement: ``{"errors": [{"code": ..., "detail": ...}]}``; Nova and
    Keystone: ``{"badRequest": {"code": 400, "message": ...}}``.
    """
    if not isinstance(content, dict):
        return "", tidy(content) if isinstance(content, str) else ""
    found = next(iter(content.values()), None)
    if isinstance(found, list):
        found = next(iter(found), None)
    if not isinstance(found, dict):
        return "", ""
    code = found.get("code")
    words = found.get("detail") or found.get("message")
    return (
        code if isinstance(code, str) else "",
        tidy(words) if isinstance(words, str) else "",
    )
