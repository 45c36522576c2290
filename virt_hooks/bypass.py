# SPDX-License-Identifier: Apache-2.0
"""Stock behaviour for servers without accelerators.

An override that is decorated with ``accelerators_only`` runs only for
servers with accelerators. For all other servers Nova's own method is called
directly, so that a defect of this library can't stop them. The decision
itself never raises: an error in it is logged, and counts as "no".
"""

import functools
import logging
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from nova import objects
from nova.virt.libvirt import driver

from nova_accel.model import attachment
from virt_hooks.guest import libvirt_guest
from virt_hooks.instance import instance_request

LOG = logging.getLogger(__name__)

Method = TypeVar("Method", bound=Callable[..., Any])

# Extra specs that ask for accelerators: our own namespace, and every
# resource class but those of the compute node itself
# (nova/virt/libvirt/driver.py, update_provider_tree).
_OTHER_CLASSES = (
    "VCPU$|PCPU$|MEMORY_MB$|DISK_GB$|MEM_ENCRYPTION_CONTEXT$|"
    + instance_request.PMEM_PREFIX
)
_CLEANUP = "_cleanup"
_EXTRA_SPEC = re.compile(rf"accelerator:|resources[^:]*:(?!{_OTHER_CLASSES})")


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
        classes = type(self).__mro__
        last = classes[classes.index(driver.LibvirtDriver) - 1]
        stock = functools.partial(
            getattr(super(last, self), name), *args, **kwargs
        )
        if has_accelerators(self, name, arguments):
            return override(self, stock, *args, **kwargs)
        return stock()

    return cast(Method, method)


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

    While a server is resized it has three flavors.
    """
    flavors = [instance.flavor]
    for name in ("old_flavor", "new_flavor"):
        if instance.obj_attr_is_set(name):
            flavors.append(getattr(instance, name))
    return any(
        _EXTRA_SPEC.match(key)
        for flavor in flavors
        if flavor is not None
        for key in flavor.extra_specs
    )


def _has_slots(_: Any, instance: Any) -> bool:
    """Return whether a server has slots, if its resources are loaded."""
    if not instance.obj_attr_is_set("resources"):
        return False
    return instance_request.has_accelerator_slots(instance.resources)


def _is_claimed(self: Any, instance: Any) -> bool:
    """Return whether a server has claims on this host."""
    return bool(self._accel.claims_of(instance.uuid))


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


_TESTS = (_is_named, _has_slots, _is_claimed, _is_attached)
