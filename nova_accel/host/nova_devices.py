# SPDX-License-Identifier: Apache-2.0
"""Functions that Nova's own ``[pci] device_spec`` gives to servers.

Nova's parser decides where Nova is installed and these are the files of this
machine: it reads ``/sys`` itself. Otherwise, and if it fails, its grammar
decides, in ``nova_accel.config.nova_pci_spec``.
"""

from collections.abc import Mapping

from nova_accel.config.lines import nova_pci_spec
from nova_accel.host.sysfs import fs, host_reader
from nova_accel.model import pci

# Nova takes a remotely managed function only with a serial number, which
# libvirt reads from the card; it is not needed to know what a line means.
_CAPABILITIES = {"vpd": {"card_serial_number": "any"}}


def list_matches(
    line: str, host: host_reader.HostReader
) -> tuple[pci.PciFunction, ...]:
    """Return the functions that one line of Nova's option names.

    :raises ConfigurationError: Nova refuses the line.
    :raises UnreadableError: the PCI bus can't be listed.
    """
    functions = {str(f.address): f for f in host.all_functions()}
    source = host.files.source
    if isinstance(source, fs.DiskSource) and source.is_this_machine:
        matches = match_with_nova(line, functions)
        if matches is not None:
            return matches
    return match_with_grammar(line, functions, host)


def match_with_grammar(
    line: str,
    functions: Mapping[str, pci.PciFunction],
    host: host_reader.HostReader,
) -> tuple[pci.PciFunction, ...]:
    """Return the functions that a line names by the option's grammar.

    :raises ConfigurationError: Nova refuses the line.
    """
    specs = nova_pci_spec.parse(line, host.interface_address)
    return tuple(
        function
        for function in functions.values()
        if any(spec.matches(function, functions) for spec in specs)
    )


def match_with_nova(
    line: str, functions: Mapping[str, pci.PciFunction]
) -> tuple[pci.PciFunction, ...] | None:
    """Return the functions that a line names by Nova's own parser.

    :returns: None if Nova is not installed, or refuses the line: some of its
        checks need the service's other options.
    """
    try:
        # Most runs of the doctor need none of Nova's modules.
        from nova.pci import whitelist  # noqa: PLC0415

        spec = whitelist.Whitelist([line])
        return tuple(
            function
            for function in functions.values()
            if function.address.domain <= nova_pci_spec.MAX_DOMAIN
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
