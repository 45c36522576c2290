# SPDX-License-Identifier: Apache-2.0
"""Stock behaviour for servers without accelerators.

An override that is decorated with ``accelerators_only`` runs only for
servers with accelerators. For all other servers Nova's own method is called
directly, so that a defect of this library can't stop them. The decision
itself never raises: an error in it is logged, and counts as "no".

If the hooks could not be constructed, servers with accelerators are refused
where they would need them, and end with Nova's own method.
"""

import functools
import logging
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from nova import exception, objects
from nova.virt.libvirt import driver

from nova_accel import errors
from nova_accel.catalog import pci_ids
from nova_accel.model import attachment, flavors
from virt_hooks import error_guards
from virt_hooks.guest import libvirt_guest
from virt_hooks.instance import instance_request
from virt_hooks.operations import nova_database

LOG = logging.getLogger(__name__)

Method = TypeVar("Method", bound=Callable[..., Any])

_CLEANUP = "_cleanup"
# Of an extra spec that asks for a resource class.
_RESOURCE = re.compile("resources[^:]*:(?P<name>.+)")
# Overrides without which a server with accelerators can end or be described.
_DISPENSABLE = frozenset(
    {
        _CLEANUP,
        "_build_device_metadata",
        "_resume_guest_after_snapshot",
        "confirm_migration",
        "post_claim_migrate_data",
        "post_live_migration_at_destination",
        "post_live_migration_at_source",
        "power_off",
        "rollback_live_migration_at_destination",
    }
)
# Overrides after whose refusal Nova keeps the server as it is.
_ROLLED_BACK = frozenset(
    {"migrate_disk_and_power_off", "resume", "suspend", "unrescue"}
)


def started_only(override: Method) -> Method:
    """Run an override of LibvirtDriver only if the hooks were constructed."""

    @functools.wraps(override)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.is_started:
            return override(self, *args, **kwargs)
        return _stock(self, override.__name__)(*args, **kwargs)

    return cast(Method, method)


def accelerators_only(override: Method) -> Method:
    """Run an override of LibvirtDriver for servers with accelerators only.

    :param override: gets ``stock``, then the arguments of Nova's method,
        with a ``nova.objects.Instance`` among them. ``stock`` takes no
        argument, and runs Nova's method with these.
    """
    name = override.__name__

    @functools.wraps(override)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = (*args, *kwargs.values())
        stock = functools.partial(_stock(self, name), *args, **kwargs)
        if not has_accelerators(self, name, arguments):
            return stock()
        if self.is_started:
            return override(self, stock, *args, **kwargs)
        if name in _DISPENSABLE:
            return stock()
        raise _refusal(name, arguments)

    return cast(Method, method)


def _stock(self: Any, name: str) -> Callable[..., Any]:
    """Return Nova's own method of this name."""
    classes = type(self).__mro__
    last = classes[classes.index(driver.LibvirtDriver) - 1]
    method: Callable[..., Any] = getattr(super(last, self), name)
    return method


def _refusal(name: str, arguments: Iterable[Any]) -> Exception:
    """Return Nova's error for a server that needs the hooks."""
    (instance,) = (a for a in arguments if isinstance(a, objects.Instance))
    LOG.error(
        "%s of server %s is refused: nova-accel could not start in this"
        " service; see its log of the start",
        name,
        instance.uuid,
    )
    error = error_guards.build_nova_error(
        errors.AcceleratorError("").public,
        instance.uuid if nova_database.is_rebuilt(instance) else "",
    )
    if name in _ROLLED_BACK:
        return cast(Exception, exception.InstanceFaultRollback(error))
    return error


def has_accelerators(self: Any, name: str, arguments: Iterable[Any]) -> bool:
    """Return whether a server has, had or asks for accelerators.

    It never raises. An error in one test does not affect the others: a
    server whose flavor names accelerators is recognized anyway.

    :param self: the driver, whose claims are searched.
    :param name: of a method of the driver.
    :param arguments: of that method; one is the server.
    """
    tests = (*_TESTS, _has_hostdevs) if name == _CLEANUP else _TESTS
    for instance in arguments:
        if not isinstance(instance, objects.Instance):
            continue
        for is_accelerated in tests:
            try:
                if is_accelerated(self, instance):
                    return True
            except Exception:
                LOG.exception(
                    "can't check whether server %s has accelerators; if no"
                    " other check finds any, Nova handles it without"
                    " nova-accel",
                    instance.uuid,
                )
    return False


def _is_named(_: Any, instance: Any) -> bool:
    """Return whether a flavor of a server names accelerators.

    The namespace of the extra specs does, and each class that only
    accelerators have. Other classes are the node's own, Nova's, or an
    operator's: licences in Nova's provider.yaml, for example.
    """
    return any(
        key.startswith(flavors.NAMESPACE)
        or pci_ids.is_accelerator(_parse_class(key))
        for key in _list_keys(instance)
    )


def _is_offered(self: Any, instance: Any) -> bool:
    """Return whether a flavor names a class of a device of this host.

    Vendor drivers of other packages have classes of their own.
    """
    if not self.is_started:
        return False
    classes = self._accel.host.state.resource_classes
    return any(_parse_class(key) in classes for key in _list_keys(instance))


def _list_keys(instance: Any) -> list[str]:
    """Return the extra specs of a server's flavors.

    While a server is resized it has three flavors.
    """
    server_flavors = [instance.flavor]
    for name in ("old_flavor", "new_flavor"):
        if instance.obj_attr_is_set(name):
            server_flavors.append(getattr(instance, name))
    return [
        key
        for flavor in server_flavors
        if flavor is not None
        for key in flavor.extra_specs
    ]


def _parse_class(key: str) -> str:
    """Return the resource class of an extra spec, empty without one."""
    match = _RESOURCE.fullmatch(key)
    return match["name"] if match else ""


def _has_slots(_: Any, instance: Any) -> bool:
    """Return whether a server has slots, if its resources are loaded."""
    if not instance.obj_attr_is_set("resources"):
        return False
    return instance_request.has_accelerator_slots(instance.resources)


def _is_claimed(self: Any, instance: Any) -> bool:
    """Return whether a server has claims on this host."""
    return self.is_started and bool(self._accel.claims_of(instance.uuid))


def _is_attached(_: Any, instance: Any) -> bool:
    """Return whether a server has attached profiles."""
    return any(
        key.startswith(attachment.KEY_PREFIX)
        for key in instance.system_metadata
    )


def _has_hostdevs(self: Any, instance: Any) -> bool:
    """Return whether the domain of a server has host devices.

    A server that was evacuated and then changed may still have a domain
    with accelerators on its former host.
    """
    use = libvirt_guest.read_use(self._host, instance)
    return bool(use.mdevs or use.functions)


_TESTS = (_is_named, _is_offered, _has_slots, _is_claimed, _is_attached)
