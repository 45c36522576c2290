# SPDX-License-Identifier: Apache-2.0
"""Intel FPGA cards are read from the sysfs files of both drivers."""

import pathlib

import pytest

from nova_accel.host.fpga import dfl
from nova_accel.host.sysfs import fs
from tests.hosts import build, look

PF = "0000:05:00.0"
BEHIND, VF = "0000:15:00.0", "0000:15:00.1"
HELD, HELD_VF = "0000:25:00.0", "0000:25:00.1"
FUNCTION = "d8424dc4a4a3c413f89e433683f9040b"
OTHER = "f7df405cbd7acf7222f144b0b93acd18"


def files(root: pathlib.Path) -> fs.Files:
    return fs.Files(fs.DiskSource(root))


@pytest.fixture
def pac(tmp_path: pathlib.Path) -> pathlib.Path:
    return look.make("dfl-pac", tmp_path)


def port_file(root: pathlib.Path, name: str) -> pathlib.Path:
    place = root / "sys/bus/pci/devices" / PF
    return place / "fpga_region/region0/dfl-port.0" / name


def test_the_layout_of_dfl_is_read(pac: pathlib.Path) -> None:
    layout = dfl.read(files(pac), PF)
    assert layout == dfl.DflLayout(
        driver="dfl-pci",
        node="dfl-fme.0",
        static="113000200000177",
        interfaces=("f64e598bea11517fa28e7bc65d885104",),
        ports=(dfl.DflPort(number=0, function=FUNCTION),),
    )
    assert dfl.read(files(pac), PF).node == "dfl-fme.0"


def test_registers_of_all_ones_are_no_values(
    pac: pathlib.Path,
) -> None:
    """The card fell off its bus; it is still the same card."""
    port_file(pac, "id").write_text("3\n")
    port_file(pac, "afu_id").write_text("f" * 32 + "\n")
    fme = port_file(pac, "id").parent.with_name("dfl-fme.0")
    (fme / "bitstream_id").write_text("0x" + "f" * 16 + "\n")
    layout = dfl.read(files(pac), PF)
    (port,) = layout.ports
    assert port.number is None and port.function is None
    assert layout.static == ""


def test_the_layout_of_intel_fpga_pci_is_read(tmp_path: pathlib.Path) -> None:
    root = look.make("dfl-older", tmp_path)
    layout = dfl.read(files(root), PF)
    assert layout.driver == "intel-fpga-pci"
    assert layout.node == dfl.read(files(root), PF).node == "intel-fpga-fme.0"
    assert layout.interfaces == ("f64e598bea11517fa28e7bc65d885104",)
    # The only port of a card needs no number.
    without = dfl.read(files(root), BEHIND)
    assert without.ports[0].number is None
    assert without.port(0) == without.ports[0]
    assert without.interfaces == ("",)
    # A recording may have zeros after the line.
    again = dfl.read(files(root), "0000:35:00.0")
    assert again.interfaces == layout.interfaces
    assert again.ports == layout.ports
    assert again.reasons == ()


def test_interfaces_are_in_the_order_of_ports(pac: pathlib.Path) -> None:
    layout = dfl.read(files(pac), "0001:b5:00.0")
    assert layout.interfaces == (
        "2a4222186dba448eb302425cbcde1406",
        "1a4222186dba448eb302425cbcde1406",
    )


def test_a_port_is_read_on_its_pf_or_vf(pac: pathlib.Path) -> None:
    def loaded(card: str, number: int, slot: str) -> str | None:
        return dfl.read_loaded(files(pac), card, number, slot)

    assert loaded(PF, 0, PF) == FUNCTION
    assert loaded(PF, 1, PF) is None
    assert loaded(BEHIND, 0, VF) == FUNCTION
    # The port was released or assigned meanwhile.
    assert loaded(BEHIND, 0, BEHIND) is None
    assert loaded(PF, 0, "0000:05:00.1") == FUNCTION
    # The function of another port is not returned.
    assert loaded("0001:b5:00.0", 1, "0001:b5:00.1") == OTHER
    assert loaded("0001:b5:00.0", 0, "0001:b5:00.1") == FUNCTION
    assert loaded(BEHIND, 1, VF) is None
    # The host can't read a region that a guest has.
    assert loaded(HELD, 0, HELD_VF) is None
    assert loaded("0000:55:00.0", 0, "0000:55:00.0") is None
    assert dfl.read(files(pac), "0000:55:00.0").node is None
    # The region is known to be empty.
    assert loaded("0001:a5:00.0", 0, "0001:a5:00.0") == ""


@pytest.mark.parametrize(
    ("text", "function"),
    [
        (f"{FUNCTION.upper()}\n", FUNCTION),
        ("d8424dc4-a4a3-c413-f89e-433683f9040b\n", FUNCTION),
        (f"{FUNCTION}\n\0\0\0\n", FUNCTION),
        ("\n", ""),
        ("", ""),
        (f"{'0' * 32}\n", ""),
        (f"{'f' * 32}\n", None),
        ("d8424dc4\n", None),
    ],
)
def test_the_function_of_a_port_is_parsed(
    pac: pathlib.Path, text: str, function: str | None
) -> None:
    port_file(pac, "afu_id").write_text(text)
    (port,) = dfl.read(files(pac), PF).ports
    assert (port.function, port.is_shown) == (function, True)
    assert bool(port.reason) is (function is None)
    assert dfl.read_loaded(files(pac), PF, 0, PF) == function


def test_a_missing_function_differs_from_an_unreadable_one(
    pac: pathlib.Path,
) -> None:
    port_file(pac, "afu_id").unlink()
    (port,) = dfl.read(files(pac), PF).ports
    assert (port.function, port.is_shown) == (None, False)
    build.FAULTS["EIO"](port_file(pac, "afu_id"))
    (port,) = dfl.read(files(pac), PF).ports
    assert (port.function, port.is_shown) == (None, True)
    assert "EIO" in port.reason


def test_several_ports_without_numbers_are_not_identified(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("dfl-pac", tmp_path)
    place = root / "sys/bus/pci/devices/0001:c5:00.0/fpga_region/region120"
    for port in ("dfl-port.14", "dfl-port.15"):
        (place / port / "id").write_text("none\n")
    layout = dfl.read(files(root), "0001:c5:00.0")
    assert [p.number for p in layout.ports] == [None, None]
    assert layout.port(0) is layout.port(1) is None


def test_the_default_driver_is_an_existing_one(tmp_path: pathlib.Path) -> None:
    assert dfl.default_driver(files(tmp_path)) == "dfl-pci"
    drivers = tmp_path / "sys/bus/pci/drivers"
    (drivers / "intel-fpga-pci").mkdir(parents=True)
    assert dfl.default_driver(files(tmp_path)) == "intel-fpga-pci"
    (drivers / "dfl-pci").mkdir()
    assert dfl.default_driver(files(tmp_path)) == "dfl-pci"
