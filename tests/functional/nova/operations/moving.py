# SPDX-License-Identifier: Apache-2.0
"""Two hosts between which the fake libvirt moves running guests."""

from collections.abc import Callable
from typing import Any

import fixtures
from nova import objects

from tests.functional.nova.support import harness

# The first that move a VF's state (virt_hooks needs no less).
LIBVIRT = 10_000_000
QEMU = 8_002_002


class LiveBase(harness.AccelTestBase):
    """Servers of host1 that can be moved to host2 while they run."""

    CARDS: tuple[Any, ...] = ()
    #: Whether libvirt can move a guest, and where to.
    arrives = True
    goes_to = "host2"

    def setUp(self) -> None:
        super().setUp()
        #: Done while the guest is on its way.
        self.meanwhile: Callable[[], None] = lambda: None
        #: XML of the guests that libvirt moved, for the destination.
        self.destination_xmls: list[str] = []
        self.useFixture(
            fixtures.MonkeyPatch(
                "nova.tests.fixtures.libvirt.Domain.migrateToURI3",
                self._migrate,
            )
        )
        for name in ("host1", "host2"):
            self.start_host(*self.CARDS, name=name, **self.settings(name))

    def settings(self, _name: str) -> dict[str, Any]:
        """Return the options of ``[nova_accel]`` on a host."""
        return {}

    def _get_connection(self, *args: Any, **kwargs: Any) -> Any:
        connection = super()._get_connection(*args, **kwargs)
        connection.fakeLibVersion, connection.fakeVersion = LIBVIRT, QEMU
        return connection

    def _migrate(
        self, domain: Any, _uri: str, params: Any, flags: int
    ) -> None:
        """Do as libvirt does: the guest runs there, or still here."""
        xml = params["destination_xml"]
        self.destination_xmls.append(xml)
        self.meanwhile()
        if not self.arrives:
            domain.fail_job()
            return
        there = self.computes[self.goes_to].driver._host.get_connection()
        there.defineXML(xml).createWithFlags(0)
        here = domain._connection
        domain._release_devices()
        here._vms.pop(domain.name())
        domain.complete_job()

    def restart_destination(self) -> None:
        """Restart host2, as far as Nova's harness can in a migration."""
        driver = self.computes["host2"].driver
        store = driver._accel.store
        for claims in (store._claims, store._made, store._restored):
            claims.clear()
        hooks = driver._hooks
        hooks.partitions.startup_servers.__init__(driver._accel)
        self.be_on("host2")
        self.computes["host2"].manager.update_available_resource(self.context)
        self.be_on("host1")

    def assert_holds(self, server: Any, card: str, host: str) -> None:
        """Check Nova, Placement and the claims for a server's one card."""
        provider = self.provider(card, host)
        self.assertEqual({provider}, {rp for rp, _, _ in self.slots(server)})
        self.assertEqual({provider}, set(self.allocations(server)))
        claims = self.computes[host].driver._accel.claims_of(server["id"])
        self.assertEqual(
            sorted(self.slots(server)),
            sorted((c.provider, "VGPU", c.slot) for c in claims),
        )
        self.assertEqual(
            sorted(
                (
                    *self.mdevs_of(server, host),
                    *self.functions_of(server, host),
                )
            ),
            sorted(c.handle for c in claims),
        )
        instance = objects.Instance.get_by_uuid(self.context, server["id"])
        self.assertEqual(host, instance.host)
        self.assertIsNone(instance.migration_context)

    def reasons(self, server: Any) -> str:
        """Return the details of a server's last action."""
        action = self.api.get_instance_actions(server["id"])[0]
        events = self.api.api_get(
            f"/servers/{server['id']}/os-instance-actions"
            f"/{action['request_id']}"
        ).body["instanceAction"]["events"]
        return " ".join(str(event.get("details")) for event in events)
