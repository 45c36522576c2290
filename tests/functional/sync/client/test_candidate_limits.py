# SPDX-License-Identifier: Apache-2.0
"""Hosts in a limited answer of Placement, by its strategy.

``doc/source/admin/scale.rst`` recommends one of them.
"""

import pathlib

import pytest

from nova_accel.model import names
from placement_sync.client import cloud_client, provider_records
from tests.benchmark import clouds
from tests.functional.sync.support import servers

HOSTS, CARDS, LIMIT = 20, 8, 40
QUERY = {
    "resources": "VCPU:1",
    "resources_GPU1": f"{names.GPU_CLASS}:1,{names.GPU_MEMORY_CLASS}:8192",
    "required_GPU1": clouds.PROFILE_TRAIT,
    "limit": str(LIMIT),
}


@pytest.mark.parametrize(
    ("strategy", "hosts"),
    [
        pytest.param("depth-first", 5, marks=pytest.mark.long),
        ("breadth-first", HOSTS),
    ],
)
def test_only_one_strategy_returns_each_host(
    strategy: str, hosts: int, tmp_path: pathlib.Path
) -> None:
    options = [
        f"placement.allocation_candidates_generation_strategy={strategy}",
        f"placement.max_allocation_candidates={LIMIT}",
    ]
    with servers.start_sqlite(tmp_path, options) as server:
        cloud = clouds.Cloud(server, clouds.accel_layout(CARDS))
        list(cloud.fill(HOSTS))
        client = cloud_client.from_endpoint(server.url)
        providers = provider_records.fetch_summaries(client.fetch, QUERY)
    assert len({provider.root for provider in providers.values()}) == hosts
