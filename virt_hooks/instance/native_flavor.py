# SPDX-License-Identifier: Apache-2.0
"""A server's flavor for Nova's own vGPUs, served as a profile."""

import collections
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from nova_accel import model
from nova_accel.config.lines import native_flavors
from nova_accel.model import flavors

LOG = logging.getLogger(__name__)


def replace(
    instance: Any,
    allocated: model.Allocations,
    replacements: Iterable[native_flavors.Replacement],
) -> None:
    """Store the profile that nova-scheduler chose in a server's flavor.

    Nothing is stored if no line applies to the flavor, or if the
    allocations have less than its result requests: then the scheduler has
    asked for something else.

    :param instance: a ``nova.objects.Instance``.
    :param allocated: its allocations on this host.
    :raises nova.exception.NovaException: the instance can't be saved.
    """
    specs = native_flavors.apply(replacements, instance.flavor.extra_specs)
    if specs is not None and is_allocated(specs, allocated):
        store(instance, specs)


def is_allocated(
    specs: Mapping[str, str], allocated: model.Allocations
) -> bool:
    """Return whether allocations have all that extra specs request."""
    requested = _add(g.resources for g in flavors.parse_groups(specs))
    return requested <= _add(allocated.values())


def store(instance: Any, specs: Mapping[str, str]) -> None:
    """Store extra specs in the flavor of a server.

    :raises nova.exception.NovaException: the instance can't be saved.
    """
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
