# SPDX-License-Identifier: Apache-2.0
"""Assertion that Nova, Placement, claims, domains and kernel agree."""

import collections
from pathlib import Path
from typing import Any

from lxml import etree
from nova import objects
from nova.compute import vm_states
from nova.tests.fixtures import libvirt as fakelibvirt

from nova_accel.model import names
from tests.functional.nova.fpga import test_fpga
from tests.functional.nova.support import harness
from virt_hooks.guest import connection
from virt_hooks.instance import slots

_VFIO = "vfio-pci"
Held = dict[str, set[tuple[str, str]]]


class AgreementTestBase(harness.AccelTestBase):
    """Hosts of which all that is known of their cards is compared."""

    image = test_fpga.Fpga.image

    def setUp(self) -> None:
        super().setUp()
        #: Servers that move away, by their moves.
        self.moving: dict[str, str] = {}
        #: Servers of the host that is looked at.
        self.staying: set[str] = set()
        #: Function of a region by the image that has it.
        self.loads: dict[str, str] = {}

    def image_of(self, function: str) -> str:
        """Return the id of an image that has a region's function."""
        known = {held: image for image, held in self.loads.items()}
        if function not in known:
            image = self.image(function)
            self.loads[image] = function
        return known.get(function) or image

    def assert_agreement(
        self, where: str, is_passed: bool = False, *hosts: str
    ) -> None:
        """Check all hosts, or some.

        :param where: words for what was done, which a failure shows.
        :param is_passed: check again after Nova's periodic pass.
        """
        for host in hosts or self.hosts:
            self._assert_host(host, f"{where}, on {host}")
        if is_passed:
            self.run_periodics()
            self.assert_agreement(f"{where} and a pass")

    def _assert_host(self, host: str, told: str) -> None:
        here, away = self._nova(host)
        both = here | away
        self.assertEqual(
            {who: self._counted(held) for who, held in both.items()},
            self._placement(host),
            f"Nova and Placement, {told}",
        )
        claims = self.computes[host].driver._accel.claims()
        self.assertEqual(
            sorted(place for held in both.values() for place in held),
            sorted((claim.provider, claim.slot) for claim in claims),
            f"Nova and our book, {told}",
        )
        defined = self._domains(host, here, away, claims, told)
        self._kernel(host, claims, defined, told)
        for uuid in self._cards(host):
            for record in self._get_provider_inventory(uuid).values():
                self.assertEqual(0, record["reserved"], told)

    def assert_no_more(self, where: str, *hosts: str) -> None:
        """Check that nothing is held, or made, that is not booked.

        For servers that failed: what is booked for them need not be made.
        """
        for host in hosts or self.hosts:
            told = f"{where}, on {host}"
            here, away = self._nova(host)
            both = here | away
            self.assertEqual(
                {who: self._counted(held) for who, held in both.items()},
                self._placement(host),
                f"Nova and Placement, {told}",
            )
            claims = self.computes[host].driver._accel.claims()
            held = {(claim.provider, claim.slot) for claim in claims}
            booked = {place for places in both.values() for place in places}
            self.assertEqual(set(), held - booked, f"not booked, {told}")
            made = {c.handle for c in claims if c.technology == "mdev"}
            self.assertEqual(set(), self.hosts[host].mdevs().keys() - made)

    # -- what each of them says --------------------------------------------

    def _nova(self, host: str) -> tuple[Held, Held]:
        """Return slots by consumer: servers of a host, and moves from it."""
        here: Held = {}
        away: Held = {}
        self.staying.clear()
        for instance in objects.InstanceList.get_by_filters(
            self.context,
            {"deleted": False},
            expected_attrs=["resources", "migration_context", "flavor"],
        ):
            if instance.host == host:
                self.staying.add(instance.uuid)
                self._note(here, instance.uuid, instance.resources, host)
            moved = instance.migration_context
            if moved is None or instance.vm_state != vm_states.RESIZED:
                continue
            migration = objects.Migration.get_by_id(
                self.context, moved.migration_id
            )
            if migration.source_compute == host:
                self._note(away, migration.uuid, moved.old_resources, host)
                self.moving[migration.uuid] = instance.uuid
        return here, away

    def _note(self, held: Held, who: str, resources: Any, host: str) -> None:
        root = self.compute_rp_uuids[host]
        if found := {
            (slot.provider, slot.identifier)
            for slot in slots.of_resources(resources)
            if slot.provider != root
        }:
            held[who] = found

    def _counted(self, held: set[tuple[str, str]]) -> dict[str, int]:
        return dict(collections.Counter(provider for provider, _ in held))

    def _cards(self, host: str) -> list[str]:
        root = self.compute_rp_uuids[host]
        tree = self._get_all_rps_in_a_tree(root)
        return [r["uuid"] for r in tree if r["uuid"] != root]

    def _placement(self, host: str) -> dict[str, dict[str, int]]:
        """Return how many slots are allocated, by consumer and provider."""
        found: dict[str, dict[str, int]] = {}
        for uuid in self._cards(host):
            path = f"/resource_providers/{uuid}/allocations"
            answer = self.placement.get(path).body["allocations"]
            for consumer, record in answer.items():
                count = next(
                    amount
                    for name, amount in record["resources"].items()
                    if name not in names.MEASURES
                )
                found.setdefault(consumer, {})[uuid] = count
        return found

    def _domains(
        self, host: str, here: Held, away: Held, claims: Any, told: str
    ) -> set[str]:
        """Check each domain; return what those have that run."""
        connected = self.computes[host].driver._host.get_connection()
        running: set[str] = set()
        for domain in connected._vms.values():
            uuid = domain.UUIDString()
            held = here.get(uuid, set())
            if uuid not in self.staying:
                moves = [m for m, u in self.moving.items() if u == uuid]
                held = set().union(*(away.get(m, set()) for m in moves))
            wanted = {
                handle
                for claim in claims
                if (claim.provider, claim.slot) in held
                for handle in (claim.handle, *claim.members)
            }
            defined = domain.XMLDesc(fakelibvirt.VIR_DOMAIN_XML_INACTIVE)
            self.assertEqual(wanted, _handles(defined), f"{uuid}, {told}")
            if domain.isActive():
                self.assertEqual(
                    _hostdevs(defined),
                    _hostdevs(domain.XMLDesc(0)),
                    f"running {uuid}, {told}",
                )
                running |= wanted
        present = {d.UUIDString() for d in connected._vms.values()}
        self.assertEqual(set(), here.keys() - present, told)
        return running

    def _kernel(
        self, host: str, claims: Any, running: set[str], told: str
    ) -> None:
        simulated = self.hosts[host]
        bus = Path(simulated.root) / "sys/bus/pci/devices"
        typed = {
            path.parent.parent.name
            for path in bus.glob("*/nvidia/current_vgpu_type")
            if path.read_text().strip() != "0"
        }
        mdevs, functions = simulated.mdevs(), simulated.functions()
        self.assertEqual(
            {
                claim.handle
                for claim in claims
                if claim.technology in ("mdev", "vendor-vfio")
            },
            set(mdevs) | typed,
            f"claims and kernel, {told}",
        )
        self.assertEqual(
            running,
            {
                name
                for name, record in (mdevs | functions).items()
                if record["in_use"]
            },
            f"guests and kernel, {told}",
        )
        idle = functions.keys() - running
        self.assertEqual(
            [], [n for n in idle if functions[n]["driver"] == _VFIO], told
        )
        for claim in claims:
            if claim.image:
                (part,) = simulated.fpgas()[claim.region.card]["parts"]
                self.assertEqual(
                    self.loads[claim.image], part["function"], told
                )


def _hostdevs(text: str) -> list[str]:
    """Return the hostdev elements of a domain, whole."""
    found = etree.fromstring(text).findall("./devices/hostdev")
    return sorted(etree.tostring(e, method="c14n").decode() for e in found)


def _handles(text: str) -> set[str]:
    use = connection.parse_hostdevs(text)
    found = {*use.mdevs, *use.functions}
    assert len(_hostdevs(text)) == len(found), text  # none twice
    return found
