# SPDX-License-Identifier: Apache-2.0
"""Fixtures: real Ironic, Placement, and Nova's Ironic driver."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.functional.ironic import ironic_service
from tests.functional.sync.support import servers


@pytest.fixture(scope="session")
def ironic(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ironic_service.Ironic]:
    with ironic_service.start(tmp_path_factory.mktemp("ironic")) as service:
        yield service


@pytest.fixture(scope="session")
def placement(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[servers.Server]:
    with servers.start_sqlite(tmp_path_factory.mktemp("placement")) as server:
        yield server


@pytest.fixture(scope="session")
def nova_driver(ironic: ironic_service.Ironic) -> Any:
    """Return Nova's own Ironic driver, connected to Ironic.

    It reads each node from Ironic's API.
    """
    from nova import conf
    from nova.virt.ironic import driver

    conf.CONF([], project="nova", default_config_files=[])
    conf.CONF.set_override("auth_type", "none", "ironic")
    conf.CONF.set_override("endpoint_override", ironic.url, "ironic")
    return driver.IronicDriver(virtapi=None)
