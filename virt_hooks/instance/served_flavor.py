# SPDX-License-Identifier: Apache-2.0
"""A server's flavor, as that of the profile which nova-scheduler chose.

A flavor for Nova's own vGPUs is served as a profile, and one with choices as
one of these.
"""

import collections
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from nova_accel import model
from nova_accel.catalog import loader, profile_order
from nova_accel.config.lines import native_flavors
from nova_accel.model import flavors, names

LOG = logging.getLogger(__name__)


def replace(
    instance: Any,
    allocated: model.Allocations,
    replacements: Collection[native_flavors.Replacement],
    list_devices: Callable[[], Collection[model.Device]],
) -> None:
    """Store the profile that nova-scheduler chose in a server's flavor.

    Nothing is stored if no line applies to the flavor, or if the
    allocations have less than its result requests: then the scheduler has
    asked for something else. Of choices it is the first one that the
    allocations have, on devices that support its profile; without any the
    claim fails.

    :param instance: a ``nova.objects.Instance``.
    :param allocated: its allocations on this host.
    :param list_devices: returns those that it has allocations of.
    :raises MalformedError: the flavor's list of choices can't be used.
    :raises nova.exception.NovaException: the instance can't be saved.
    """
    before = instance.flavor.extra_specs
    specs = (
        native_flavors.apply(replacements, before) if replacements else None
    )
    if specs is not None and _is_allocated(specs, allocated):
        _store(instance, specs)
    if profile_order.KEY in instance.flavor.extra_specs:
        _store_choice(instance, allocated, list_devices())


def _store_choice(
    instance: Any,
    allocated: model.Allocations,
    devices: Collection[model.Device],
) -> None:
    choices = profile_order.list_choices(
        instance.flavor.extra_specs, loader.load()
    )
    for choice in choices:
        if _is_allocated(choice.specs, allocated) and all(
            _list_supporting(choice.specs, devices)
        ):
            _store(instance, choice.specs)
            return


def _is_allocated(
    specs: Mapping[str, str], allocated: model.Allocations
) -> bool:
    """Return whether allocations have all that extra specs request."""
    requested = _add(g.resources for g in flavors.parse_groups(specs))
    return requested <= _add(allocated.values())


def _list_supporting(
    specs: Mapping[str, str], devices: Collection[model.Device]
) -> Iterator[bool]:
    """Yield for each group with a profile whether a device supports it."""
    for group in flavors.parse_groups(specs):
        if any(t.startswith(names.PROFILE_PREFIXES) for t in group.required):
            yield any(
                profile.trait in group.required
                for device in devices
                for profile in device.profiles
            )


def _store(instance: Any, specs: Mapping[str, str]) -> None:
    flavor = instance.flavor.obj_clone()
    flavor.extra_specs = dict(specs)
    instance.flavor = flavor
    instance.save()
    LOG.info(
        "Flavor %s of server %s is served as %s",
        flavor.name,
        instance.uuid,
        "; ".join(map(str, flavors.parse_groups(specs))),
    )


def _add(amounts: Iterable[Mapping[str, int]]) -> collections.Counter[str]:
    total: collections.Counter[str] = collections.Counter()
    for each in amounts:
        total.update(each)
    return total
