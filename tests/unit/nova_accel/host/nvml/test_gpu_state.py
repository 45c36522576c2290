# SPDX-License-Identifier: Apache-2.0
"""GPU values survive the codec of archives and child processes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import errors, model
from nova_accel.geometry import topology
from nova_accel.host import nvml_gpus
from nova_accel.host.nvml import gpu_state

words = st.text(max_size=8)
counts = st.integers(0, 1 << 20)
addresses = st.sampled_from(["0000:41:00.0", "10000:af:1f.0"])
facts = st.builds(
    nvml_gpus.NvmlGpu,
    address=addresses,
    driver_version=words,
    memory_mb=st.none() | counts,
    is_mig=st.none() | st.booleans(),
    is_mixed=st.none() | st.booleans(),
    types=st.lists(
        st.builds(
            nvml_gpus.NvmlVgpuType,
            name=words,
            type_id=words,
            framebuffer_mb=counts,
            max_instances=counts,
            instance=words,
            per_instance=counts,
            span=counts,
            starts=st.lists(counts, max_size=3).map(tuple),
        ),
        max_size=3,
    ).map(tuple),
    kinds=st.lists(
        st.builds(
            model.InstanceKind,
            name=words,
            size=counts,
            slices=counts,
            starts=st.lists(counts, max_size=3).map(tuple),
            limit=st.none() | counts,
        ),
        max_size=3,
    ).map(tuple),
    instances=st.lists(
        st.builds(
            model.Instance,
            kind=words,
            handle=words,
            span=st.none() | st.builds(model.Span, start=counts, size=counts),
        ),
        max_size=3,
    ).map(tuple),
    unread=st.frozensets(words, max_size=2),
    fault=words,
    recovery=st.none() | counts,
    links=st.none()
    | st.builds(
        topology.GpuLinks,
        peers=st.frozensets(addresses),
        is_switched=st.booleans(),
    ),
    vgpus=st.none()
    | st.lists(
        st.builds(nvml_gpus.NvmlVgpu, server=words, license=words),
        max_size=2,
    ).map(tuple),
    ecc=st.none() | st.tuples(st.booleans(), st.booleans()),
    fabric=st.none() | st.tuples(words, counts),
)


@given(st.lists(facts, max_size=2), words)
def test_gpus_survive_the_round_trip(
    gpu_list: list[nvml_gpus.NvmlGpu], reason: str
) -> None:
    problem = model.Problem(where="NVML GPU 1", reason=reason)
    by_address = {f.address: f for f in gpu_list}
    gpus = nvml_gpus.NvmlGpus(by_address, (problem,), reason, (reason, reason))
    plain = json.loads(json.dumps(gpu_state.to_plain(gpus)))
    again = gpu_state.from_plain(plain)
    assert again == gpus
    assert again.problems == gpus.problems
    assert again.reason == reason
    assert again.lost == gpus.lost
    for row in plain["gpus"]:
        del row["placements"]  # as in archives of older releases
    older = gpu_state.from_plain(plain)
    assert older.keys() == gpus.keys()
    assert not any(t.starts for gpu in older.values() for t in gpu.types)


def test_archives_of_older_releases_have_no_links() -> None:
    gpu = nvml_gpus.NvmlGpu(address="0000:41:00.0", links=topology.GpuLinks())
    plain = gpu_state.to_plain(nvml_gpus.NvmlGpus({gpu.address: gpu}))
    del plain["gpus"][0]["links"]
    (gpu,) = gpu_state.from_plain(plain).values()
    assert gpu == nvml_gpus.NvmlGpu(address="0000:41:00.0")
    assert gpu.links is None
    plain["gpus"][0]["links"] = {"peers": ["x"], "is_switched": False}
    with pytest.raises(errors.MalformedError):
        gpu_state.from_plain(plain)


@pytest.mark.parametrize(
    "plain",
    [
        None,
        [],
        {},
        {"gpus": [], "problems": []},
        {"gpus": [{}], "problems": [], "reason": ""},
        {"gpus": [{"address": "x"}], "problems": [], "reason": ""},
        {"gpus": [], "problems": ["x"], "reason": ""},
        {"gpus": [], "problems": [], "reason": "", "lost": None},
    ],
)
def test_other_values_are_refused(plain: object) -> None:
    with pytest.raises(errors.MalformedError):
        gpu_state.from_plain(plain)
