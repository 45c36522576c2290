# SPDX-License-Identifier: Apache-2.0
"""Bitstreams are loaded by tools and read back, or fail."""

import dataclasses
import errno
import hashlib
import logging
import os
import re
from pathlib import Path

import pytest

from nova_accel import errors, model
from nova_accel.host.execute import action_executor
from nova_accel.host.execute.technologies import fpga_actions
from nova_accel.model import actions
from tests.support.hosts.executing import executor, failure

pytestmark = pytest.mark.usefixtures("own_rights")
CARD, VF, USER = "0000:5e:00.0", "0000:5e:00.1", "0000:5e:00.1"
REGION = "0000:5e:00.0/region-0"
OLD = "d8424dc4a4a3c413f89e433683f9040b"
NEW = "f7df405cbd7acf7222f144b0b93acd18"
CONTENT = b"what the FPGA takes"


def functions(root: Path) -> Path:
    return root / "sys/bus/pci/devices"


def bind(root: Path, function: str, driver: str) -> None:
    there = root / "sys/bus/pci/drivers" / driver
    there.mkdir(parents=True, exist_ok=True)
    link = functions(root) / function / "driver"
    link.unlink(missing_ok=True)
    link.symlink_to(f"../../drivers/{driver}")


def intel(root: Path, port_on: str = CARD) -> Path:
    """Make a card with one port; return the file of its function."""
    for function in (CARD, VF):
        (functions(root) / function).mkdir(parents=True)
        bind(root, function, "dfl-pci")
    fme = functions(root) / CARD / "fpga_region/region0/dfl-fme.0"
    fme.mkdir(parents=True)
    (root / "dev").mkdir()
    (root / "dev/dfl-fme.0").touch()
    port = functions(root) / port_on / "fpga_region/region0/dfl-port.0"
    port.mkdir(parents=True)
    (port / "id").write_text("0\n")
    (port / "afu_id").write_text(f"{OLD}\n")
    return port / "afu_id"


def load(
    root: Path, tool: str = "fpgaconf", slot: str = CARD
) -> actions.ProgramRegion:
    file = root / "one.gbs"
    file.write_bytes(CONTENT)
    return actions.ProgramRegion(
        card=CARD,
        number=0,
        slot=slot,
        tool=tool,
        bitstream=model.Bitstream(
            name="image-1",
            vendor="intel",
            path=str(file),
            function=NEW,
            interface="f64e598bea11517fa28e7bc65d885104",
            sha512=hashlib.sha512(CONTENT).hexdigest(),
            size=len(CONTENT),
        ),
    )


def script(root: Path, text: str, place: str = "usr/bin/fpgaconf") -> None:
    """Write a tool that counts its runs."""
    path = root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho run >> {root}/runs\n{text}\n")
    path.chmod(0o755)
    (root / "runs").write_text("")


def runs(root: Path) -> int:
    return (root / "runs").read_text().count("run")


def fault(root: Path, action: actions.ProgramRegion) -> str:
    """Return the error of a load that failed after its start."""
    error = failure(root, action)
    assert type(error) is errors.ProgrammingError
    assert error.region == REGION
    assert f"nova-accel heal {REGION}" in error.hint
    return str(error)


def refusal(root: Path, action: actions.ProgramRegion) -> errors.ActionError:
    """Return the error of a load that is refused before its start."""
    error = failure(root, action)
    assert type(error) is errors.ActionError
    return error


# -- what works ------------------------------------------------------------


@pytest.mark.parametrize("slot", [CARD, VF])
def test_a_loaded_region_is_read_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, slot: str
) -> None:
    caplog.set_level(logging.INFO, "nova_accel")
    uuid_file = intel(tmp_path, slot)
    script(tmp_path, f"echo {NEW} > {uuid_file}")
    action = load(tmp_path, slot=slot)
    on_host = executor(tmp_path)
    assert [on_host.apply(action) for _ in range(3)] == [True, False, False]
    assert runs(tmp_path) == 1
    (line,) = caplog.messages
    assert re.fullmatch(
        rf"load bitstream image-1 \(function {NEW}\) into {REGION}:"
        r" done in \d+\.\d s",
        line,
    )


def test_a_forced_load_is_always_done(
    tmp_path: Path,
) -> None:
    uuid_file = intel(tmp_path)
    uuid_file.write_text(f"{NEW}\n")
    script(tmp_path, "true")
    action = dataclasses.replace(load(tmp_path), is_forced=True)
    on_host = executor(tmp_path)
    assert [on_host.apply(action) for _ in range(2)] == [True, True]
    assert runs(tmp_path) == 2


def test_a_card_that_disappears_briefly_is_awaited(
    tmp_path: Path,
) -> None:
    """The tool resets the card, and the kernel enumerates it again."""
    uuid_file = intel(tmp_path)
    place = functions(tmp_path) / CARD
    script(
        tmp_path,
        f"echo {NEW} > {uuid_file}; mv {place} {tmp_path}/away\n"
        f"(sleep 2; mv {tmp_path}/away {place}) > /dev/null 2>&1 &",
    )
    assert executor(tmp_path).apply(load(tmp_path))


# -- failures after the start -----------------------------------------------


def test_a_tool_without_effect_is_a_fault(tmp_path: Path) -> None:
    intel(tmp_path)
    script(tmp_path, "true")
    text = fault(tmp_path, load(tmp_path))
    assert "reading back shows no change" in text
    assert f"the region shows function {OLD}" in text


