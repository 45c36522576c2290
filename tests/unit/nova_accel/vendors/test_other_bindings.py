# SPDX-License-Identifier: Apache-2.0
"""Functions that are bound otherwise than their equals are problems."""

import json
import pathlib

import pytest

from nova_accel import model
from nova_accel.config import policy
from nova_accel.discovery import scan
from nova_accel.host.sysfs import host_reader
from tests.hosts import look, recorded
from tests.unit.nova_accel.cli import test_inspect

HOST = "bound-otherwise"


@pytest.fixture(name="state", scope="module")
def read_state(tmp_path_factory: pytest.TempPathFactory) -> model.HostState:
    return look.read(look.make(HOST, tmp_path_factory.mktemp(HOST)))


@pytest.mark.parametrize(
    ("where", "present", "remedy"),
    [
        ("0000:41:00.0", "bound to vfio-pci", "bind 0000:41:00.6 to nvidia"),
        ("0000:51:00.0", "bound to vfio-pci", "bind 0000:51:00.5 to nvidia"),
        (
            "0000:54:00.0",
            "2 VFs bound to vfio-pci and 1 VF without a driver",
            "of 0000:54:00.0 on vfio-pci to nvidia, then bind 0000:54:00.6",
        ),
        (
            "0000:55:00.0",
            "it is bound to vfio-pci",
            "bind 0000:55:00.0 to nvidia, then device_spec",
        ),
        ("0000:6b:00.4", "driver 4xxxvf", "bind 0000:6b:00.4 to vfio-pci"),
        ("0000:82:00.2", "uio_pci_generic", "bind 0000:82:00.2 to vfio-pci"),
        ("0000:a1:00.0", "uio_pci_generic", "bind 0000:a1:00.1 to xocl"),
        ("0000:b1:00.2", "driver nvme", "bind 0000:b1:00.2 to vfio-pci"),
    ],
)
def test_a_function_under_another_driver_is_a_problem(
    state: model.HostState, where: str, present: str, remedy: str
) -> None:
    reasons = look.reasons(state, where)
    assert present in reasons
    assert remedy in reasons


@pytest.mark.parametrize(
    ("address", "equal", "driver"),
    [
        ("0000:42:00.0", "0000:41:00.0", "nvidia"),
        ("0000:92:00.0", "0000:91:00.0", "habanalabs"),
    ],
)
def test_a_card_without_a_driver_among_equals_is_not_offered(
    state: model.HostState, address: str, equal: str, driver: str
) -> None:
    assert state.device(address) is None
    reasons = look.reasons(state, address)
    assert f"no driver has it, unlike {equal}, which {driver} has" in reasons
    assert f"bind {address} to {driver}" in reasons
    assert f'"address": "{address}", "use": "passthrough"' in reasons


