# SPDX-License-Identifier: Apache-2.0
"""Assertion that Nova, Placement, claims, domains and kernel agree."""

import collections
from typing import Any

from lxml import etree
from nova import objects
from nova.compute import vm_states
from nova.tests.fixtures import libvirt as fakelibvirt

from nova_accel.model import names
from tests.functional.nova.fpga import test_fpga
from tests.functional.nova.support import harness
from virt_hooks.guest import connection
from virt_hooks.instance import instance_request

_VFIO = "vfio-pci"
SlotsByConsumer = dict[str, set[tuple[str, str]]]


class AgreementTestBase(harness.AccelTestBase):
    """Hosts whose records of their cards are compared with each other."""

    image = test_fpga.Fpga.image

    def setUp(self) -> None:
        super().setUp()
        #: Servers that move away, by their moves.
        self.moving: dict[str, str] = {}
        #: Servers of the host under comparison.
        self.staying: set[str] = set()
        #: Function of a region by the image that has it.
        self.loads: dict[str, str] = {}

    def image_of(self, function: str) -> str:
        """Return the id of an image that has a region's function."""
        images = {loaded: image for image, loaded in self.loads.items()}
        if function not in images:
            image = self.image(function)
            self.loads[image] = function
        return images.get(function) or image

    def assert_agreement(
        self, where: str, is_passed: bool = False, *hosts: str
    ) -> None:
        """Check all hosts, or the hosts given.

        :param where: description of the last step, for the failure.
        :param is_passed: check again after Nova's periodic pass.
        """
        for host in hosts or self.hosts:
            self._assert_host(host, f"{where}, on {host}")
        if is_passed:
            self.run_periodics()
            self.assert_agreement(f"{where} and a pass")

    def _assert_host(self, host: str, where: str) -> None:
        here, away = self._read_nova(host)
        both = here | away
        self.assertEqual(
            {
                consumer: self._count_by_provider(assigned)
                for consumer, assigned in both.items()
            },
            self._read_placement(host),
            f"Nova and Placement, {where}",
        )
        claims = self.computes[host].driver._accel.claims()
        self.assertEqual(
            sorted(slot for assigned in both.values() for slot in assigned),
            sorted((claim.provider, claim.slot) for claim in claims),
            f"Nova and the claims, {where}",
        )
        defined = self._check_domains(host, here, away, claims, where)
        self._check_kernel(host, claims, defined, where)
        for uuid in self._list_cards(host):
            for record in self._get_provider_inventory(uuid).values():
                self.assertEqual(0, record["reserved"], where)

    def assert_no_leaks(self, where: str, *hosts: str) -> None:
        """Check that each claim and each mdev belongs to an assigned slot.

        For servers that failed: an assigned slot of theirs needs no device.
        """
        for host in hosts or self.hosts:
            step = f"{where}, on {host}"
            here, away = self._read_nova(host)
            both = here | away
            self.assertEqual(
                {
                    consumer: self._count_by_provider(assigned)
                    for consumer, assigned in both.items()
                },
                self._read_placement(host),
                f"Nova and Placement, {step}",
            )
            claims = self.computes[host].driver._accel.claims()
            claimed = {(claim.provider, claim.slot) for claim in claims}
            assigned = {slot for owned in both.values() for slot in owned}
            self.assertEqual(
                set(), claimed - assigned, f"not assigned, {step}"
            )
            made = {c.handle for c in claims if c.technology == "mdev"}
            self.assertEqual(set(), self.hosts[host].mdevs().keys() - made)

    # -- what each record contains ------------------------------------------

    def _read_nova(self, host: str) -> tuple[SlotsByConsumer, SlotsByConsumer]:
        """Return slots by consumer: servers of a host, and moves from it."""
        here: SlotsByConsumer = {}
        away: SlotsByConsumer = {}
        self.staying.clear()
        for instance in objects.InstanceList.get_by_filters(
            self.context,
            {"deleted": False},
            expected_attrs=["resources", "migration_context", "flavor"],
        ):
            if instance.host == host:
                self.staying.add(instance.uuid)
                self._add_slots(here, instance.uuid, instance.resources, host)
            moved = instance.migration_context
            if moved is None or instance.vm_state != vm_states.RESIZED:
                continue
            migration = objects.Migration.get_by_id(
                self.context, moved.migration_id
            )
            # Nova saves that a resize is confirmed before it saves the
            # server, whose old slots are free then: it can't be reverted.
            is_ended = migration.status == "confirmed"
            if migration.source_compute == host and not is_ended:
                self._add_slots(
                    away, migration.uuid, moved.old_resources, host
                )
                self.moving[migration.uuid] = instance.uuid
        return here, away

    def _add_slots(
        self,
        slots_by_consumer: SlotsByConsumer,
        consumer: str,
        resources: Any,
        host: str,
    ) -> None:
        root = self.compute_rp_uuids[host]
        if assigned := {
            (slot.provider, slot.identifier)
            for slot in instance_request.slots_of(resources)
            if slot.provider != root
        }:
            slots_by_consumer[consumer] = assigned

    def _count_by_provider(
        self, assigned: set[tuple[str, str]]
    ) -> dict[str, int]:
        return dict(collections.Counter(provider for provider, _ in assigned))

    def _list_cards(self, host: str) -> list[str]:
        root = self.compute_rp_uuids[host]
        tree = self._get_all_rps_in_a_tree(root)
        return [r["uuid"] for r in tree if r["uuid"] != root]

    def _read_placement(self, host: str) -> dict[str, dict[str, int]]:
        """Return how many slots are allocated, by consumer and provider."""
        counts: dict[str, dict[str, int]] = {}
        for uuid in self._list_cards(host):
            path = f"/resource_providers/{uuid}/allocations"
            answer = self.placement.get(path).body["allocations"]
            for consumer, record in answer.items():
                count = next(
                    amount
                    for name, amount in record["resources"].items()
                    if name not in names.MEASURES
                )
                counts.setdefault(consumer, {})[uuid] = count
        return counts

    def _check_domains(
        self,
        host: str,
        here: SlotsByConsumer,
        away: SlotsByConsumer,
        claims: Any,
        where: str,
    ) -> set[str]:
        """Check each domain; return the handles of those that run."""
        connected = self.computes[host].driver._host.get_connection()
        running: set[str] = set()
        for domain in connected._vms.values():
            uuid = domain.UUIDString()
            assigned = here.get(uuid, set())
            if uuid not in self.staying:
                moves = [m for m, u in self.moving.items() if u == uuid]
                assigned = set().union(*(away.get(m, set()) for m in moves))
            handles = {
                handle
                for claim in claims
                if (claim.provider, claim.slot) in assigned
                for handle in (claim.handle, *claim.members)
            }
            defined = domain.XMLDesc(fakelibvirt.VIR_DOMAIN_XML_INACTIVE)
            self.assertEqual(handles, _handles(defined), f"{uuid}, {where}")
            if domain.isActive():
                self.assertEqual(
                    _hostdevs(defined),
                    _hostdevs(domain.XMLDesc(0)),
                    f"running {uuid}, {where}",
                )
                running |= handles
        present = {d.UUIDString() for d in connected._vms.values()}
        self.assertEqual(set(), here.keys() - present, where)
        return running

    def _check_kernel(
        self, host: str, claims: Any, running: set[str], where: str
    ) -> None:
        simulated = self.hosts[host]
        mdevs, functions = simulated.mdevs(), simulated.functions()
        self.assertEqual(
            {
                claim.handle
                for claim in claims
                if claim.technology in ("mdev", "vendor-vfio")
            },
            {*mdevs, *self.vgpu_types(host)},
            f"claims and kernel, {where}",
        )
        self.assertEqual(
            running,
            {
                name
                for name, record in (mdevs | functions).items()
                if record["in_use"]
            },
            f"guests and kernel, {where}",
        )
        idle = functions.keys() - running
        self.assertEqual(
            [], [n for n in idle if functions[n]["driver"] == _VFIO], where
        )
        for claim in claims:
            if claim.image:
                (part,) = simulated.fpgas()[claim.region.card]["parts"]
                self.assertEqual(
                    self.loads[claim.image], part["function"], where
                )


def _hostdevs(text: str) -> list[str]:
    """Return the hostdev elements of a domain, whole."""
    elements = etree.fromstring(text).findall("./devices/hostdev")
    return sorted(etree.tostring(e, method="c14n").decode() for e in elements)


def _handles(text: str) -> set[str]:
    use = connection.parse_hostdevs(text)
    handles = {*use.mdevs, *use.functions}
    assert len(_hostdevs(text)) == len(handles), text  # none twice
    return handles
