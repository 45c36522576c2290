# SPDX-License-Identifier: Apache-2.0
"""Plan of an adoption, by the support of Nova that servers have."""

from nova_accel.inventory.adoption import (
    cyborg_planner,
    mdev_planner,
    pci_planner,
    planner,
    records,
)

_PLANNERS: dict[records.Source, type[planner.Planner]] = {
    kind.source: kind
    for kind in (
        mdev_planner.MdevPlanner,
        pci_planner.PciPlanner,
        cyborg_planner.CyborgPlanner,
    )
}
#: Addresses by the names of providers, for each source of Nova's own.
NATIVE_NAMES = {
    records.Source.NOVA_MDEV: mdev_planner.native_names,
    records.Source.NOVA_PCI: pci_planner.native_names,
}


def build(
    observed: planner.Observed,
    source: records.Source = records.Source.NOVA_MDEV,
) -> records.Plan:
    """Return the plan; with blockers it can't be applied."""
    return _PLANNERS[source](observed).build()
