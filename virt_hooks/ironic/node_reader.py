# SPDX-License-Identifier: Apache-2.0
"""Reader of a bare-metal node's accelerators, for Ironic's ramdisk.

A server takes the whole node. So a device counts although no guest could have
it: without an IOMMU, with a driver of the host, or without VFs.
"""

import dataclasses
from collections.abc import Iterable

from nova_accel import model
from nova_accel.catalog import loader, pci_ids
from nova_accel.config import library_version, policy
from nova_accel.discovery import plugin, scan
from nova_accel.host.sysfs import error_counters, host_reader
from nova_accel.inventory import conditions, unoffered
from nova_accel.model import names, pci
from nova_accel.vendors import qat
from virt_hooks.ironic import node_report


def read_state(host: host_reader.HostReader) -> model.HostState:
    """Return all accelerators of a host, with their faults.

    Those that no vendor driver describes are devices without counters and
    without a driver's name.

    :raises UnreadableError: the PCI functions can't be listed.
    """
    rules = policy.DeviceRules()
    functions = host.functions()
    state = scan.read(host, plugin.load(), rules)
    rest = unoffered.find(state, functions, rules)
    devices = (*state.devices, *_describe(rest, host))
    state = dataclasses.replace(state, devices=devices)
    state = conditions.mark_unhealthy(
        state, error_counters.find_faults(host, devices)
    )
    return conditions.mark_faults(state, {})[0]


def read_report(host: host_reader.HostReader) -> node_report.NodeReport:
    """Return the report of a host.

    :raises UnreadableError: the PCI functions can't be listed.
    """
    return node_report.build(
        read_state(host),
        host.functions(),
        loader.load(),
        f"nova-accel {library_version.read()}",
    )


def _describe(
    rest: Iterable[unoffered.Unoffered], host: host_reader.HostReader
) -> Iterable[model.Device]:
    for item in rest:
        if item.function and pci_ids.is_candidate(item.function):
            yield _build_device(item.function, host)


def _build_device(
    function: pci.PciFunction, host: host_reader.HostReader
) -> model.Device:
    traits: frozenset[str] = frozenset()
    unread: tuple[str, ...] = ()
    if pci_ids.find_qat(function):
        traits, reasons = qat.read_services(function, host)
        unread = ("CUSTOM_QAT_",) if any(reasons) else ()
    return model.Device(
        address=str(function.address),
        plugin="",
        technology="",
        vendor=names.vendor_name(function.vendor),
        model=f"{function.vendor}:{function.product}",
        resource_class="",
        counters={},
        slots=(),
        vendor_id=function.vendor,
        product_id=function.product,
        driver=function.driver,
        numa_node=function.numa_node,
        traits=traits,
        unread_traits=unread,
    )
