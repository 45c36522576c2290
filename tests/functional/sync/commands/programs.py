# SPDX-License-Identifier: Apache-2.0
"""Commands of all programs in this process.

``openstack`` is replaced by a program that needs no Keystone: its connection
is that of a cloud of clouds.yaml, or of the addresses of services.
"""

import argparse
import functools
import io
import json
import sys
from collections.abc import Sequence
from typing import Any

import openstack
import requests
from keystoneauth1 import session, token_endpoint
from openstack import connection
from requests import adapters

from nova_accel.cli import application, command_manager, commands
from placement_sync.cli import main as placement_sync

_PLUGIN = "accel "
# Nothing listens there: ``_Projects`` answers.
_IDENTITY = "http://identity.invalid"


@functools.cache
def _list_points() -> command_manager.Points:
    points = command_manager.load_points(command_manager.CLOUD_GROUP)
    return {name.removeprefix(_PLUGIN): points[name] for name in points}


class _Token(token_endpoint.Token):
    """Token of a cloud whose catalog is empty."""

    def __init__(self) -> None:
        # Placement uses it as the user's name.
        super().__init__("", "admin")

    def get_endpoint(self, *_: Any, **__: Any) -> None:
        return None


class _Projects(adapters.BaseAdapter):
    """Keystone without projects."""

    def send(
        self, request: requests.PreparedRequest, *_: Any, **__: Any
    ) -> requests.Response:
        response = requests.Response()
        response.status_code, response.request = 404, request
        response.headers["Content-Type"] = "application/json"
        error = {"code": 404, "message": "Could not find project: p."}
        response.raw = io.BytesIO(json.dumps({"error": error}).encode())
        return response

    def close(self) -> None:
        pass


class _Client:
    """Client manager of ``openstack``."""

    def __init__(self, place: argparse.Namespace) -> None:
        self._place = place

    @functools.cached_property
    def accel(self) -> connection.Connection:
        """Return a connection that has sent no request yet."""
        place = self._place
        if place.os_cloud:
            return openstack.connect(cloud=place.os_cloud)
        http = requests.Session()
        http.mount(_IDENTITY, _Projects())
        return connection.Connection(
            session=session.Session(auth=_Token(), session=http),
            placement_endpoint_override=place.endpoint,
            compute_endpoint_override=place.compute_endpoint,
            identity_endpoint_override=_IDENTITY,
        )


class _OpenStack(application.Application):
    """``openstack`` with the commands of its plug-in alone."""

    def __init__(self, place: argparse.Namespace) -> None:
        manager = command_manager.CommandManager(_list_points())
        super().__init__("openstack accel", "", manager)
        self.client_manager = _Client(place)


def main(words: Sequence[str]) -> int:
    """Run a command; return its exit status.

    ``run`` is that of ``placement-sync``. A command of the cloud has options
    for the addresses of its services, besides its own.
    """
    if words and words[0] == "run":
        return placement_sync.main(words)
    line = f" {' '.join(words)} "
    if not any(f" {name} " in line for name in _list_points()):
        return commands.main(words)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in ("--os-cloud", "--endpoint", "--compute-endpoint"):
        parser.add_argument(flag)
    place, own = parser.parse_known_args(words)
    return _OpenStack(place).main(own)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
