# SPDX-License-Identifier: Apache-2.0
"""Root ports and NVLinks of a host's cards are read."""

import dataclasses
import pathlib
from collections.abc import Iterable
from typing import Any

import pytest

from nova_accel import model
from nova_accel.config import policy
from nova_accel.conformance import template
from nova_accel.discovery import capture, scan
from nova_accel.geometry.topology import GpuLinks
from nova_accel.host import nvml_gpus
from nova_accel.host.sysfs import fs, host_reader, links
from nova_accel.inventory import tree_builder
from nova_accel.model import names, providers
from placement_sync.sync import diff
from tests.hosts import build, look, recorded
from tests.support import strategies
from tests.support.hosts.shapes import plain_device

FIRST, SECOND = "0000:43:00.0", "0000:44:00.0"
ELSEWHERE, ON_ROOT = "0000:61:00.0", "0000:00:04.0"
BEHIND_VMD, WITH_VFS = "10000:01:00.0", "0000:81:00.0"
GPUS = (FIRST, SECOND, ELSEWHERE)


@pytest.fixture(name="root")
def fixture_root(tmp_path: pathlib.Path) -> pathlib.Path:
    return look.make("places", tmp_path / "host")


def suffixes(state: model.HostState, address: str, prefix: str) -> set[str]:
    """Return the suffixes of a device's traits with a prefix."""
    traits = look.device(state, address).traits
    return {t.removeprefix(prefix) for t in traits if t.startswith(prefix)}


def port(state: model.HostState, address: str) -> set[str]:
    return suffixes(state, address, names.PCIE_PREFIX)


def peers(state: model.HostState, address: str) -> set[str]:
    return suffixes(state, address, names.NVLINK_PREFIX) - {"SWITCH"}


def facts(**by_gpu: GpuLinks | None) -> list[nvml_gpus.NvmlGpu]:
    """Return NVML's data of the first cards, by a, b and c."""
    return [
        nvml_gpus.NvmlGpu(address=GPUS["abc".index(key)], links=gpu_links)
        for key, gpu_links in by_gpu.items()
    ]


class FixedDriver(template.TemplateDriver):
    """Describes the given devices."""

    def __init__(self, *devices: model.Device) -> None:
        self.devices = devices

    def describe(
        self,
        card: host_reader.HostReader,
        rules: policy.DeviceRules,
        taken: frozenset[str],
    ) -> Iterable[model.Device | model.Problem]:
        names = card.card_names
        return [d for d in self.devices if not names or d.address in names]


# -- root ports -----------------------------------------------------------


def test_a_vf_has_the_port_of_its_pf(
    tmp_path: pathlib.Path,
) -> None:
    """On the root bus a VF may have another device number."""
    pf: build.Description = {
        "address": "0000:00:04.0",
        "id": "10de:2236",
        "class": "030200",
        "group": 1,
        "vfs": {"total": 8, "count": 8, "offset": 4, "first_group": 9},
    }
    reader = host_reader.HostReader(build.build({"functions": [pf]}, tmp_path))
    function = reader.function("0000:00:05.0")
    assert function is not None
    assert str(function.physfn) == "0000:00:04.0"
    driver = FixedDriver(plain_device("0000:00:05.0"))
    state = scan.read(reader, {"test": driver}, policy.DeviceRules())
    assert port(state, "0000:00:05.0") == {"0000_00_04"}


def test_a_device_that_is_no_symlink_has_no_port(
    root: pathlib.Path,
) -> None:
    link = root / "sys/bus/pci/devices" / FIRST
    place = link.resolve()
    link.unlink()
    place.rename(link)
    driver = FixedDriver(plain_device(FIRST), plain_device(SECOND))
    state = scan.read(
        host_reader.HostReader(root), {"test": driver}, policy.DeviceRules()
    )
    assert port(state, FIRST) == set()
    assert look.device(state, FIRST).unread_traits == (names.PCIE_PREFIX,)
    assert port(state, SECOND) == {"0000_40_01_1"}


def test_an_unlistable_bus_leaves_the_port_unread(
    tmp_path: pathlib.Path,
) -> None:
    """A driver may describe a device of a bus that can't be listed."""
    root = build.build(
        {"faults": [{"path": "bus/pci/devices", "is": "no directory"}]},
        tmp_path,
    )
    device = dataclasses.replace(plain_device(FIRST), vendor_id="10de")
    gpus = {FIRST: facts(a=GpuLinks(peers=frozenset({SECOND})))[0]}
    reader = host_reader.HostReader(root, gpus=gpus)
    state = scan.read(
        reader, {"test": FixedDriver(device)}, policy.DeviceRules()
    )
    result = look.device(state, FIRST)
    assert names.PCIE_PREFIX in result.unread_traits


# -- NVLinks --------------------------------------------------------------


def test_both_ends_of_a_link_are_peers(root: pathlib.Path) -> None:
    linked = facts(
        a=GpuLinks(peers=frozenset({SECOND})),
        b=GpuLinks(peers=frozenset({FIRST})),
        c=GpuLinks(),
    )
    state = look.read(root, gpus=linked)
    assert peers(state, FIRST) == {"0000_44_00_0"}
    assert peers(state, SECOND) == {"0000_43_00_0"}
    assert peers(state, ELSEWHERE) == set()
    assert look.device(state, ELSEWHERE).unread_traits == ()


