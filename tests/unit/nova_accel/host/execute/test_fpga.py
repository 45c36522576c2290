# SPDX-License-Identifier: Apache-2.0
"""FPGA regions, ports and QAT services change on a fake kernel."""

import dataclasses
import errno
import hashlib
import logging
from pathlib import Path

import pytest

from nova_accel import errors, model
from nova_accel.host.execute import action_executor
from nova_accel.model import actions
from tests.lab import fakehost
from tests.lab.fakehost import fpga
from tests.support.hosts.executing import executor, failure, read

pytestmark = pytest.mark.usefixtures("own_rights")
# A card with two regions, one with a VF, and QAT devices with and without
# VFs.
CARD, PAC, PAC_VF = "0000:3b:00.0", "0000:5e:00.0", "0000:5e:00.1"
QAT, QAT_USED = "0000:6b:00.0", "0000:70:00.0"
OLD = "d8424dc4a4a3c413f89e433683f9040b"
NEW = "f7df405cbd7acf7222f144b0b93acd18"
A10 = "f64e598bea11517fa28e7bc65d885104"
SPEC = fakehost.HostSpec(
    cards=(
        fakehost.DflCard(address=CARD, functions=(OLD, OLD)),
        fakehost.DflCard(address=PAC, released=1),
        fakehost.QatCard(address=QAT),
        fakehost.QatCard(address=QAT_USED, enabled=True),
    )
)


def load(
    where: Path, directive: str = "", function: str = NEW
) -> actions.ProgramRegion:
    """Return an action whose bitstream carries a directive."""
    content = fpga.gbs(function, A10, directive)
    file = where / f"{function}{directive}.gbs"
    file.write_bytes(content)
    return actions.ProgramRegion(
        card=CARD,
        number=1,
        slot=CARD,
        bitstream=model.Bitstream(
            name="image-1",
            vendor="intel",
            path=str(file),
            function=function,
            interface=A10,
            sha512=hashlib.sha512(content).hexdigest(),
            size=len(content),
        ),
    )


def list_functions(kernel: fakehost.Controller, card: str = CARD) -> list[str]:
    """Return the function of each region of a card."""
    return [part["function"] for part in kernel.fpgas()[card]["parts"]]


# -- bitstreams ------------------------------------------------------------


def test_the_kernel_loads_a_bitstream(
    kernel: fakehost.Controller,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "nova_accel")
    on_host = executor(kernel.root)
    action = load(tmp_path)
    assert [on_host.apply(action) for _ in range(2)] == [True, False]
    # The other region is unchanged.
    assert list_functions(kernel) == [OLD, NEW]
    (done,) = kernel.programmings()
    assert (done["number"], done["function"]) == (1, NEW)
    (line,) = caplog.messages
    assert " into 0000:3b:00.0/region-1: done in " in line
    assert on_host.apply(dataclasses.replace(action, is_forced=True))
    assert len(kernel.programmings()) == 2


def test_a_region_behind_a_vf_is_loaded(
    kernel: fakehost.Controller, tmp_path: Path
) -> None:
    action = dataclasses.replace(
        load(tmp_path), card=PAC, number=0, slot=PAC_VF
    )
    bind = actions.BindDriver(function=PAC_VF, driver="dfl-pci")
    on_host = executor(kernel.root)
    on_host.apply_all([bind, action])
    assert list_functions(kernel, PAC) == [NEW]
    assert not on_host.apply(action)
    # A region with a guest's driver is not loaded.
    on_host.apply(actions.BindDriver(function=PAC_VF, driver="vfio-pci"))
    error = failure(kernel.root, action)
    assert type(error) is errors.ActionError
    assert error.number == errno.EBUSY
    on_host.apply_all([bind])
    assert len(kernel.programmings()) == 1


@pytest.mark.parametrize(
    ("directive", "number"),
    [("ERROR", errno.EIO), ("SAME", 0), ("VANISH", errno.ENODEV)],
)
def test_a_failure_during_the_load_is_a_fault_of_the_region(
    kernel: fakehost.Controller, tmp_path: Path, directive: str, number: int
) -> None:
    error = failure(kernel.root, load(tmp_path, directive))
    assert isinstance(error, errors.ProgrammingError)
    assert error.number == number
    assert error.region == "0000:3b:00.0/region-1"
    assert "nova-accel heal 0000:3b:00.0/region-1" in error.hint


def test_a_load_that_hangs_is_not_repeated(
    kernel: fakehost.Controller, tmp_path: Path
) -> None:
    on_host = action_executor.Executor(str(kernel.root), program_s=0.5)
    with pytest.raises(errors.ProgrammingError) as caught:
        on_host.apply(load(tmp_path, "HANG"))
    assert caught.value.number == errno.ETIMEDOUT
    # There is no second call while the first one is pending.
    error = failure(kernel.root, load(tmp_path))
    assert type(error) is errors.ActionError
    assert error.number == errno.EBUSY


