# SPDX-License-Identifier: Apache-2.0
"""One law: Nova, Placement, libvirt and the kernel say the same of mdevs."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import libvirt

from nova_accel.model import names
from tests.e2e.support.site import Site
from tests.lab.cloud import actual_state
from tests.lab.cloud.hosts import Host

Slots = frozenset[tuple[str, str]]


class Agreement:
    """Comparison of Placement, Nova, libvirt and the kernel about mdevs."""

    def __init__(self, lab: Site, hosts: Sequence[Host]) -> None:
        """Take the hosts; those that are off are not to be among them."""
        self._lab = lab
        self._hosts = tuple(hosts)

    def check(self, occasion: str) -> dict[str, dict[str, str]]:
        """Compare; return the types of each host's mdevs, by their uuids.

        :param occasion: what was done before, which a failure shows.
        """
        records = tuple(actual_state.consumer_slots(self._lab.layout))
        mdevs = {}
        for host in self._hosts:
            words = f"{occasion}, on {host.name}"
            mdevs[host.name] = self._check_host(host, records, words)
        return mdevs

    def _check_host(
        self,
        host: Host,
        records: Sequence[actual_state.ConsumerSlots],
        occasion: str,
    ) -> dict[str, str]:
        mark = f"{host.node}_accel_"
        listed = self._lab.provider_names().items()
        cards = {uuid for uuid, name in listed if mark in name}
        here = [record for record in records if record.host == host.name]
        claimed = {
            record.consumer: slots
            for record in here
            if (slots := _below(record.slots, cards))
        }
        allocated = self._count_allocated(cards)
        counted = {who: len(slots) for who, slots in claimed.items()}
        assert allocated == counted, f"Placement and Nova, {occasion}"

        staying = {
            record.server
            for record in here
            if record.consumer == record.server
        }
        expected = {
            # Where a server was resized its domain has what is new.
            record.server: _handles(_below(record.slots, cards))
            for record in here
            if record.consumer == record.server or record.server not in staying
        }
        defined = domains(host)
        assert defined == expected, f"domains and Nova, {occasion}"

        mdevs = host.mdevs()
        everything = set().union(*map(_handles, claimed.values()))
        assert set(mdevs) == everything, f"the kernel and Nova, {occasion}"
        return mdevs

    def _count_allocated(self, cards: set[str]) -> dict[str, int]:
        """Return how many units of some cards each consumer has."""
        units: dict[str, int] = {}
        for card in sorted(cards):
            for who, resources in self._lab.consumers(card).items():
                count = sum(
                    amount
                    for name, amount in resources.items()
                    if name not in names.MEASURES
                )
                units[who] = units.get(who, 0) + count
        return units


def domains(host: Host) -> dict[str, set[str]]:
    """Return the mdevs of each domain that a host's libvirt has.

    A guest that runs has what its definition has.
    """
    mdevs = {}
    for domain in _domains(host):
        definition = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
        listed = actual_state.hostdev_sources(definition, "mdev")
        mdevs[domain.UUIDString()] = set(listed)
        assert len(listed) == len(set(listed)), definition
        if domain.isActive():
            live = domain.XMLDesc(0)
            assert actual_state.hostdev_sources(live, "mdev") == listed, live
    return mdevs


def running(host: Host) -> set[str]:
    """Return the servers whose guests run on a host, as libvirt says."""
    return {d.UUIDString() for d in _domains(host) if d.isActive()}


def _domains(host: Host) -> Iterator[Any]:
    with contextlib.closing(libvirt.openReadOnly(host.libvirt_uri)) as to:
        yield from to.listAllDomains(0)


def _below(slots: Slots, cards: set[str]) -> Slots:
    return frozenset(slot for slot in slots if slot[0] in cards)


def _handles(slots: Slots) -> set[str]:
    return {names.mdev_uuid(provider, slot) for provider, slot in slots}
