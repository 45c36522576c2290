# SPDX-License-Identifier: Apache-2.0
"""AMD Alveo cards are read from the sysfs files of XRT."""

import errno
from collections.abc import Mapping

import pytest

from nova_accel import errors
from nova_accel.discovery.capture import Record, RecordedFiles
from nova_accel.host.fpga import xrt
from nova_accel.host.sysfs import fs

CARD, SLOT = "0000:d8:00.0", "0000:d8:00.1"
TOP = "/sys/bus/pci/devices"
DASHED = "5A3C1F0E-6f1d-4b6c-8f0e-0c3b1d5e7a90"
PLAIN = "5a3c1f0e6f1d4b6c8f0e0c3b1d5e7a90"
ZERO = "00000000-0000-0000-0000-000000000000"
BASE, SHELL = "8d8b5e2a4c7f4f0f9a6a3e2e4b4d5b8d", "c" * 32
NAME = "xilinx_u250_gen3x16_xdma_shell_4_1"


def files(records: Mapping[str, Record]) -> fs.Files:
    return fs.Files(
        RecordedFiles({f"{TOP}/{p}": r for p, r in records.items()})
    )


def uuid_files(text: Record) -> fs.Files:
    return files({f"{SLOT}/xclbinuuid": text})


@pytest.mark.parametrize(
    ("text", "function"),
    [
        (f"{DASHED}\n", PLAIN),
        ("\n", ""),
        ("", ""),
        (f"{ZERO}\n", ""),
        (f"{ZERO}\n{DASHED}\n", PLAIN),  # the first slot holds nothing
        (f"{DASHED}\n{DASHED[::-1]}\n", PLAIN),
        ("unable to give xclbin id", None),
        (errno.EIO, None),
        (errno.ENOENT, None),
        (errno.EILSEQ, None),
    ],
)
def test_the_loaded_function_is_read_from_the_user_function(
    text: Record, function: str | None
) -> None:
    assert xrt.read_loaded(uuid_files(text), CARD, 0, SLOT) == function


def test_without_xocl_the_function_is_unknown() -> None:
    assert xrt.read_loaded(files({}), CARD, 0, SLOT) is None
    with pytest.raises(errors.UnreadableError):
        xrt.read_function(files({}), SLOT)


def card(**changed: Record) -> dict[str, Record]:
    attributes: dict[str, Record] = {
        "ready": "1\n",
        "dev_offline": "0\n",
        "mfg": "0\n",
        "recovery": "0\n",
        "board_name": "u250\n",
        "interface_uuids": f"{BASE}\n{SHELL}\n",
        "rom.m.55296/VBNV": f"{NAME}\n",
        **changed,
    }
    return {f"{CARD}/{name}": text for name, text in attributes.items()}


def shell(records: Mapping[str, Record], slot: str = "") -> xrt.XrtShell:
    return xrt.read_shell(files(records), CARD, slot)


def test_a_shell_in_two_stages_has_two_interfaces() -> None:
    assert shell(card()) == xrt.XrtShell(
        name=NAME, board="u250", interfaces=(BASE, SHELL)
    )


def test_a_repeated_interface_counts_once() -> None:
    again = card(interface_uuids=f"{BASE}\n{BASE.upper()}\n")
    assert shell(again).interfaces == (BASE,)


def test_shells_without_metadata_are_identified_by_name() -> None:
    # xclmgmt, interface_uuids_show: EINVAL without a devicetree.
    parsed = shell(card(interface_uuids=errno.EINVAL))
    assert parsed.interfaces == (NAME,)
    assert parsed.unread == ()


def test_unreadable_interfaces_are_unread() -> None:
    parsed = shell(card(interface_uuids=errno.EIO))
    assert parsed.interfaces == ()
    assert "interface_uuids" in parsed.unread[0]
    parsed = shell(card(interface_uuids="nonsense\n"))
    assert parsed.interfaces == ()
    assert "'nonsense'" in parsed.unread[0]


def test_names_of_shells_are_normalized() -> None:
    old = card(**{"rom.m.55296/VBNV": "xilinx:u250:xdma:201830.1\n"})
    assert shell(old).name == "xilinx_u250_xdma_201830_1"


@pytest.mark.parametrize(
    ("attributes", "word"),
    [
        ({"mfg": "1\n"}, "factory"),
        ({"rom.m.55296/VBNV": "xilinx_u250_GOLDEN_8\n"}, "factory"),
        ({"recovery": "1\n"}, "recovery"),
    ],
)
def test_a_card_with_a_golden_image_has_no_interfaces(
    attributes: dict[str, Record], word: str
) -> None:
    parsed = shell(card(**attributes))
    assert word in parsed.golden
    assert parsed.interfaces == ()


@pytest.mark.parametrize(
    ("attributes", "fault", "blocker"),
    [
        ({"dev_offline": "1\n"}, "offline", ""),
        ({"ready": "0\n"}, "ready 0", "ready"),
        ({"ready": errno.EIO}, "", "ready"),
        ({"dev_offline": errno.ENOENT, "mfg": errno.ENOENT}, "", ""),
    ],
)
def test_a_card_that_does_not_work_has_a_fault_or_blocker(
    attributes: dict[str, Record], fault: str, blocker: str
) -> None:
    parsed = shell(card(**attributes))
    assert (fault in parsed.fault, blocker in parsed.blocker) == (True, True)
    assert (bool(parsed.fault), bool(parsed.blocker)) == (
        bool(fault),
        bool(blocker),
    )


def test_both_functions_determine_the_state_of_the_card() -> None:
    below: dict[str, Record] = {
        f"{SLOT}/ready": "0x1\n",
        f"{SLOT}/dev_offline": "0\n",
    }
    assert not shell({**card(), **below}, SLOT).blocker
    below[f"{SLOT}/ready"] = "0x0\n"
    assert "does not reach" in shell({**card(), **below}, SLOT).blocker
    below[f"{SLOT}/dev_offline"] = "1\n"
    assert SLOT in shell({**card(), **below}, SLOT).fault


def test_the_user_function_replaces_a_missing_management_function() -> None:
    parsed = xrt.read_shell(
        files(
            {
                f"{SLOT}/interface_uuids": f"{SHELL}\n",
                f"{SLOT}/board_name": "u250\n",
                f"{SLOT}/rom.u.55297/VBNV": f"{NAME}\n",
                f"{SLOT}/ready": "0x1\n",
            }
        ),
        "",
        SLOT,
    )
    assert parsed == xrt.XrtShell(name=NAME, board="u250", interfaces=(SHELL,))


def test_without_a_driver_the_shell_is_empty() -> None:
    assert xrt.read_shell(files({}), "", "") == xrt.XrtShell()


def test_an_unlistable_card_is_unread() -> None:
    parsed = shell({CARD: errno.EIO})
    assert any("listed" in reason for reason in parsed.unread)
