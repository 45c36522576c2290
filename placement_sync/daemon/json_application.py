# SPDX-License-Identifier: Apache-2.0
"""WSGI applications with JSON bodies; the only import of keystonemiddleware.

An application trusts the headers of keystonemiddleware and is served behind
it only (``authenticated``): that verifies each token, and removes headers
with users and roles that a client sends itself.
"""

import functools
import http
import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from keystonemiddleware import auth_token

from nova_accel.discovery import nova_conf
from nova_accel.model import json_codec

# Configuration files, separated by colons, instead of nova.conf.
_VARIABLE = "NOVA_ACCEL_CONFIG_FILES"

Environment = Mapping[str, Any]
StartResponse = Callable[[str, list[tuple[str, str]]], object]
Application = Callable[[dict[str, Any], StartResponse], Iterable[bytes]]
Answer = tuple[http.HTTPStatus, object]


class JsonApplication:
    """WSGI application that answers each request with JSON text."""

    def __init__(self, answer: Callable[[Environment], Answer]) -> None:
        """:param answer: returns status and body; raises nothing."""
        self._answer = answer

    def __call__(
        self, environment: Environment, start_response: StartResponse
    ) -> list[bytes]:
        status, body = self._answer(environment)
        content = json.dumps(body).encode()
        headers = [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(content))),
            ("Cache-Control", "no-store"),
        ]
        start_response(f"{status.value} {status.phrase}", headers)
        return [content]


def authenticated(application: JsonApplication, parsed: Any) -> Application:
    """Return an application behind keystonemiddleware.

    :param parsed: ``oslo_config.cfg.ConfigOpts`` with [keystone_authtoken].
    """
    protected: Application = auth_token.AuthProtocol(
        application, {"oslo_config_config": parsed}
    )
    return protected


def build_at_first_request(
    build: Callable[[Iterable[str]], Application],
) -> Application:
    """Return an application that reads its configuration when it is used.

    :param build: returns the application of some nova.conf files.
    """

    @functools.cache
    def open_once() -> Application:
        files = os.environ.get(_VARIABLE, "")
        return build(
            files.split(":") if files else nova_conf.find_default_files()
        )

    def application(
        environment: dict[str, Any], start_response: StartResponse
    ) -> Iterable[bytes]:
        return open_once()(environment, start_response)

    return application


def is_confirmed(environment: Environment) -> bool:
    """Return whether Keystone has confirmed the request's token."""
    return bool(environment.get("HTTP_X_IDENTITY_STATUS") == "Confirmed")


def list_roles(environment: Environment) -> tuple[str, ...]:
    """Return the names of the roles of the request's user."""
    roles = environment.get("HTTP_X_ROLES", "").split(",")
    return tuple(name for role in roles if (name := role.strip()))


def build_refusal(status: http.HTTPStatus, detail: str) -> Answer:
    """Return the answer of an error, as Placement's and Nova's."""
    error = {"status": status.value, "title": status.phrase, "detail": detail}
    return status, {"errors": [error]}


def read_body(environment: Environment, limit: int) -> Any:
    """Return the decoded body of a request.

    :param limit: its most bytes.
    :raises ValueError: it is absent, longer, or no JSON.
    """
    length = int(environment.get("CONTENT_LENGTH") or 0)
    if not 0 < length <= limit:
        raise ValueError(
            f"the body has {length} bytes; expected JSON of 1 to {limit}"
        )
    return json_codec.loads(environment["wsgi.input"].read(length))
