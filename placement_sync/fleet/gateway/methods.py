# SPDX-License-Identifier: Apache-2.0
"""Methods of nova-compute that the gateway passes on."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from nova_accel import errors
from placement_sync.client import nova_api, rest

#: Type of the service in Keystone's catalog.
SERVICE = rest.Service(name="accelerator-gateway", group="nova_accel_gateway")
_PATH = re.compile(
    "/v1/(?P<kind>servers|hosts)/(?P<target>[A-Za-z0-9._-]{1,255})"
    "/(?P<name>[a-z_]{1,32})"
)
# A request has the devices of a host, and texts of nova-compute's own limits.
_MOST_DEVICES, _MOST_CHARACTERS = 4096, 1024
_TEXT = "a text"
_LIST = f"a list of {_MOST_DEVICES} texts at most, each"


@dataclasses.dataclass(frozen=True, slots=True)
class Method:
    """Method about a server, or about the devices of a host.

    ``texts`` and ``lists`` are the names of its arguments. ``is_long``: it
    waits for images or guests.
    """

    kind: str
    texts: frozenset[str] = frozenset()
    lists: frozenset[str] = frozenset()
    is_long: bool = False


SERVERS, HOSTS = "servers", "hosts"
_DEVICES = frozenset({"devices"})
METHODS: Mapping[str, Method] = {
    "show": Method(SERVERS),
    "attach": Method(
        SERVERS, frozenset({"profile", "bitstream"}), is_long=True
    ),
    "detach": Method(SERVERS, frozenset({"name"}), is_long=True),
    "list_drains": Method(HOSTS),
    "list_faults": Method(HOSTS),
    "list_unoffered": Method(HOSTS),
    "show_version": Method(HOSTS),
    "drain": Method(HOSTS, frozenset({"reason"}), _DEVICES),
    "undrain": Method(HOSTS, lists=_DEVICES),
    "heal": Method(HOSTS, lists=_DEVICES),
}


def build_path(name: str, target: str) -> str:
    """Return the path of a method.

    :param target: uuid of a server, or name of a host.
    """
    return f"/v1/{METHODS[name].kind}/{target}/{name}"


def parse_path(path: str) -> tuple[str, str]:
    """Return the method and the target of a path.

    :raises LookupError: there is no such path.
    """
    match = _PATH.fullmatch(path)
    if match is None:
        raise LookupError(path)
    kind, target, name = match.group("kind", "target", "name")
    is_uuid = kind != SERVERS or nova_api.is_uuid(target)
    if METHODS[name].kind != kind or not is_uuid:
        raise LookupError(path)
    return name, target


def check_arguments(name: str, body: Any) -> Mapping[str, Any]:
    """Return the arguments of a method.

    :raises MalformedError: they are of another form.
    """
    method = METHODS[name]
    accepted = sorted(method.texts | method.lists)
    if not isinstance(body, dict):
        raise errors.MalformedError(
            f"body of {name}", type(body).__name__, "an object"
        )
    for key, value in body.items():
        if key not in accepted:
            raise errors.MalformedError(
                f"known argument of {name}",
                key[:_MOST_CHARACTERS],
                ", ".join(accepted) or "none",
            )
        is_text = key in method.texts
        texts = [value] if is_text else value
        if (
            not isinstance(texts, list)
            or len(texts) > _MOST_DEVICES
            or not all(
                isinstance(text, str) and len(text) <= _MOST_CHARACTERS
                for text in texts
            )
        ):
            raise errors.MalformedError(
                f"value of {key}",
                type(value).__name__,
                f"{_TEXT if is_text else _LIST} of {_MOST_CHARACTERS}"
                " characters at most",
            )
    return body
