# SPDX-License-Identifier: Apache-2.0
"""Traits of bare-metal nodes: laws of a change, names, priorities."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel.inventory import node_counts
from nova_accel.model import names
from virt_hooks.ironic import inspection_data, node_report, node_traits

OWN = ("CUSTOM_ACCELERATOR_FAULTED", "CUSTOM_GPU_A_X1", "CUSTOM_QAT_SYM")
FOREIGN = ("CUSTOM_RACK", "CUSTOM_GPU_LAB", "HW_CPU_X86_VMX")
NVIDIA = "10de"

words = st.text(alphabet="abc123 -", max_size=12)
regions = st.builds(
    node_report.NodeRegion,
    number=st.integers(0, 3),
    function=st.none() | words,
    interfaces=st.lists(words, max_size=2).map(tuple),
    is_programmable=st.booleans(),
)
devices = st.builds(
    node_report.NodeDevice,
    kind=st.sampled_from(("GPU", "FPGA", "QAT", "GAUDI", "ACCELERATOR")),
    vendor_id=st.sampled_from(("", NVIDIA, "8086", "beef")),
    product_id=st.sampled_from(("2330", "4940")),
    model=words,
    regions=st.lists(regions, max_size=2).map(tuple),
    services=st.lists(words, max_size=2).map(tuple),
    is_mig_capable=st.booleans(),
    fault=words,
)
reports = st.builds(
    node_report.NodeReport,
    devices=st.lists(devices, max_size=40).map(tuple),
    is_complete=st.booleans(),
    is_counted=st.booleans(),
    unread=st.lists(st.sampled_from(OWN), max_size=2).map(tuple),
)
foreign = st.frozensets(st.sampled_from(FOREIGN)) | st.integers(0, 50).map(
    lambda count: frozenset(f"CUSTOM_OPERATOR_{n}" for n in range(count))
)


def gpu(model: str = "H100XM", **fields: object) -> node_report.NodeDevice:
    values = {"kind": "GPU", "vendor_id": NVIDIA, "product_id": "2330"}
    return node_report.NodeDevice(**values | {"model": model} | fields)  # type: ignore[arg-type]


def report_of(*rows: node_report.NodeDevice) -> node_report.NodeReport:
    return node_report.NodeReport(devices=rows)


@given(report=reports)
def test_a_report_survives_its_document(
    report: node_report.NodeReport,
) -> None:
    document = node_report.to_document(report)
    assert inspection_data.parse(document) == report


@given(report=reports, kept_by_operator=foreign)
def test_a_change_keeps_the_rules_of_ironic(
    report: node_report.NodeReport, kept_by_operator: frozenset[str]
) -> None:
    change = node_traits.plan_traits(report, kept_by_operator, ())
    traits = frozenset(change.traits)
    assert kept_by_operator <= traits
    assert len(traits) <= node_traits.MAX_TRAITS
    assert traits == kept_by_operator | {*change.own}
    assert kept_by_operator.isdisjoint(change.own)
    assert all(names.is_managed_trait(trait) for trait in change.own)


@given(report=reports, kept_by_operator=foreign)
def test_a_second_inspection_changes_nothing(
    report: node_report.NodeReport, kept_by_operator: frozenset[str]
) -> None:
    first = node_traits.plan_traits(report, kept_by_operator, ())
    second = node_traits.plan_traits(report, first.traits, first.own)
    assert second.traits == first.traits


@given(before=reports, after=reports, kept_by_operator=foreign)
def test_only_traits_of_the_last_inspection_are_removed(
    before: node_report.NodeReport,
    after: node_report.NodeReport,
    kept_by_operator: frozenset[str],
) -> None:
    first = node_traits.plan_traits(before, kept_by_operator, ())
    second = node_traits.plan_traits(after, first.traits, first.own)
    removed = {*first.traits} - {*second.traits}
    assert removed <= {*first.own}
    if not after.is_complete:
        assert not removed


def test_a_recorded_trait_of_another_prefix_is_the_operators() -> None:
    change = node_traits.plan_traits(report_of(), ["CUSTOM_X"], ["CUSTOM_X"])
    assert change.traits == ("CUSTOM_X",)


def test_faults_and_counts_come_first() -> None:
    traits = node_traits.list_traits(report_of(gpu(), gpu(fault="it burns")))
    assert traits[:3] == (
        "CUSTOM_ACCELERATOR_FAULTED",
        "CUSTOM_GPU_NVIDIA_H100XM_X2",
        "CUSTOM_ACCELERATOR_MODEL_NVIDIA_H100XM",
    )


def test_an_unknown_card_has_its_ids() -> None:
    traits = node_traits.list_traits(report_of(gpu("")))
    assert "CUSTOM_GPU_10DE_2330_X1" in traits
    assert "CUSTOM_ACCELERATOR_DEVICE_10DE_2330" in traits


@pytest.mark.parametrize("field", ["peers", "has_nvswitch"])
def test_nvlink_is_a_trait(field: str) -> None:
    report = node_report.NodeReport(
        devices=(gpu(peers=("0000:05:00.0",) if field == "peers" else ()),),
        has_nvswitch=field == "has_nvswitch",
    )
    assert node_traits.NVLINK_TRAIT in node_traits.list_traits(report)


@pytest.mark.parametrize(
    ("trait", "count"),
    [
        (
            "CUSTOM_GPU_NVIDIA_H100XM_X8",
            node_counts.NodeCount(kind="GPU", model="NVIDIA_H100XM", count=8),
        ),
        ("CUSTOM_ACCELERATOR_MODEL_XILINX_X3", None),
        ("CUSTOM_GPU_LAB", None),
        ("CUSTOM_GPU_A_X0", None),
    ],
)
def test_a_count_is_parsed(
    trait: str, count: node_counts.NodeCount | None
) -> None:
    assert node_counts.parse_count(trait) == count
    assert count is None or count.trait == trait


def test_a_long_resource_class_is_general() -> None:
    many = report_of(*(gpu(f"MODEL{n}") for n in range(9)))
    assert node_traits.suggest_resource_class(many) == "baremetal.accelerators"
    assert node_traits.suggest_resource_class(report_of()) == ""


def test_properties_have_a_limit() -> None:
    many = report_of(*[gpu(name="x" * 255)] * 1024)
    rows = node_traits.list_properties(many)
    text = json.dumps(rows)
    assert len(text) <= node_traits.MAX_PROPERTIES
    assert len(text) > node_traits.MAX_PROPERTIES - 1000
    (row,) = node_traits.list_properties(report_of(gpu()))
    assert {**rows[0], "device_info": ""} == row
