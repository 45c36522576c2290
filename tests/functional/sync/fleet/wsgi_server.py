# SPDX-License-Identifier: Apache-2.0
"""WSGI applications behind keystonemiddleware, over HTTP."""

import contextlib
import pathlib
import threading
from collections.abc import Iterator
from typing import Any
from wsgiref import simple_server

import yaml

from tests.functional.sync.support import identity

_AUTHTOKEN = """
[keystone_authtoken]
www_authenticate_uri = {url}
auth_url = {url}
auth_type = password
username = {user}
password = {password}
project_name = {project}
user_domain_name = default
project_domain_name = default
interface = public
"""


class _Quiet(simple_server.WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving(application: Any) -> Iterator[str]:
    """Serve a WSGI application; yield its address."""
    server = simple_server.make_server(
        "127.0.0.1", 0, application, handler_class=_Quiet
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def write_conf(directory: pathlib.Path, url: str) -> str:
    """Write a nova.conf with [keystone_authtoken]; return its path.

    :param url: that of Keystone.
    """
    path = directory / "nova.conf"
    path.write_text(
        _AUTHTOKEN.format(
            url=url,
            user=identity.USER,
            password=identity.PASSWORD,
            project=identity.PROJECT,
        )
    )
    return str(path)


def write_clouds(directory: pathlib.Path, url: str) -> str:
    """Write a clouds.yaml with the cloud ``north``; return its path.

    :param url: that of Keystone.
    """
    north = {
        "region_name": identity.REGION,
        "auth": {
            "auth_url": f"{url}/v3",
            "username": identity.USER,
            "password": identity.PASSWORD,
            "project_name": identity.PROJECT,
            "user_domain_name": "default",
            "project_domain_name": "default",
        },
    }
    path = directory / "clouds.yaml"
    path.write_text(yaml.safe_dump({"clouds": {"north": north}}))
    return str(path)
