# SPDX-License-Identifier: Apache-2.0
"""Checks of FPGA cards: Intel's DFL and AMD's Alveo."""

import fnmatch
from collections.abc import Iterator

from nova_accel.catalog import pci_ids
from nova_accel.doctor import checked_host, host_checks, remedies
from nova_accel.doctor.host_checks import Observation, fail, note, warn
from nova_accel.model import pci

AREA = host_checks.Area("fpga", page="fpgas", technology="fpga")
_Host = checked_host.CheckedHost
_Results = Iterator[Observation]

_ALVEO = "10ee"
_DFL = "dfl-pci"
_XRT = "/opt/xilinx/xrt/version.json"
_MANAGERS = checked_host.CheckedHost.sys("class/fpga_manager")
_HEALTHY = ("unknown", "operating", "power_off", "power_up")


def _alveos(host: _Host) -> Iterator[pci.PciFunction]:
    for card in host.fpgas:
        if card.vendor == _ALVEO:
            yield card


@AREA.check(
    "driver",
    why="without its driver the card's regions can't be read or programmed",
    remedy=remedies.load_module("xclmgmt") + "\n# of AMD's package xrt",
    ansible="xrt",
)
def check_driver(host: _Host) -> _Results:
    """Each Alveo function has XRT's driver, or VFIO's."""
    if host.exists(host.sys("bus/pci/drivers/xclmgmt")):
        return  # the check of offers names what to bind
    for card in _alveos(host):
        if card.driver not in pci_ids.FPGA_DRIVERS and not card.is_vfio_bound:
            yield note(
                f"{card.address} has no driver of XRT",
                host.path(card, "driver"),
            )


@AREA.check(
    "regions",
    why="the card has no region that a guest could get",
    remedy="see the kernel's log for dfl-pci; the modules dfl-fme, dfl-afu and"
    " dfl-fme-region make the regions",
    ansible="dfl_opae",
)
def check_regions(host: _Host) -> _Results:
    """Each Intel FPGA has its management engine."""
    for card in host.fpgas:
        path = host.path(card, "fpga_region")
        if card.driver == _DFL and not card.physfn and not host.names(path):
            yield warn(f"{card.address} has no FPGA region", path)


@AREA.check(
    "errors",
    why="the card reports a hardware error",
    remedy="fpgainfo errors all\nprogram the region again, or power-cycle the"
    " card, to clear them",
)
def check_errors(host: _Host) -> _Results:
    """No Intel FPGA reports an error."""
    for card in host.fpgas:
        for path in _error_files(host, card):
            if host.text(path).strip("0x"):
                yield warn(
                    f"{card.address} reports error {host.text(path)}", path
                )


def _error_files(host: _Host, card: pci.PciFunction) -> Iterator[str]:
    if card.driver != _DFL:
        return
    for region in host.names(host.path(card, "fpga_region")):
        place = host.path(card, f"fpga_region/{region}")
        for name in fnmatch.filter(host.names(place), "dfl-fme.*"):
            yield f"{place}/{name}/errors/fme_errors"


@AREA.check(
    "xrt",
    why="nova-accel programs Alveo cards with XRT's tools",
    remedy="install XRT, then\nsource /opt/xilinx/xrt/setup.sh",
    ansible="xrt",
)
def check_xrt(host: _Host) -> _Results:
    """XRT is installed on a host with Alveo cards."""
    bound = [c for c in _alveos(host) if c.driver in pci_ids.FPGA_DRIVERS]
    if bound and host.exists("/opt") and not host.exists(_XRT):
        yield warn("XRT is not installed", _XRT)


@AREA.check(
    "ready",
    why="the card is not usable yet",
    remedy="xbmgmt examine\nxbmgmt reset --device ADDRESS",
    ansible="xrt",
)
def check_ready(host: _Host) -> _Results:
    """Each Alveo card is ready."""
    for card in _alveos(host):
        if host.attribute(card, "ready") in ("0x0", "0"):
            yield warn(
                f"{card.address} is not ready", host.path(card, "ready")
            )


@AREA.check(
    "golden-image",
    why="the factory image has no region to program",
    remedy="xbmgmt program --base --device ADDRESS\nthen switch the host off"
    " and on",
    ansible="xrt",
)
def check_golden_image(host: _Host) -> _Results:
    """Each Alveo card has a shell."""
    for card in _alveos(host):
        if host.attribute(card, "mfg") == "1":
            yield warn(
                f"{card.address} has the factory image", host.path(card, "mfg")
            )


@AREA.check(
    "offline",
    why="the driver has given the card up",
    remedy="xbmgmt reset --device ADDRESS  # or a power cycle",
)
def check_offline(host: _Host) -> _Results:
    """No Alveo card is offline."""
    for card in _alveos(host):
        if host.attribute(card, "dev_offline") == "1":
            yield fail(
                f"{card.address} is offline", host.path(card, "dev_offline")
            )


@AREA.check(
    "manager",
    why="the last programming failed; the region's content is undefined",
    remedy="program the region again, or power-cycle the card",
)
def check_manager(host: _Host) -> _Results:
    """No FPGA manager has failed."""
    for name in host.names(_MANAGERS):
        path = f"{_MANAGERS}/{name}/state"
        state = host.text(path) or "unknown"
        if state.replace(" ", "_") not in _HEALTHY:
            yield warn(f"{name} is in state {state}", path)
