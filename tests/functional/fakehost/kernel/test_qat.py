# SPDX-License-Identifier: Apache-2.0
"""The simulated QAT driver, and the library on it."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
from collections.abc import Iterator
from pathlib import Path

import pytest

from nova_accel import errors
from nova_accel.config import policy
from nova_accel.host.execute import privileged
from nova_accel.model import actions, names
from tests.functional.fakehost.support.cards import refused, store
from tests.lab import fakehost
from tests.lab.fakehost import Controller
from tests.support.fpga import simulated

pytestmark = pytest.mark.fakehost

QAT, OLD = "0000:f3:00.0", "0000:f7:00.0"
VF = "0000:f3:00.1"
SPEC = fakehost.HostSpec(
    cards=(
        fakehost.QatCard(address=QAT),
        fakehost.QatCard(
            address=OLD,
            device=0x37C8,
            vf_device=0x37C9,
            driver="c6xx",
            vf_driver="c6xxvf",
            has_services=False,
        ),
    )
)


@pytest.fixture(scope="module")
def _mounted(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Controller]:
    place = tmp_path_factory.mktemp("qat")
    with simulated.mounted(SPEC, place) as kernel:
        yield kernel


@pytest.fixture
def host(_mounted: Controller) -> Controller:
    _mounted.reboot()
    return _mounted


def qat(host: Controller, name: str = "", card: str = QAT) -> Path:
    return host.sys / "bus/pci/devices" / card / name


def rules(*fields: str) -> policy.DeviceRules:
    return policy.parse_rules(
        tuple(f'{{"address": "{QAT}", "use": "vf", {f}}}' for f in fields)
    )


# -- the simulated driver ------------------------------------------------


def test_any_number_makes_all_vfs(host: Controller) -> None:
    store(qat(host, "sriov_numvfs"), "3")
    assert qat(host, "sriov_numvfs").read_text() == "16\n"
    assert host.functions()[QAT]["vfs"] == 16
    assert host.functions()[VF]["driver"] == "4xxxvf"


def test_services_change_only_when_down(host: Controller) -> None:
    services, state = qat(host, "qat/cfg_services"), qat(host, "qat/state")
    assert (services.read_text(), state.read_text()) == ("sym;asym\n", "up\n")
    with refused(errno.EINVAL):
        store(services, "dc")
    store(state, "down")
    with refused(errno.EINVAL):
        store(services, "nonsense")
    store(services, "dc")
    with refused(errno.EINVAL):
        store(state, "sideways")
    with refused(errno.EINVAL):
        qat(host, "qat/rp2srv").read_text()
    store(state, "up\n")
    assert services.read_text() == "dc\n"


def test_a_device_in_use_stays_up(host: Controller) -> None:
    store(qat(host, "sriov_numvfs"), "16")
    assert privileged.bind_driver(str(host.root), VF, "qat_vfio_pci") == 0
    group = host.functions()[VF]["group"]
    with (host.root / f"dev/vfio/{group}").open() as group_file:
        fcntl.flock(group_file, fcntl.LOCK_EX)
        with refused(errno.EBUSY):
            store(qat(host, "qat/state"), "down")
    store(qat(host, "qat/state"), "down")


# -- the library ---------------------------------------------------------


def test_vfs_come_with_the_service(host: Controller) -> None:
    life = simulated.started(host.root, rules('"num_vfs": 4'))
    assert life.host.state.device(QAT) is None
    assert life.set_card_modes()
    assert host.functions()[QAT]["vfs"] == 16
    # the host's own driver was kept from the VFs that are for guests
    assert not host.functions()[VF]["driver"]
    device = life.host.state.device(QAT)
    assert device is not None
    assert device.plugin == "qat"
    assert device.resource_class == names.QAT_VF_CLASS
    assert device.counters[names.QAT_VF_CLASS] == 16
    assert len(device.slots) == 16
    assert {"CUSTOM_QAT_SYM", "CUSTOM_QAT_ASYM"} <= device.traits
    written = len(host.writes())
    assert not life.set_card_modes()
    assert len(host.writes()) == written


def test_services_come_with_the_service(host: Controller) -> None:
    dc_rules = rules('"num_vfs": 16, "services": "dc"')
    life = simulated.started(host.root, dc_rules)
    assert life.set_card_modes()
    assert qat(host, "qat/cfg_services").read_text() == "dc\n"
    assert qat(host, "qat/state").read_text() == "up\n"
    device = life.host.state.device(QAT)
    assert device is not None
    assert "CUSTOM_QAT_DC" in device.traits
    # services also change where VFs are enabled, by way of none
    other = simulated.started(
        host.root, rules('"num_vfs": 16, "services": "sym"')
    )
    assert other.set_card_modes()
    assert qat(host, "qat/cfg_services").read_text() == "sym\n"
    assert host.functions()[QAT]["vfs"] == 16


def test_nothing_is_changed_under_a_guest(host: Controller) -> None:
    store(qat(host, "sriov_numvfs"), "16")
    assert privileged.bind_driver(str(host.root), VF, "vfio-pci") == 0
    dc_rules = rules('"num_vfs": 16, "services": "dc"')
    life = simulated.started(host.root, dc_rules)
    assert not life.set_card_modes()
    assert qat(host, "qat/cfg_services").read_text() == "sym;asym\n"
    assert qat(host, "qat/state").read_text() == "up\n"
    action = actions.SetServices(function=QAT, services="dc")
    with pytest.raises(errors.ActionError) as caught:
        simulated.executor(host.root).apply(action)
    assert caught.value.number == errno.EBUSY


@pytest.mark.parametrize("name", ["EBUSY", "EINVAL", "EIO"])
def test_a_refusal_leaves_the_device_up(host: Controller, name: str) -> None:
    host.fail(f"/sys/bus/pci/devices/{QAT}/qat/cfg_services", name)
    action = actions.SetServices(function=QAT, services="dc")
    with pytest.raises(errors.ActionError) as caught:
        simulated.executor(host.root).apply(action)
    assert caught.value.number == getattr(errno, name)
    assert name != "EINVAL" or "services in device_spec" in caught.value.hint
    assert qat(host, "qat/cfg_services").read_text() == "sym;asym\n"
    assert qat(host, "qat/state").read_text() == "up\n"


def test_a_device_in_reset_is_an_error(host: Controller) -> None:
    host.fail(f"/sys/bus/pci/devices/{QAT}/qat/state", "EBUSY")
    action = actions.SetServices(function=QAT, services="dc")
    with pytest.raises(errors.ActionError) as caught:
        simulated.executor(host.root).apply(action)
    assert caught.value.number == errno.EBUSY


def test_services_are_set_once_and_undone(host: Controller) -> None:
    """An undo restores those of the device, not those of the plan."""
    action = actions.SetServices(function=QAT, services="dc", before="sym")
    executor = simulated.executor(host.root)
    # Their order has no meaning.
    plain = dataclasses.replace(action, services="asym;sym")
    assert not executor.apply(plain)
    lost = actions.BindDriver(function=QAT, driver="no-such-driver")
    with pytest.raises(errors.ActionError):
        executor.apply_all([action, lost])
    assert qat(host, "qat/cfg_services").read_text() == "sym;asym\n"
    assert executor.apply(action)
    assert not executor.apply(action)
    assert executor.apply(action.undo())
    assert qat(host, "qat/cfg_services").read_text() == "sym\n"
    store(qat(host, "qat/state"), "down")
    assert executor.apply(action.undo())
    assert qat(host, "qat/state").read_text() == "up\n"


def test_the_variant_driver_counts_as_a_guest(host: Controller) -> None:
    store(qat(host, "sriov_numvfs"), "16")
    assert privileged.bind_driver(str(host.root), VF, "qat_vfio_pci") == 0
    state = simulated.read(host.root)
    device = state.device(QAT)
    assert device is not None
    assert VF in device.slots


def test_a_device_that_is_down_is_not_offered(host: Controller) -> None:
    store(qat(host, "sriov_numvfs"), "16")
    store(qat(host, "qat/state"), "down")
    device = simulated.read(host.root).device(QAT)
    assert device is None or device.fault or not device.counters


def test_the_older_family_has_no_choice(host: Controller) -> None:
    store(qat(host, "sriov_drivers_autoprobe", OLD), "0")
    store(qat(host, "sriov_numvfs", OLD), "16")
    assert not qat(host, "qat", OLD).exists()
    device = simulated.read(host.root).device(OLD)
    assert device is not None
    assert device.counters[names.QAT_VF_CLASS] == 16
