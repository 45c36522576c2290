# SPDX-License-Identifier: Apache-2.0
"""Guests that see the PCIe topology of their host."""

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from nova.virt.libvirt import config as vconfig

from nova_accel import errors, model
from nova_accel.catalog import features
from nova_accel.config import logs
from nova_accel.model import flavors, json_codec
from virt_hooks.guest import guest_pci, libvirt_guest
from virt_hooks.guest.topology import (
    address_bits,
    clusters,
    device_reader,
    distances,
    guest_buses,
    host_tree,
    nvlinks,
    picture,
    root_ports,
    spare_ports,
)

LOG = logging.getLogger(__name__)

#: Empty root ports below each expander, for devices that are attached later.
SPARE_PORTS = 1
# Devices of a guest without a NUMA topology from which on it is mirrored.
_SEVERAL = 2
_NONE = flavors.GuestTopology.NONE
_ROOT = '<controller type="pci" index="0" model="pcie-root"/>'


class TopologyLayouts(libvirt_guest.GuestLayouts):
    """Layouts that mirror the PCIe tree of the host."""

    def __init__(self, context: libvirt_guest.LayoutContext) -> None:
        self._context = context
        self._reader = device_reader.DeviceReader(context.root)
        self._spare_ports = spare_ports.SparePorts(self._reader, context.host)
        self._nvlinks = nvlinks.NvlinkReader(self._list_devices, context.get)

    def _list_devices(self) -> Iterable[model.Device]:
        return self._context.state.state.devices

    def plan(
        self,
        config: Any,
        uuid: str,
        options: flavors.Options,
        claims: Iterable[model.Claim],
    ) -> guest_pci.Places | None:
        claims = tuple(claims)
        if not claims:
            return None
        text = config.to_xml()
        mirrored = self._draw(text, uuid, options, claims)
        address_bits.ensure_room(
            config,
            uuid,
            self._context.host,
            self._context.hypervisor,
            self._reader.sum_bars(claims),
            0
            if self._find_obstacle(guest_pci.parse_guest(text))
            else self._spare_ports.count_bits(
                text, claims, self._list_devices(), mirrored
            ),
        )
        if not mirrored.controllers:
            return None
        cells = guest_pci.parse_cells(text)
        distances.add(config, cells, self._reader.read_distances())
        _add_controllers(config, mirrored)
        LOG.info(
            "server %s sees the topology of %d accelerators: %s",
            uuid,
            len(mirrored.places),
            ", ".join(
                f"{n} is bus {i}" for n, i in mirrored.expanders.items()
            ),
        )
        return mirrored.places

    def _draw(
        self,
        text: str,
        uuid: str,
        options: flavors.Options,
        claims: tuple[model.Claim, ...],
    ) -> picture.Picture:
        """Return the mirror of a guest, without controllers for one bus.

        :raises ClaimError: the guest can't have the topology of its flavor.
        """
        try:
            topology, devices = self._choose(text, options, claims)
            return picture.mirror(
                devices,
                guest_pci.parse_cells(text),
                SPARE_PORTS,
                root_ports.count(text) + 1,
                topology,
                self._read_peers(claims, devices),
            )
        except picture.PictureError as error:
            if options.guest_topology is not None:
                raise errors.ClaimError(
                    uuid,
                    f"the flavor asks for {flavors.NAMESPACE}"
                    f"{flavors.GUEST_TOPOLOGY}="
                    f"{options.guest_topology.value}, but {error.reason}",
                    public="its host can't give it the PCIe topology of the"
                    " flavor",
                ) from error
            logs.warning(
                LOG,
                "server %s has all accelerators on one bus: %s",
                uuid,
                error.reason,
            )
            return picture.Picture()

    def correct_buses(self, guest: Any) -> None:
        defined = guest.get_xml_desc(dump_inactive=True, dump_sensitive=True)
        text = defined
        has_expander = bool(picture.parse(defined).list_expanders())
        if has_expander:
            try:
                guest_buses.check(text)
            except picture.PictureError as error:
                LOG.info("renumbering the buses of %s: %s", guest.name, error)
                text = guest_buses.renumber(text)
        elif self._find_obstacle(guest_pci.parse_guest(defined)):
            return
        text = self._spare_ports.reserve(text, self._list_devices())
        if text != defined:
            self._context.host.write_instance_config(text)
        if has_expander and text != defined:
            guest_buses.check(guest.get_xml_desc(dump_inactive=True))

    def place_attached(
        self, attached: libvirt_guest.Attached
    ) -> guest_pci.Places | None:
        return self._spare_ports.place(attached) or None

    def describe_guest(
        self, text: str, options: flavors.Options, handles: Collection[str]
    ) -> str:
        seen = clusters.list_clusters(picture.parse(text), handles)
        topology = (
            options.guest_topology
            or self._context.topology
            or flavors.GuestTopology.PCIE
        )
        return clusters.to_text(topology, seen) if seen else ""

    def pair_handles(
        self, arrival: libvirt_guest.Arrival
    ) -> Mapping[str, str]:
        if not arrival.described:
            return arrival.handles
        try:
            pairs, differences = self._pair(arrival)
        except (picture.PictureError, ValueError) as error:
            pairs, differences = {}, (str(error),)
        if differences:
            raise errors.ClaimError(
                arrival.uuid,
                "its devices here are not where the guest sees them:"
                f" {'; '.join(differences)}",
                public="the destination has not the PCIe topology that the"
                " guest sees",
            )
        return pairs

    def _pair(
        self, arrival: libvirt_guest.Arrival
    ) -> tuple[Mapping[str, str], tuple[str, ...]]:
        """Return new handles by old ones, and how the trees differ then.

        A guest that was defined before its cards had NVLinks sees none.

        :raises PictureError: the devices here have no tree.
        :raises ValueError: the text of the source has another format, or
            names other devices than those of the server.
        """
        tree = clusters.parse_text(arrival.described)
        unknown = sorted(tree.handles.difference(arrival.handles))
        if unknown:
            raise ValueError(
                f"the source describes {json_codec.quote(unknown[0])}, which"
                " is none of the server's accelerators: migrate again"
            )
        new = {arrival.handles[old] for old in tree.handles}
        devices = [
            d for d in self._reader.read(arrival.claims) if d.handle in new
        ]
        result = _compare(arrival, tree, devices, host_tree.NO_PEERS)
        if result[1]:
            peers = self._read_peers(arrival.claims, devices)
            result = _compare(arrival, tree, devices, peers)
        pairs, differences = result
        if differences:
            differences = (*differences, *self._describe_cards(arrival))
        return {**arrival.handles, **pairs}, differences

    def _describe_cards(
        self, arrival: libvirt_guest.Arrival
    ) -> tuple[str, ...]:
        """Return which cards for a guest share something on this host."""
        profiles = sorted({claim.profile for claim in arrival.claims})
        addresses = [
            device.address
            for device in self._list_devices()
            if any(map(device.profile, profiles))
        ]
        try:
            cards = self._reader.read_cards(addresses)
            drawn = picture.mirror(cards, arrival.cells, 0, 1)
        except picture.PictureError:
            return ()
        shared = sorted(
            str(cluster)
            for cluster in clusters.list_clusters(drawn, drawn.places)
            if len(cluster.handles) > 1
        )
        return (
            f"the cards here that make {', '.join(profiles)}:"
            f" {'; '.join(shared) or 'none share a root complex'}",
        )

    def _read_peers(
        self,
        claims: Iterable[model.Claim],
        devices: Iterable[host_tree.HostDevice],
    ) -> host_tree.Peers:
        """Return the NVLink peers of devices where the tree depends on it."""
        if not host_tree.has_root_ports(devices):
            return host_tree.NO_PEERS
        return self._nvlinks.read(claims)

    def predict_buses(self, text: str) -> Mapping[int, int]:
        if not guest_pci.parse_guest(text).is_express:
            return {}
        try:
            return guest_buses.predict(text)
        except picture.PictureError as error:
            logs.warning(
                LOG, "the buses of a guest are unknown: %s", error.reason
            )
            return {}

    def _choose(
        self,
        text: str,
        options: flavors.Options,
        claims: tuple[model.Claim, ...],
    ) -> tuple[flavors.GuestTopology, tuple[host_tree.HostDevice, ...]]:
        """Return the topology of a guest, and its devices.

        :raises PictureError: the guest can't have it.
        """
        topology = options.guest_topology or self._context.topology
        if topology is _NONE:
            return _NONE, ()
        guest = guest_pci.parse_guest(text)
        obstacle = self._find_obstacle(guest)
        if topology is not None:
            if obstacle:
                raise picture.PictureError(obstacle)
            return topology, self._reader.read(claims)
        if obstacle:
            return _NONE, ()
        devices = self._reader.read(claims)
        if guest.cells or len(devices) >= _SEVERAL:
            return flavors.GuestTopology.PCIE, devices
        return _NONE, ()

    def _find_obstacle(self, guest: guest_pci.Guest) -> str:
        """Return why a guest can't have expanders, empty if it can."""
        if "q35" not in guest.machine:
            machine = guest.machine or "the default"
            return f"its machine type is {machine}, and must be q35"
        host = self._context.hypervisor.read(guest)
        return host.explain_old("it", features.GUEST_TOPOLOGY)