def test_all_cards_on_switches_are_peers(root: pathlib.Path) -> None:
    switched = GpuLinks(is_switched=True)
    state = look.read(root, gpus=facts(a=switched, b=switched, c=switched))
    assert peers(state, FIRST) == {"0000_44_00_0", "0000_61_00_0"}
    assert names.NVLINK_SWITCH in look.device(state, FIRST).traits
    # NVML does not see these cards: their links are unread.
    assert look.device(state, FIRST).unread_traits == (
        names.nvlink_trait(ON_ROOT),
        names.nvlink_trait(BEHIND_VMD),
    )


def test_only_gpus_of_this_host_are_peers(root: pathlib.Path) -> None:
    there = frozenset({"0000:99:00.0", WITH_VFS, SECOND})
    state = look.read(root, gpus=facts(a=GpuLinks(peers=there), b=GpuLinks()))
    assert peers(state, FIRST) == {"0000_44_00_0"}


def test_a_card_in_mig_mode_has_no_peer(root: pathlib.Path) -> None:
    first, second, third = facts(
        a=GpuLinks(peers=frozenset({SECOND}), is_switched=True),
        b=GpuLinks(peers=frozenset({FIRST}), is_switched=True),
        c=GpuLinks(is_switched=True),
    )
    first = dataclasses.replace(first, is_mig=True)
    state = look.read(root, gpus=[first, second, third])
    assert peers(state, FIRST) == set()
    assert look.device(state, FIRST).unread_traits == ()
    assert peers(state, SECOND) == {"0000_61_00_0"}


def test_links_of_a_card_without_nvml_are_unread(root: pathlib.Path) -> None:
    state = look.read(root, gpus=facts(a=GpuLinks(), b=None))
    assert look.device(state, FIRST).unread_traits == ()
    assert look.device(state, SECOND).unread_traits == (names.NVLINK_PREFIX,)
    assert look.device(state, ELSEWHERE).unread_traits == (
        names.NVLINK_PREFIX,
    )
    assert look.device(state, WITH_VFS).unread_traits == ()


def tree(state: model.HostState) -> providers.ProviderTree:
    return tree_builder.build_tree(
        strategies.ROOT, state, policy.DeviceRules()
    )


def test_unreadable_links_stay_in_placement(
    root: pathlib.Path,
) -> None:
    linked = GpuLinks(peers=frozenset({SECOND}))
    before = tree(look.read(root, gpus=facts(a=linked, b=GpuLinks())))
    silent = tree(look.read(root))
    assert diff.plan(before, silent, diff.Guard()) == []
    apart = tree(look.read(root, gpus=facts(a=GpuLinks(), b=GpuLinks())))
    changed = diff.plan(before, apart, diff.Guard())
    removed = {t for call in changed for t in getattr(call, "removed", ())}
    assert removed == {names.nvlink_trait(FIRST), names.nvlink_trait(SECOND)}


def test_an_archive_contains_ports_and_links(
    root: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    gpus = facts(a=GpuLinks(peers=frozenset({SECOND})), b=GpuLinks())
    host = host_reader.HostReader(
        root, gpus=nvml_gpus.NvmlGpus({t.address: t for t in gpus})
    )
    first = scan.read(host, look.DRIVERS, policy.DeviceRules())
    path = str(tmp_path / "host.tar.gz")
    capture.save(host, path, {"format": capture.FORMAT})
    image, meta = capture.load(path)
    again = host_reader.HostReader(
        source=image, gpus=capture.load_gpus(path, meta)
    )
    state = scan.read(again, look.DRIVERS, policy.DeviceRules())
    assert state == first
    assert peers(state, FIRST) == {"0000_44_00_0"}
    assert port(state, FIRST) == {"0000_40_01_1"}


def is_virtual_machine(source: fs.FileSource) -> bool:
    return links.is_virtual_machine(host_reader.HostReader(source=source))


@pytest.mark.parametrize("name", recorded.NAMES)
def test_a_recorded_host_is_a_virtual_machine_if_its_name_says_so(
    name: str,
) -> None:
    source = recorded.load(name)
    assert is_virtual_machine(source) is name.endswith("-in-guest")


@pytest.mark.parametrize(
    ("function", "is_virtual"),
    [
        ({"id": "1b36:000c", "class": "060400"}, True),
        ({"id": "15ad:0740", "class": "088000"}, True),
        (
            {
                "id": "8086:29c0",
                "class": "060000",
                "attributes": {"subsystem_vendor": "0x1af4"},
            },
            True,
        ),
        (
            {
                "id": "1af4:1041",
                "class": "020000",
                "below": ["0000:00:01.0"],
            },
            False,
        ),
        ({"id": "8086:2030", "class": "060400"}, False),
    ],
    ids=["QEMU port", "VMware", "QEMU bridge", "SmartNIC", "physical port"],
)
def test_an_emulated_function_on_a_root_bus_is_of_a_virtual_machine(
    tmp_path: pathlib.Path, function: dict[str, Any], is_virtual: bool
) -> None:
    functions = [{"address": "0000:00:03.0", **function}]
    root = build.build({"functions": functions}, tmp_path)
    assert is_virtual_machine(fs.DiskSource(root)) is is_virtual
