# SPDX-License-Identifier: Apache-2.0
"""The seam into Nova's libvirt driver.

Every override calls the stock method and adds to it; none re-implements
it. What fails here in a periodic path is logged and leaves the stock
behaviour; what fails in a spawn fails that spawn, and Nova reschedules.
"""

import contextlib
import copy
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import nova.conf
import os_traits
from lxml import etree
from nova import context as nova_context
from nova import exception, objects
from nova.virt.libvirt import config as vconfig
from nova.virt.libvirt import driver

from nova_accel import (
    errors,
    flavors,
    model,
    names,
    providers,
)
from placement_sync import diff
from virt_hooks import connection, hostdev, node, tree

LOG = logging.getLogger(__name__)

# Placement knows OWNER_NOVA where its os-traits does; Nova 34 began to
# set and to require it.
_OWNER_TRAITS = frozenset({names.OWNER_TRAIT}) | (
    {names.NOVA_OWNER_TRAIT}
    if hasattr(os_traits, names.NOVA_OWNER_TRAIT)
    else frozenset()
)


# How often a change is sent anew that another one overtook: as often as
# Nova's resource tracker does (_update_to_placement).
_ATTEMPTS = 4


class AccelLibvirtDriver(driver.LibvirtDriver):
    """LibvirtDriver whose guests get the accelerators of their flavor."""

    def __init__(self, virtapi: Any, read_only: bool = False) -> None:
        """Load the vendor drivers that ``[nova_accel]`` names.

        A setting that can't be used stops the service with one line.
        """
        super().__init__(virtapi, read_only)
        try:
            self._accel = node.read_node(nova.conf.CONF)
        except errors.ConfigurationError as error:
            LOG.error("nova-accel can't start: %s", error)
            sys.exit(1)
        self._free: frozenset[str] = frozenset()
        self._at_start: frozenset[model.Slot] = frozenset()
        self._recalled = False
        self._rebooting: set[str] = set()
        self._rebooting_lock = threading.Lock()

    def init_host(self, host: str) -> None:
        """Start, and write down what this host's servers hold."""
        super().init_host(host)
        self._accel.read_use = self._read_use
        with _logged("can't recover this host's accelerators"):
            self._adopt_node()
            self._accel.host.refresh()
            self._recall()

    def get_available_resource(self, nodename: str) -> Any:
        """Read the host anew; it is called outside Nova's lock."""
        self._free = frozenset()
        with _logged("can't refresh this host's accelerators"):
            self._adopt_node()
            self._accel.host.refresh()
            self._recall()
            self._accel.tidy(self._read_use())
            self._free = self._find_free()
        return super().get_available_resource(nodename)

    def update_provider_tree(
        self,
        provider_tree: Any,
        nodename: str,
        allocations: Any = None,
    ) -> None:
        """Lay our providers beside Nova's own, from the last reading."""
        super().update_provider_tree(
            provider_tree, nodename, allocations=allocations
        )
        desired = self._accel.tree(_OWNER_TRAITS)
        if desired is None:
            return
        with _logged("can't report this host's accelerators"):
            tree.lay(
                provider_tree,
                desired,
                self._shrink_guard(provider_tree, desired),
                _resource,
                self._at_start,
            )
            self.provider_tree = copy.deepcopy(provider_tree)

    def spawn(
        self,
        context: Any,
        instance: Any,
        image_meta: Any,
        injected_files: Any,
        admin_password: Any,
        allocations: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Make the server's partitions first, then spawn its guest."""
        if self._ensure(context, instance, allocations):
            # At once: until Placement knows what the card has become, the
            # scheduler goes on sending what it can't make any more.
            self._publish(context)
        return super().spawn(
            context,
            instance,
            image_meta,
            injected_files,
            admin_password,
            allocations,
            *args,
            **kwargs,
        )

    def _get_guest_config(
        self, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Add the server's hostdevs, whatever operation asks."""
        found = self._ensure(nova_context.get_admin_context(), instance)
        guest = super()._get_guest_config(instance, *args, **kwargs)
        for claim in found:
            for xml in hostdev.to_xml(claim):
                guest.add_device(_Hostdev(xml))
        return guest

    def _vgpu_allocations(self, allocations: Any) -> Any:
        """Leave to Nova's own vGPU code what is not booked on ours."""
        desired = self._accel.tree(_OWNER_TRAITS)
        ours = {node.uuid for node in desired.nodes} if desired else set()
        return {
            uuid: record
            for uuid, record in super()._vgpu_allocations(allocations).items()
            if uuid not in ours
        }

    def _guest_add_mdevs(self, guest: Any, chosen_mdevs: Any) -> Any:
        """Leave out our mdevs, which Nova found in the old domain."""
        ours = {claim.handle for claim in self._accel.claims()}
        stock = [uuid for uuid in chosen_mdevs or () if uuid not in ours]
        return super()._guest_add_mdevs(guest, stock)

    def _hard_reboot(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Keep the partitions while the domain is torn down and remade."""
        with self._keeping(instance.uuid):
            return super()._hard_reboot(context, instance, *args, **kwargs)

    def _cleanup(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Unmake the server's partitions once its domain is gone."""
        try:
            return super()._cleanup(context, instance, *args, **kwargs)
        finally:  # also if it fails: nobody asks again, and a guest that
            # still runs keeps what it has
            with self._rebooting_lock:
                keep = instance.uuid in self._rebooting
            if not keep:
                self._release(instance, lambda: self._held(instance))

    def confirm_migration(
        self,
        context: Any,
        migration: Any,
        instance: Any,
        network_info: Any,
    ) -> Any:
        """Unmake on the source what a moved server held there."""
        result = super().confirm_migration(
            context, migration, instance, network_info
        )
        self._release(instance, lambda: _left_behind(instance))
        return result

    def _adopt_node(self) -> None:
        for uuid, name in self.get_nodenames_by_uuid().items():
            self._accel.adopt(providers.ProviderRoot(name=name, uuid=uuid))

    def _read_use(self) -> connection.HostdevUse:
        return connection.read_hostdevs(self._host.get_connection())

    def _recall(self) -> None:
        """Write down what this host's servers hold; once it worked, no more.

        :raises nova.exception.NovaException: Nova's database can't be asked.
        """
        if self._recalled:
            return
        instances = objects.InstanceList.get_by_host(
            nova_context.get_admin_context(),
            nova.conf.CONF.host,
            expected_attrs=["resources"],
        )
        held = {i.uuid: self._ours(_slots(i.resources)) for i in instances}
        self._at_start = frozenset(s for slots in held.values() for s in slots)
        for uuid, slots in held.items():
            if not self._accel.claims_of(uuid):
                self._accel.recall(uuid, slots)
        self._recalled = True

    def _ours(self, slots: Iterable[model.Slot]) -> tuple[model.Slot, ...]:
        """Return the slots but those Nova keeps on its own root."""
        root = self._accel.root
        return tuple(
            slot
            for slot in slots
            if root is None or slot.provider != root.uuid
        )

    def _ensure(
        self, context: Any, instance: Any, allocations: Any = None
    ) -> tuple[model.Claim, ...]:
        groups = flavors.parse_groups(instance.flavor.extra_specs)
        booked = {
            uuid: record["resources"]
            for uuid, record in (allocations or {}).items()
        }
        try:
            return self._accel.ensure(
                instance.uuid,
                groups,
                self._ours(_slots(instance.resources)),
                booked,
            )
        except errors.AcceleratorError as error:
            LOG.error("%s", error)
            self._publish(context)
            raise exception.ComputeResourcesUnavailable(
                reason=str(error)
            ) from error

    def _release(
        self, instance: Any, read_slots: Callable[[], Iterable[model.Slot]]
    ) -> None:
        with _logged("can't release accelerators of %s", instance.uuid):
            slots = self._ours(read_slots())
            self._at_start -= frozenset(slots)
            self._accel.release(
                instance.uuid,
                slots,
                lambda claim: self._is_holding(instance, claim),
            )

    def _held(self, instance: Any) -> tuple[model.Slot, ...]:
        """Return a server's slots, from our own notes if Nova has none.

        A server that was deleted while this service was down has no
        resources in Nova's database any more.
        """
        try:
            slots = self._ours(_slots(instance.resources))
        except exception.NovaException:
            slots = ()
        return slots or self._accel.slots_of(instance.uuid)

    def _is_holding(self, instance: Any, claim: model.Claim) -> bool:
        """Return whether the server's guest runs with a partition."""
        try:
            guest = self._host.get_guest(instance)
            if not guest.is_active():
                return False
            xml = guest.get_xml_desc()
        except exception.InstanceNotFound:
            return False
        return connection.parse_hostdevs(xml).holds(claim.handle)

    @contextlib.contextmanager
    def _keeping(self, uuid: str) -> Iterator[None]:
        with self._rebooting_lock:
            self._rebooting.add(uuid)
        try:
            yield
        finally:
            with self._rebooting_lock:
                self._rebooting.discard(uuid)

    def _find_free(self) -> frozenset[str]:
        desired = self._accel.tree(_OWNER_TRAITS)
        if desired is None or self.provider_tree is None:
            return frozenset()
        context = nova_context.get_admin_context()
        client = self.virtapi.reportclient

        def is_allocated(uuid: str) -> bool:
            found = client.get_allocations_for_resource_provider(
                context, uuid
            )
            return bool(found.allocations)

        return tree.free_to_go(self.provider_tree, desired, is_allocated)

    def _shrink_guard(
        self, provider_tree: Any, desired: providers.ProviderTree
    ) -> diff.Guard:
        return tree.guard(
            provider_tree,
            desired,
            self._free,
            self._accel.host.state,
        )

    def _publish(self, context: Any) -> None:
        """Send what a claim changed, without waiting for the next pass."""
        desired = self._accel.tree(_OWNER_TRAITS)
        if desired is None:
            return
        with _logged("can't publish this host's accelerators at once"):
            for _ in range(_ATTEMPTS):
                try:
                    tree.publish(
                        self.virtapi.reportclient,
                        context,
                        desired,
                        self._shrink_guard,
                    )
                except exception.ResourceProviderUpdateConflict as error:
                    LOG.debug("somebody else was faster: %s", error)
                else:
                    return
            LOG.warning("accelerators are reported with the next pass")


class _Hostdev(vconfig.LibvirtConfigGuestHostdev):
    """A hostdev element that is written already."""

    def __init__(self, xml: str) -> None:
        super().__init__()
        self._xml = xml

    def format_dom(self) -> Any:
        """Return the element."""
        return etree.fromstring(self._xml)


def _slots(resources: Any) -> tuple[model.Slot, ...]:
    return tuple(
        model.Slot(
            provider=resource.provider_uuid,
            resource_class=resource.resource_class,
            identifier=resource.identifier,
        )
        for resource in resources or ()
    )


def _left_behind(instance: Any) -> tuple[model.Slot, ...]:
    """Return what a server that moved away held here and holds no more."""
    moved = instance.migration_context
    if moved is None:
        return ()
    kept = set(_slots(moved.new_resources))
    return tuple(s for s in _slots(moved.old_resources) if s not in kept)


def _resource(slot: model.Slot) -> Any:
    return objects.Resource(
        provider_uuid=slot.provider,
        resource_class=slot.resource_class,
        identifier=slot.identifier,
    )


@contextlib.contextmanager
def _logged(what: str, *arguments: Any) -> Iterator[None]:
    """Log whatever fails here, and go on as stock Nova does."""
    try:
        yield
    except Exception:
        LOG.exception(what, *arguments)
