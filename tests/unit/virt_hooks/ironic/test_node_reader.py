# SPDX-License-Identifier: Apache-2.0
"""Accelerators of a bare-metal node, whatever their driver and IOMMU."""

import pathlib
from collections.abc import Mapping

from nova_accel.host.sysfs import host_reader
from tests.hosts import build, look
from virt_hooks.ironic import node_reader, node_report

H100 = {"id": "10de:2330", "class": "030200"}
NVSWITCH = {"id": "10de:22a3", "class": "068000"}
QAT = {"id": "8086:4940", "class": "0b4000", "driver": "4xxx"}


def read(
    root: pathlib.Path, *functions: Mapping[str, object]
) -> node_report.NodeReport:
    rows = [
        {"address": f"0000:{number:02x}:00.0", **function}
        for number, function in enumerate(functions, 1)
    ]
    build.build({"functions": rows}, root)
    return node_reader.read_report(host_reader.HostReader(root))


def test_a_card_without_an_iommu_counts(tmp_path: pathlib.Path) -> None:
    report = read(tmp_path, H100, {**H100, "driver": "nouveau"}, NVSWITCH)
    assert [d.model for d in report.devices] == ["H100XM", "H100XM"]
    assert report.devices[0].is_mig_capable
    assert report.has_nvswitch


def test_a_qat_device_without_vfs_has_its_services(
    tmp_path: pathlib.Path,
) -> None:
    services = {"attributes": {"qat/cfg_services": "sym;asym"}}
    report = read(tmp_path, {**QAT, **services})
    assert report.devices[0].services == ("asym", "sym")
    assert "CUSTOM_QAT" not in report.unread


def test_services_that_can_not_be_read_are_unread(
    tmp_path: pathlib.Path,
) -> None:
    report = read(tmp_path, QAT)
    assert report.devices[0].services == ()
    assert "CUSTOM_QAT" in report.unread


def test_a_card_that_fell_off_its_bus_is_faulty(
    tmp_path: pathlib.Path,
) -> None:
    read(tmp_path, H100)
    place = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    (place / "config").write_bytes(b"\xff" * 64)
    report = node_reader.read_report(host_reader.HostReader(tmp_path))
    assert "does not answer" in report.devices[0].fault


def test_a_card_that_can_not_be_read_makes_the_report_incomplete(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("broken", tmp_path)
    report = node_reader.read_report(host_reader.HostReader(root))
    assert not report.is_complete
