# SPDX-License-Identifier: Apache-2.0
"""A Lifecycle with FPGAs on a simulated kernel.

A PAC that is assigned as a whole, a card with two ports behind VFs, a card
without VFs yet, a card of the older driver, and an Alveo.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from nova_accel import model
from nova_accel.config import policy
from nova_accel.discovery import (
    change_detection,
    note_stores,
    plugin,
    scan,
    snapshot,
)
from nova_accel.host.execute import action_executor, privileged
from nova_accel.host.state import device_notes
from nova_accel.host.sysfs import fs, host_reader
from nova_accel.model import actions, flavors, names
from tests.lab import fakehost
from tests.lab.fakehost import fpga
from tests.support.hosts.simulated import ROOT
from virt_hooks.guest import connection
from virt_hooks.operations.fpga import region_programs
from virt_hooks.spawn import host_access, lifecycle

PAC, SPLIT, BARE = "0000:5e:00.0", "0000:6e:00.0", "0000:7e:00.0"
LEGACY, ALVEO = "0000:8e:00.0", "0000:9e:00.0"
SPLIT_VFS = ("0000:6e:00.1", "0000:6e:00.2")
BARE_VFS = ("0000:7e:00.1", "0000:7e:00.2")
USER = "0000:9e:00.1"

NLB0 = "d8424dc4a4a3c413f89e433683f9040b"
A = "aaaaaaaa111111112222222233333333"
B = "bbbbbbbb111111112222222233333333"
C = "cccccccc111111112222222233333333"
#: Interfaces of Arria 10 PACs and of the Alveo, and another one.
INTEL = "f64e598bea11517fa28e7bc65d885104"
XILINX = "08cd2b8e0d6c4b8f9a6a3e2e4b4d5b8d"
OTHER = "0123456789abcdef0123456789abcdef"

SPEC = fakehost.HostSpec(
    cards=(
        fakehost.DflCard(address=PAC),
        fakehost.DflCard(address=SPLIT, functions=(NLB0, A), released=2),
        fakehost.DflCard(address=BARE, functions=(NLB0, NLB0)),
        fakehost.IntelFpgaCard(address=LEGACY),
        fakehost.AlveoCard(address=ALVEO, function=A),
    )
)
DEFAULT = policy.DeviceRules()
#: Timeout of a load that completes, also on a busy machine.
PROGRAM_S = 60.0
#: Timeout of a load that hangs: a vendor's tool has to reach the card first.
HANG_PROGRAM_S = 5.0


@contextlib.contextmanager
def mounted(
    spec: fakehost.HostSpec, place: Path
) -> Iterator[fakehost.Controller]:
    """Yield a simulated host with the vendors' tools installed."""
    reason = fakehost.missing()
    if reason:
        pytest.skip(reason)
    privileged.run_here()
    with fakehost.simulated_sysfs(spec, place) as kernel:
        for tool in ("fpgaconf", "xrt-smi", "xbmgmt"):
            kernel.write_fpga_tool(tool)
        yield kernel


def bitstream(
    place: Path,
    function: str,
    directive: str = "",
    *,
    is_xclbin: bool = False,
    interface: str = "",
) -> model.Bitstream:
    """Return a bitstream for one of the cards, written into a file."""
    write = fpga.xclbin if is_xclbin else fpga.gbs
    fits = interface or (XILINX if is_xclbin else INTEL)
    content = write(function, fits, directive)
    digest = hashlib.sha512(content).hexdigest()
    path = place / digest[:24]
    path.write_bytes(content)
    return model.Bitstream(
        name=f"image-{function[0]}{directive}",
        vendor="xilinx" if is_xclbin else "intel",
        path=str(path),
        function=function,
        interface=fits,
        sha512=digest,
        size=len(content),
    )


def executor(
    root: Path, seconds: float = PROGRAM_S
) -> action_executor.Executor:
    """Return an executor whose loads time out after ``seconds``."""
    return action_executor.Executor(
        str(root), read_gpus=dict, program_s=seconds
    )


def read(root: Path, rules: policy.DeviceRules = DEFAULT) -> model.HostState:
    """Return the host state that a starting service reads."""
    return scan.read(host_reader.HostReader(root), plugin.load(), rules)


def region(host: model.HostState, card: str, number: int = 0) -> model.Region:
    """Return a card's region."""
    device = host.device(names.region_address(card, number))
    assert device is not None, host.problems
    assert device.region is not None
    return device.region


def program(
    host: model.HostState,
    card: str,
    image: model.Bitstream,
    number: int = 0,
) -> actions.ProgramRegion:
    """Return the action that loads a bitstream into a region."""
    device = host.device(names.region_address(card, number))
    assert device is not None
    assert device.region is not None
    return actions.ProgramRegion(
        card=card,
        number=number,
        slot=device.slots[0],
        bitstream=image,
        tool=device.region.tool,
    )


def started(
    root: Path,
    rules: policy.DeviceRules = DEFAULT,
    state_dir: Path | None = None,
    domains: connection.HostdevReader = connection.NO_DOMAINS,
) -> lifecycle.Lifecycle:
    """Return the Lifecycle of a nova-compute that has just started."""
    drivers = plugin.load()
    faulted = device_notes.FaultNotes(str(state_dir) if state_dir else None)
    drained = device_notes.DrainNotes(str(state_dir)) if state_dir else None

    def read_host() -> host_reader.HostReader:
        return host_reader.HostReader(root)

    life = lifecycle.Lifecycle(
        drivers,
        rules,
        executor(root),
        snapshot.Snapshot(
            change_detection.ChangeDetector(
                fs.DiskSource(root),
                drivers,
                rules,
                stores=note_stores.NoteStores(
                    faulted=faulted, drained=drained
                ),
            )
        ),
        host_access.HostAccess(
            domains=domains,
            read_host=read_host,
            faults=faulted,
            programs=region_programs.RegionPrograms(domains, faulted),
        ),
    )
    life.adopt(ROOT)
    life.host.refresh()
    return life


def slot(host: model.HostState, card: str, number: int = 0) -> model.Slot:
    """Return the slot of a region as Nova assigns it."""
    device = host.device(names.region_address(card, number))
    assert device is not None
    return model.Slot(
        provider=names.provider_uuid(ROOT.uuid, device.address),
        resource_class=names.FPGA_CLASS,
        identifier=device.slots[0],
    )


def asks(image: str = "", function: str = "") -> flavors.RequestGroup:
    """Return a group that requests a region with an image or a function."""
    traits = {names.REGION_TRAIT}
    if function:
        traits.add(names.fpga_function_trait(function))
    return flavors.RequestGroup(
        suffix="_F",
        resources={names.FPGA_CLASS: 1},
        required=frozenset(traits),
        bitstream=image,
    )


def using(*functions: str) -> connection.HostdevUse:
    """Return the hostdevs of domains that have these functions."""
    return connection.HostdevUse(functions=frozenset(functions))
