# SPDX-License-Identifier: Apache-2.0
"""Cards are set to the modes that policy asks for."""

import logging
from pathlib import Path

import pytest

from nova_accel.config import policy
from nova_accel.host.execute import privileged
from nova_accel.host.sysfs import host_reader
from nova_accel.inventory import tree_builder
from nova_accel.model import actions
from nova_accel.vendors.nvidia import vfio_driver
from tests.lab import fakehost
from tests.support.hosts import domains, simulated_vfio
from tests.support.hosts.simulated_vfio import BARE, ENABLE, started
from virt_hooks.guest import connection
from virt_hooks.spawn import lifecycle

SPEC = simulated_vfio.SPEC


@pytest.fixture(scope="module")
def mounted(mounted: fakehost.Controller) -> fakehost.Controller:
    """Return the host with NVIDIA's tool for VFs."""
    mounted.write_sriov_manage(mounted.root / privileged.SRIOV_MANAGE)
    return mounted


@pytest.fixture
def life(kernel: fakehost.Controller) -> lifecycle.Lifecycle:
    return started(kernel)


def test_vfs_are_enabled_as_policy_asks(
    kernel: fakehost.Controller, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    life = started(kernel, ENABLE)
    assert life.host.state.device(BARE) is None
    assert life.set_card_modes()
    device = life.host.state.device(BARE)
    assert device is not None
    assert len(device.slots) == 3
    written = kernel.writes()
    assert not life.set_card_modes(), "it is in its mode by now"
    assert kernel.writes() == written
    tree = life.tree(tree_builder.OWNER_TRAITS)
    assert tree is not None
    assert len(tree.nodes) == 3


def test_an_option_for_all_devices_is_applied(
    kernel: fakehost.Controller,
) -> None:
    """By an option of its own, without any device_spec line."""
    life = started(kernel, policy.DeviceRules(default=policy.Rule(num_vfs=3)))
    assert life.set_card_modes()
    assert life.host.state.device(BARE) is not None


def test_without_policy_nothing_is_changed(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    reads, written = kernel.reads(), kernel.writes()
    assert not life.set_card_modes()
    assert (kernel.reads(), kernel.writes()) == (reads, written)


def test_a_failed_mode_is_logged_once_and_retried(
    kernel: fakehost.Controller, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(vfio_driver.NvidiaVfioDriver):
        is_broken = True

        def plan_arrange(
            self, host: host_reader.HostReader, rules: policy.DeviceRules
        ) -> tuple[actions.Action, ...]:
            if self.is_broken:
                raise RuntimeError("a bug")
            return tuple(super().plan_arrange(host, rules))

    life = started(kernel, ENABLE)
    driver = Broken()
    life._mode_setter._drivers = {"nvidia_vfio": driver}  # type: ignore[union-attr]
    for _ in range(3):
        assert not life.set_card_modes()
    assert caplog.text.count("RuntimeError('a bug')") == 1
    driver.is_broken = False
    assert life.set_card_modes()
    assert life.host.state.device(BARE) is not None


def test_a_tool_that_fails_does_not_stop_the_service(
    kernel: fakehost.Controller, caplog: pytest.LogCaptureFixture
) -> None:
    life = started(kernel, ENABLE)
    tool = kernel.root / privileged.SRIOV_MANAGE
    script = tool.read_text()
    tool.write_text("#!/bin/sh\necho no such luck >&2\nexit 1\n")
    try:
        assert not life.set_card_modes()
        assert not life.set_card_modes()
        assert caplog.text.count("not in the mode that [nova_accel]") == 1
    finally:
        tool.write_text(script)
    assert life.set_card_modes()
    assert life.host.state.device(BARE) is not None


def test_an_unexpected_error_of_a_card_does_not_stop_the_pass(
    kernel: fakehost.Controller, caplog: pytest.LogCaptureFixture
) -> None:
    class Unknown:
        function = simulated_vfio.GPU

    class Newer(vfio_driver.NvidiaVfioDriver):
        def plan_arrange(
            self, host: host_reader.HostReader, rules: policy.DeviceRules
        ) -> tuple[actions.Action, ...]:
            planned = super().plan_arrange(host, rules)
            return (Unknown(), *planned)  # type: ignore[arg-type]

    life = started(kernel, ENABLE)
    life._mode_setter._drivers = {"nvidia_vfio": Newer()}  # type: ignore[union-attr]
    assert life.set_card_modes()
    assert life.host.state.device(BARE) is not None
    assert f"{simulated_vfio.GPU}: not in the mode" in caplog.text


def test_uevents_do_not_retry_a_failed_mode(
    kernel: fakehost.Controller, tmp_path: Path
) -> None:
    """A failed attempt may itself send uevents."""
    life = started(kernel, ENABLE)
    tool = kernel.root / privileged.SRIOV_MANAGE
    script, tried = tool.read_text(), tmp_path / "tried"
    tool.write_text(f"#!/bin/sh\necho >>{tried}\nexit 1\n")
    try:
        for _ in range(3):
            assert not life.set_card_modes(retries_failed=False)
        assert len(tried.read_text()) == 1
        assert not life.set_card_modes()
        assert len(tried.read_text()) == 2
    finally:
        tool.write_text(script)
    assert not life.set_card_modes(retries_failed=False)
    assert life.set_card_modes()
    assert life.host.state.device(BARE) is not None


def test_a_card_with_a_part_in_a_guest_is_left_alone(
    kernel: fakehost.Controller, caplog: pytest.LogCaptureFixture
) -> None:
    libvirt = domains.SimulatedDomains()
    libvirt.set_use(connection.HostdevUse(functions=frozenset({BARE})))
    life = started(kernel, ENABLE, domains=libvirt)
    written = kernel.writes()
    assert not life.set_card_modes()
    assert kernel.writes() == written
    assert "a running guest has a part of it" in caplog.text


class Fewer(vfio_driver.NvidiaVfioDriver):
    """Plans to remove a card's VFs, even if servers have them."""

    def plan_arrange(
        self, host: host_reader.HostReader, rules: policy.DeviceRules
    ) -> tuple[actions.Action, ...]:
        function = host.function(simulated_vfio.GPU)
        assert function is not None
        if function.num_vfs == 0:
            return ()
        return (
            actions.SetVfCount(
                function=simulated_vfio.GPU,
                count=0,
                before=function.num_vfs,
                tool="sriov-manage",
            ),
        )


def test_no_vf_is_taken_from_a_server_that_does_not_run(
    kernel: fakehost.Controller, caplog: pytest.LogCaptureFixture
) -> None:
    life = started(kernel, ENABLE)
    life._mode_setter._drivers = {"nvidia_vfio": Fewer()}  # type: ignore[union-attr]
    slots = (simulated_vfio.slot(),)
    life.ensure("a server", (simulated_vfio.asks(),), slots)
    written = kernel.writes()
    assert not life.set_card_modes()
    assert kernel.writes() == written
    assert "a server of this host has a part of it" in caplog.text
    life.release("a server", slots, lambda _: False)
    written = kernel.writes()
    life.set_alone(False)
    assert not life.set_card_modes()
    life.set_alone(True)
    assert kernel.writes() == written
    assert life.set_card_modes()
    assert life.host.state.device(simulated_vfio.GPU) is None


def test_a_libvirt_that_does_not_answer_is_asked_again(
    kernel: fakehost.Controller, caplog: pytest.LogCaptureFixture
) -> None:
    libvirt = domains.SimulatedDomains()
    life = started(kernel, ENABLE, domains=libvirt)

    def fail() -> connection.HostdevUse:
        raise OSError("no answer")

    libvirt.read_running = fail
    written = kernel.writes()
    for _ in range(2):
        assert not life.set_card_modes()
    assert kernel.writes() == written
    assert caplog.text.count("no answer") == 1
    libvirt.read_running = connection.HostdevUse
    assert life.set_card_modes()
    assert life.host.state.device(BARE) is not None
