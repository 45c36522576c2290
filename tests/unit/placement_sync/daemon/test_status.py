# SPDX-License-Identifier: Apache-2.0
"""A status survives JSON, grows stale, and counts devices and units."""

import dataclasses
import json
import pathlib
import time

from hypothesis import given
from hypothesis import strategies as st

from nova_accel import errors, model
from nova_accel.model import names, providers
from placement_sync.daemon import status
from tests.support import strategies
from tests.support.hosts.states import CLAIMS, HOST, TREE, claim, tree

ROOT = pathlib.Path(__file__).resolve().parents[4]


def test_the_manual_shows_a_status() -> None:
    manual = (ROOT / "doc/source/admin/monitoring.rst").read_text()
    block = manual.partition("json\n\n")[2].partition("\n\n``started")[0]
    example = json.loads(block)
    assert example.keys() == status.Status().as_dict().keys()
    assert status.parse(block.encode()).outcome == "ok"
    for name in ("started", "attempted", "succeeded"):
        assert status.utc(example[name]["epoch"]) == example[name]["time"]


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=4,
)


@given(st.data())
def test_any_value_of_a_field_is_read_or_refused(
    data: st.DataObject,
) -> None:
    good = status.Status(
        root=strategies.ROOT,
        succeeded=1.0,
        calls={"CreateTrait": 1},
        use={"VGPU": status.ClassUsage(total=1)},
        problems=HOST.problems,
    ).as_dict()
    field = data.draw(st.sampled_from(sorted(good)))
    good[field] = data.draw(junk)
    try:
        parsed = status.parse(json.dumps(good).encode())
    except errors.MalformedError as error:
        assert "status" in str(error)
        return
    written = json.dumps(parsed.as_dict()).encode()
    assert status.parse(written) == parsed
    parsed.is_stale(time.time())


@given(st.floats(0, 4e9), st.floats(0, 4e9), st.floats(1, 1e6))
def test_stale_is_more_than_three_intervals(
    succeeded: float, now: float, interval: float
) -> None:
    """A time in the future is stale, too: the clock was set back."""
    last = status.Status(succeeded=succeeded, interval_s=interval)
    assert last.age(now) == max(0.0, now - succeeded)
    assert last.is_stale(now) == (
        abs(now - succeeded) > status.STALE_INTERVALS * interval
    )
    never = dataclasses.replace(last, succeeded=None, started=succeeded)
    assert never.is_stale(now) == last.is_stale(now)


def test_a_single_pass_is_stale_only_if_it_failed() -> None:
    assert not status.Status(succeeded=1.0).is_stale(1e9)
    assert status.Status(succeeded=1.0, error="x").is_stale(1.0)


def test_a_labelled_provider_counts_once_as_missing() -> None:
    gone = claim("0000:06:00.0")
    node = providers.ProviderNode(
        name="gone",
        uuid=gone.provider,
        parent=strategies.ROOT_UUID,
        inventories={"VGPU": providers.Inventory(total=4, reserved=4)},
        traits=frozenset({names.MISSING_TRAIT}),
    )
    labelled = dataclasses.replace(TREE, nodes=(*TREE.nodes, node))
    assert status.count_devices(HOST, labelled, CLAIMS)["missing"] == 1
    assert status.count_devices(HOST, labelled)["missing"] == 1
    assert status.count_devices(HOST, TREE)["missing"] == 0


def test_a_device_that_may_be_unreadable_is_not_missing() -> None:
    host = dataclasses.replace(HOST, complete=False)
    counts = status.count_devices(host, TREE, CLAIMS)
    assert (counts["missing"], counts["unreadable"]) == (0, 2)


@given(strategies.hosts())
def test_each_device_counts_once(host: model.HostState) -> None:
    counts = status.count_devices(host, tree(host))
    assert sum(counts.values()) == len(host.devices) + len(host.unknown)
    assert tuple(counts) == status.STATES


@given(strategies.hosts())
def test_the_units_are_those_of_the_tree(host: model.HostState) -> None:
    desired = tree(host)
    usage = status.count_use(host, desired)
    for name, use in usage.items():
        records = [
            node.inventories[name]
            for node in desired.nodes
            if name in node.inventories
        ]
        assert use.total == sum(record.total for record in records)
        assert use.reserved == sum(record.reserved for record in records)
        assert use.claimed == 0
