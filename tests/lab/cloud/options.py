# SPDX-License-Identifier: Apache-2.0
"""Options of a lab, stored while it is up."""

import dataclasses
import json
from typing import Any

from tests.lab.cloud.layout import Layout
from tests.lab.vm.layout import STOCK

#: Where the compute host's devices and libvirt are: the VM, or this machine.
HARDWARE = ("vm", "host")
#: How the library is switched on in nova-compute; ``off`` is stock nova.
ACTIVATIONS = ("compute-driver", "config-source", "off")
_FILE = "options.json"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The choices of one ``up``."""

    hardware: str = "vm"
    activation: str = "compute-driver"
    #: The root directory of the VMs: one of tests.lab.vm.layout.ROOTS.
    root: str = STOCK

    def save(self, layout: Layout) -> None:
        """Remember the choices in the lab's state."""
        text = json.dumps(dataclasses.asdict(self))
        (layout.state / _FILE).write_text(text)


def read_options(layout: Layout) -> Options | None:
    """Return the choices of the running lab; None when there is none."""
    try:
        text = (layout.state / _FILE).read_text()
    except FileNotFoundError:
        return None
    values: dict[str, Any] = json.loads(text)
    return Options(**values)
