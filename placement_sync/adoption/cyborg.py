# SPDX-License-Identifier: Apache-2.0
"""Accelerator requests and devices of a host in Cyborg's API.

The fields of ``arqs`` and ``deployables`` are those of cyborg-api 17.0.0.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from nova_accel import model
from nova_accel.inventory.adoption import pci_planner, records
from nova_accel.model import pci, providers
from placement_sync.client import rest

_BOUND = "Bound"
_MDEV = "MDEV"
_PARTS = ("domain", "bus", "device", "function")
_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.I)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CyborgHost:
    """Requests and providers of Cyborg for a host.

    ``managed`` are the uuids of its providers, of all hosts.
    """

    requests: tuple[records.CyborgRequest, ...]
    managed: frozenset[str]

    def find_address(
        self, provider: providers.Provider, host: model.HostState
    ) -> str | None:
        """Return the function of a provider of Cyborg that is to be adopted.

        "" if that is not known, None for any other provider, and for that of
        a card that this library does not offer. Most of Cyborg's drivers name
        a device HOST_ADDRESS (``driver_dep.name`` below
        cyborg/accelerator/drivers).
        """
        if provider.uuid not in self.managed:
            return None
        named = _ADDRESS.search(provider.name)
        address = next(
            (r.address for r in self.requests if r.provider == provider.uuid),
            named[0].lower() if named else "",
        )
        is_offered = any(
            address in pci_planner.list_addresses(device)
            for device in host.devices
        )
        return address if is_offered or not address else None


def read(client: rest.RestClient, hosts: frozenset[str]) -> CyborgHost:
    """Return what Cyborg has of a host.

    :param hosts: names of the host, one of which Nova gives to Cyborg.
    :raises ServiceError: Cyborg can't be read.
    """
    requests = client.read(
        "/accelerator_requests",
        lambda body: tuple(_parse_requests(body, hosts)),
    )
    managed = client.read(
        "/deployables",
        lambda body: {
            str(row["rp_uuid"])
            for row in body["deployables"]
            if row.get("rp_uuid")
        },
    )
    return CyborgHost(
        requests=requests,
        managed=frozenset({*managed, *(r.provider for r in requests)}),
    )


def _parse_requests(
    body: Any, hosts: frozenset[str]
) -> Iterator[records.CyborgRequest]:
    for row in body["arqs"]:
        if row["hostname"] not in hosts or row["state"] != _BOUND:
            continue
        address = _parse_address(row["attach_handle_info"])
        is_mdev = row["attach_handle_type"] == _MDEV
        yield records.CyborgRequest(
            uuid=str(row["uuid"]),
            server=str(row["instance_uuid"]),
            provider=str(row["device_rp_uuid"]),
            profile=str(row["device_profile_name"]),
            address=address,
            handle=str(row["attach_handle_uuid"]) if is_mdev else address,
        )


def _parse_address(parts: Mapping[str, Any]) -> str:
    """Return the address of a function from its parts, each in hexadecimal.

    :raises ValueError: they are no address.
    """
    numbers = [int(str(parts[name]), 16) for name in _PARTS]
    text = "{:04x}:{:02x}:{:02x}.{:x}".format(*numbers)
    if not pci.is_address(text):
        raise ValueError(f"{text} is no address of a PCI function")
    return text
