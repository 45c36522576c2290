# SPDX-License-Identifier: Apache-2.0
"""Plan of the adoption of devices that servers have from Cyborg.

Cyborg has an accelerator request (ARQ) for each device of a server, whose
flavor names a device profile. Placement has Cyborg's provider of each device.
"""

from collections.abc import Iterable, Mapping

from nova_accel import model
from nova_accel.config.lines import native_flavors as lines
from nova_accel.inventory.adoption import (
    alias_flavors,
    pci_planner,
    planner,
    records,
)
from nova_accel.model import domains

_MDEV = "mdev"


class CyborgPlanner(planner.Planner):
    """Plan of a host with devices that Cyborg manages."""

    source = records.Source.CYBORG
    flavor_remedy = "use credentials that show extra specs"

    def __init__(self, observed: planner.Observed) -> None:
        super().__init__(observed)
        self._requests = {each.handle: each for each in observed.requests}

    def is_native(self, device: model.Device) -> bool:
        return any(
            address in self.natives
            for address in pci_planner.list_addresses(device)
        )

    def assign(self, device: model.Device) -> None:
        if device.technology == _MDEV:
            handles = [partition.handle for partition in device.partitions]
        elif device.technology in pci_planner.TECHNOLOGIES:
            handles = [*device.slots]
        else:
            self._check_unsupported(device)
            return
        for handle in handles:
            self._assign(device, handle)

    def _check_unsupported(self, device: model.Device) -> None:
        """Block a card of another kind, if a server has any of it."""
        for address in pci_planner.list_addresses(device):
            if address in self._requests:
                self.block(
                    records.Obstacle.UNKNOWN_TYPE,
                    address,
                    f"server {self._requests[address].server} has it by"
                    f" Cyborg, and nova-accel offers it as"
                    f" {device.technology}",
                    '[nova_accel] device_spec with "use": "passthrough", or'
                    f' "off" to leave it to Cyborg, {planner.AGAIN}',
                )

    def _assign(self, device: model.Device, handle: str) -> None:
        """Assign an mdev or a function to its server."""
        holders = [
            domain
            for domain in self.observed.domains
            if handle in domain.mdevs or handle in domain.functions
        ]
        request = self._requests.get(handle)
        if len(holders) > 1:
            self.block(
                records.Obstacle.SHARED_DEVICE,
                handle,
                f"domains {', '.join(sorted(d.name for d in holders))} have"
                " it",
                f"delete all of them but one, {planner.AGAIN}",
            )
        elif not holders:
            self._check_free(device, handle, request)
        elif holders[0].uuid not in self.observed.servers:
            self.reserve(handle)
        elif request is None or request.server != holders[0].uuid:
            self._check_unrequested(holders[0], handle)
        else:
            self._adopt(device, request)

    def _check_free(
        self,
        device: model.Device,
        handle: str,
        request: records.CyborgRequest | None,
    ) -> None:
        if request is not None:
            self.block(
                records.Obstacle.DRIFTED,
                request.server,
                f"Cyborg has accelerator request {request.uuid} of it for"
                f" {handle}, and no domain has that",
                f"reboot the server with --hard, {planner.AGAIN}",
            )
        elif device.technology == _MDEV:
            self.block(
                records.Obstacle.UNUSED_MDEV,
                handle,
                f"no domain has this mdev of {device.address}",
                f"mdevctl undefine --uuid {handle}; mdevctl stop --uuid"
                f" {handle}",
            )

    def _check_unrequested(self, domain: domains.Domain, handle: str) -> None:
        if domain.uuid not in self.observed.own:
            self.block(
                records.Obstacle.DRIFTED,
                domain.uuid,
                f"its domain has {handle}, and Cyborg has no accelerator"
                " request of it for that",
                f"detach it, or delete the server, {planner.AGAIN}",
            )

    def _adopt(
        self, device: model.Device, request: records.CyborgRequest
    ) -> None:
        specs = self.observed.servers[request.server].specs or {}
        native = self.natives.get(request.address)
        profile = pci_planner.find_profile(device, request.handle)
        if specs.get(lines.DEVICE_PROFILE) != request.profile:
            self.block(
                records.Obstacle.NETWORK_PORT,
                request.handle,
                f"server {request.server} has it by device profile"
                f" {request.profile}, which is not its flavor's but a network"
                " port's",
                f'[nova_accel] device_spec with "use": "off", {planner.AGAIN}',
            )
        elif profile is None:
            self.block(
                records.Obstacle.UNKNOWN_TYPE,
                request.handle,
                f"nova-accel offers no profile of {device.address} for it",
                "see `nova-accel inspect`; [nova_accel] device_spec may"
                f" exclude it, {planner.AGAIN}",
            )
        elif native is None or len(native.inventories) != 1:
            self.block(
                records.Obstacle.DRIFTED,
                request.server,
                f"Placement has no provider of Cyborg for {request.address}"
                " with one resource class",
                f"restart cyborg-agent, {planner.AGAIN}",
            )
        else:
            self._add(device, request, profile, native)

    def _add(
        self,
        device: model.Device,
        request: records.CyborgRequest,
        profile: model.Profile,
        native: records.NativeProvider,
    ) -> None:
        (native_class,) = native.inventories
        address = request.address
        self.add(
            request.server,
            device,
            model.Partition(
                profile=profile.name, parent=address, handle=request.handle
            ),
            profile,
            slot=address if address in device.slots else request.handle,
            units=(
                records.NativeUnit(
                    address=address,
                    provider=native.uuid,
                    resource_class=native_class,
                    alias=request.profile,
                    request=request.uuid,
                ),
            ),
            type_id=profile.handles.get(address, ""),
        )

    def check_servers(self) -> None:
        """Block what Cyborg has and is not adopted.

        Other devices of adopted servers, and providers of which the card is
        not known.
        """
        for request in self.observed.requests:
            adopted = self.partitions.get(request.server)
            if adopted and all(p.handle != request.handle for p in adopted):
                self.block(
                    records.Obstacle.UNOFFERED_CARD,
                    request.handle,
                    f"server {request.server} has it by Cyborg, and"
                    " nova-accel does not offer it as such",
                    f"see `nova-accel inspect` for the reason,"
                    f" {planner.AGAIN}",
                )
        for native in self.observed.natives:
            if not native.address:
                self.block(
                    records.Obstacle.SHARED_CARD,
                    native.name,
                    "Cyborg's provider may be of a card that nova-accel"
                    " offers: its name has no address, and no server has it",
                    f"remove the device from Cyborg, {planner.AGAIN}",
                )

    def rewrite(
        self, server: records.AdoptedServer, specs: Mapping[str, str]
    ) -> dict[str, str]:
        return self._rewrite(specs, server.partitions)

    def map_flavor(
        self, partition: records.AdoptedPartition
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return the device profile, and all profiles of such a server."""
        whole = next(
            partitions
            for partitions in self.partitions.values()
            if partition in partitions
        )
        before = {lines.DEVICE_PROFILE: partition.units[0].alias}
        return before, self._rewrite(before, whole)

    def _rewrite(
        self,
        specs: Mapping[str, str],
        partitions: Iterable[records.AdoptedPartition],
    ) -> dict[str, str]:
        others = {k: v for k, v in specs.items() if k != lines.DEVICE_PROFILE}
        return alias_flavors.rewrite(
            others, (), map(self.build_request, partitions)
        )
