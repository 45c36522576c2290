# SPDX-License-Identifier: Apache-2.0
"""Functions that Nova's own ``[pci] device_spec`` gives to servers.

Nova's parser decides where Nova is installed and these are the files of this
machine: it reads ``/sys`` itself. Otherwise, and if it fails, its grammar
decides, in ``nova_accel.config.lines.nova_pci_spec``. nova-compute itself
asks Nova's parser only.
"""

from collections.abc import Mapping

from nova_accel.config.lines import nova_pci_spec
from nova_accel.host import nova_devices
from nova_accel.host.sysfs import fs, host_reader
from nova_accel.model import pci


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
        matches = nova_devices.match(line, functions)
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
