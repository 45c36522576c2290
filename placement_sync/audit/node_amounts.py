# SPDX-License-Identifier: Apache-2.0
"""Amounts that Nova allocates on the compute node for a server.

As ``ResourceRequest.from_request_spec`` of nova/scheduler/utils.py computes
it, from what Nova's API shows of a server. What the API does not show for
certain is an error, never a guess.
"""

import collections
from collections.abc import Iterator, Mapping

from nova_accel import errors
from nova_accel.model import flavors, providers
from placement_sync.client import nova_types

_POLICY, _SHARED = "hw:cpu_policy", "shared"
# Extra specs for which Nova allocates more than what is computed here.
_OTHERS = (
    "accel:device_profile",
    "hw:mem_encryption",
    "hw:pmem",
    "pci_passthrough:alias",
)


class UnknownAmountsError(errors.AcceleratorError):
    """The amounts of a server can't be told for certain.

    :param reason: why.
    """


def compute(
    server: nova_types.Server,
    inventories: Mapping[str, providers.Inventory],
    charged: Mapping[str, int],
) -> dict[str, int]:
    """Return what a server takes of its compute node, by resource class.

    :param inventories: those of the compute node's provider.
    :param charged: what the server's claims take of devices, by class.
    :raises UnknownAmountsError: that can't be told for certain.
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
    """Raise UnknownAmountsError for what only Nova can compute."""
    policy = extra_specs.get(_POLICY)
    if policy not in (None, _SHARED):
        raise UnknownAmountsError(f"its flavor has {_POLICY}={policy}")
    if policy is None and "PCPU" in inventories:
        raise UnknownAmountsError(
            "the compute node has PCPU, and the image of a server may ask"
            f" for it (hw_cpu_policy) where the flavor has no {_POLICY}"
        )
    if others := [key for key in _OTHERS if key in extra_specs]:
        raise UnknownAmountsError(f"its flavor has {', '.join(others)}")


def _explicit_amounts(
    extra_specs: Mapping[str, str], charged: Mapping[str, int]
) -> dict[str, int]:
    """Return the amounts that ``resources:CLASS`` asks of the node."""
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
                f"its flavor asks for {amount} {name}, and its claims are"
                f" of {charged.get(name, 0)}"
            )
    # What a device gives is not added from the flavor's own fields.
    return {name: amounts.get(name, 0) for name in requested}


def _usual_amounts(
    server: nova_types.Server, flavor: nova_types.ServerFlavor
) -> Iterator[tuple[str, int]]:
    """Yield what Nova allocates for a flavor without ``resources``."""
    yield "VCPU", flavor.vcpus
    yield "MEMORY_MB", flavor.memory_mb
    if server.is_volume_backed is None and flavor.root_gb:
        raise UnknownAmountsError(
            "Nova does not show whether its root disk is a volume"
        )
    root_gb = 0 if server.is_volume_backed else flavor.root_gb
    yield "DISK_GB", root_gb + flavor.other_gb
