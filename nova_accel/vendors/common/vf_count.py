# SPDX-License-Identifier: Apache-2.0
"""Number of a PF's VFs, and the plan to change it.

The kernel accepts no other count while VFs are enabled, so each change
first removes all VFs.
"""

from collections.abc import Collection

from nova_accel.config import policy
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions, pci


def find_used_vf(
    function: pci.PciFunction,
    host: host_reader.HostReader,
    probed: Collection[str] = (),
) -> str:
    """Return the first VF that may be in use, empty if none is.

    A VF bound to VFIO may be in a guest; a VF that can't be read may be in
    use too.

    :param probed: drivers that bind to a VF without using it.
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


def plan_count(
    function: pci.PciFunction,
    rule: policy.Rule,
    host: host_reader.HostReader,
    probed: Collection[str] = (),
) -> tuple[actions.SetVfCount, ...]:
    """Return the action that enables as many VFs as the rule asks for.

    Empty if nothing has to change, or if VFs may be in use. The host's
    drivers do not probe the new VFs: they are for guests.
    """
    count = rule.num_vfs
    if (
        count is None
        or count == function.num_vfs
        or count > function.total_vfs
        or find_used_vf(function, host, probed)
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


def explain_mismatch(
    function: pci.PciFunction,
    requested: int,
    host: host_reader.HostReader,
    probed: Collection[str] = (),
) -> str:
    """Return why a PF has another number of VFs than requested.

    :param requested: ``num_vfs`` of the rule.
    """
    if requested > function.total_vfs:
        return (
            f"device_spec asks for {requested} virtual functions, and it has"
            f" {function.total_vfs}; lower num_vfs"
        )
    return (
        f"device_spec asks for {requested} virtual functions,"
        f" {function.num_vfs} are enabled; that is changed"
        f" {describe_change(function, host, probed)}"
    )


def describe_change(
    function: pci.PciFunction,
    host: host_reader.HostReader,
    probed: Collection[str] = (),
) -> str:
    """Return when the number of VFs will be changed, as a phrase."""
    first = find_used_vf(function, host, probed)
    if not first:
        return "when nova-compute starts"
    return (
        "when nova-compute starts and no guest may have any"
        f" ({first} may be in one)"
    )
