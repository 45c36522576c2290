# SPDX-License-Identifier: Apache-2.0
"""Reader of the NVLinks between the devices of a guest.

NVML does not see a card that is passed through to a guest, so the traits of
its provider say which links it had. A guest then has the same picture at each
start.
"""

import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterable

from nova_accel import errors, model
from nova_accel.config import logs
from nova_accel.geometry import topology
from nova_accel.model import names
from placement_sync.client import provider_records
from virt_hooks.guest.topology import host_tree

LOG = logging.getLogger(__name__)
_NVIDIA = "10de"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _LinkedDevice:
    """A device with its traits, for ``topology.has_link``."""

    card: str
    traits: frozenset[str]

    @property
    def address(self) -> str:
        """Return the address of its card."""
        return self.card


class NvlinkReader:
    """Reads the NVLinks between the cards of claims."""

    def __init__(
        self,
        list_devices: Callable[[], Iterable[model.Device]],
        get: provider_records.Get,
    ) -> None:
        """:param list_devices: returns the devices of this host.
        :param get: reads Placement.
        """
        self._list_devices, self._get = list_devices, get

    def read(self, claims: Iterable[model.Claim]) -> host_tree.Peers:
        """Return the handles of the NVLink peers of each handle.

        Links that can't be read are left out, with a line in the log.
        """
        devices = {device.address: device for device in self._list_devices()}
        linked = {
            claim.handle: _LinkedDevice(
                card=device.parent or device.address,
                traits=self._read_traits(claim, device),
            )
            for claim in claims
            if (device := devices.get(claim.device)) is not None
            and device.vendor_id == _NVIDIA
        }
        peers: dict[str, set[str]] = {}
        for first, second in itertools.combinations(linked, 2):
            if topology.has_link(linked[first], linked[second]):
                peers.setdefault(first, set()).add(second)
                peers.setdefault(second, set()).add(first)
        return peers

    def _read_traits(
        self, claim: model.Claim, device: model.Device
    ) -> frozenset[str]:
        """Return traits of a claim's device, with those of its NVLinks."""
        if names.NVLINK_PREFIX not in device.unread_traits:
            return device.traits
        try:
            record = provider_records.fetch_traits(self._get, claim.provider)
        except errors.ServiceError as error:
            logs.warning(
                LOG,
                "the NVLinks of %s are unknown, so its guest sees none: %s",
                device.address,
                error,
            )
            return device.traits
        return device.traits if record is None else record[1]