def test_a_refused_load_changes_nothing(
    kernel: fakehost.Controller, tmp_path: Path
) -> None:
    error = failure(kernel.root, load(tmp_path, "REFUSE"))
    assert type(error) is errors.ActionError
    assert error.number == errno.EINVAL
    assert "compare its interface id" in error.hint
    kernel.open_port(CARD, 1, is_open=True)
    error = failure(kernel.root, load(tmp_path))
    assert type(error) is errors.ActionError
    assert error.number == errno.EBUSY
    assert "/dev/dfl-port" in error.hint
    assert list_functions(kernel) == [OLD, OLD]
    assert kernel.programmings() == []


def test_a_missing_card_is_enodev(
    kernel: fakehost.Controller, tmp_path: Path
) -> None:
    kernel.unplug(CARD)
    error = failure(kernel.root, load(tmp_path))
    assert type(error) is errors.ActionError
    assert error.number == errno.ENODEV


# -- ports -----------------------------------------------------------------


def release(number: int) -> actions.SetPort:
    return actions.SetPort(card=CARD, number=number, is_released=True)


def test_ports_are_released_and_assigned_again(
    kernel: fakehost.Controller,
) -> None:
    on_host = executor(kernel.root)
    action = release(0)
    assert [on_host.apply(action) for _ in range(2)] == [True, False]
    assert kernel.fpgas()[CARD]["parts"][0]["is_free_to_vfs"]
    vfs = actions.SetVfCount(function=CARD, count=1)
    assert on_host.apply(vfs)
    # Each VF has its port: ports stay released while there are VFs.
    for refused in (release(1), action.undo()):
        error = failure(kernel.root, refused)
        assert error.number == errno.EBUSY
    on_host.apply_all([vfs.undo(), action.undo()])
    assert not kernel.fpgas()[CARD]["parts"][0]["is_free_to_vfs"]


def test_ports_are_restored_when_a_later_action_fails(
    kernel: fakehost.Controller,
) -> None:
    kernel.open_port(CARD, 1, is_open=True)
    error = failure(kernel.root, release(0), release(1))
    assert error.number == errno.EBUSY
    assert "/dev/dfl-port" in error.hint
    parts = kernel.fpgas()[CARD]["parts"]
    assert not any(part["is_free_to_vfs"] for part in parts)


def test_a_missing_port_is_enodev(kernel: fakehost.Controller) -> None:
    back = dataclasses.replace(release(7), is_released=False)
    error = failure(kernel.root, back)
    assert error.number == errno.ENODEV


# -- services --------------------------------------------------------------


def services(words: str, function: str = QAT) -> actions.SetServices:
    return actions.SetServices(function=function, services=words, before="x")


def test_services_are_set_and_the_device_is_up(
    kernel: fakehost.Controller,
) -> None:
    on_host = executor(kernel.root)
    # Their order has no meaning.
    assert not on_host.apply(services("asym;sym"))
    assert [on_host.apply(services("dc")) for _ in range(2)] == [True, False]
    assert read(kernel, QAT, "qat/cfg_services") == "dc"
    assert read(kernel, QAT, "qat/state") == "up"


def test_a_device_that_is_down_comes_up(kernel: fakehost.Controller) -> None:
    (kernel.sys / f"bus/pci/devices/{QAT}/qat/state").write_text("down")
    assert executor(kernel.root).apply(services("sym;asym"))
    assert read(kernel, QAT, "qat/state") == "up"


@pytest.mark.parametrize("name", ["cfg_services", "state"])
def test_refused_services_leave_the_device_up(
    kernel: fakehost.Controller, name: str
) -> None:
    kernel.fail(f"bus/pci/devices/{QAT}/qat/{name}", "EINVAL", times=1)
    error = failure(kernel.root, services("dc"))
    assert error.number == errno.EINVAL
    assert "correct services in device_spec" in error.hint
    assert read(kernel, QAT, "qat/cfg_services") == "sym;asym"
    assert read(kernel, QAT, "qat/state") == "up"


def test_undo_restores_the_actual_services(
    kernel: fakehost.Controller, tmp_path: Path
) -> None:
    """The plan may have read other services."""
    error = failure(kernel.root, services("dc"), load(tmp_path, "ERROR"))
    assert isinstance(error, errors.ProgrammingError)
    assert read(kernel, QAT, "qat/cfg_services") == "sym;asym"
    assert read(kernel, QAT, "qat/state") == "up"


def test_services_are_not_changed_while_there_are_vfs(
    kernel: fakehost.Controller,
) -> None:
    error = failure(kernel.root, services("dc", QAT_USED))
    assert error.number == errno.EBUSY
    assert "disable its VFs" in error.hint
    assert read(kernel, QAT_USED, "qat/cfg_services") == "sym;asym"
