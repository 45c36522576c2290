# SPDX-License-Identifier: Apache-2.0
"""Proves which GPUs and named functions are passed through."""

import json
import pathlib
from typing import Any

import pytest

from nova_accel import model
from nova_accel.vendors import pci_passthrough
from tests.hosts import build, look

GPU, OTHER = "0000:01:00.0", "0000:02:00.0"


def gpu(**facts: Any) -> dict[str, Any]:
    return {
        "address": GPU,
        "id": "10de:2236",
        "class": "030200",
        "group": 1,
        **facts,
    }


def gpu2(**facts: Any) -> dict[str, Any]:
    return gpu(**facts) | {"address": OTHER, "group": 2}


def switches(driver: str) -> list[dict[str, Any]]:
    return [
        {
            "address": f"0000:{bus:02x}:00.0",
            "id": "10de:22a3",
            "class": "068000",
            "group": bus,
            "driver": driver,
        }
        for bus in (7, 8)
    ]


def card(
    root: pathlib.Path, *functions: dict[str, Any], rule: object = None
) -> model.HostState:
    build.build({"functions": list(functions)}, root)
    return look.read(root, [json.dumps(rule)] if rule else [])


@pytest.mark.parametrize("driver", [None, "vfio-pci", "pci-stub"])
def test_a_free_gpu_is_offered(
    tmp_path: pathlib.Path, driver: str | None
) -> None:
    (device,) = card(tmp_path, gpu(driver=driver)).devices
    assert device.driver == driver


@pytest.mark.parametrize(
    "facts",
    [
        {"driver": "nouveau"},
        {"driver": "amdgpu", "id": "1002:73a1"},
        {"driver": "i915", "id": "8086:56c0"},
        {"boot_vga": 1},
        {"class": "020000"},
        {"class": "120000"},
    ],
)
def test_by_default_other_devices_are_not_offered(
    tmp_path: pathlib.Path, facts: dict[str, Any]
) -> None:
    state = card(tmp_path, gpu(**facts))
    assert state.devices == ()
    assert state.problems == ()


@pytest.mark.parametrize(
    "ids",
    [
        "1002:4752",  # Rage XL
        "1002:515e",  # ES1000, of management controllers
        "102b:0538",  # Matrox G200eH3
        "19e5:1711",  # HiSilicon iBMC
        "1a03:2000",  # ASPEED
        "1013:00b8",  # QEMU's Cirrus
        "1234:1111",  # QEMU and Bochs
        "1414:5353",  # Hyper-V
        "15ad:0405",  # VMware SVGA II
        "1af4:1050",  # virtio-gpu
        "1b36:0100",  # QXL
        "80ee:beef",  # VirtualBox
    ],
)
@pytest.mark.parametrize("code", ["030000", "038000"])
@pytest.mark.parametrize("rule", [None, {"use": "passthrough"}])
def test_a_display_that_shows_a_console_is_no_gpu(
    tmp_path: pathlib.Path, ids: str, code: str, rule: object
) -> None:
    state = card(tmp_path, gpu(id=ids, **{"class": code}), rule=rule)
    assert state.devices == ()
    assert GPU not in {problem.where for problem in state.problems}


def test_passthrough_on_request_takes_a_bound_gpu(
    tmp_path: pathlib.Path,
) -> None:
    (device,) = card(
        tmp_path,
        gpu(driver="nvidia"),
        rule={"address": GPU, "use": "passthrough"},
    ).devices
    assert (device.resource_class, device.driver) == ("PGPU", "nvidia")


def test_catalog_data_of_a_card_are_traits(
    tmp_path: pathlib.Path,
) -> None:
    (device,) = card(tmp_path, gpu()).devices
    assert device.model == "A10"
    assert device.traits >= {
        "CUSTOM_ACCELERATOR_MODEL_NVIDIA_A10",
        "HW_GPU_API_VULKAN",
    }


def test_a_gpu_may_have_another_class(tmp_path: pathlib.Path) -> None:
    mi300x = gpu(id="1002:74a1")
    mi300x["class"] = "120000"
    (device,) = card(tmp_path, mi300x).devices
    assert device.counters == {"PGPU": 1}


@pytest.mark.parametrize(
    "attributes",
    [
        {"graphics/fb0/name": "nouveaudrmfb"},
        {"drm/card1/card1-DP-1/enabled": "enabled"},
        {"virtio0/graphics/fb0/name": "virtio_gpudrmfb"},
        {"virtio0/drm/card0/card0-Virtual-1/enabled": "enabled"},
    ],
)
def test_a_gpu_with_the_hosts_console_is_not_offered(
    tmp_path: pathlib.Path, attributes: dict[str, str]
) -> None:
    rule = {"address": GPU, "use": "passthrough"}
    state = card(
        tmp_path / "1",
        gpu(driver="nouveau", attributes=attributes),
        rule=rule,
    )
    assert state.devices == ()
    assert "console" in look.reasons(state, GPU)
    dark = {"drm/card1/card1-DP-1/enabled": "disabled"}
    state = card(
        tmp_path / "2", gpu(driver="nouveau", attributes=dark), rule=rule
    )
    assert [d.address for d in state.devices] == [GPU]


