# SPDX-License-Identifier: Apache-2.0
"""The lab's FPGA card, for tests: its bitstreams and its state."""

import dataclasses
import hashlib
import uuid
from typing import Any

from tests.e2e.support.site import Provider, Site, fault
from tests.lab.vm import topology

REGION = "0000_05_00_0_region_0"
ADDRESS = f"{topology.PAC_ADDRESS}/region-0"
PROGRAMMED = f"load bitstream .* into {ADDRESS}: done in"
FAULTED = "CUSTOM_ACCELERATOR_FAULTED"
FUNCTION = "CUSTOM_FPGA_FUNCTION_"
INTERFACE = f"CUSTOM_FPGA_INTERFACE_{topology.PAC_INTERFACE.upper()}"
#: More than is carried to the machine in one piece.
BYTES = 3 << 20

LIB = '. "$LAB_GUEST/lib.sh"'
_AFU_ID = """
cat /sys/bus/pci/devices/$1/fpga_region/region*/dfl-port.*/afu_id
"""
_DRIVER = "basename $(readlink /sys/bus/pci/devices/$1/driver)"
#: A port stays disabled after an error, and has no driver after it was a
#: virtual function's, until the card's driver comes anew.
REBIND = """
cd /sys/bus/pci/drivers/dfl-pci
echo $1 > unbind && echo $1 > bind
"""
REVIVE = f"{LIB}; lab_revive $1"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bitstream:
    """A bitstream in glance: its image, and its function."""

    image: str
    function: str


def restart(lab: Site, *options: str) -> None:
    """Restart nova-compute with these tests' options, and further ones."""
    owner = lab.api.current_project_id
    lab.restart_compute("fpga", f"bitstream_owners = {owner}", *options)


def heal(lab: Site) -> None:
    """Say that the region is in order, and let nova-compute see it."""
    state_dir = str(lab.layout.accel)
    assert ADDRESS in lab.accel("heal", "--state-dir", state_dir)
    lab.accel("heal", ADDRESS, "--state-dir", state_dir)
    restart(lab)


def raw(function: uuid.UUID, directive: str = "") -> bytes:
    """Return what the card takes.

    It does what the directive says (tests/lab/standins/preload/fakedfl.c).
    """
    head = function.bytes + directive.encode()
    return head + bytes(BYTES - len(head))


def bitstream(lab: Site, directive: str = "") -> Bitstream:
    """Create a bitstream with a function of its own in glance."""
    function = uuid.uuid4()
    content = raw(function, directive)
    image = lab.image(
        f"bitstream-{directive.lower()}",
        content,
        **{
            "accelerator_function_id": str(function),
            "accelerator_interface_id": topology.PAC_INTERFACE,
            "accelerator_vendor": "intel",
            "accelerator_sha512": hashlib.sha512(content).hexdigest(),
        },
    )
    return Bitstream(image=image, function=function.hex)


def programmed(lab: Site, loaded: Bitstream) -> Any:
    """Create a flavor for a region and what is to be loaded into it."""
    specs = {
        "resources_FPGA__FPGA": "1",
        f"trait_FPGA__{INTERFACE}": "required",
        "accelerator__fpga_bitstream": loaded.image,
    }
    return lab.flavor(f"programmed-{loaded.function}", **specs)


def function_of(provider: Provider) -> set[str]:
    """Return the functions that a region's traits name."""
    return {
        trait.removeprefix(FUNCTION).lower()
        for trait in provider.traits
        if trait.startswith(FUNCTION)
    }


def afu_id(lab: Site, address: str = topology.PAC_ADDRESS) -> str:
    """Return what the driver of the function with the port reads."""
    return lab.on_host(_AFU_ID, address).strip()


def driver(lab: Site, address: str = topology.PAC_ADDRESS) -> str:
    """Return the driver that has the card, or one of its functions."""
    return lab.on_host(_DRIVER, address).strip()


def check_free(lab: Site, *servers: Any) -> None:
    """Check that the card is bound on the host, and not allocated."""
    assert driver(lab) == "dfl-pci"
    assert lab.claims() == {}
    for server in servers:
        assert lab.allocations(server) == {}


def check_offered(lab: Site) -> None:
    """Check that the region can be had."""
    region = lab.providers()[REGION]
    assert FAULTED not in region.traits
    assert region.inventories["FPGA"]["total"] == 1
    assert region.inventories["FPGA"]["reserved"] == 0


def refused(lab: Site, name: str, flavor: Any, reason: str = "") -> Any:
    """Request a server that must fail; return it.

    What nova itself says of it is that no host was found, or none is left;
    the reason of the host that gave up is in that one's log.
    """
    offset = lab.log_offset("nova-compute")
    server = lab.await_build(lab.request(f"e2e-{name}", flavor))
    assert server.status == "ERROR"
    if not reason:
        assert "No valid host was found" in server.fault["message"]
        return server
    pattern = f"ERROR virt_hooks.*{server.id}.*{reason}"
    assert lab.logged("nova-compute", pattern, offset), fault(server)
    return server
