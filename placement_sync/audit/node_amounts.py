# SPDX-License-Identifier: Apache-2.0
"""Amounts that Nova allocates on the compute node for a server.

Computed as in ``ResourceRequest.from_request_spec`` of
nova/scheduler/utils.py, from the server in Nova's API. Values that the API
does not show are an error, never a guess.
"""

import collections
from collections.abc import Iterator, Mapping

from nova_accel import errors
from nova_accel.model import flavors, providers
from placement_sync.client import nova_api

_POLICY, _SHARED = "hw:cpu_policy", "shared"
# Extra specs for which Nova allocates more than what is computed here.
_UNSUPPORTED = (
    "accel:device_profile",
    "hw:mem_encryption",
    "hw:pmem",
    "pci_passthrough:alias",
)


class UnknownAmountsError(errors.AcceleratorError):
    """The amounts of a server are not certain.

    :param reason: why.
    """


def compute(
    server: nova_api.Server,
    inventories: Mapping[str, providers.Inventory],
    charged: Mapping[str, int],
) -> dict[str, int]:
    """Return a server's amounts on its compute node, by resource class.

    :param inventories: those of the compute node's provider.
    :param charged: amounts that the server's claims charge, by class.
    :raises UnknownAmountsError: the amounts are not certain.
    """
    flavor = server.flavor
    if flavor is None:
        raise UnknownAmountsError("Nova does not show its flavor")
    _check_extra_specs(flavor.extra_specs, inventories)
    amounts = _explicit_amounts(flavor.extra_specs, charged)
    for name, amount in _usual_amounts(server, flavor):
        amounts.setdefault(name, amount)
    amounts = {name: n for name, n in amounts.items() if n}
    if absent := sorted(amounts.keys() - inventories.keys()):
        raise UnknownAmountsError(
            f"the compute node has no inventory of {', '.join(absent)}"
        )
    return amounts


def _check_extra_specs(
    extra_specs: Mapping[str, str], inventories: Mapping[str, object]
) -> None:
    """Raise UnknownAmountsError for amounts that only Nova can compute."""
    policy = extra_specs.get(_POLICY)
    if policy not in (None, _SHARED):
        raise UnknownAmountsError(f"its flavor has {_POLICY}={policy}")
    if policy is None and "PCPU" in inventories:
        raise UnknownAmountsError(
            "the compute node has PCPU, and the image of a server may ask"
            f" for it (hw_cpu_policy) where the flavor has no {_POLICY}"
        )
    if unsupported := [key for key in _UNSUPPORTED if key in extra_specs]:
        raise UnknownAmountsError(f"its flavor has {', '.join(unsupported)}")


def _explicit_amounts(
    extra_specs: Mapping[str, str], charged: Mapping[str, int]
) -> dict[str, int]:
    """Return the amounts that ``resources:CLASS`` requests of the node."""
    amounts: dict[str, int] = {}
    requested: collections.Counter[str] = collections.Counter()
    for group in flavors.parse_groups(extra_specs):
        requested.update(group.resources)
        if not group.suffix:
            amounts |= {
                name: amount
                for name, amount in group.resources.items()
                if name not in charged
            }
    for name, amount in requested.items():
        if amount > amounts.get(name, 0) + charged.get(name, 0):
            raise UnknownAmountsError(
                f"its flavor requests {amount} {name}, and its claims charge"
                f" {charged.get(name, 0)}"
            )
    # A class that a device provides is not taken from the flavor's fields.
    return {name: amounts.get(name, 0) for name in requested}


def _usual_amounts(
    server: nova_api.Server, flavor: nova_api.ServerFlavor
) -> Iterator[tuple[str, int]]:
    """Yield the amounts that Nova allocates by the flavor's fields."""
    yield "VCPU", flavor.vcpus
    yield "MEMORY_MB", flavor.memory_mb
    if server.is_volume_backed is None and flavor.root_gb:
        raise UnknownAmountsError(
            "Nova does not show whether its root disk is a volume"
        )
    root_gb = 0 if server.is_volume_backed else flavor.root_gb
    yield "DISK_GB", root_gb + flavor.other_gb
