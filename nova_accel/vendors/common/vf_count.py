# SPDX-License-Identifier: Apache-2.0
"""Number of VFs of a PF, and the changes of it.

The kernel takes no other count while VFs are enabled, so every change
takes away the VFs that are there.
"""

from collections.abc import Collection

from nova_accel.config import policy
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions, pci


def used(
    function: pci.PciFunction,
    host: host_reader.HostReader,
    probed: Collection[str] = (),
) -> str:
    """Return the first VF that may be in use, empty if none is.

    A VF that VFIO has may be in a guest; one that can't be read, anywhere.

    :param probed: drivers that only probe a VF, and do nothing with it.
    """
    if function.num_vfs > len(function.virtual_functions):
        return f"a virtual function of {function.address} that is not shown"
    for address in function.virtual_functions:
        child = host.function(str(address))
        if child is None or child.boot_vga:
            return str(address)
        if child.driver is not None and child.driver not in probed:
            return str(address)
    return ""


def change(
    function: pci.PciFunction,
    rule: policy.Rule,
    host: host_reader.HostReader,
    probed: Collection[str] = (),
) -> tuple[actions.SetVfCount, ...]:
    """Return what gives a PF the VFs that its rule asks for, if it can.

    The host's drivers are kept from the new VFs: they are for guests.
    """
    count = rule.num_vfs
    if (
        count is None
        or count == function.num_vfs
        or count > function.total_vfs
        or used(function, host, probed)
    ):
        return ()
    return (
        actions.SetVfCount(
            function=str(function.address),
            count=count,
            before=function.num_vfs,
            is_probed=False,
        ),
    )


def unmet(
    function: pci.PciFunction,
    asked: int,
    host: host_reader.HostReader,
    probed: Collection[str] = (),
) -> str:
    """Return why there aren't as many VFs as a rule asks for."""
    if asked > function.total_vfs:
        return (
            f"device_spec asks for {asked} virtual functions, and it has"
            f" {function.total_vfs}; lower num_vfs"
        )
    return (
        f"device_spec asks for {asked} virtual functions, {function.num_vfs}"
        f" are enabled; that is changed {when(function, host, probed)}"
    )


def when(
    function: pci.PciFunction,
    host: host_reader.HostReader,
    probed: Collection[str] = (),
) -> str:
    """Return when VFs can be taken away, in words."""
    first = used(function, host, probed)
    if not first:
        return "when nova-compute starts"
    return (
        "when nova-compute starts and no guest may have any"
        f" ({first} may be in one)"
    )