@pytest.mark.parametrize(
    ("methods", "offered"),
    [("flr bus", True), ("bus", True), ("", False), (None, False)],
)
def test_a_gpu_that_cant_be_reset_is_not_offered(
    tmp_path: pathlib.Path, methods: str | None, offered: bool
) -> None:
    other = gpu(address="0000:02:00.0", group=2)
    state = card(tmp_path, gpu(attributes={"reset_method": methods}), other)
    assert (state.device(GPU) is not None) is offered
    assert ("can't be reset" in look.reasons(state, GPU)) is not offered


def test_the_line_in_the_reason_offers_the_gpu(tmp_path: pathlib.Path) -> None:
    functions = [
        gpu(attributes={"reset_method": None}),
        gpu(address="0000:02:00.0", group=2, id="10de:20b5"),
    ]
    state = card(tmp_path / "1", *functions)
    line = look.reasons(state, GPU).partition("device_spec = ")[2]
    state = card(tmp_path / "2", *functions, rule=json.loads(line))
    assert state.device(GPU) is not None
    assert look.reasons(state, GPU) == ""


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ({"address": GPU, "use": "passthrough", "scrub": "none"}, True),
        ({"address": GPU, "scrub": "none"}, True),
        ({"product_id": "2236", "scrub": "none"}, True),
        # Not by name, or without a word about the reset.
        ({"scrub": "none"}, False),
        ({"use": "passthrough", "scrub": "none"}, False),
        ({"address": GPU, "use": "passthrough"}, False),
        ({"address": GPU, "scrub": "reset"}, False),
    ],
)
def test_a_line_offers_a_gpu_without_reset_by_name(
    tmp_path: pathlib.Path, line: dict[str, str], offered: bool
) -> None:
    functions = [
        gpu(attributes={"reset_method": None}),
        gpu(address="0000:02:00.0", group=2, id="10de:20b5"),
    ]
    state = card(tmp_path, *functions, rule=line)
    assert (state.device(GPU) is not None) is offered


def slot(*methods: str | None, **facts: Any) -> list[dict[str, Any]]:
    """Return the functions of a slot behind a port, one for each method."""
    return [
        gpu(
            address=f"0000:01:00.{number}",
            below=["0000:00:01.0"],
            attributes={"reset_method": words},
            **{"class": "040300" if number else "030200"},
            **facts,
        )
        for number, words in enumerate(methods)
    ]


@pytest.mark.parametrize(
    ("methods", "offered"),
    [
        (("bus", None), True),
        (("bus", "pm"), True),
        (("pm", None), True),
        (("flr", None), True),
        ((None, "pm"), False),
        ((None, None), False),
    ],
)
def test_a_card_of_two_functions_is_reset_as_a_whole(
    tmp_path: pathlib.Path, methods: tuple[str | None, ...], offered: bool
) -> None:
    other = gpu(address="0000:02:00.0", group=2)
    state = card(tmp_path, *slot(*methods), other)
    device = state.device(GPU)
    assert (device is not None) is offered
    assert device is None or device.members == ("0000:01:00.1",)


def test_functions_of_different_guests_are_not_reset_together(
    tmp_path: pathlib.Path,
) -> None:
    """Each function has its own IOMMU group, and would get its own guest."""
    first, second = slot("bus", "pm")
    second |= {"group": 2, "class": "030200"}
    state = card(tmp_path, first, second)
    assert [d.address for d in state.devices] == ["0000:01:00.1"]
    assert "0000:01:00.1 on it would be reset" in look.reasons(state, GPU)


def test_a_function_of_the_host_on_the_bus_is_not_reset(
    tmp_path: pathlib.Path,
) -> None:
    card_functions = slot("bus", None)
    nic = gpu(address="0000:01:01.0", driver="ixgbe", group=2)
    nic |= {"class": "020000", "below": ["0000:00:01.0"]}
    state = card(tmp_path, *card_functions, nic)
    assert state.devices == ()
    assert "0000:01:01.0 on it would be reset" in look.reasons(state, GPU)


