# SPDX-License-Identifier: Apache-2.0
"""Root ports of bus 0 are enough for the devices of Nova."""

import pytest

from virt_hooks.guest.topology import root_ports

PORT = '<controller type="pci" model="pcie-root-port"/>'
NIC = '<interface type="bridge"><model type="virtio"/></interface>'
DISK = '<disk type="file"><target dev="vda" bus="virtio"/></disk>'
# None of them is on a root port.
OTHERS = (
    '<controller type="pci" index="0" model="pcie-root"/>',
    '<controller type="usb" model="none"/>',
    '<disk type="file"><target dev="sda" bus="sata"/></disk>',
    '<disk type="file"><target dev="sdb" bus="scsi"/></disk>',
    '<input type="tablet" bus="usb"/>',
    '<memballoon model="none"/>',
    '<video><model type="none"/></video>',
    '<serial type="pty"/>',
    '<console type="pty"/>',
    '<graphics type="vnc"/>',
    '<tpm model="tpm-crb"/>',
    '<rng model="virtio"><address type="pci"/></rng>',
)


def count(*devices: str) -> int:
    text = "".join(devices)
    return root_ports.count(f"<domain><devices>{text}</devices></domain>")


@pytest.mark.parametrize(
    ("devices", "ports"),
    [((), 8), ((NIC, DISK), 8), ((NIC,) * 6, 16), ((DISK,) * 14, 24)],
)
def test_the_number_is_a_multiple_of_eight(
    devices: tuple[str, ...], ports: int
) -> None:
    assert count(*devices) == ports


def test_two_ports_and_that_of_serial_ports_are_free() -> None:
    for number in range(40):
        assert count(*[NIC] * number) >= number + 3


def test_enough_ports_of_nova_stay_as_they_are() -> None:
    assert count(*[PORT] * 28, NIC, DISK) == 28
    assert count(*[PORT] * 3, NIC) == 8


def test_a_device_more_seldom_changes_the_number() -> None:
    counts = [count(*[DISK] * number) for number in range(24)]
    assert len(set(counts)) == 4


@pytest.mark.parametrize("device", OTHERS)
def test_devices_off_the_root_ports_have_no_effect(device: str) -> None:
    assert count(*[NIC] * 5, device) == 8
    assert count(*[NIC] * 5, NIC) == 16


def test_a_domain_without_devices_has_ports() -> None:
    assert root_ports.count("<domain/>") == 8
