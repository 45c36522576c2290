# SPDX-License-Identifier: Apache-2.0
"""Accelerators of one libvirt domain."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """One domain of a hypervisor, running or defined only.

    ``uuid`` is that of the server where Nova made it
    (nova/virt/libvirt/driver.py, ``_get_guest_config``). ``mdevs`` are
    uuids and ``functions`` PCI addresses of the host devices in it.
    """

    uuid: str
    name: str
    is_running: bool
    mdevs: frozenset[str] = frozenset()
    functions: frozenset[str] = frozenset()

    @property
    def handles(self) -> frozenset[str]:
        """Return the handles of all its host devices."""
        return self.mdevs | self.functions
