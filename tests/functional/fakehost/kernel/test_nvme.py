# SPDX-License-Identifier: Apache-2.0
"""NVMe drives with VFs: the library on plain SR-IOV."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nova_accel.config import policy
from tests.functional.fakehost.support.cards import store
from tests.lab import fakehost
from tests.lab.fakehost import Controller
from tests.support.fpga import simulated

pytestmark = pytest.mark.fakehost

NVME, WITH_VFS = "0000:81:00.0", "0000:82:00.0"
SPEC = fakehost.HostSpec(
    cards=(
        fakehost.NvmeCard(address=NVME),
        fakehost.NvmeCard(address=WITH_VFS, total_vfs=4, enabled_vfs=4),
    )
)


@pytest.fixture(scope="module")
def _mounted(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Controller]:
    place = tmp_path_factory.mktemp("nvme")
    with simulated.mounted(SPEC, place) as kernel:
        yield kernel


@pytest.fixture
def host(_mounted: Controller) -> Controller:
    _mounted.reboot()
    return _mounted


def rules(count: int, address: str = NVME) -> policy.DeviceRules:
    return policy.parse_rules(
        (f'{{"address": "{address}", "use": "vf", "num_vfs": {count}}}',)
    )


def test_fewer_vfs_go_by_way_of_none(host: Controller) -> None:
    life = simulated.started(host.root, rules(2, WITH_VFS))
    functions = host.functions()
    for vf in functions[WITH_VFS]["vf_addresses"]:
        store(host.sys / "bus/pci/drivers/nvme/unbind", vf)
    assert life.set_card_modes()
    assert host.functions()[WITH_VFS]["vfs"] == 2
    counts = [
        write["data"]
        for write in host.writes()
        if write["path"].endswith("sriov_numvfs")
    ]
    assert counts == ["0", "2"]


def test_a_refused_vf_count_is_logged(
    host: Controller, caplog: pytest.LogCaptureFixture
) -> None:
    host.fail(f"/sys/bus/pci/devices/{NVME}/sriov_numvfs", "EIO")
    life = simulated.started(host.root, rules(5))
    life.set_card_modes()
    assert host.functions()[NVME]["vfs"] == 0
    assert NVME in caplog.text
