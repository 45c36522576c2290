# SPDX-License-Identifier: Apache-2.0
"""Query for devices and their holders, as an operator writes it."""

import dataclasses
from collections.abc import Sequence

from nova_accel import errors
from nova_accel.model import names
from placement_sync.daemon import status
from placement_sync.fleet.devices import host_reports
from placement_sync.fleet.flavors import lookup, offered_devices

DRAINED = "drained"
# Device states by trait; a device counts as the first of them. The names
# are those of the status of passes.
_STATES = {
    names.DRAINED_TRAIT: DRAINED,
    names.MISSING_TRAIT: "missing",
    names.UNKNOWN_TRAIT: "unreadable",
    names.FAULTED_TRAIT: "faulted",
}
_OK = "ok"
#: Of a device without another state, on a host that is down.
STALE = "stale"
STATES = (*status.STATES, STALE)


def find_state(device: offered_devices.OfferedDevice) -> str:
    """Return a device's state, one of STATES."""
    return next(
        (name for trait, name in _STATES.items() if trait in device.traits),
        STALE if device.is_stale else _OK,
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FleetQuery:
    """Filters of devices; an empty one lets all devices pass.

    ``hosts`` are names of compute nodes, with or without their domain.
    ``device`` is HOST/ADDRESS, ADDRESS, or the uuid of a provider; with
    ``is_card`` it does not include the regions of a card.
    ``reports`` are the services of hosts, which the devices get. Hosts
    without devices are an error if ``is_strict``.
    """

    hosts: Sequence[str] = ()
    model: str = ""
    state: str = ""
    device: str = ""
    is_card: bool = False
    reports: host_reports.Reports = dataclasses.field(default_factory=dict)
    is_strict: bool = True

    def select(
        self, devices: Sequence[offered_devices.OfferedDevice]
    ) -> list[offered_devices.OfferedDevice]:
        """Return the devices that pass all filters.

        :raises MalformedError: there is no such host or device.
        :raises NotOfferedError: there is no such model.
        """
        selected = [
            dataclasses.replace(device, service=self.reports[device.root])
            if device.root in self.reports
            else device
            for device in devices
        ]
        if self.hosts:
            selected = lookup.select_hosts(
                selected, self.hosts, self.is_strict
            )
        if self.device:
            selected = _select_device(selected, self.device)
            if self.is_card:
                selected = _drop_regions(selected)
        if self.model:
            trait = lookup.model_trait(self.model, selected)
            selected = [d for d in selected if d.model == trait]
        if self.state:
            selected = [d for d in selected if find_state(d) == self.state]
        return selected


def _drop_regions(
    devices: list[offered_devices.OfferedDevice],
) -> list[offered_devices.OfferedDevice]:
    """Return devices without the regions of cards that are among them."""
    uuids = {device.uuid for device in devices}
    return [d for d in devices if d.card == d.uuid or d.card not in uuids]


def _select_device(
    devices: Sequence[offered_devices.OfferedDevice], text: str
) -> list[offered_devices.OfferedDevice]:
    """Return the devices of HOST/ADDRESS, of an ADDRESS, or of a uuid.

    The address of a card includes its regions.

    :raises MalformedError: there is none.
    """
    by_uuid = [d for d in devices if d.uuid == text.lower()]
    if by_uuid:
        return by_uuid
    host, _, address = text.partition("/")
    if names.is_address(host):
        listed, address = list(devices), text
    else:
        listed = lookup.select_host(devices, host)
    selected = [
        d
        for d in listed
        if address in (d.address, names.card_address(d.address))
    ]
    if not selected:
        present = sorted(f"{d.host}/{d.address}" for d in listed)
        raise errors.MalformedError(
            "device",
            text,
            "HOST/ADDRESS, an address or the uuid of a provider:"
            f" {', '.join(present) or 'there is no device'}",
        )
    return selected
