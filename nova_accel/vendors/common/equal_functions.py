# SPDX-License-Identifier: Apache-2.0
"""Functions of the same model on one host, compared by their drivers."""

import collections
from collections.abc import Iterable, Iterator

from nova_accel import model
from nova_accel.config import remedy
from nova_accel.host.sysfs import host_reader
from nova_accel.model import pci
from nova_accel.vendors.common import iommu_group


def list_bound(
    function: pci.PciFunction, host: host_reader.HostReader
) -> Iterator[pci.PciFunction]:
    """Yield the cards of the same model that a driver of the host has.

    A card whose subsystem is not known may be of the same model.
    """
    return (
        other
        for other in host.all_functions()
        if _may_be_equal(other, function)
        and other.physfn is None
        and other.driver != iommu_group.UNKNOWN
        and not iommu_group.is_free(other)
    )


def find_variant(
    vfs: Iterable[pci.PciFunction], host: host_reader.HostReader
) -> pci.PciFunction | None:
    """Return an equal of some VFs that a variant driver of VFIO has.

    Variant drivers of VFs add live migration to what vfio-pci does.
    """
    ids = {(vf.vendor, vf.product) for vf in vfs}
    return next(
        (
            other
            for other in host.all_functions()
            if other.physfn is not None
            and (other.vendor, other.product) in ids
            and iommu_group.has_variant_driver((other,))
        ),
        None,
    )


def compare_vfs(
    pf: pci.PciFunction,
    vfs: Iterable[pci.PciFunction],
    variant: pci.PciFunction | None,
) -> Iterator[model.Problem]:
    """Yield VFs that guests can have and that lack the driver of an equal.

    :param variant: the equal; see ``find_variant``.
    """
    if variant is None:
        return
    plain: dict[str, list[str]] = collections.defaultdict(list)
    for vf in vfs:
        if not iommu_group.has_variant_driver((vf,)):
            plain[vf.driver or ""].append(str(vf.address))
    for driver, addresses in plain.items():
        binding = remedy.describe_binding(
            addresses, str(pf.address), driver, variant.driver or ""
        )
        subject = f"{len(addresses)} of its VFs"
        if len(addresses) == 1:
            subject = f"its VF {addresses[0]}"
        state = f"bound to {driver}" if driver else "without a driver"
        # Of the card: the problem ends with a new reading of the card.
        yield model.Problem.of_device(
            pf.address,
            f"{subject}: {state}, unlike {variant.address}, which"
            f" {variant.driver} has, so that a server with it can't move while"
            f" it runs; unless a guest has it, {binding}",
        )


def _may_be_equal(card: pci.PciFunction, other: pci.PciFunction) -> bool:
    ids = (
        (card.vendor, other.vendor),
        (card.product, other.product),
        (card.subsystem_vendor, other.subsystem_vendor),
        (card.subsystem_product, other.subsystem_product),
    )
    return all(a == b or not a or not b for a, b in ids)
