# SPDX-License-Identifier: Apache-2.0
"""Nova's metadata has the licence token, for servers with a vGPU only."""

import json
import pathlib
import threading
from collections.abc import Iterable, Mapping
from typing import Any
from wsgiref import simple_server

import fixtures
from nova.api.metadata import base

from nova_accel.cli import commands
from placement_sync.client import rest
from placement_sync.licenses import guest_script, tokens, vendordata, wsgi
from tests.functional.nova.support import harness
from tests.support import license_tokens

FOUR = harness.vgpu_group("_A", "4Q")
PATH = "openstack/latest/vendor_data2.json"
#: As keystonemiddleware sets them for a service's token.
HEADERS = {"HTTP_X_IDENTITY_STATUS": "Confirmed", "HTTP_X_ROLES": "service"}


class QuietHandler(simple_server.WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log nothing."""


class Vendordata(harness.AccelTestBase):
    def setUp(self) -> None:
        super().setUp()
        place = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.text = license_tokens.build()
        license_tokens.write(place, "default", self.text)
        application = wsgi.VendordataApplication(
            vendordata.LicenseService(
                tokens.TokenStore(str(place)),
                rest.from_endpoint(self.placement.fixture.endpoint),
            )
        )

        def serve(
            environment: Mapping[str, Any], start_response: Any
        ) -> Iterable[bytes]:
            return application({**environment, **HEADERS}, start_response)

        server = simple_server.make_server(
            "127.0.0.1", 0, serve, handler_class=QuietHandler
        )
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.flags(
            # Nova's config drive fails without StaticJSON.
            vendordata_providers=["StaticJSON", "DynamicJSON"],
            vendordata_dynamic_targets=[
                f"cloud-init@http://127.0.0.1:{server.server_port}/"
            ],
            group="api",
        )

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

    def test_a_server_without_a_vgpu_has_no_token(self) -> None:
        self.start_host(*harness.TWO_T4)
        metadata = self.read(self.boot({}))
        self.assertEqual("", self.lookup(metadata)["cloud-init"])

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
