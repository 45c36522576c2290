# SPDX-License-Identifier: Apache-2.0
"""Functions that Nova's parser of ``[pci] device_spec`` finds in a line."""

from collections.abc import Mapping

from nova_accel.host.sysfs import host_reader
from nova_accel.model import pci

# Nova takes a remotely managed function only with a serial number, which
# libvirt reads from the card; it is not needed to know what a line means.
_CAPABILITIES = {"vpd": {"card_serial_number": "any"}}


def list_matches(
    line: str, host: host_reader.HostReader
) -> tuple[pci.PciFunction, ...]:
    """Return the functions that one line names; none if Nova refuses it.

    :raises UnreadableError: the PCI bus can't be listed.
    """
    functions = {str(f.address): f for f in host.all_functions()}
    return match(line, functions) or ()


def match(
    line: str, functions: Mapping[str, pci.PciFunction]
) -> tuple[pci.PciFunction, ...] | None:
    """Return the functions that a line names.

    :returns: None if Nova is not installed, or refuses the line: some of its
        checks need the service's other options.
    """
    try:
        # Most runs of the doctor need none of Nova's modules.
        from nova.pci import devspec, whitelist  # noqa: PLC0415

        spec = whitelist.Whitelist([line])
        return tuple(
            function
            for function in functions.values()
            if function.address.domain <= devspec.MAX_DOMAIN
            and spec.device_assignable(_describe(function))
        )
    except Exception:  # Nova's parser raises whatever its parts do
        return None


def _describe(function: pci.PciFunction) -> dict[str, object]:
    """Return a function as Nova's libvirt driver describes it."""
    physfn = function.physfn
    return {
        "address": str(function.address),
        "vendor_id": function.vendor,
        "product_id": function.product,
        "parent_addr": str(physfn) if physfn else None,
        "capabilities": _CAPABILITIES,
    }
