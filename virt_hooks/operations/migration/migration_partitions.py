# SPDX-License-Identifier: Apache-2.0
"""Partitions of servers that leave or arrive by live migration.

``HostAbilities`` reads the versions and drivers that
``live_migration_checks`` compares.
"""

from collections.abc import Iterable, Mapping, Sequence

from nova_accel import errors, model
from nova_accel.catalog import features
from nova_accel.claims import claim_plan, matching, migration
from nova_accel.host.sysfs import fs, host_reader, modules
from nova_accel.model import names
from virt_hooks.guest import connection, libvirt_guest
from virt_hooks.instance import instance_request
from virt_hooks.operations.migration import (
    live_migration_checks,
    live_migration_wire,
)
from virt_hooks.spawn import lifecycle, spawn_plan


class HostAbilities:
    """Versions and drivers of one host; each call reads them again."""

    def __init__(self, root: str = "/") -> None:
        """Read the kernel's files below ``root``."""
        self._root = root

    def read_host(
        self, libvirt: int, qemu: int, has_post_copy: bool
    ) -> migration.MigrationHost:
        """Return the host; a field is empty if it is unknown.

        :param libvirt: its version in libvirt's encoding, like ``qemu``.
        """
        reader = self._reader()
        return migration.MigrationHost(
            libvirt=features.parse_number(libvirt),
            qemu=features.parse_number(qemu),
            kernel=reader.kernel_release(),
            drivers=modules.read_versions(reader.files, migration.DRIVERS),
            has_post_copy=has_post_copy,
            vfio=modules.read_vfio_version(reader.files),
        )

    def has_iommufd(self) -> bool:
        """Return whether the kernel has IOMMUFD."""
        return modules.has_iommufd(self._reader().files)

    def read_driver(self, address: str) -> str:
        """Return the driver of a PCI function, empty for none or unknown."""
        try:
            function = self._reader().function(address)
        except errors.UnreadableError:
            return ""
        return (function.driver or "") if function else ""

    def _reader(self) -> host_reader.HostReader:
        return host_reader.HostReader(source=fs.DiskSource(self._root))


class MigrationPartitions:
    """Partitions of servers that leave or arrive by live migration."""

    def __init__(
        self,
        accel: lifecycle.Lifecycle,
        abilities: HostAbilities,
        layouts: libvirt_guest.GuestLayouts,
    ) -> None:
        self._accel = accel
        self._abilities = abilities
        self._layouts = layouts

    def describe_offers(
        self,
        server: instance_request.InstanceRequest,
        host: migration.MigrationHost,
    ) -> str:
        """Return the text of partitions that this host could make.

        The destination sends it to the source.
        """
        offers = (
            live_migration_wire.offer_of(device, profile)
            for device in self._accel.host.state.devices
            for group in server.groups
            if (profile := matching.find_profile(group, device)) is not None
        )
        return live_migration_wire.to_text(
            live_migration_wire.WireHost(
                host=host, parts=tuple(dict.fromkeys(offers))
            )
        )

    def describe_departure(
        self,
        server: instance_request.InstanceRequest,
        use: connection.HostdevUse,
        host: migration.MigrationHost,
        limits: migration.MigrationLimits,
        destination_text: str | None,
        topology: str = "",
    ) -> str:
        """Return the text of a server's partitions, for its destination.

        :param use: the hostdevs of its domain.
        :param destination_text: text that the destination has sent, None
            without any.
        :param topology: as of ``live_migration_wire.WireHost``.
        :raises ClaimError: it can't leave, or not to that destination.
        :raises MalformedError: the text has another format.
        """
        claims = self._accel.claims_of(server.uuid)
        live_migration_checks.check_complete(server, claims, use)
        source = live_migration_wire.WireHost(
            host=host, parts=self._read_parts(claims), topology=topology
        )
        live_migration_checks.check_departure(
            server, source, limits, destination_text
        )
        return live_migration_wire.to_text(source)

    def verify_arrival(
        self,
        server: instance_request.InstanceRequest,
        host: migration.MigrationHost,
        source_text: str,
        cells: Mapping[int, int],
    ) -> None:
        """Check that the slots claimed here fit the server's partitions.

        No partition is made yet: Nova may end the migration without
        another call.

        :param source_text: text that the source has sent.
        :param cells: NUMA nodes of the guest by those of this host.
        :raises ClaimError: they do not fit.
        :raises MalformedError: the text has another format.
        """
        root, state = self._accel.root, self._accel.host.state
        if root is None:
            raise errors.ClaimError(
                server.uuid, live_migration_checks.NO_OTHER
            )
        spawn_plan.check_allocated(
            server.uuid, server.groups, server.slots, state
        )
        slot_providers = {slot.provider for slot in server.slots}
        for device in state.devices:
            uuid = names.provider_uuid(root.uuid, device.address)
            if uuid in slot_providers:
                spawn_plan.check_available(server.uuid, device)
        planned = claim_plan.plan(
            server.uuid,
            server.groups,
            server.slots,
            root,
            state,
            server.allocated,
        )
        source = live_migration_wire.parse_text(source_text)
        destination = live_migration_wire.WireHost(
            host=host, parts=self._read_parts(planned)
        )
        live_migration_checks.check_arrival(server, source, destination)
        self._pair_handles(server, source, planned, cells)

    def make_partitions(
        self,
        server: instance_request.InstanceRequest,
        source_text: str,
        cells: Mapping[int, int],
    ) -> live_migration_checks.HandlePairs:
        """Make a server's partitions; return new handles by old ones.

        :param source_text: text that the source has sent.
        :param cells: as of ``verify_arrival``.
        :raises ClaimError: they can't be made, or don't fit the server's.
        :raises ActionError: the kernel refused.
        :raises MalformedError: the text has another format.
        """
        source = live_migration_wire.parse_text(source_text)
        made = self._accel.ensure(
            server.uuid, server.groups, server.slots, server.allocated
        )
        handles = self._pair_handles(server, source, made, cells)
        mdevs = {p.handle for p in source.parts if p.technology == "mdev"}
        return live_migration_checks.HandlePairs(
            mdevs={old: new for old, new in handles.items() if old in mdevs},
            functions={
                old: new for old, new in handles.items() if old not in mdevs
            },
        )

    def _pair_handles(
        self,
        server: instance_request.InstanceRequest,
        source: live_migration_wire.WireHost,
        claims: Sequence[model.Claim],
        cells: Mapping[int, int],
    ) -> Mapping[str, str]:
        """Return new handles by old ones: the same before and after the make.

        :raises ClaimError: the claims don't fit the server's partitions.
        """
        handles = live_migration_checks.pair_handles(
            server, source.parts, self._read_parts(claims)
        )
        return self._layouts.pair_handles(
            libvirt_guest.Arrival(
                uuid=server.uuid,
                described=source.topology,
                claims=claims,
                handles=handles,
                kinds={part.handle: part.kind for part in source.parts},
                cells=cells,
            )
        )

    def _read_parts(
        self, claims: Iterable[model.Claim]
    ) -> tuple[migration.MigrationPartition, ...]:
        return live_migration_wire.parts_of(
            claims, self._accel.host.state, self._abilities.read_driver
        )
