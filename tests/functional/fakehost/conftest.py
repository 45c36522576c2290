# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nova_accel.host.execute import privileged
from tests.functional.fakehost.support import cards
from tests.lab import fakehost


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "fakehost: needs root and /dev/fuse (simulated sysfs)"
    )


@pytest.fixture(scope="package", autouse=True)
def _own_rights() -> None:
    """Change the simulated hosts in this process, below any root."""
    privileged.run_here()


@pytest.fixture(scope="package")
def _mounted(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[fakehost.Controller]:
    reason = fakehost.missing()
    if reason:
        pytest.skip(reason)
    root = tmp_path_factory.mktemp("fakehost")
    with fakehost.simulated_sysfs(cards.SPEC, root) as controller:
        yield controller


@pytest.fixture
def host(_mounted: fakehost.Controller) -> fakehost.Controller:
    _mounted.reboot()
    return _mounted


@pytest.fixture
def mtty(host: fakehost.Controller) -> Path:
    return host.sys / "devices/virtual/mtty/mtty/mdev_supported_types"


@pytest.fixture(scope="package")
def _gpus_mounted(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[fakehost.Controller]:
    reason = fakehost.missing()
    if reason:
        pytest.skip(reason)
    root = tmp_path_factory.mktemp("gpus")
    with fakehost.simulated_sysfs(cards.GPUS, root) as controller:
        yield controller


@pytest.fixture
def gpus(_gpus_mounted: fakehost.Controller) -> fakehost.Controller:
    """A host of NVIDIA's cards in every form, and other SR-IOV cards."""
    _gpus_mounted.reboot()
    return _gpus_mounted