def test_a_forced_load_is_read_back(tmp_path: Path) -> None:
    uuid_file = intel(tmp_path)
    uuid_file.write_text(f"{NEW}\n")
    script(tmp_path, f"echo {OLD} > {uuid_file}")
    action = dataclasses.replace(load(tmp_path), is_forced=True)
    assert OLD in fault(tmp_path, action)


def test_a_failing_tool_is_a_fault(tmp_path: Path) -> None:
    uuid_file = intel(tmp_path)
    script(tmp_path, f"echo {NEW} > {uuid_file}; echo no luck; exit 5")
    text = fault(tmp_path, load(tmp_path))
    assert "ended with 5: no luck" in text


def test_a_card_that_vanishes_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    intel(tmp_path)
    script(tmp_path, f"mv {functions(tmp_path) / CARD} {tmp_path}/away")
    # The default of half a minute is too long for a test.
    monkeypatch.setattr(
        "nova_accel.host.execute.technologies.fpga_actions._UNREAD_BY_TOOL", 5
    )
    text = fault(tmp_path, load(tmp_path))
    assert "can't be read, or is gone" in text


# -- refusals before the start ----------------------------------------------


@pytest.mark.parametrize("function", [CARD, VF])
def test_a_region_bound_to_vfio_pci_is_not_loaded(
    tmp_path: Path, function: str
) -> None:
    intel(tmp_path, VF)
    script(tmp_path, "true")
    bind(tmp_path, function, "vfio-pci")
    for tool in ("fpgaconf", ""):
        error = refusal(tmp_path, load(tmp_path, tool, VF))
        assert error.number == errno.EBUSY
        assert f"{function} is bound to vfio-pci" in str(error)
        assert "nothing was touched" in error.hint
    assert runs(tmp_path) == 0


def test_a_card_with_a_function_in_use_by_the_host_is_not_loaded(
    tmp_path: Path,
) -> None:
    """The network behind another function of an N6001, for example."""
    uuid_file = intel(tmp_path)
    script(tmp_path, f"echo {NEW} > {uuid_file}")
    action = dataclasses.replace(load(tmp_path), dependents=(VF,))
    bind(tmp_path, VF, "virtio-pci")
    error = refusal(tmp_path, action)
    assert (error.number, error.hint) == (errno.EBUSY, fpga_actions.WITH_HOST)
    assert VF in error.detail
    assert runs(tmp_path) == 0
    bind(tmp_path, VF, "dfl-pci")
    assert executor(tmp_path).apply(action)


def test_a_card_without_its_device_node_is_enodev(tmp_path: Path) -> None:
    uuid_file = intel(tmp_path)
    os.rename(
        functions(tmp_path) / CARD / "fpga_region/region0/dfl-fme.0",
        tmp_path / "away",
    )
    error = refusal(tmp_path, load(tmp_path, ""))
    assert error.number == errno.ENODEV
    assert "nothing was touched" in str(error)
    assert uuid_file.read_text() == f"{OLD}\n"


def test_a_device_without_the_ioctl_is_enotty(tmp_path: Path) -> None:
    """The device is a plain file, for which the kernel has no such call."""
    intel(tmp_path)
    assert refusal(tmp_path, load(tmp_path, "")).number == errno.ENOTTY


def test_each_errno_has_a_hint() -> None:
    bitstream = load_nothing()
    for number in (0, *errno.errorcode):
        assert action_executor.get_hint(bitstream, number)
    assert "vGPU" not in action_executor.get_hint(bitstream, errno.EBUSY)


def load_nothing() -> actions.ProgramRegion:
    bitstream = model.Bitstream(
        name="n", vendor="intel", path="/n", function=NEW, interface=OLD,
        sha512="0" * 128, size=1,
    )  # fmt: skip
    return actions.ProgramRegion(
        card=CARD, number=0, slot=CARD, bitstream=bitstream
    )


# -- ports -----------------------------------------------------------------


def set_port(is_released: bool, number: int = 0) -> actions.SetPort:
    return actions.SetPort(card=CARD, number=number, is_released=is_released)


def test_a_port_in_the_requested_state_is_not_changed(tmp_path: Path) -> None:
    uuid_file = intel(tmp_path)
    on_host = executor(tmp_path)
    assert not on_host.apply(set_port(False))
    error = failure(tmp_path, set_port(True))
    assert error.number == errno.ENOTTY  # a plain file is no kernel
    os.rename(uuid_file.parent, tmp_path / "away")
    assert not on_host.apply(set_port(True))
    assert failure(tmp_path, set_port(False)).number == errno.ENOTTY


def test_a_port_without_a_number_may_be_the_requested_one(
    tmp_path: Path,
) -> None:
    uuid_file = intel(tmp_path)
    (uuid_file.parent / "id").unlink()
    assert failure(tmp_path, set_port(True)).number == errno.ENOTTY


def test_ports_of_a_card_without_its_device_node_are_enodev(
    tmp_path: Path,
) -> None:
    for is_released in (True, False):
        error = failure(tmp_path, set_port(is_released))
        assert error.number == errno.ENODEV


def test_ports_are_not_changed_while_there_are_vfs(tmp_path: Path) -> None:
    intel(tmp_path)
    (functions(tmp_path) / CARD / "sriov_numvfs").write_text("1\n")
    error = failure(tmp_path, set_port(True))
    assert error.number == errno.EBUSY
    assert "1 virtual functions are enabled" in str(error)
