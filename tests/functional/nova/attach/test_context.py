# SPDX-License-Identifier: Apache-2.0
"""nova-compute checks the policy with the caller's context."""

from typing import Any

import pytest
from keystoneauth1 import exceptions
from keystoneauth1.access import service_catalog

from placement_sync.client import compute_rpc, rest
from tests.functional.nova.attach import attaching
from tests.functional.nova.support import harness, technologies

HOST = "http://cloud.example"


def service(kind: str, *regions: str) -> dict[str, Any]:
    """Return a service as Keystone's catalogue of version 3 has it."""
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


def asker(
    *roles: str, is_administrator: bool = False, project: str = "films"
) -> compute_rpc.RequestIdentity:
    identity = rest.Identity(
        token="a token",  # noqa: S106
        user="ann",
        project=project,
        roles=roles,
        catalog=CATALOG,
    )
    return compute_rpc.RequestIdentity(identity, is_administrator)


class Context(attaching.AttachingTestBase):
    technology = technologies.MDEV

    def test_the_old_catalogue_says_the_same(self) -> None:
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

    def test_who_may(self) -> None:
        """By Nova's policy; a token goes on to nova-compute."""
        self.start_hosts("host1")
        server = self.boot(harness.vgpu_group("_A", "4Q"))
        seen = []
        driver = self.computes["host1"].driver
        stock = driver.show_accelerators

        def show(context: Any, uuid: str) -> Any:
            seen.append(context)
            return stock(context, uuid)

        driver.show_accelerators = show
        bus = compute_rpc.ComputeRpc(())
        words = {"server": server["id"]}
        own = self.instance(server).project_id
        for project, reason in (
            (own, "doesn't allow"),
            ("films", "no such server"),
        ):
            member = asker("member", project=project)
            with pytest.raises(compute_rpc.RpcRefusedError, match=reason):
                bus.call("host1", "show", False, member, **words)
        self.assertEqual([], seen)
        for one in (
            asker("admin"),
            asker("service", is_administrator=True),
            None,
        ):
            bus.call("host1", "show", False, one, **words)
        ann, nova, nobody = seen
        for context in (ann, nova):
            self.assertEqual("a token", context.auth_token)
            self.assertEqual(
                ("ann", "films"), (context.user_id, context.project_id)
            )
            plugin = context.get_auth_plugin()
            self.assertEqual(
                f"{HOST}/north/public/image",
                plugin.get_endpoint(
                    None,
                    service_type="image",
                    region_name="north",
                    interface="public",
                ),
            )
        self.assertTrue(nova.is_admin)
        self.assertTrue(nobody.is_admin)
        self.assertIsNone(nobody.auth_token)
