# SPDX-License-Identifier: Apache-2.0
"""Cards are set to the modes of device_spec."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nova_accel import model
from nova_accel.config import policy
from nova_accel.discovery import change_detection, plugin, snapshot
from nova_accel.host.execute import action_executor, privileged
from nova_accel.host.nvml import gpu_reader as facts
from nova_accel.host.sysfs import fs, host_reader
from nova_accel.model import providers
from tests.lab import fakehost
from tests.lab.fakehost import nvml
from tests.support import strategies
from virt_hooks.spawn import host_access, lifecycle

pytestmark = pytest.mark.fakehost

L40S, FLEX, A100 = "0000:81:00.0", "0000:51:00.0", "0000:91:00.0"
SPEC = fakehost.HostSpec(
    cards=(
        fakehost.NvidiaGpu(
            address=L40S, model="L40S", interface="vfio", total_vfs=6
        ),
        fakehost.NvidiaGpu(address=A100, model="A100", total_vfs=4, mig=True),
        fakehost.PciCard(
            address=FLEX,
            vendor=0x8086,
            device=0x56C0,
            class_code=0x038000,
            driver="i915",
            total_vfs=8,
        ),
    )
)
RULES = policy.parse_rules(
    (
        f'{{"address": "{L40S}", "sizes": "mixed", "num_vfs": 6}}',
        f'{{"address": "{A100}", "num_vfs": 4, "mig_instances": "dynamic"}}',
        f'{{"address": "{FLEX}", "use": "vf", "num_vfs": 3}}',
    )
)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[fakehost.Controller]:
    reason = fakehost.missing()
    if reason:
        pytest.skip(reason)
    pytest.importorskip("pynvml", reason="needs nvidia-ml-py")
    privileged.run_here()
    with fakehost.simulated_sysfs(SPEC, tmp_path) as kernel:
        nvml.load(kernel)
        yield kernel


@pytest.fixture
def life(host: fakehost.Controller) -> lifecycle.Lifecycle:
    drivers = plugin.load()
    root = str(host.root)
    life = lifecycle.Lifecycle(
        drivers,
        RULES,
        action_executor.Executor(root, read_gpus=facts.read_gpus),
        snapshot.Snapshot(
            change_detection.ChangeDetector(
                fs.DiskSource(root), drivers, RULES, facts.read_gpus
            )
        ),
        host_access.HostAccess(
            read_host=lambda: host_reader.HostReader(
                root, gpus=facts.read_gpus()
            )
        ),
    )
    life.adopt(providers.ProviderRoot(name="host", uuid=strategies.ROOT.uuid))
    life.host.refresh()
    return life


def test_vfs_and_mixed_sizes_come_with_the_service(
    host: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    host.write_sriov_manage(host.root / "usr/lib/nvidia/sriov-manage")
    assert life.host.state.device(L40S) is None
    assert life.set_card_modes()
    vfs = {a: f["vfs"] for a, f in host.functions().items() if f["vfs"]}
    assert vfs == {L40S: 6, A100: 4, FLEX: 3}
    assert host.gpus()[L40S]["mixed"]
    layouts = {d.address: d.geometry.layout for d in life.host.state.devices}
    assert layouts == {
        L40S: model.Layout.MIXED,
        A100: model.Layout.MIG,
        FLEX: model.Layout.ANY,
    }
    # the host's own driver was kept from the VFs that are for guests
    assert not host.functions()["0000:51:00.1"]["driver"]
    written = len(host.writes())
    assert not life.set_card_modes()
    assert len(host.writes()) == written


def test_a_missing_tool_affects_only_its_card(
    host: fakehost.Controller,
    life: lifecycle.Lifecycle,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert life.set_card_modes()
    assert host.functions()[FLEX]["vfs"] == 3
    assert host.functions()[L40S]["vfs"] == 0
    assert "sriov-manage" in caplog.text


def test_modes_are_set_again_after_a_reboot(
    host: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    host.write_sriov_manage(host.root / "usr/lib/nvidia/sriov-manage")
    life.set_card_modes()
    host.reboot()
    assert not host.gpus()[L40S]["mixed"]
    assert life.set_card_modes()
    assert host.gpus()[L40S]["mixed"]
    assert life.host.state.device(L40S) is not None
