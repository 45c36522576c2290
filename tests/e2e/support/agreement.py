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
    """What all of them know of some hosts' mdevs, compared."""

    def __init__(self, lab: Site, hosts: Sequence[Host]) -> None:
        """Take the hosts; those that are off are not to be among them."""
        self._lab = lab
        self._hosts = tuple(hosts)

    def check(self, told: str) -> dict[str, dict[str, str]]:
        """Compare; return the types of each host's mdevs, by their uuids.

        :param told: words for what was done, which a failure shows.
        """
        held = tuple(actual_state.consumer_slots(self._lab.layout))
        found = {}
        for host in self._hosts:
            words = f"{told}, on {host.name}"
            found[host.name] = self._check_host(host, held, words)
        return found

    def _check_host(
        self, host: Host, held: Sequence[actual_state.ConsumerSlots], told: str
    ) -> dict[str, str]:
        mark = f"{host.node}_accel_"
        listed = self._lab.provider_names().items()
        cards = {uuid for uuid, name in listed if mark in name}
        here = [one for one in held if one.host == host.name]
        claimed = {
            one.consumer: slots
            for one in here
            if (slots := _below(one.slots, cards))
        }
        booked = self._booked(cards)
        counted = {who: len(slots) for who, slots in claimed.items()}
        assert booked == counted, f"Placement and Nova, {told}"

        staying = {one.server for one in here if one.consumer == one.server}
        wanted = {
            # Where a server was resized its domain has what is new.
            one.server: _handles(_below(one.slots, cards))
            for one in here
            if one.consumer == one.server or one.server not in staying
        }
        defined = domains(host)
        assert defined == wanted, f"domains and Nova, {told}"

        mdevs = host.mdevs()
        everything = set().union(*map(_handles, claimed.values()))
        assert set(mdevs) == everything, f"the kernel and Nova, {told}"
        return mdevs

    def _booked(self, cards: set[str]) -> dict[str, int]:
        """Return how many units of some cards each consumer has."""
        found: dict[str, int] = {}
        for card in sorted(cards):
            for who, resources in self._lab.consumers(card).items():
                count = sum(
                    amount
                    for name, amount in resources.items()
                    if name not in names.MEASURES
                )
                found[who] = found.get(who, 0) + count
        return found


def domains(host: Host) -> dict[str, set[str]]:
    """Return the mdevs of each domain that a host's libvirt has.

    A guest that runs has what its definition has.
    """
    found = {}
    for domain in _domains(host):
        kept = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
        listed = actual_state.hostdev_sources(kept, "mdev")
        found[domain.UUIDString()] = set(listed)
        assert len(listed) == len(set(listed)), kept
        if domain.isActive():
            live = domain.XMLDesc(0)
            assert actual_state.hostdev_sources(live, "mdev") == listed, live
    return found


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
