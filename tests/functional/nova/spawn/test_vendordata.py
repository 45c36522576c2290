# SPDX-License-Identifier: Apache-2.0
"""Nova's metadata has the licence token, for servers with a vGPU only."""

import hashlib
import hmac
import json
import pathlib
import threading
from collections.abc import Iterable, Mapping
from typing import Any
from wsgiref import simple_server

import fixtures
import pytest
from nova.api.metadata import base
from paste import deploy

from nova_accel.cli import commands
from placement_sync.client import cloud_client
from placement_sync.licenses import guest_script, tokens, vendordata, wsgi
from tests.functional.nova.support import harness
from tests.support.licenses import debian_guest, license_tokens

FOUR = harness.vgpu_group("_A", "4Q")
PATH = "openstack/latest/vendor_data2.json"
#: As keystonemiddleware sets them for a service's token.
HEADERS = {"HTTP_X_IDENTITY_STATUS": "Confirmed", "HTTP_X_ROLES": "service"}
#: Of Nova's metadata service and Neutron's agent.
SHARED_SECRET = "of-nova-and-neutron"  # noqa: S105 - of the tests


class QuietHandler(simple_server.WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log nothing."""


class VendordataTestBase(harness.AccelTestBase):
    """Nova asks the vendordata service, over HTTP, for each server."""

    def setUp(self) -> None:
        super().setUp()
        place = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.text = license_tokens.build()
        license_tokens.write(place, "default", self.text)
        application = wsgi.VendordataApplication(
            vendordata.LicenseService(
                tokens.TokenStore(str(place)),
                cloud_client.from_endpoint(self.placement.fixture.endpoint),
            )
        )
        url = self.serve(application, HEADERS)
        self.flags(
            # Nova's config drive fails without StaticJSON.
            vendordata_providers=["StaticJSON", "DynamicJSON"],
            vendordata_dynamic_targets=[f"cloud-init@{url}/"],
            group="api",
        )

    def serve(self, application: Any, added: Mapping[str, str]) -> str:
        """Serve a WSGI application; return its URL.

        :param added: to the environment of each request.
        """

        def answer(
            environment: Mapping[str, Any], start_response: Any
        ) -> Iterable[bytes]:
            body: Iterable[bytes] = application(
                {**environment, **added}, start_response
            )
            return body

        server = simple_server.make_server(
            "127.0.0.1", 0, answer, handler_class=QuietHandler
        )
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return f"http://127.0.0.1:{server.server_port}"


class Vendordata(VendordataTestBase):
    def read(self, server: Any) -> base.InstanceMetadata:
        return base.get_metadata_by_instance_id(server["id"], "127.0.0.1")

    def lookup(self, metadata: base.InstanceMetadata) -> Any:
        return json.loads(metadata.lookup(f"/{PATH}"))

    def test_metadata_service_and_config_drive_have_the_text(self) -> None:
        self.start_host(*harness.TWO_T4)
        metadata = self.read(self.boot(FOUR))
        answer = self.lookup(metadata)
        drive = dict(metadata.metadata_for_config_drive())
        script = guest_script.build_script(
            tokens.Token(path="", text=self.text)
        )
        self.assertEqual({"cloud-init": script, "static": {}}, answer)
        self.assertEqual(answer, json.loads(drive[PATH]))

    @pytest.mark.long
    def test_a_server_without_a_vgpu_has_no_token(self) -> None:
        self.start_host(*harness.TWO_T4)
        metadata = self.read(self.boot({}))
        self.assertEqual("", self.lookup(metadata)["cloud-init"])

    @pytest.mark.long
    def test_the_file_of_the_command_is_static_vendordata(self) -> None:
        place = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        token = license_tokens.write(place, "t", self.text)
        output = str(place / "vendor_data.json")
        words = ("license", "vendordata", "--token", str(token), "-o", output)
        self.assertEqual(0, commands.main(words))
        self.flags(vendordata_jsonfile_path=output, group="api")
        self.start_host(*harness.TWO_T4)
        metadata = self.read(self.boot({}))
        answer = metadata.lookup("/openstack/latest/vendor_data.json")
        self.assertIn(self.text, json.loads(answer)["cloud-init"])

    def test_no_log_of_nova_has_the_token(self) -> None:
        self.start_host(*harness.TWO_T4)
        metadata = self.read(self.boot(FOUR))
        self.lookup(metadata)
        log: str = self.stdlog.logger.output
        self.assertIn("gets licence token", log)
        self.assertNotIn(license_tokens.SECRET, log)


@pytest.mark.long
class CloudInit(VendordataTestBase):
    """cloud-init of Debian reads Nova's own metadata service over HTTP.

    Requests get the headers of Neutron's metadata agent without one.
    """

    @pytest.fixture(autouse=True)
    def _use_debian(
        self, debian: pathlib.Path, tmp_path: pathlib.Path
    ) -> None:
        self.debian, self.place = debian, tmp_path

    def serve_metadata(self, server: Any) -> str:
        """Return the URL of the metadata service, for one server."""
        self.flags(
            service_metadata_proxy=True,
            metadata_proxy_shared_secret=SHARED_SECRET,
            group="neutron",
        )
        signature = hmac.new(
            SHARED_SECRET.encode(), server["id"].encode(), hashlib.sha256
        )
        # As nova.api.openstack.wsgi_app does.
        paste = harness.CONF.wsgi.api_paste_config
        return self.serve(
            deploy.loadapp(f"config:{paste}", name="metadata"),
            {
                "HTTP_X_FORWARDED_FOR": "192.0.2.7",
                "HTTP_X_INSTANCE_ID": server["id"],
                "HTTP_X_TENANT_ID": server["tenant_id"],
                "HTTP_X_INSTANCE_ID_SIGNATURE": signature.hexdigest(),
            },
        )

    def boot_guest(self, extra_specs: dict[str, str]) -> debian_guest.Guest:
        """Return a server's guest after cloud-init's first run."""
        self.start_host(*harness.TWO_T4)
        server = self.boot(extra_specs)
        datasource = {
            "metadata_urls": [self.serve_metadata(server)],
            "apply_network_config": False,
        }
        guest = debian_guest.Guest.copy(
            self.debian,
            self.place / "guest",
            debian_guest.GPU,
            OpenStack=datasource,
        )
        guest.boot()
        self.assertIn("DataSourceOpenStack ", guest.read_source(server["id"]))
        self.assertNotIn(license_tokens.SECRET, guest.read_logs())
        return guest

    def test_a_guest_with_a_vgpu_gets_the_token(self) -> None:
        guest = self.boot_guest(FOUR)
        self.assertEqual(
            [self.text], [path.read_text() for path in guest.list_tokens()]
        )
        calls = guest.read_systemctl_calls()
        self.assertIn("restart nvidia-gridd.service", calls)

    def test_a_guest_without_a_vgpu_gets_no_token(self) -> None:
        """Not even one whose GPU is no vGPU."""
        guest = self.boot_guest({})
        self.assertEqual([], guest.list_vendor_scripts())
        self.assertEqual([], guest.list_tokens())
