# SPDX-License-Identifier: Apache-2.0
"""Proves that the conformance command and the tutorial's driver work."""

import dataclasses
import errno
import importlib.metadata
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from nova_accel import conformance, model
from nova_accel.config import policy
from nova_accel.conformance import __main__ as command
from nova_accel.conformance import check_errors
from nova_accel.discovery.capture import (
    Record,
    RecordedDirectory,
    RecordedLink,
)
from nova_accel.host.sysfs import fs, host_reader
from nova_accel.model import names
from nova_accel.vendors import qat
from tests.hosts import look
from tests.support.hosts.widget import GPU, OTHER, Sound, broken, check

EXAMPLE = pathlib.Path(__file__).parents[4] / "doc/source/examples/lattice"
CARD = names.region_address(GPU, 0)


def region_of(**fields: Any) -> object:
    """Return a driver of a card with a region that has these fields."""

    def describe(
        self: Sound,
        card: host_reader.HostReader,
        rules: policy.DeviceRules,
        taken: frozenset[str],
    ) -> Iterator[model.Device | model.Problem]:
        if GPU in taken or GPU not in card.card_names:
            return
        sound = dataclasses.replace(
            self.device(GPU), technology="fpga", resource_class="FPGA"
        )
        yield dataclasses.replace(sound, counters={}, slots=(), profiles=())
        region_fields = {"card": GPU, "number": 0, "function": "ab", **fields}
        traits = {names.fpga_function_trait("ab")}
        yield dataclasses.replace(
            sound,
            address=CARD,
            parent=GPU,
            counters={"FPGA": 1},
            profiles=(
                model.Profile(
                    name="region",
                    trait=names.REGION_TRAIT,
                    charges={"FPGA": 1},
                    available=1,
                ),
            ),
            traits=frozenset(traits),
            region=model.Region(**region_fields),
        )

    return broken(describe=describe)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, ""),
        ({"number": 1}, "a region's address is made by names.region_address"),
        ({"card": OTHER}, f"its parent is '{GPU}', its card {OTHER}"),
        ({"function": "AB"}, "id AB is not spelled as it is compared"),
        ({"function": None}, "says what region does not"),
        ({"is_programmable": True}, "CUSTOM_FPGA_PROGRAMMABLE are missing"),
        ({"interfaces": ("cd",)}, "CUSTOM_FPGA_INTERFACE_CD are missing"),
    ],
)
def test_regions_agree_with_their_traits(
    tmp_path: pathlib.Path, fields: Mapping[str, Any], text: str
) -> None:
    findings = check(region_of(**fields), tmp_path)
    if text:
        assert [finding for finding in findings if text in finding], findings
    else:
        assert findings == ()


def test_the_command_prints_broken_rules(
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = str(look.make("t4-mdev", tmp_path))
    assert command.main(["qat", "--root", root, "--root", root]) == 0
    assert capsys.readouterr().out == "qat: 2 hosts, 0 findings\n"
    monkeypatch.setattr(qat.QatDriver, "name", "absent")
    assert command.main(["qat", "--root", root]) == 1
    assert "protocol: QatDriver: name is 'absent'" in capsys.readouterr().out


def test_the_command_refuses_bad_input(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["absent", "--root", str(tmp_path)]) == 2
    assert "no such driver is installed" in capsys.readouterr().err
    assert command.main(["qat", "--root", str(tmp_path)]) == 2
    assert "holds no sys/ directory" in capsys.readouterr().err


def test_two_files_of_each_kind_are_made_unreadable() -> None:
    records: dict[str, Record] = {
        f"/a/0000:0{n}:00.0/vendor": "0x8086\n" for n in range(4)
    }
    records |= {
        "/a": RecordedDirectory(),
        "/b": errno.EIO,
        "/c": RecordedLink("a"),
    }
    paths = {path for path, _ in check_errors.choose_paths(records)}
    assert paths == {
        "/a/0000:00:00.0/vendor",
        "/a/0000:03:00.0/vendor",
        "/c",
    }
    every = set(check_errors.choose_paths(records, every=True))
    assert {path for path, _ in every} == {*records} - {"/a", "/b"}
    assert {n for path, n in every if path == "/c"} == {errno.ENOENT}
    assert {n for path, n in every if path != "/c"} == {*check_errors.ERRNOS}


SAMPLES = (
    ("nvidia_mdev", "t4-mdev"),
    ("nvidia_vfio", "l40s-vendor-vfio"),
    ("intel_sriov", "intel-vf"),
    ("amd_mxgpu", "amd-vf"),
    ("qat", "qat"),
    ("dfl", "dfl-older"),
    ("alveo", "alveo-cards"),
    ("pci_vf", "nvme"),
    ("mdev", "mtty"),
    ("pci_passthrough", "passthrough"),
)


# The step "conformance" checks them on several hosts each on each push.
@pytest.mark.long
@pytest.mark.parametrize(("name", "host"), SAMPLES)
def test_the_drivers_of_the_library_keep_the_rules(
    tmp_path: pathlib.Path, name: str, host: str
) -> None:
    findings = conformance.check_driver(
        look.DRIVERS[name], fs.DiskSource(look.make(host, tmp_path)), name=name
    )
    assert not findings, "\n".join(map(str, findings))


# It installs the package: 100 s.
@pytest.mark.long
def test_the_example_of_the_tutorial_passes_its_own_tests() -> None:
    paths = (EXAMPLE, EXAMPLE / "tests", *sys.path)
    done = subprocess.run(  # noqa: S603
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("-c", os.devnull, "--rootdir", str(EXAMPLE), "tests"),
        ],
        cwd=EXAMPLE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_example_names_a_driver_that_exists() -> None:
    text = (EXAMPLE / "setup.cfg").read_text()
    line = next(x for x in text.splitlines() if x.startswith("    lattice ="))
    point = importlib.metadata.EntryPoint(
        name="lattice",
        value=line.partition("=")[2].strip(),
        group="nova_accel.drivers",
    )
    sys.path.insert(0, str(EXAMPLE))
    try:
        assert point.load().name == "lattice"
    finally:
        sys.path.remove(str(EXAMPLE))