def _compare(
    arrival: libvirt_guest.Arrival,
    tree: clusters.GuestTree,
    devices: Iterable[host_tree.HostDevice],
    peers: host_tree.Peers,
) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Return new handles by those of a tree, and how the trees differ then."""
    drawn = picture.mirror(
        devices, arrival.cells, SPARE_PORTS, 1, tree.topology, peers
    )
    here = clusters.list_clusters(drawn, drawn.places)
    pairs = clusters.pair(
        tree.clusters,
        here,
        {old: arrival.handles[old] for old in tree.handles},
        {o: kind for o, kind in arrival.kinds.items() if o in tree.handles},
    )
    return pairs, clusters.explain(clusters.rename(tree.clusters, pairs), here)


def _add_controllers(config: Any, mirrored: picture.Picture) -> None:
    """Add a mirror, and root ports of bus 0 with the lowest indexes."""
    controllers = [
        device
        for device in config.devices
        if isinstance(device, vconfig.LibvirtConfigGuestController)
        and device.type == "pci"
    ]
    if not any(device.model == "pcie-root" for device in controllers):
        config.add_device(libvirt_guest.RawElement(_ROOT))
    ports = [d for d in controllers if d.model == "pcie-root-port"]
    for index, port in enumerate(ports, 1):
        port.index = index
    for index in range(len(ports) + 1, mirrored.controllers[0].index):
        config.add_device(
            libvirt_guest.RawElement(
                f'<controller type="pci" index="{index}"'
                ' model="pcie-root-port"/>'
            )
        )
    for element in mirrored.to_xml():
        config.add_device(libvirt_guest.RawElement(element))
