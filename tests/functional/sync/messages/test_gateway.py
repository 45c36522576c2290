# SPDX-License-Identifier: Apache-2.0
"""Messages of the services behind keystonemiddleware, over HTTP."""

import contextlib
import pathlib
from collections.abc import Iterator

import pytest
from nova import rpc
from oslo_config import cfg

from placement_sync.client import cloud_client, rest
from placement_sync.daemon import json_application
from placement_sync.fleet import compute_rpc
from placement_sync.fleet.gateway import wsgi
from placement_sync.fleet.stock import stock_file
from placement_sync.fleet.stock import wsgi as stock_wsgi
from tests.functional.sync.fleet import wsgi_server
from tests.functional.sync.messages import transcript
from tests.functional.sync.support import identity, nova_standin, servers

_TOKEN = "a-token"  # noqa: S105
_SERVER = "/v1/servers/dddddddd-0000-4000-8000-00000000000d/show"


@contextlib.contextmanager
def serving(
    application: json_application.JsonApplication,
    placement: servers.Server,
    place: pathlib.Path,
) -> Iterator[str]:
    """Serve an application that answers also without a token."""
    with identity.Identity(placement.url).running() as keystone:
        # The service's own token is one of a user, too.
        keystone.text = _TOKEN
        path = wsgi_server.write_conf(place, keystone.url)
        with pathlib.Path(path).open("a") as conf:
            conf.write("delay_auth_decision = true\n")
        parsed = cfg.ConfigOpts()
        parsed(["--config-file", path], default_config_files=[])
        protected = json_application.authenticated(application, parsed)
        with wsgi_server.serving(protected) as url:
            yield url


def test_the_gateway(
    placement: servers.Server,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake = tmp_path / "fake.conf"
    fake.write_text("[DEFAULT]\ntransport_url = fake:/\n")
    bus = compute_rpc.ComputeRpc((str(fake),))
    written = transcript.Transcript(capsys, {})
    with nova_standin.serve() as nova:
        client = cloud_client.from_endpoint(nova.url, service=rest.COMPUTE)
        application = wsgi.GatewayApplication(bus, client)
        with serving(application, placement, tmp_path) as url:
            written.request("GET", url, _SERVER, _TOKEN)
            written.request("POST", url, _SERVER)
            written.request("POST", url, "/v1/servers", _TOKEN)
            written.request("POST", url, _SERVER, _TOKEN)
            for path, body in (
                (_SERVER, {"profile": "A40-8Q"}),
                ("/v1/hosts/node1/drain", {"devices": "0000:3b:00.0"}),
                ("/v1/hosts/node1/drain", {"reason": 1}),
                (_SERVER, []),
                (_SERVER, {}),
            ):
                written.request("POST", url, path, _TOKEN, body)
            nova.broken = ("/servers",)
            written.request("POST", url, _SERVER, _TOKEN, {})
    rpc.cleanup()
    written.check("gateway")


def test_the_stock(
    placement: servers.Server,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    application = stock_wsgi.StockApplication(str(tmp_path / "stock.json"))
    written = transcript.Transcript(capsys, {})
    with serving(application, placement, tmp_path) as url:
        written.request("POST", url, stock_file.PATH, _TOKEN)
        written.request("GET", url, stock_file.PATH)
        written.request("GET", url, "/v1/stocks", _TOKEN)
        written.request("GET", url, stock_file.PATH, _TOKEN)
    written.check("stock over HTTP")
