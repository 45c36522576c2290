# SPDX-License-Identifier: Apache-2.0
"""Users without Nova's message bus reach nova-compute by the gateway.

keystonemiddleware and openstacksdk are real; a substitute for Keystone
issues and validates the tokens.
"""

import contextlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fixtures
import pytest
import requests
from nova import context
from nova.tests import fixtures as nova_fixtures
from oslo_config import cfg

from nova_accel import errors
from placement_sync.client import cloud_client, rest
from placement_sync.daemon import json_application
from placement_sync.fleet import compute_rpc
from placement_sync.fleet.gateway import methods, wsgi
from tests.functional.nova.attach import attaching
from tests.functional.nova.support import harness, technologies
from tests.functional.sync.commands import programs
from tests.functional.sync.fleet import wsgi_server
from tests.functional.sync.support import identity

PROFILE = "T4-4Q"
FOUR = harness.vgpu_group("_A", "4Q")


def _read_token(env: Mapping[str, Any], **words: Any) -> Any:
    """Return the context of a token ``user:project`` for Nova's API.

    Nova's own substitute for Keystone has no tokens.
    """
    default = f"admin:{nova_fixtures.PROJECT_ID}"
    user, _, project = env.get("HTTP_X_AUTH_TOKEN", default).partition(":")
    is_admin = user == "admin"
    roles = ["member", "reader", *["admin"] * is_admin]
    return context.RequestContext(
        user, project, is_admin=is_admin, roles=roles, **words
    )


class Gateway(attaching.AttachingTestBase):
    technology = technologies.MDEV

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(
            fixtures.MonkeyPatch(
                "nova.api.auth.NovaKeystoneContext._create_context",
                _read_token,
            )
        )
        self.start_hosts("host1")
        self.server = self.boot(FOUR)
        instance = self.instance(self.server)
        self.keystone = self._enter(
            identity.Identity(self.placement.fixture.endpoint).running()
        )
        self.keystone.project = instance.project_id
        self.become("ann", "member")
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        path = wsgi_server.write_conf(directory, self.keystone.url)
        parsed = cfg.ConfigOpts()
        parsed(["--config-file", path], default_config_files=[])
        nova = cloud_client.from_endpoint(
            self.api_fixture.base_url,
            f"admin:{instance.project_id}",
            rest.COMPUTE,
        )
        self.url = self._enter(
            wsgi_server.serving(
                json_application.authenticated(
                    wsgi.GatewayApplication(compute_rpc.ComputeRpc(()), nova),
                    parsed,
                )
            )
        )
        self.keystone.services = {
            "compute": self.api_fixture.base_url,
            methods.SERVICE.name: self.url,
        }
        clouds = wsgi_server.write_clouds(directory, self.keystone.url)
        self.useFixture(
            fixtures.EnvironmentVariable("OS_CLIENT_CONFIG_FILE", clouds)
        )

    def become(self, user: str, *roles: str) -> None:
        """Let Keystone issue tokens of a user from now on."""
        self.keystone.user, self.keystone.roles = user, [*roles]
        # Nova's API reads both from the token, see _read_token.
        self.keystone.text = f"{user}:{self.keystone.project}"

    def become_operator(self) -> None:
        self.become("admin", "member", "admin")

    def execute(self, *words: str, status: int = 0) -> str:
        return self.run_command(*words, "--os-cloud", "north", status=status)

    def test_an_owner_sees_what_the_server_has(self) -> None:
        table = self.execute("show", self.server["id"])
        self.assertIn(PROFILE, table)
        self.assertNotIn("host1", table)

    @pytest.mark.long
    def test_policy_of_nova_compute_decides(self) -> None:
        words = ("attach", self.server["id"], "--profile", PROFILE)
        before = self.collect_state(self.server)
        refusal = self.execute(*words, status=1)
        self.assertIn("Policy doesn't allow", refusal)
        self.assertIn("You may show here.", refusal)
        self.assertEqual(before, self.collect_state(self.server))
        self.become_operator()
        self.assertIn("Attached attached-1", self.execute(*words))
        self.assertIn(
            "Detached attached-1", self.execute("detach", self.server["id"])
        )

    @pytest.mark.long
    def test_an_operator_drains_and_undrains(self) -> None:
        self.become_operator()
        card = f"host1/{harness.T4}"
        words = ("--os-cloud", "north")
        drained = ("set", card, "--drain", "--reason", "a loud fan")
        self.assertEqual(0, programs.main(["device", *drained, *words]))
        address = harness.T4
        marks = (
            self.computes["host1"]
            .driver._hooks.operations.by_name["hot_attach"]
            .marks.read_drains()
        )
        self.assertEqual("a loud fan", marks[address].reason)
        undrained = ("set", card, "--undrain")
        self.assertEqual(0, programs.main(["device", *undrained, *words]))
        marks = (
            self.computes["host1"]
            .driver._hooks.operations.by_name["hot_attach"]
            .marks.read_drains()
        )
        self.assertEqual({}, marks)

    @pytest.mark.long
    def test_an_operator_sees_what_is_not_offered(self) -> None:
        listed = ("--all", "--os-cloud", "north")
        self.become_operator()
        with contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertEqual(0, programs.main(["device", "list", *listed]))
        self.assertNotIn("Not known", out.getvalue())
        self.become("ann", "member")
        path = methods.build_path("list_unoffered", "host1")
        client = cloud_client.from_cloud("north", service=methods.SERVICE)
        with self.assertRaises(errors.ServiceError) as caught:
            client.post(path, {})
        self.assertIn("Policy doesn't allow", str(caught.exception))

    def test_another_project_s_server_does_not_exist(self) -> None:
        self.keystone.project = "films"
        client = cloud_client.from_cloud("north", service=methods.SERVICE)
        for uuid in (
            self.server["id"],
            "5e9ea9ab-0a47-4ac6-9a7e-2a0d1b8de5c4",
        ):
            path = methods.build_path("show", uuid)
            with self.assertRaises(Exception) as caught:
                client.post(path, {})
            self.assertIn("there is no such server", str(caught.exception))

    def test_headers_of_a_client_are_not_trusted(self) -> None:
        url = self.url + methods.build_path("show", self.server["id"])
        forged = {
            "X-Identity-Status": "Confirmed",
            "X-Roles": "admin",
            "X-Auth-Token": "unknown",
        }
        answer = requests.post(url, json={}, headers=forged, timeout=30)
        self.assertEqual(401, answer.status_code)
