# SPDX-License-Identifier: Apache-2.0
"""A pass notices what came, left or was bound otherwise without a uevent.

No test sends one: the log of uevents is open, and stays empty.
"""

import pathlib
import shutil
from collections.abc import Callable

import pytest

from nova_accel import errors, model
from nova_accel.config import policy
from nova_accel.discovery import change_detection, plugin, scan, snapshot
from nova_accel.host.sysfs import fs, host_reader, udev
from tests.hosts import look
from tests.lab import fakehost
from tests.support.hosts import measured, simulated

#: A card with mdevs, one with VFs, one below a port that takes hot plugs, a
#: card to pass through, an FPGA, and a parent on no PCI bus.
T4, A40, BELOW, PLAIN, PAC = (
    f"0000:{bus}:00.0" for bus in ("3b", "41", "65", "5e", "b1")
)
PORT = "0000:64:00.0"
SPEC = fakehost.HostSpec(
    cards=(
        fakehost.NvidiaGpu(address=T4, model="T4"),
        fakehost.NvidiaGpu(address=A40, model="A40", enabled_vfs=4),
        fakehost.NvidiaGpu(address=BELOW, model="T4", port=PORT),
        fakehost.PciCard(
            address=PLAIN,
            vendor=0x10DE,
            device=0x2331,
            class_code=0x030200,
            subsystem_vendor=0x10DE,
            subsystem_device=0x1626,
            driver="vfio-pci",
        ),
        fakehost.DflCard(address=PAC),
        fakehost.Mtty(),
    )
)
RULES = policy.parse_rules(['{"address": "0000:5e:00.0"}'])
#: Operations of a pass over 64 cards that changed nothing: 400, and a host
#: has some 60 drivers of PCI functions more than the simulated one.
MOST_OPERATIONS = 400 - 60


def unplug(*addresses: str) -> Callable[[fakehost.Controller], None]:
    def change(kernel: fakehost.Controller) -> None:
        for address in addresses:
            kernel.unplug(address)

    return change


def unbind(kernel: fakehost.Controller, address: str) -> None:
    function = kernel.sys / "bus/pci/devices" / address
    (function / "driver/unbind").write_text(address)


def bind(kernel: fakehost.Controller, address: str, driver: str) -> None:
    function = kernel.sys / "bus/pci/devices" / address
    (function / "driver_override").write_text(driver)
    (kernel.sys / "bus/pci/drivers" / driver / "bind").write_text(address)


def rebind(address: str, driver: str) -> Callable[[fakehost.Controller], None]:
    def change(kernel: fakehost.Controller) -> None:
        unbind(kernel, address)
        bind(kernel, address, driver)

    return change


CHANGES: dict[str, Callable[[fakehost.Controller], None]] = {
    "a card left": unplug(T4),
    "a card left that is passed through": unplug(PLAIN),
    "a card left its hot-plug port": unplug(BELOW),
    "a hot-plug port left": unplug(BELOW, PORT),
    "an FPGA left": unplug(PAC),
    "a card with VFs left": unplug(A40),
    "VFs left": lambda kernel: kernel.set_vfs(A40, 0),
    "VFs came": lambda kernel: kernel.set_vfs(A40, 8),
    "a card was bound by hand": rebind(T4, "vfio-pci"),
    "a VF was bound by hand": rebind("0000:41:00.4", "vfio-pci"),
    "a driver was unbound": lambda kernel: unbind(kernel, PLAIN),
}


def read_afresh(root: pathlib.Path) -> model.HostState:
    return scan.read(host_reader.HostReader(root), plugin.load(), RULES)


def watch(root: pathlib.Path) -> snapshot.Snapshot:
    """Return the snapshot of a service that receives no uevents."""
    uevents = udev.UeventLog()
    uevents.set_open(True)
    host = snapshot.Snapshot(
        change_detection.ChangeDetector(
            fs.DiskSource(root), plugin.load(), RULES, uevents=uevents
        )
    )
    host.refresh()
    return host


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_the_next_pass_reads_what_has_changed(
    kernel: fakehost.Controller,
    change: Callable[[fakehost.Controller], None],
) -> None:
    host = watch(kernel.root)
    before = host.state
    change(kernel)
    after = host.refresh_changed()
    assert after == read_afresh(kernel.root)
    assert after != before


