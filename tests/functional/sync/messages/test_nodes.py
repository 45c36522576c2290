# SPDX-License-Identifier: Apache-2.0
"""Messages about bare-metal nodes, which all have one address."""

import pytest

from tests.functional.sync.fleet import test_bare_metal, test_fleet
from tests.functional.sync.messages import test_cloud

site = test_bare_metal.site


@pytest.fixture
def cloud(site: test_fleet.Site) -> test_cloud.Cloud:
    return test_cloud.Cloud(site)


def test_nodes(cloud: test_cloud.Cloud) -> None:
    node = f"--extra-spec resources:{test_bare_metal.CLASS}=1"
    profile = test_bare_metal.PROFILE
    nova = cloud.site.nova
    nova.add_flavor("metal")
    nova.add_flavor("sized", **{f"resources:{test_bare_metal.CLASS}": "1"})
    cloud.run_all(
        f"""\
device show 'bare metal'
device set 'bare metal' --drain --reason r
flavor set metal --profile {profile} --count 2
explain {node} -c Card -c Why
explain {node} --extra-spec trait:CUSTOM_NEVER=required -c Card -c Why
explain {node} --extra-spec resources:VCPU=1 -c Card -c Why
explain sized -c Card -c Why
device heal 'bare metal'
"""
    )
    for uuid in (test_bare_metal.FREE, test_bare_metal.USED):
        cloud.site.set_inventories(uuid, **{test_bare_metal.CLASS: -1})
    cloud.run_all("profile list", "--endpoint", cloud.site.placement.url)
    cloud.check("bare metal")