@pytest.mark.parametrize(
    "attributes",
    [
        {"sriov_vf_msix_count": ""},
        # By the arithmetic of the PF whose last VF has lost its links.
        {},
    ],
)
def test_a_vf_without_links_is_no_card(
    tmp_path: pathlib.Path, attributes: dict[str, str]
) -> None:
    pf = {
        "address": "0000:01:00.0",
        "id": "1002:6860",
        "class": "038000",
        "driver": "gim",
        "attributes": {"sriov_offset": "16", "sriov_stride": "1"},
        "vfs": {"total": 16, "count": 2, "offset": 16},
    }
    stray_vf = {
        **gpu(id="1002:686c", driver="vfio-pci", attributes=attributes),
        "address": "0000:01:02.2",
    }
    build.build({"functions": [pf, stray_vf]}, tmp_path)
    count = tmp_path / "sys/bus/pci/devices/0000:01:00.0/sriov_numvfs"
    count.write_text("3\n")
    state = look.read(tmp_path)
    assert state.device("0000:01:02.2") is None
    assert "half removed" in look.reasons(state, "0000:01:02.2")


def test_a_missing_group_member_does_not_count(
    tmp_path: pathlib.Path,
) -> None:
    gone = {
        "path": "kernel/iommu_groups/1/devices/0000:99:00.0",
        "is": {"fault": "dangling"},
    }
    build.build({"functions": [gpu()], "faults": [gone]}, tmp_path)
    assert [d.address for d in look.read(tmp_path).devices] == [GPU]


def test_passthrough_on_request_takes_any_class(
    tmp_path: pathlib.Path,
) -> None:
    dpu = gpu(id="15b3:a2dc", driver="any")
    dpu["class"] = "120000"
    (device,) = card(
        tmp_path, dpu, rule={"vendor_id": "15b3", "use": "passthrough"}
    ).devices
    assert device.resource_class == "CUSTOM_PCI_15B3_A2DC"
    assert device.profiles[0].trait == "CUSTOM_ACCELERATOR_PCI_15B3_A2DC"
    assert device.profiles[0].charges == {"CUSTOM_PCI_15B3_A2DC": 1}


def test_a_line_for_everything_takes_no_device_of_the_host(
    tmp_path: pathlib.Path,
) -> None:
    nic = {**gpu(driver="ice", group=2), "address": "0000:02:00.0"}
    nic["class"] = "020000"
    dpu = {**gpu(driver="any", group=3), "address": "0000:03:00.0"}
    dpu |= {"id": "15b3:a2dc", "class": "120000"}
    state = card(
        tmp_path, gpu(driver="nvidia"), nic, dpu, rule={"use": "passthrough"}
    )
    assert [d.address for d in state.devices] == [GPU]


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        ({"boot_vga": 1}, "boot display"),
        ({"vfs": {"total": 4, "count": 2, "offset": 1}}, "sriov_numvfs"),
    ],
)
def test_a_requested_card_that_is_refused_has_a_reason(
    tmp_path: pathlib.Path, facts: dict[str, Any], word: str
) -> None:
    state = card(
        tmp_path, gpu(**facts), rule={"address": GPU, "use": "passthrough"}
    )
    assert state.devices == ()
    assert word in look.reasons(state, GPU)


def test_a_boot_display_is_offered_if_vfio_and_a_line_have_it(
    tmp_path: pathlib.Path,
) -> None:
    display = gpu(boot_vga=1, driver="vfio-pci")
    state = card(
        tmp_path, display, rule={"address": GPU, "use": "passthrough"}
    )
    assert [d.address for d in state.devices] == [GPU]


@pytest.mark.parametrize("rule", [None, {"use": "passthrough"}])
def test_a_boot_display_that_no_line_names_is_not_offered(
    tmp_path: pathlib.Path, rule: object
) -> None:
    state = card(
        tmp_path, gpu(boot_vga=1, driver="vfio-pci"), gpu2(), rule=rule
    )
    assert [d.address for d in state.devices] == [OTHER]


def test_switches_are_offered_by_a_line(tmp_path: pathlib.Path) -> None:
    line = {"vendor_id": "10de", "product_id": "22a3", "use": "passthrough"}
    state = card(tmp_path, gpu(), *switches("vfio-pci"), rule=line)
    offered = {d.address: d for d in state.devices}
    assert sorted(offered) == [GPU, "0000:07:00.0", "0000:08:00.0"]
    switch = offered["0000:07:00.0"]
    assert switch.counters == {"CUSTOM_PCI_10DE_22A3": 1}
    assert switch.profiles[0].trait == "CUSTOM_ACCELERATOR_PCI_10DE_22A3"
    assert not switch.members


def test_switches_of_the_host_are_not_offered(tmp_path: pathlib.Path) -> None:
    line = {"vendor_id": "10de", "product_id": "22a3", "use": "passthrough"}
    state = card(tmp_path, gpu(), *switches("nvidia"), rule=line)
    assert [d.address for d in state.devices] == [GPU]
    assert "Fabric Manager" in look.reasons(state, "0000:07:00.0")


