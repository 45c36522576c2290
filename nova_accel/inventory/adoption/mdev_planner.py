# SPDX-License-Identifier: Apache-2.0
"""Plan of the adoption of mdevs of ``[devices] enabled_mdev_types``."""

import collections
from collections.abc import Iterable, Mapping

from nova_accel import model
from nova_accel.inventory.adoption import planner, profile_requests, records
from nova_accel.model import pci, providers

_MDEV = "mdev"


def native_names(
    root: providers.ProviderRoot, host: model.HostState
) -> dict[str, str]:
    """Return addresses of mdev parents by the name of Nova's provider.

    Only those of devices that this library offers as mdevs.
    """
    return {
        f"{root.name}_{pci.nodedev_name(address)}": address
        for device in host.devices
        if device.technology == _MDEV
        for address in (device.address, *device.slots, *device.members)
    }


class MdevPlanner(planner.Planner):
    """Plan of a host with mdevs of Nova's own support."""

    source = records.Source.NOVA_MDEV
    flavor_remedy = "resize it to a flavor of one type of vGPU"

    def is_native(self, device: model.Device) -> bool:
        addresses = (device.address, *device.slots, *device.members)
        return device.technology == _MDEV and any(
            address in self.natives for address in addresses
        )

    def assign(self, device: model.Device) -> None:
        for partition in device.partitions:
            self._assign(device, partition)

    def _assign(
        self, device: model.Device, partition: model.Partition
    ) -> None:
        """Assign an mdev to its server, or say why it has none."""
        uuid = partition.handle
        holders = [d for d in self.observed.domains if uuid in d.mdevs]
        if not holders:
            self.block(
                records.Obstacle.UNUSED_MDEV,
                uuid,
                f"no domain has this mdev of {partition.parent}; Nova leaves"
                " one behind for each server that is deleted, resized or"
                " moved",
                f"mdevctl undefine --uuid {uuid}; mdevctl stop --uuid {uuid}",
            )
            return
        if len(holders) > 1:
            self.block(
                records.Obstacle.SHARED_DEVICE,
                uuid,
                f"domains {', '.join(sorted(d.name for d in holders))} have"
                " the same mdev",
                f"delete or move all of them but one, {planner.AGAIN}",
            )
            return
        server = holders[0].uuid
        if server not in self.observed.servers:
            self.reserve(uuid)
            return
        is_native = server in self.observed.allocations
        if is_native or server not in self.observed.own:
            self._adopt(device, partition, server)

    def _adopt(
        self, device: model.Device, partition: model.Partition, server: str
    ) -> None:
        profile = device.profile(partition.profile)
        native = self.natives.get(partition.parent)
        if profile is None or partition.is_nameless:
            self.block(
                records.Obstacle.UNKNOWN_TYPE,
                partition.handle,
                f"{partition.profile} of {partition.parent} is no profile"
                " that nova-accel offers of this card",
                "see `nova-accel inspect`; [nova_accel] device_spec may"
                f" exclude it, {planner.AGAIN}",
            )
            return
        if native is None or len(native.inventories) != 1:
            self.block(
                records.Obstacle.DRIFTED,
                server,
                f"Placement has no provider of Nova for {partition.parent},"
                f" of which the server has mdev {partition.handle}",
                "restart nova-compute with Nova's own driver,"
                f" {planner.AGAIN}",
            )
            return
        (native_class,) = native.inventories
        parent = partition.parent
        self.add(
            server,
            device,
            partition,
            profile,
            slot=parent if parent in device.slots else partition.handle,
            units=(
                records.NativeUnit(
                    address=parent,
                    provider=native.uuid,
                    resource_class=native_class,
                ),
            ),
            type_id=profile.handles.get(parent, ""),
        )

    def check_servers(self) -> None:
        for domain in self.observed.domains:
            if domain.uuid not in self.partitions:
                continue
            for missing in sorted(domain.mdevs):
                if not self._exists(missing):
                    self.block(
                        records.Obstacle.MISSING_MDEV,
                        domain.uuid,
                        f"mdev {missing} of its domain does not exist",
                        f"reboot the server with --hard, {planner.AGAIN}",
                    )

    def _exists(self, mdev: str) -> bool:
        """Return whether a mdev exists on any card of the host."""
        return any(
            partition.handle == mdev
            for device in self.observed.host.devices
            for partition in device.partitions
        )

    def rewrite(
        self, server: records.AdoptedServer, specs: Mapping[str, str]
    ) -> dict[str, str]:
        partitions = server.partitions
        profiles = self._profiles_by_class(partitions)
        present = collections.Counter(p.native_class for p in partitions)
        requested = profile_requests.count_classes(specs, present.keys())
        if requested != present:
            raise ValueError(
                f"they request {requested or 'none'}, and it has"
                f" {dict(present)}"
            )
        return profile_requests.rewrite(
            specs, profiles, self.list_traits(partitions)
        )

    def _profiles_by_class(
        self, partitions: Iterable[records.AdoptedPartition]
    ) -> dict[str, profile_requests.ProfileRequest]:
        """Return the profile of each native class of a server.

        :raises ValueError: a class has several.
        """
        by_class: dict[str, profile_requests.ProfileRequest] = {}
        for each in partitions:
            profile = self.build_request(each)
            if by_class.setdefault(each.native_class, profile) != profile:
                raise ValueError(
                    f"{each.native_class} is {profile.trait} and"
                    f" {by_class[each.native_class].trait}"
                )
        return by_class

    def map_flavor(
        self, partition: records.AdoptedPartition
    ) -> tuple[dict[str, str], dict[str, str]]:
        before = {f"resources:{partition.native_class}": "1"}
        return before, profile_requests.rewrite(
            before, {partition.native_class: self.build_request(partition)}
        )
