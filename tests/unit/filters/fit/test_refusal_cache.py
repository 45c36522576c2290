# SPDX-License-Identifier: Apache-2.0
"""A reason is kept for some seconds, by group."""

from typing import Any

from filters import request
from filters.fit import refusal_cache

ONE = request.parse_request({"resources_A:VGPU": "1"})
BOTH = request.parse_request(
    {"resources_B:VGPU": "1", "resources_C:PGPU": "1"}
)


def test_a_group_is_searched_once_in_ten_seconds() -> None:
    now = [0.0]
    paths: list[str] = []

    def get(path: str) -> Any:
        paths.append(path)
        return {
            "allocation_requests": [{}] * ("VGPU" in path),
            "provider_summaries": {},
            "resource_providers": [],
        }

    cache = refusal_cache.RefusalCache(lambda: now[0])

    assert cache.find(get, ONE) is None
    assert len(paths) == 1
    refusals = [cache.find(get, BOTH) for _ in range(3)]
    assert [str(r) for r in refusals] == ["no accelerator offers PGPU"] * 3
    # Whether there is a candidate, and two samples.
    assert len(paths) == 4
    assert not [path for path in paths if "limit=" not in path]
    now[0] = refusal_cache.FRESH_SECONDS
    assert cache.find(get, ONE) is None
    assert len(paths) == 5
