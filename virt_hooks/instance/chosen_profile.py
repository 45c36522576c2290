# SPDX-License-Identifier: Apache-2.0
"""A server's flavor with choices, as the profile that the server gets."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nova_accel import model
from nova_accel.catalog import loader, profile_order
from nova_accel.model import flavors, names, providers
from virt_hooks.instance import native_flavor

LOG = logging.getLogger(__name__)


def replace(
    instance: Any,
    allocated: model.Allocations,
    root: providers.ProviderRoot | None,
    devices: Iterable[model.Device],
) -> None:
    """Store the choice that nova-scheduler made in a server's flavor.

    It is the first one that the allocations have, on devices that support
    its profile. Nothing is stored if there is none: then the claim fails.

    :param instance: a ``nova.objects.Instance``.
    :param allocated: its allocations on this host.
    :param root: of this host.
    :param devices: those of this host.
    :raises MalformedError: the flavor's list of choices can't be used.
    :raises nova.exception.NovaException: the instance can't be saved.
    """
    specs = instance.flavor.extra_specs
    if profile_order.KEY not in specs or root is None:
        return
    own = [
        device
        for device in devices
        if names.provider_uuid(root.uuid, device.address) in allocated
    ]
    fitting = [
        choice
        for choice in profile_order.list_choices(specs, loader.load())
        if native_flavor.is_allocated(choice.specs, allocated)
        and all(_list_supporting(choice.specs, own))
    ]
    for choice in fitting:
        native_flavor.store(instance, choice.specs)
        return


def _list_supporting(
    specs: Mapping[str, str], devices: Iterable[model.Device]
) -> Iterator[bool]:
    """Yield for each group with a profile whether a device supports it."""
    devices = list(devices)
    for group in flavors.parse_groups(specs):
        if any(t.startswith(names.PROFILE_PREFIXES) for t in group.required):
            yield any(
                profile.trait in group.required
                for device in devices
                for profile in device.profiles
            )