def test_a_card_that_is_plugged_in_again_is_offered_again(
    kernel: fakehost.Controller,
) -> None:
    host = watch(kernel.root)
    before = host.state
    kernel.unplug(T4)
    assert host.refresh_changed().device(T4) is None
    kernel.plug()
    assert host.refresh_changed() == before


def test_a_card_bound_again_as_before_is_offered_again(
    kernel: fakehost.Controller,
) -> None:
    host = watch(kernel.root)
    before = host.state
    unbind(kernel, T4)
    assert host.refresh_changed() != before
    bind(kernel, T4, "nvidia")
    assert host.refresh_changed() == before


@pytest.mark.parametrize("attribute", ["device", "subsystem_device"])
def test_another_model_at_the_same_address_is_read(
    tmp_path: pathlib.Path, attribute: str
) -> None:
    root = look.make("t4-mdev", tmp_path)
    host = watch(root)
    function = root / "sys/bus/pci/devices" / T4
    before = (function / attribute).read_text().strip().removeprefix("0x")
    (function / attribute).write_text("0x25b6\n")
    text = (function / "modalias").read_text()
    changed = text.replace(f"d0000{before.upper()}", "d000025B6", 1)
    (function / "modalias").write_text(changed)
    assert changed != text
    assert host.refresh_changed() == read_afresh(root)


def test_an_mdev_parent_off_the_pci_bus_left(tmp_path: pathlib.Path) -> None:
    root = look.make("mtty", tmp_path)
    host = watch(root)
    before = host.state
    (link,) = (root / "sys/class/mdev_bus").iterdir()
    shutil.rmtree(link.resolve())
    link.unlink()
    assert host.refresh_changed() == read_afresh(root)
    assert len(host.state.devices) < len(before.devices)


def test_a_region_of_an_fpga_left(tmp_path: pathlib.Path) -> None:
    root = look.make("dfl-pac", tmp_path)
    regions = [*(root / "sys/devices").glob("**/fpga_region/region*")]
    listed = root / "sys/class/fpga_region"
    listed.mkdir(parents=True)
    for number, region in enumerate(regions):
        (listed / f"region{number}").symlink_to(region)
    host = watch(root)
    before = host.state
    inner = max(regions, key=lambda region: len(region.parts))
    (listed / f"region{regions.index(inner)}").unlink()
    shutil.rmtree(inner.parent)
    assert host.refresh_changed() == read_afresh(root)
    assert host.state != before


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (CHANGES["a card left"], f"{T4} has left the bus; reseat the card"),
        (CHANGES["a card was bound by hand"], "or has another driver"),
    ],
)
def test_a_server_for_such_a_card_is_refused_with_the_reason(
    kernel: fakehost.Controller,
    change: Callable[[fakehost.Controller], None],
    reason: str,
) -> None:
    life = simulated.started(kernel)
    slot, group = simulated.slot(), simulated.asks(simulated.FOUR_Q)
    change(kernel)
    with pytest.raises(errors.ClaimError, match=reason):
        life.ensure(simulated.A, (group,), (slot,))


@pytest.mark.slow
@pytest.mark.parametrize("technology", measured.TECHNOLOGIES)
def test_a_pass_without_changes_takes_few_operations(
    tmp_path: pathlib.Path, own_rights: None, technology: str
) -> None:
    if reason := fakehost.missing():
        pytest.skip(reason)
    spec = measured.describe(technology, 64, 64)
    with fakehost.simulated_sysfs(spec, tmp_path) as kernel:
        host = measured.MeasuredHost(kernel)
        assert 0 < host.pass_unchanged().reads <= MOST_OPERATIONS