def test_switches_are_not_offered_by_default(tmp_path: pathlib.Path) -> None:
    state = card(tmp_path, gpu(), *switches("vfio-pci"))
    assert [d.address for d in state.devices] == [GPU]


def test_a_port_of_the_bus_is_never_offered(tmp_path: pathlib.Path) -> None:
    """vfio-pci refuses it (vfio_pci_core.c, PCI_HEADER_TYPE_NORMAL)."""
    (port,) = switches("pcieport")[:1]
    port |= {"class": "060400"}
    line = {"address": "0000:07:00.0", "use": "passthrough"}
    assert card(tmp_path, port, rule=line).devices == ()


def neighbour(driver: str | None, kind: str, **facts: Any) -> dict[str, Any]:
    return {
        "address": "0000:02:00.0",
        "id": "8086:1593",
        "class": kind,
        "driver": driver,
        "group": 1,
        **facts,
    }


@pytest.mark.parametrize(
    ("other", "offered"),
    [
        (neighbour("pcieport", "060400"), True),
        (neighbour(None, "060000"), True),
        (neighbour("vfio-pci", "020000"), True),
        (neighbour(None, "020000"), True),
        (neighbour("ice", "020000"), False),
        (neighbour("shpchp", "060400"), False),
        (neighbour("nvidia", "030200"), False),
        (neighbour("snd", "040300", address="0000:01:00.1"), True),
        (neighbour("ice", "020000", group=2), True),
    ],
)
def test_a_group_used_by_the_host_is_not_offered(
    tmp_path: pathlib.Path, other: dict[str, Any], offered: bool
) -> None:
    state = card(tmp_path, gpu(), other)
    assert (state.device(GPU) is not None) is offered
    assert (look.reasons(state, GPU) == "") is offered


def test_a_free_neighbour_of_another_kind_stays_out_of_the_guest(
    tmp_path: pathlib.Path,
) -> None:
    state = card(tmp_path, gpu(), neighbour(None, "020000"))
    assert look.device(state, GPU).members == ()


def test_a_card_with_mdevs_is_not_given_away(tmp_path: pathlib.Path) -> None:
    state = look.read(
        look.make("t4-mdev", tmp_path),
        ['{"product_id": "1eb8", "use": "passthrough"}'],
    )
    assert [d.address for d in state.devices] == ["0000:3b:00.0"]
    assert "mdevs exist" in look.reasons(state, "0000:af:00.0")


def test_a_whole_card_needs_no_action(tmp_path: pathlib.Path) -> None:
    device = look.device(card(tmp_path, gpu()), GPU)
    claim = model.Claim(
        consumer="c",
        provider="p",
        device=GPU,
        profile=device.profiles[0].name,
        slot=GPU,
        parent=GPU,
        handle=GPU,
        technology=device.technology,
    )
    driver = pci_passthrough.PciPassthroughDriver()
    assert driver.plan_prepare(claim) == driver.plan_release(claim) == ()


@pytest.mark.parametrize(
    ("regions", "iommu", "release", "is_refused"),
    [
        ("direct", "dmar3", "5.14.0-70.el9.x86_64", True),
        ("direct", "ivhd0", "6.6.2", True),
        ("direct", "smmu3.0x0000000a", "6.12.0+deb13", True),
        ("direct", "ivhd0", "6.1.0-40-amd64", False),
        ("direct", "ivhd0", None, False),
        ("direct-relaxable", "dmar3", "6.6.2", False),
        ("reserved", "dmar3", "6.6.2", False),
        (None, "dmar3", "6.6.2", False),
    ],
)
def test_a_group_with_firmware_mappings_is_refused(
    tmp_path: pathlib.Path,
    regions: str | None,
    iommu: str,
    release: str | None,
    is_refused: bool,
) -> None:
    """The kernel refuses such a group when the guest starts (EINVAL)."""
    build.build({"functions": [gpu()]}, tmp_path)
    group = tmp_path / "sys/kernel/iommu_groups/1"
    if regions is not None:
        (group / "reserved_regions").write_text(
            f"0x000000006c000000 0x000000006dffffff {regions}\n"
            "0x00000000fee00000 0x00000000feefffff msi\n"
        )
    link = tmp_path / "sys/bus/pci/devices" / GPU / "iommu"
    link.symlink_to(f"../../virtual/iommu/{iommu}")
    if release is not None:
        running = tmp_path / "proc/sys/kernel/osrelease"
        running.parent.mkdir(parents=True)
        running.write_text(f"{release}\n")
    state = look.read(tmp_path)
    assert bool(state.devices) is not is_refused
    assert ("firmware" in look.reasons(state, GPU)) is is_refused
