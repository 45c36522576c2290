# SPDX-License-Identifier: Apache-2.0
"""A node may send anything: it costs little, and ends no inspection."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import errors
from nova_accel.catalog import loader
from virt_hooks.ironic import inspection_data, node_report, node_traits

CATALOG = loader.load()
# CPU seconds of a conductor's worker for the data of one node.
LIMIT_S = 0.1
GPU = {"kind": "GPU", "vendor_id": "10de", "product_id": "2330"}


def process(inventory: object, plugin_data: object) -> float:
    """Do what the hook does with the data; return its CPU seconds."""
    began = time.thread_time()
    data = inspection_data.read(inventory, plugin_data, CATALOG)
    report = data.report or node_report.NodeReport()
    change = node_traits.plan_traits(report, (), ())
    rows = node_traits.list_properties(report)
    resource_class = node_traits.suggest_resource_class(report)
    seconds = time.thread_time() - began
    assert len(json.dumps(rows)) <= node_traits.MAX_PROPERTIES
    assert len(change.traits) <= node_traits.MAX_TRAITS
    assert all(len(trait) <= 255 for trait in change.traits)
    assert len(resource_class) <= 80
    assert len(report.problems) <= node_report.MAX_ITEMS
    assert all(len(warning) < 1000 for warning in data.warnings)
    return seconds


def is_fast(inventory: object, plugin_data: object) -> bool:
    """Return whether one of three tries keeps the limit."""
    return any(process(inventory, plugin_data) <= LIMIT_S for _ in range(3))


# -- any JSON ----------------------------------------------------------------

KEYS = (
    *("version", "devices", "problems", "error", "is_complete", "unread"),
    *("kind", "vendor_id", "product_id", "function", "interfaces", "number"),
    *("class", "bus", "subsystem_id", "where", "reason"),
)
OPTIONAL = (
    *("model", "regions", "services", "peers", "numa_node", "address"),
    *("fault", "name", "driver", "is_mig", "total_vfs"),
)
WORDS = ("10de", "0x2330", "GPU", "030200", "", "A" * 300, "0000:41:00.0")
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from((0, 1, -(2**63), 2**63))
    | st.integers(4000, 5000).map(lambda digits: 10**digits)
    | st.floats()
    | st.text(max_size=300)
    | st.sampled_from(WORDS)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=70)
        | st.dictionaries(
            st.sampled_from((*KEYS, *OPTIONAL)) | st.text(), inner
        )
    ),
    max_leaves=60,
)
documents = st.fixed_dictionaries(
    {"version": st.just(1)},
    optional={
        "devices": st.lists(
            st.fixed_dictionaries(
                {key: st.just(value) for key, value in GPU.items()},
                optional=dict.fromkeys(OPTIONAL, values),
            )
        )
        | values,
        "problems": values,
        "unread": values,
        "error": scalars,
    },
)


@given(
    inventory=values | st.fixed_dictionaries({"pci_devices": values}),
    sent=values
    | st.fixed_dictionaries(
        {}, optional={"accelerators": documents, "pci_devices": values}
    ),
)
def test_any_json_takes_little_time(inventory: object, sent: object) -> None:
    assert is_fast(inventory, sent)


# -- data of an attacker -----------------------------------------------------


def nest(depth: int, kind: type = list) -> Any:
    value: Any = kind()
    for _ in range(depth):
        value = [value] if kind is list else {"devices": value}
    return value


def report_of(*devices: object, **fields: object) -> dict[str, Any]:
    return {"accelerators": {"version": 1, "devices": devices, **fields}}


def fill(count: int, **fields: object) -> dict[str, Any]:
    """Return a report of devices that all differ."""
    rows = [{**GPU, "model": f"M{n}", **fields} for n in range(count)]
    return {"accelerators": {"version": 1, "devices": rows}}


LONG = "a " * 500_000
ROW = {"vendor_id": "10de", "product_id": "2330", "class": "030200"}
ATTACKS: dict[str, Callable[[], Any]] = {
    "deep list": lambda: report_of(nest(5000)),
    "deep object": lambda: {"accelerators": nest(5000, dict)},
    "deep rows": lambda: {"pci_devices": [nest(5000)] * 5000},
    "deep number": lambda: {"pci_devices": nest(5000)},
    "long model": lambda: fill(1024, model=LONG),
    "long name": lambda: fill(1024, name=LONG),
    "long kind": lambda: fill(1024, kind="A" * 10**6),
    "long id": lambda: fill(1024, vendor_id="f" * 10**6),
    "longest texts": lambda: fill(1024, name="ä" * 255, fault="\0" * 255),
    "most devices": lambda: fill(1024),
    "devices of all texts": lambda: fill(
        1000, services=["s" * 255] * 3, fault="x"
    ),
    "all rows in regions": lambda: fill(
        32,
        regions=[{"number": 1, "interfaces": ["i" * 255] * 2}] * 31,
    ),
    "too many devices": lambda: fill(100_000),
    "too many regions": lambda: fill(1024, regions=[{"number": 1}] * 64),
    "too many services": lambda: fill(1, services=["s"] * 10**6),
    "many unknown fields": lambda: fill(
        1024, **{f"field{n}": [1] * 10 for n in range(1000)}
    ),
    "large number": lambda: fill(1024, numa_node=10**4200),
    "no number": lambda: fill(1, numa_node=float("nan")),
    "infinite number": lambda: fill(1, total_vfs=float("inf")),
    "version": lambda: {"accelerators": {"version": ["x" * 100] * 10**6}},
    "large version": lambda: {"accelerators": {"version": 10**5000}},
    "unread": lambda: (
        fill(1024) | {"accelerators": {"version": 1, "unread": ["C"] * 10**6}}
    ),
    "error": lambda: report_of(error="x" * 10**7),
    "problems": lambda: report_of(
        problems=[{"where": "w" * 255, "reason": "r" * 255}] * 64
    ),
    "other keys": lambda: {1: 2, None: 3, "accelerators": {1.5: 2, (): ()}},
    "a number": lambda: {"pci_devices": 5},
    "a truth value": lambda: {"pci_devices": True},
    "a text": lambda: {"pci_devices": "10de:2330"},
    "an object": lambda: {"pci_devices": {"0": ROW}},
    "rows without ids": lambda: {"pci_devices": [{"a": "x" * 10**6}] * 50_000},
    "rows of long ids": lambda: {
        "pci_devices": [{**ROW, "vendor_id": "0" * 10**6}] * 50_000
    },
    "rows of objects": lambda: {
        "pci_devices": [{**ROW, "product_id": nest(900)}] * 50_000
    },
    "rows that differ": lambda: {
        "pci_devices": [
            {
                **ROW,
                "product_id": f"{n:04x}",
                "bus": f"0000:{n % 255:02x}:00.0",
            }
            for n in range(4096)
        ]
    },
    "rows that are texts": lambda: {"pci_devices": [LONG] * 50_000},
    "large ids": lambda: {"pci_devices": [{**ROW, "bus": 10**4200}] * 5000},
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_takes_little_time(name: str) -> None:
    data = ATTACKS[name]()
    assert is_fast({}, data)
    assert is_fast(data, data)
    assert is_fast({"pci_devices": data}, {"accelerators": data})


# -- what is read ------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (None, "it is no dict"),
        ({"version": 2}, "its version is 2"),
        ({"version": 1, "devices": [{}]}, "kind is missing"),
        ({"version": 1, "devices": [{"version": 1}]}, "kind is missing"),
        (fill(1025)["accelerators"], "devices has 1025 items"),
        (fill(1, vendor_id="xyz")["accelerators"], "vendor_id is malformed"),
        (fill(1, address="../../etc")["accelerators"], "address is malformed"),
        (fill(1, peers=["a b"])["accelerators"], r"peers\[0\] is malformed"),
        (fill(1, model="m" * 256)["accelerators"], "model has 256 characters"),
        (fill(1, total_vfs=2**63)["accelerators"], "total_vfs is out of"),
        (fill(1, services=["s"] * 65)["accelerators"], "services has 65"),
        (
            fill(64, services=["s"] * 64)["accelerators"],
            "and 4096 in all lists",
        ),
    ],
)
def test_a_damaged_report_is_refused(document: object, reason: str) -> None:
    with pytest.raises(errors.MalformedError, match=reason) as caught:
        inspection_data.parse(document)
    assert "the same nova-accel" in str(caught.value)


def test_functions_are_read_in_place_of_a_refused_report() -> None:
    sent = {**fill(1025), "pci_devices": [ROW]}
    data = inspection_data.read({}, sent, CATALOG)
    assert data.report is not None
    assert [d.product_id for d in data.report.devices] == ["2330"]
    assert ["1025 items" in warning for warning in data.warnings] == [True]


def test_functions_that_are_no_list_give_a_warning() -> None:
    data = inspection_data.read({"pci_devices": 5}, {}, CATALOG)
    assert data.report is None
    assert data.warnings == ("pci_devices is 5, and no list of objects",)


def test_functions_without_ids_make_a_report_incomplete() -> None:
    rows: list[Any] = [
        {"vendor_id": "10de"},
        {"vendor_id": "10de", "product_id": "zz"},
        "10de:1eb8",
    ]
    report = inspection_data.read_functions(rows, CATALOG)
    assert not report.is_complete
    assert [p.where for p in report.problems] == [
        f"pci_devices[{number}]" for number in range(3)
    ]


@pytest.mark.parametrize(("count", "devices"), [(1024, 1024), (1025, 1024)])
def test_more_functions_make_a_report_incomplete(
    count: int, devices: int
) -> None:
    report = inspection_data.read_functions([ROW] * count, CATALOG)
    assert len(report.devices) == devices
    assert report.is_complete == (count == devices)
