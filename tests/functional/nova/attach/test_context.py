# SPDX-License-Identifier: Apache-2.0
"""nova-compute checks the policy with the caller's context."""

from typing import Any

import pytest
from keystoneauth1 import exceptions
from keystoneauth1.access import service_catalog

from placement_sync.client import cloud_client
from placement_sync.fleet import compute_rpc, host_bus
from tests.functional.nova.attach import attaching
from tests.functional.nova.support import harness, technologies

HOST = "http://cloud.example"


def service(kind: str, *regions: str) -> dict[str, Any]:
    """Return a service as Keystone's catalog of version 3 has it."""
    return {
        "id": kind,
        "type": kind,
        "name": f"the {kind}",
        "endpoints": [
            {
                "id": f"{region} {interface}",
                "interface": interface,
                "region": region,
                "region_id": region,
                "url": f"{HOST}/{region}/{interface}/{kind}",
            }
            for region in regions
            for interface in ("public", "internal", "admin")
        ],
    }


CATALOG = (service("image", "north", "south"), service("compute", "south"))


def make_identity(
    *roles: str, project: str = "films"
) -> cloud_client.Identity:
    return cloud_client.Identity(
        token="a token",  # noqa: S106
        user="ann",
        project=project,
        roles=roles,
        catalog=CATALOG,
    )


class Context(attaching.AttachingTestBase):
    technology = technologies.MDEV

    @pytest.mark.long
    def test_catalog_version_2_has_the_same_endpoints(self) -> None:
        old = service_catalog.ServiceCatalogV2(
            list(compute_rpc.build_v2_catalog(CATALOG))
        )
        new = service_catalog.ServiceCatalogV3(list(CATALOG))
        for kind in ("image", "compute"):
            for region in ("north", "south"):
                for interface in ("public", "internal", "admin"):
                    words = {
                        "service_type": kind,
                        "region_name": region,
                        "interface": interface,
                    }
                    try:
                        url = new.url_for(**words)
                    except exceptions.EndpointNotFound:
                        with self.assertRaises(exceptions.EndpointNotFound):
                            old.url_for(**words)
                    else:
                        self.assertEqual(url, old.url_for(**words))

    def test_callers(self) -> None:
        """Nova's policy decides; the token is passed to nova-compute."""
        self.start_hosts("host1")
        server = self.boot(harness.vgpu_group("_A", "4Q"))
        contexts = []
        driver = self.computes["host1"].driver
        attach_show = driver._hooks.operations.by_name[
            "hot_attach"
        ].attach_show
        stock = attach_show.show

        def show(context: Any, uuid: str) -> Any:
            contexts.append(context)
            return stock(context, uuid)

        attach_show.show = show
        bus = compute_rpc.ComputeRpc(())
        words = {"server": server["id"]}
        member = make_identity("member")
        with pytest.raises(host_bus.RpcRefusedError, match="no such server"):
            bus.call("host1", "show", False, member, **words)
        self.assertEqual([], contexts)
        for identity in (make_identity("admin"), None):
            bus.call("host1", "show", False, identity, **words)
        ann, local_admin = contexts
        self.assertEqual("a token", ann.auth_token)
        self.assertEqual(("ann", "films"), (ann.user_id, ann.project_id))
        self.assertEqual(
            f"{HOST}/north/public/image",
            ann.get_auth_plugin().get_endpoint(
                None,
                service_type="image",
                region_name="north",
                interface="public",
            ),
        )
        self.assertTrue(local_admin.is_admin)
        self.assertIsNone(local_admin.auth_token)

    @pytest.mark.long
    def test_an_owner_sees_what_a_server_has_and_not_where(self) -> None:
        self.start_hosts("host1")
        server = self.boot(harness.vgpu_group("_A", "4Q"))
        owner = make_identity(
            "member", project=self.instance(server).project_id
        )
        bus = compute_rpc.ComputeRpc(())
        answer = bus.call("host1", "show", False, owner, server=server["id"])
        (record,) = answer["accelerators"]
        self.assertEqual("T4-4Q", record["profile"])
        self.assertEqual(
            {""},
            {answer["host"], record["device"], record["handle"]},
        )
        with pytest.raises(
            host_bus.RpcRefusedError, match=r"allow.*You may show here"
        ):
            bus.call(
                "host1",
                "attach",
                False,
                owner,
                server=server["id"],
                profile="T4-4Q",
            )