def test_a_line_of_policy_offers_a_card_without_a_driver(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make(HOST, tmp_path)
    line = json.dumps({"address": "0000:42:00.0", "use": "passthrough"})
    state = look.read(root, [line])
    assert look.device(state, "0000:42:00.0").technology == "passthrough"
    assert not look.reasons(state, "0000:42:00.0")


@pytest.mark.parametrize(
    ("address", "equal", "driver"),
    [
        ("0000:43:00.0", "0000:41:00.0", "nvidia"),
        ("0000:64:00.0", "0000:63:00.0", "gim"),
        ("0000:84:00.0", "0000:82:00.0", "xe"),
    ],
)
def test_a_card_on_vfio_among_shared_equals_is_offered_by_its_line(
    tmp_path: pathlib.Path,
    state: model.HostState,
    address: str,
    equal: str,
    driver: str,
) -> None:
    assert state.device(address) is None
    reasons = look.reasons(state, address)
    assert f"bound to vfio-pci, unlike {equal}, which {driver} has" in reasons
    assert f"bind {address} to {driver}" in reasons
    line = json.dumps({"address": address, "use": "passthrough"})
    assert line in reasons
    named = look.read(look.make(HOST, tmp_path), [line])
    assert look.device(named, address).technology == "passthrough"
    assert "unlike" not in look.reasons(named, address)


def test_a_card_of_a_server_stays_offered_whatever_its_equals_have(
    tmp_path: pathlib.Path,
) -> None:
    """Servers that older releases gave it to keep it."""
    addresses = ("0000:42:00.0", "0000:43:00.0")
    state = scan.read(
        host_reader.HostReader(look.make(HOST, tmp_path)),
        look.DRIVERS,
        policy.DeviceRules(assigned=frozenset(addresses)),
    )
    for address in addresses:
        assert look.device(state, address).technology == "passthrough"
        reasons = look.reasons(state, address)
        assert "offered only to the server that has it" in reasons
        assert f"bind {address} to nvidia" in reasons


def test_a_disk_on_vfio_among_disks_with_vfs_is_a_problem(
    state: model.HostState,
) -> None:
    assert state.device("0000:b2:00.0") is None
    reasons = look.reasons(state, "0000:b2:00.0")
    assert "vfio-pci has it, unlike 0000:b1:00.0, which nvme has" in reasons
    assert "bind 0000:b2:00.0 to nvme" in reasons


@pytest.mark.parametrize(
    ("card", "slots", "present", "remedies"),
    [
        (
            "0000:76:00.0",
            4,
            "its VF 0000:76:00.3: bound to vfio-pci, unlike 0000:76:00.1",
            ["bind 0000:76:00.3 to qat_vfio_pci"],
        ),
        (
            "0000:77:00.0",
            3,
            "2 of its VFs: bound to vfio-pci, unlike 0000:76:00.1",
            [
                "bind the virtual functions of 0000:77:00.0 on vfio-pci to"
                " qat_vfio_pci",
                "bind 0000:77:00.3 to qat_vfio_pci",
            ],
        ),
        (
            "0000:83:00.0",
            3,
            "its VF 0000:83:00.2: bound to vfio-pci, unlike 0000:83:00.1",
            ["bind 0000:83:00.2 to xe-vfio-pci"],
        ),
    ],
)
def test_a_vf_on_plain_vfio_among_variant_drivers_is_a_problem(
    state: model.HostState,
    card: str,
    slots: int,
    present: str,
    remedies: list[str],
) -> None:
    reasons = look.reasons(state, card)
    assert present in reasons
    assert all(remedy in reasons for remedy in remedies)
    assert len(look.device(state, card).slots) == slots


def test_vfs_on_plain_vfio_are_as_they_should_be_without_a_variant(
    state: model.HostState,
) -> None:
    for card in ("0000:63:00.0", "0000:78:00.0", "0000:82:00.0"):
        assert "unlike" not in look.reasons(state, card)


def test_a_gpu_with_coherent_memory_needs_its_own_vfio_driver(
    state: model.HostState,
) -> None:
    reasons = look.reasons(state, "0000:65:00.0")
    assert "load the module nvgrace_gpu_vfio_pci, then bind" in reasons


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("0000:52:00.0", "displaymodeselector"),
        ("0000:53:00.0", "vGPU for Compute (NVIDIA AI Enterprise)"),
        ("0000:61:00.0", "load gim again"),
        ("0000:62:00.0", "bound to amdgpu, which makes none; blacklist"),
    ],
)
def test_the_cause_is_named_and_nothing_is_installed_twice(
    state: model.HostState, where: str, words: str
) -> None:
    reasons = look.reasons(state, where)
    assert words in reasons
    assert "install" not in reasons


def test_i915_without_sriov_is_not_promised_vfs(
    capsys: test_inspect.Output, tmp_path: pathlib.Path
) -> None:
    for kind in ("json", "txt"):
        text = (recorded.HERE / f"igpu-stock-i915.{kind}").read_text()
        assert "this i915 has no SR-IOV (no drm/card0/iov)" in text
        assert "sriov_numvfs" not in text
        assert "num_vfs" not in text
