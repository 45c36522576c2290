# SPDX-License-Identifier: Apache-2.0
"""Host devices of one libvirt domain."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """One domain of a hypervisor, running or only defined.

    ``uuid`` is the server's for domains that Nova made
    (nova/virt/libvirt/driver.py, ``_get_guest_config``). ``mdevs`` are the
    UUIDs and ``functions`` the PCI addresses of its host devices.
    """

    uuid: str
    name: str
    is_running: bool
    mdevs: frozenset[str] = frozenset()
    functions: frozenset[str] = frozenset()

    @property
    def handles(self) -> frozenset[str]:
        return self.mdevs | self.functions
