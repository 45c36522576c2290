# SPDX-License-Identifier: Apache-2.0
"""Names of GPUs are read from the host's pci.ids."""

import json
import pathlib
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel.discovery import capture
from nova_accel.host.sysfs import fs, hwdata
from nova_accel.model import names
from tests.hosts import build
from tests.unit.nova_accel.cli import test_inspect

LISTED = """\
# Syntax:
# vendor  vendor_name
1002  Advanced Micro Devices, Inc. [AMD/ATI]
\t74a1  Aqua Vanjaram [Instinct MI300X]
\t\t1002 74a1  MI300X in a subsystem
\t7340  Navi 14 [Radeon RX 5500/5500M]
\t74ff  \x1b[31mRed [Alert\x1b]
8086  Intel Corporation
\t56c0  ATS-M [Data Center GPU Flex 170]
\t74a1  A device of another vendor
\t5912  HD Graphics 630
C 03  Display controller
\t00  VGA compatible controller
"""
MI300X = "0000:63:00.0"


def test_the_name_in_brackets_is_the_model() -> None:
    ids = {"1002:74a1", "8086:56c0", "8086:5912", "1002:74ff", "1002:0000"}
    assert hwdata.parse(LISTED, ids) == {
        "1002:74a1": "Instinct MI300X",
        "8086:56c0": "Data Center GPU Flex 170",
        "8086:5912": "HD Graphics 630",
    }


@given(
    st.lists(st.sampled_from(LISTED.splitlines()) | st.text(max_size=120)).map(
        "\n".join
    )
)
def test_any_text_gives_printable_names_of_requested_ids(text: str) -> None:
    titles = hwdata.parse(text, ["1002:74a1"])
    assert titles.keys() <= {"1002:74a1"}
    assert all(n.isprintable() and len(n) <= 100 for n in titles.values())


def described(
    root: pathlib.Path, capsys: test_inspect.Output
) -> tuple[str, list[str], str]:
    """Return the name and the traits of a free GPU, and the text."""
    build.build(
        {
            "functions": [
                {
                    "address": MI300X,
                    "id": "1002:74a1",
                    "class": "120000",
                    "group": 1,
                }
            ]
        },
        root,
    )
    command = ("inspect", "--root", str(root))
    output = json.loads(test_inspect.run(capsys, *command, "-f", "json"))
    return (
        output["devices"][0]["model"],
        output["providers"][0]["traits"],
        test_inspect.run(capsys, *command),
    )


@pytest.mark.parametrize("path", fs.PCI_IDS)
def test_inspect_names_gpus_and_adds_their_names_to_the_traits(
    tmp_path: pathlib.Path, capsys: test_inspect.Output, path: str
) -> None:
    bare, traits, _ = described(tmp_path / "bare", capsys)
    assert bare == "1002:74a1"
    place = tmp_path / f"host{path}"
    place.parent.mkdir(parents=True)
    place.write_text(LISTED)
    name, named, text = described(tmp_path / "host", capsys)
    assert name == "Instinct MI300X"
    assert f"{MI300X}  amd Instinct MI300X  (passthrough, 1002:74a1" in text
    assert sorted({*named} - {*traits}) == [
        f"{names.NAME_PREFIX}AMD_INSTINCT_MI300X"
    ]


def test_a_capture_contains_the_names_and_not_the_file(
    tmp_path: pathlib.Path, capsys: test_inspect.Output
) -> None:
    root, archive = tmp_path / "host", str(tmp_path / "host.tar.gz")
    place = tmp_path / f"host{fs.PCI_IDS[0]}"
    place.parent.mkdir(parents=True)
    place.write_text(LISTED)
    described(root, capsys)
    test_inspect.run(capsys, "capture", "--root", str(root), "-o", archive)
    again = str(tmp_path / "again.tar.gz")
    test_inspect.run(capsys, "capture", "--root", archive, "-o", again)
    for path in (archive, again):
        text = test_inspect.run(capsys, "inspect", "--root", path)
        assert f"{MI300X}  amd Instinct MI300X" in text
        with tarfile.open(path) as opened:
            assert not [n for n in opened.getnames() if "pci.ids" in n]
        assert capture.load(path)[1]["models"] == {
            "1002:74a1": "Instinct MI300X"
        }


@pytest.mark.parametrize("content", [b"", b"1002  \xff\xfe", b"#" * (5 << 20)])
def test_with_a_damaged_file_the_model_is_the_pci_id(
    tmp_path: pathlib.Path, capsys: test_inspect.Output, content: bytes
) -> None:
    place = tmp_path / f"host{fs.PCI_IDS[0]}"
    place.parent.mkdir(parents=True)
    place.write_bytes(content)
    name, _, text = described(tmp_path / "host", capsys)
    assert name == "1002:74a1"
    assert "Problems" not in text
