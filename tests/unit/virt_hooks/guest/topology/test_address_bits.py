# SPDX-License-Identifier: Apache-2.0
"""Guests get the address bits that the BARs of their devices need."""

import logging
import types
from typing import Any

import pytest
from nova.virt.libvirt import config as vconfig

from nova_accel import errors
from nova_accel.geometry import address_space
from tests.unit.nova_accel.geometry.test_address_space import H100
from virt_hooks.guest import hypervisor
from virt_hooks.guest.topology import address_bits

SERVER = "4a5d6a1e-8a3e-4c38-9d1f-0f4d4a8f3b11"
CAPABILITIES = "<capabilities><host><cpu>{}</cpu></host></capabilities>"


def build_host(host_bits: int, libvirt: int = 9_000_000) -> Any:
    """Return a host whose processor has address bits, 0 for unknown ones."""
    size = f'<maxphysaddr mode="emulate" bits="{host_bits}"/>'
    capabilities = vconfig.LibvirtConfigCaps()
    capabilities.parse_str(CAPABILITIES.format(size if host_bits else ""))
    connection = types.SimpleNamespace(
        getLibVersion=lambda: libvirt, getVersion=lambda: 7_002_000
    )
    return types.SimpleNamespace(
        get_capabilities=lambda: capabilities,
        get_connection=lambda: connection,
    )


def build_guest(
    gib: int = 64,
    mode: str = "",
    bits: int | None = None,
    machine: str = "pc-q35-7.2",
    is_uefi: bool = True,
) -> Any:
    """Return a configuration as Nova builds it."""
    config = vconfig.LibvirtConfigGuest()
    config.name, config.uuid, config.memory = "guest", SERVER, gib << 20
    config.virt_type = "kvm"
    config.os_type, config.os_mach_type = "hvm", machine
    if is_uefi:
        config.os_loader, config.os_loader_type = "OVMF_CODE.fd", "pflash"
    config.cpu = vconfig.LibvirtConfigGuestCPU()
    config.cpu.mode = "host-model"
    if mode:
        size = vconfig.LibvirtConfigGuestCPUMaxPhysAddr()
        size.mode, size.bits = mode, bits
        config.cpu.maxphysaddr = size
    return config


def ensure(
    config: Any, cards: int = 8, host_bits: int = 46, libvirt: int = 9_000_000
) -> int:
    """Return the address bits that a guest has then, 0 for the default."""
    host = build_host(host_bits, libvirt)
    address_bits.ensure_room(
        config,
        SERVER,
        host,
        hypervisor.HypervisorReader(host),
        address_space.sum_functions([H100] * cards),
    )
    return address_space.parse_space(config.to_xml()).bits


def test_a_flavor_without_bits_gets_those_of_its_cards(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    assert ensure(build_guest()) == 44
    assert caplog.messages == [
        f"server {SERVER} has 44 address bits for the BARs of its"
        " accelerators, 1024.25 GiB"
    ]
    assert ensure(build_guest(is_uefi=False)) == 42
    assert ensure(build_guest(is_uefi=False, machine="pc")) == 42


def test_a_guest_with_enough_by_default_stays_as_it_is() -> None:
    assert ensure(build_guest(is_uefi=False), cards=1) == 0
    assert ensure(build_guest(), cards=0) == 0
    assert ensure(build_guest(machine="virt-7.2")) == 0


def test_the_bits_of_a_flavor_stay(caplog: pytest.LogCaptureFixture) -> None:
    assert ensure(build_guest(mode="emulate", bits=45)) == 45
    assert ensure(build_guest(mode="passthrough")) == 0
    assert not caplog.messages
    assert ensure(build_guest(mode="emulate", bits=41, is_uefi=False)) == 41
    assert caplog.messages == [
        f"the firmware of server {SERVER} may have no room for the BARs of"
        " its accelerators, which need 42 address bits: hw:maxphysaddr_bits is"
        " 41"
    ]


def test_too_few_bits_of_a_flavor_are_refused() -> None:
    with pytest.raises(errors.ClaimError) as refusal:
        ensure(build_guest(mode="emulate", bits=43))
    assert refusal.value.public.endswith(
        ": its memory of 64 GiB and the BARs of its devices, 1024.25 GiB, need"
        " 44 address bits or more with UEFI, and hw:maxphysaddr_bits is 43:"
        " set it to 44"
    )


@pytest.mark.parametrize("mode", ["", "passthrough"])
def test_a_processor_with_too_few_bits_is_refused(mode: str) -> None:
    config = build_guest(mode=mode, is_uefi=False)
    with pytest.raises(errors.ClaimError) as refusal:
        ensure(config, host_bits=39)
    assert str(refusal.value).endswith(
        "its memory of 64 GiB and the BARs of its devices, 1024.25 GiB, need"
        " 41 address bits or more with BIOS, and the processor of this host"
        " has 39"
    )
    assert "39" not in refusal.value.public


def test_a_processor_bounds_the_bits(caplog: pytest.LogCaptureFixture) -> None:
    """Windows may fit: only the firmware knows."""
    assert ensure(build_guest(is_uefi=False), host_bits=41) == 41


@pytest.mark.parametrize(
    ("host_bits", "libvirt", "mode", "reason"),
    [
        (46, 8_000_000, "host-model", "their number needs libvirt 8.7.0"),
        (0, 9_000_000, "host-model", "libvirt names none of this host's"),
        (46, 9_000_000, None, "cpu_mode of Nova's section [libvirt] is none"),
    ],
)
def test_a_guest_that_can_get_none_is_logged(
    host_bits: int,
    libvirt: int,
    mode: str | None,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = build_guest()
    config.cpu.mode = mode
    assert ensure(config, host_bits=host_bits, libvirt=libvirt) == 0
    assert caplog.messages[0].startswith(
        f"the firmware of server {SERVER} may have no room for the BARs of"
        f" its accelerators, which need 44 address bits: {reason}"
    )
