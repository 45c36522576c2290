# SPDX-License-Identifier: Apache-2.0
"""Thousands of random spawns and deletes keep Placement and kernel equal.

After each request Placement, the library's tree and the kernel agree on the
card of the request; Placement offers exactly the profiles that the kernel
would create there. Only the kernel is simulated: the library, Placement and
NVIDIA's binding of NVML are real.

``AGREEMENT_REQUESTS`` is the number of requests, ``AGREEMENT_WORKERS`` the
number of processes that share them, ``AGREEMENT_SEED`` reproduces a run.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator

import pytest

from nova_accel import model
from nova_accel.model import flavors, names
from tests.functional.agreement import cards, run, worker
from tests.functional.fakehost.support.cards import store
from tests.lab import fakehost
from tests.support import workers
from tests.support.examples import IS_WHOLE, examples

pytestmark = pytest.mark.fakehost

REQUESTS = int(os.environ.get("AGREEMENT_REQUESTS", "") or examples(600))
SEED = int(os.environ.get("AGREEMENT_SEED", "20261121"))
WORKERS = int(os.environ.get("AGREEMENT_WORKERS", "2"))


@pytest.fixture(autouse=True)
def _needs() -> None:
    reason = fakehost.missing()
    if reason:
        pytest.skip(reason)
    pytest.importorskip("pynvml", reason="needs nvidia-ml-py")


@pytest.fixture
def cloud() -> Iterator[run.Run]:
    with worker.cloud(SEED) as run_:
        yield run_


def test_records_agree(capsys: pytest.CaptureFixture[str]) -> None:
    """Share the requests among workers, each with a cloud of its own."""
    share = -(-REQUESTS // WORKERS)
    seeds = range(SEED, SEED + WORKERS)
    for lines in workers.run(worker.__name__, seeds, share, capsys):
        spawned = re.findall(r"(\d+) spawned", lines[-1])
        assert int(spawned[-1]) > share // 4


def test_records_agree_beside_another_program(cloud: run.Run) -> None:
    """Partitions that another program made are reserved in Placement."""
    cloud.strangers = 15
    for _ in range(200 if IS_WHOLE else 60):
        cloud.run_step()
    cloud.compare_all()
    lines = "\n".join(map(str, cloud.disagreements[: worker.SHOWN]))
    assert not cloud.disagreements, f"{cloud.summary()}\n{lines}"
    assert cloud.counts["strangers' changes"]


def test_every_technology_is_there(cloud: run.Run) -> None:
    devices = [
        device for host in cloud.hosts for device in host.providers().values()
    ]
    assert {d.plugin for d in devices} == {
        "amd_mxgpu",
        "intel_sriov",
        "mdev",
        "nvidia_mdev",
        "nvidia_vfio",
        "pci_passthrough",
    }
    assert {d.geometry.layout for d in devices} == set(model.Layout)
    assert len(devices) == sum(len(spec.cards) for spec in cards.HOSTS)
    assert any(d.geometry.is_dynamic for d in devices)


def test_a_vgpu_takes_the_place_of_one_of_another_size(
    cloud: run.Run,
) -> None:
    """The second A40-4Q is where the last A40-24Q could have been."""
    (host,) = (h for h in cloud.hosts if h.root.name == "mixed")
    provider = names.provider_uuid(host.root.uuid, cards.A40_MIXED)
    for name, is_left in (("A40-16Q", 1), ("A40-4Q", 1), ("A40-4Q", 0)):
        profile = host.device(provider).profile(name)
        assert profile
        group = flavors.RequestGroup(
            suffix="_G",
            resources=profile.charges,
            required=frozenset({profile.trait}),
        )
        slots = host.slots(provider, profile.charges)
        assert slots
        server = str(uuid.uuid4())
        host.spawn(server, group, slots, {provider: profile.charges})
        large = host.device(provider).profile("A40-24Q")
        assert large and large.available == is_left, name


def test_wrong_records_are_detected(cloud: run.Run) -> None:
    """The comparison itself detects profiles and partitions that differ."""
    (host,) = (h for h in cloud.hosts if h.root.name == "old")
    provider = names.provider_uuid(host.root.uuid, cards.T4)
    device = host.device(provider)
    (small,) = (p for p in device.profiles if p.name == "T4-1Q")
    for offered, kind in ((set(), "withheld"), ({"T4-96Q"}, "would be")):
        cloud.disagreements.clear()
        cloud.compare_profiles(
            host,
            device,
            offered
            | {p.name for p in device.profiles}
            - ({small.name} if not offered else set()),
        )
        (disagreement,) = cloud.disagreements
        assert disagreement.kind.startswith(kind)
    cloud.disagreements.clear()
    # Another program makes a vGPU.
    store(
        host.kernel.sys
        / f"class/mdev_bus/{cards.T4}/mdev_supported_types/nvidia-234/create",
        str(uuid.uuid4()),
    )
    cloud.compare(host, provider)
    kinds = {d.kind for d in cloud.disagreements}
    assert kinds == {"records differ", "would be refused"}
