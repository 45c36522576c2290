# SPDX-License-Identifier: Apache-2.0
"""Plan of the adoption of PCI functions of ``[pci] device_spec``.

Whole cards and VFs. With ``report_in_placement`` each card has a provider of
Nova's, without it none: then only the domains show who has a function, and
nova-compute compares them with Nova's database when it starts.
"""

from collections.abc import Iterator, Mapping

from nova_accel import model
from nova_accel.config.lines import native_flavors as native_lines
from nova_accel.inventory.adoption import (
    alias_flavors,
    planner,
    records,
)
from nova_accel.model import domains, pci, providers

#: Those whose slots are functions.
TECHNOLOGIES = frozenset({"passthrough", "vf", "vendor-vfio"})


def native_names(
    root: providers.ProviderRoot, host: model.HostState
) -> dict[str, str]:
    """Return addresses of functions by the name of Nova's provider.

    nova/compute/pci_placement_translator.py, _get_rp_name_for_address. Only
    those of devices that this library offers.
    """
    return {
        f"{root.name}_{address.upper()}": address
        for device in host.devices
        for address in (device.address, *device.members)
        if pci.is_address(address)
    }


class PciPlanner(planner.Planner):
    """Plan of a host with PCI functions of Nova's own support."""

    source = records.Source.NOVA_PCI
    flavor_remedy = (
        "correct [pci] alias, or resize it to a flavor of what it has"
    )

    def __init__(self, observed: planner.Observed) -> None:
        super().__init__(observed)
        self.functions = tuple(
            sorted(
                address
                for device in self.devices
                for address in list_addresses(device)
                if address in observed.functions
            )
        )

    def is_native(self, device: model.Device) -> bool:
        return bool(device.counters) and any(
            address in self.observed.functions
            for address in list_addresses(device)
        )

    def assign(self, device: model.Device) -> None:
        for address in list_addresses(device):
            function = self.observed.functions.get(address)
            if function is not None and function.line_count > 1:
                self.block(
                    records.Obstacle.SHARED_CARD,
                    address,
                    f"{function.line_count} lines of [pci] device_spec name"
                    " it",
                    f"let one line name it, restart nova-compute,"
                    f" {planner.AGAIN}",
                )
        if device.technology not in TECHNOLOGIES:
            self._check_unsupported(device)
            return
        for slot in device.slots:
            members = device.members if slot == device.address else ()
            self._assign(device, (slot, *members))

    def _check_unsupported(self, device: model.Device) -> None:
        """Block a card of another kind, if a guest has any of it."""
        for domain in self.observed.domains:
            for address in list_addresses(device):
                if address in domain.functions:
                    self.block(
                        records.Obstacle.UNKNOWN_TYPE,
                        address,
                        f"domain {domain.name} has the function, and"
                        f" nova-accel offers it as {device.technology}",
                        '[nova_accel] device_spec with "use": "passthrough",'
                        ' or "off" to leave it to Nova,'
                        f" {planner.AGAIN}",
                    )

    def _assign(
        self, device: model.Device, functions: tuple[str, ...]
    ) -> None:
        """Assign the functions of one slot to their server.

        :param functions: the slot's own function first.
        """
        slot = functions[0]
        holders = [
            domain
            for domain in self.observed.domains
            if not domain.functions.isdisjoint(functions)
        ]
        if not holders:
            return
        if len(holders) > 1:
            self.block(
                records.Obstacle.SHARED_DEVICE,
                slot,
                f"domains {', '.join(sorted(d.name for d in holders))} have"
                f" functions of it",
                f"delete or move all of them but one, {planner.AGAIN}",
            )
            return
        (domain,) = holders
        if domain.uuid not in self.observed.servers:
            self._check_foreign(domain, slot)
            return
        taken = [f for f in functions if f in domain.functions]
        listed = [
            self.observed.functions[f]
            for f in taken
            if f in self.observed.functions
        ]
        if not listed and domain.uuid in self.observed.own:
            return
        if len(listed) < len(taken) or slot not in taken:
            self.block(
                records.Obstacle.DRIFTED,
                domain.uuid,
                f"its domain has {', '.join(taken)} of {device.address}, and"
                " not by [pci] device_spec, or not the card's main function",
                f"reboot the server with --hard, {planner.AGAIN}",
            )
            return
        if any(function.is_network for function in listed):
            self.block(
                records.Obstacle.NETWORK_PORT,
                slot,
                f"server {domain.uuid} has it as a network port: its line of"
                " [pci] device_spec has a physical_network",
                f'[nova_accel] device_spec with "use": "off", {planner.AGAIN}',
            )
            return
        self._adopt(device, domain.uuid, listed)

    def _check_foreign(self, domain: domains.Domain, slot: str) -> None:
        """Block a domain that a move left, and reserve that of others."""
        if domain.uuid in self.observed.moving:
            self.block(
                records.Obstacle.MOVING,
                domain.uuid,
                f"its domain here has {slot}, and its migration is not over",
                f"wait, or confirm or revert its resize, {planner.AGAIN}",
            )
        else:
            self.reserve(slot)

    def _adopt(
        self,
        device: model.Device,
        server: str,
        functions: list[alias_flavors.NovaFunction],
    ) -> None:
        slot = functions[0].address
        profile = find_profile(device, slot)
        if profile is None:
            self.block(
                records.Obstacle.UNKNOWN_TYPE,
                slot,
                f"nova-accel offers no profile of {device.address} for it",
                "see `nova-accel inspect`; [nova_accel] device_spec may"
                f" exclude it, {planner.AGAIN}",
            )
            return
        try:
            names = self._assign_aliases(server)
        except ValueError:
            names = {}  # `rewrite` blocks it
        self.add(
            server,
            device,
            model.Partition(profile=profile.name, parent=slot, handle=slot),
            profile,
            slot=slot,
            units=tuple(
                self._build_unit(device, f, names.get(f.address, ""))
                for f in functions
            ),
            type_id=names.get(slot, ""),
        )

    def _build_unit(
        self,
        device: model.Device,
        function: alias_flavors.NovaFunction,
        alias: str,
    ) -> records.NativeUnit:
        """Return the unit of a function; a VF is one of its card's."""
        native = self.natives.get(function.address) or self.natives.get(
            device.address
        )
        classes = tuple(native.inventories) if native else ()
        return records.NativeUnit(
            address=function.address,
            provider=native.uuid if native else "",
            resource_class=classes[0] if classes else "",
            alias=alias,
        )

    def _assign_aliases(self, server: str) -> dict[str, str]:
        """Return the alias of each adopted function of a server.

        :raises ValueError: its flavor has no alias for one.
        """
        addresses = {
            address
            for domain in self.observed.domains
            if domain.uuid == server
            for address in domain.functions
        }
        return alias_flavors.assign(
            native_lines.parse_aliases(
                self.observed.servers[server].specs or {}
            ),
            [
                self.observed.functions[address]
                for address in self.functions
                if address in addresses
            ],
            self.observed.aliases,
        )

    # -- servers -----------------------------------------------------------

    def check_servers(self) -> None:
        """Block servers whose flavor requests what their domain lacks.

        Suspended ones, and those whose functions are of cards that
        nova-accel does not offer.
        """
        for uuid in sorted(self.observed.servers):
            if missing := self._find_missing(uuid):
                self.block(
                    records.Obstacle.DRIFTED,
                    uuid,
                    f"its flavor requests {', '.join(missing)}, and its"
                    " domain has no function of that alias",
                    f"resume it, or reboot it with --hard, {planner.AGAIN}",
                )
        for problem in self.observed.host.problems:
            for domain in self.observed.domains:
                if (
                    problem.address in domain.functions
                    and problem.address in self.observed.functions
                    and domain.uuid in self.observed.servers
                    and problem.address not in self.functions
                ):
                    self.block(
                        records.Obstacle.UNOFFERED_CARD,
                        problem.address,
                        f"server {domain.uuid} has it, and nova-accel does"
                        f" not offer it: {problem.reason}",
                        f"remove the cause, {planner.AGAIN}",
                    )

    def _find_missing(self, uuid: str) -> tuple[str, ...]:
        """Return a server's aliases without a function.

        Only those whose functions on this host are all adopted.
        """
        try:
            requested = native_lines.parse_aliases(
                self.observed.servers[uuid].specs or {}
            )
        except ValueError:
            return ()
        assigned = [
            unit.alias
            for partition in self.partitions.get(uuid, ())
            for unit in partition.units
        ]
        missing = []
        for name in requested:
            if name in assigned:
                assigned.remove(name)
            elif self._is_adopted_alias(name):
                missing.append(name)
        return tuple(missing)

    def _is_adopted_alias(self, name: str) -> bool:
        matches = [
            function.address
            for function in self.observed.functions.values()
            if any(
                alias.name == name and alias.matches(function)
                for alias in self.observed.aliases
            )
        ]
        return bool(matches) and all(a in self.functions for a in matches)

    # -- flavors -----------------------------------------------------------

    def rewrite(
        self, server: records.AdoptedServer, specs: Mapping[str, str]
    ) -> dict[str, str]:
        used = self._assign_aliases(server.uuid)
        return alias_flavors.rewrite(
            specs, used.values(), map(self.build_request, server.partitions)
        )

    def map_flavor(
        self, partition: records.AdoptedPartition
    ) -> tuple[dict[str, str], dict[str, str]]:
        aliases = [unit.alias for unit in partition.units]
        before = alias_flavors.build(aliases)
        return before, alias_flavors.rewrite(
            before, aliases, [self.build_request(partition)]
        )


def list_addresses(device: model.Device) -> Iterator[str]:
    """Yield the functions of a device, each once."""
    yield from dict.fromkeys((device.address, *device.slots, *device.members))


def find_profile(device: model.Device, slot: str) -> model.Profile | None:
    """Return the profile that a function has, None if that is not known."""
    for partition in device.partitions:
        if slot in (partition.handle, partition.parent):
            is_known = not partition.is_nameless
            return device.profile(partition.profile) if is_known else None
    profiles = [p for p in device.profiles if slot in p.handles]
    if not profiles and device.technology == "passthrough":
        profiles = [*device.profiles]
    return profiles[0] if len(profiles) == 1 else None
