# SPDX-License-Identifier: Apache-2.0
"""Fatal errors make a device unhealthy until they are acknowledged."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import model
from nova_accel.inventory import health

GPU = "0000:41:00.0"
KINDS = ("DLP", "SDES", "TLP", "FCP", "CmpltTO", "MalfTLP", "UnsupReq")
counts = st.integers(0, (1 << 64) - 1)
lines = st.dictionaries(st.sampled_from(KINDS), counts)


def written(counts: dict[str, int], total: int) -> str:
    """Return the file as the kernel writes it."""
    rows = [f"{name} {count}" for name, count in counts.items()]
    return "\n".join([*rows, f"TOTAL_ERR_FATAL {total}", ""])


def reading_of(total: int, **readings: object) -> health.HealthReading:
    reading = health.HealthReading(
        address=GPU, counts=health.parse_errors(written({"DLP": 1}, total))
    )
    return dataclasses.replace(reading, **readings)  # type: ignore[arg-type]


@given(lines, counts)
def test_counters_of_the_kernel_are_parsed(
    counts: dict[str, int], total: int
) -> None:
    parsed = health.parse_errors(written(counts, total))
    assert parsed == {**counts, "TOTAL_ERR_FATAL": total}
    assert health.HealthReading(address=GPU, counts=parsed).fatal == total


@given(st.text())
def test_any_text_is_parsed_and_only_a_count_is_a_fault(text: str) -> None:
    counts = health.parse_errors(text)
    assert all(count >= 0 for count in counts.values())
    reading = health.HealthReading(address=GPU, counts=counts)
    assert bool(health.judge(GPU, [reading], {})) == bool(reading.fatal)


@pytest.mark.parametrize(
    "text",
    ["", "\n", "TOTAL_ERR_FATAL", "TOTAL_ERR_FATAL -1", "TOTAL_ERR_FATAL x"],
)
def test_without_a_total_the_count_is_unknown(text: str) -> None:
    reading = health.HealthReading(
        address=GPU, counts=health.parse_errors(text)
    )
    assert reading.fatal is None
    assert not health.judge(GPU, [reading], {})


@given(counts, counts)
def test_acknowledged_errors_do_not_count(total: int, extra: int) -> None:
    assert not health.judge(GPU, [reading_of(total)], {GPU: total})
    reason = health.judge(GPU, [reading_of(total + extra)], {GPU: total})
    assert bool(reason) == bool(extra)
    assert not extra or f" {extra} uncorrectable" in reason


@given(counts, counts)
def test_fewer_errors_than_acknowledged_are_all_new(
    now: int, before: int
) -> None:
    count = health.count_unacknowledged(now, before)
    assert count == (now if now < before else now - before)
    assert 0 <= count <= now


def test_the_reason_names_errors_and_command() -> None:
    reason = health.judge(f"{GPU}/region-0", [reading_of(2)], {})
    assert "2 uncorrectable fatal errors since it was enumerated" in reason
    assert "(DLP 1)" in reason
    assert f"`nova-accel heal {GPU}/region-0`" in reason
    again = health.judge(GPU, [reading_of(2)], {GPU: 1})
    assert "1 uncorrectable fatal error since the last heal" in again


@pytest.mark.parametrize(
    ("head", "is_ill"),
    [
        (b"\xff\xff\xff\xff", True),
        (b"\xff\xff", True),
        (b"\xff", False),
        (b"", False),
        (b"\xde\x10\xb8\x1e", False),
        # Not ready yet after a reset: PCI Express, 2.3.1.
        (b"\x01\x00\xff\xff", False),
    ],
)
def test_ids_that_read_as_ones_are_a_fault(head: bytes, is_ill: bool) -> None:
    reason = health.judge(GPU, [reading_of(0, head=head)], {})
    assert bool(reason) is is_ill
    assert not is_ill or "reads as ones" in reason


@pytest.mark.parametrize(
    "power", ["", "D0", "D1", "D2", "D3hot", "D3cold", "unknown"]
)
def test_a_suspended_device_is_healthy(power: str) -> None:
    assert not health.judge(GPU, [reading_of(0, power=power)], {})


def test_a_failed_power_state_is_a_fault() -> None:
    reason = health.judge(GPU, [reading_of(0, power="error")], {})
    assert "power state" in reason


def test_a_malformed_acknowledgment_counts_as_zero() -> None:
    for text in (None, "", "-1", "many", "²", "9" * 21):
        note = health.Acknowledgment(address=GPU, reason="", fatal=text)
        assert note.count == 0
    note = health.Acknowledgment(address=GPU, reason="", fatal="7")
    assert note.count == 7


@pytest.mark.parametrize("xid", [48, 64, 79, 95, 119, 120, 140])
def test_xids_that_need_a_reset_are_faults(xid: int) -> None:
    assert health.judge_xid(xid).startswith(f"Xid {xid}: ")


@pytest.mark.parametrize(
    "xid", [0, 13, 31, 43, 45, 63, 68, 74, 92, 94, 109, 154, 1 << 64]
)
def test_xids_that_applications_cause_are_no_faults(xid: int) -> None:
    assert not health.judge_xid(xid)


@pytest.mark.parametrize(
    ("action", "is_ill"),
    [
        (None, False),
        (0, False),
        (1, True),
        (2, True),
        (3, False),
        (4, True),
        (5, False),
        (99, False),
    ],
)
def test_a_driver_that_requests_a_reset_makes_a_fault(
    action: int | None, is_ill: bool
) -> None:
    assert bool(health.judge_recovery(action)) is is_ill


def test_gpus_in_use_are_healthy_and_have_vgpus() -> None:
    used = model.Device(
        address=GPU,
        plugin="nvidia_vfio",
        technology="vgpu",
        vendor="NVIDIA",
        model="L40S",
        resource_class="VGPU",
        counters={"VGPU": 2},
        slots=(),
        vendor_id="10de",
        driver="nvidia",
        partitions=(
            model.Partition(profile="L40S-24Q", parent=GPU, handle="one"),
        ),
    )
    others = [
        dataclasses.replace(used, partitions=()),
        dataclasses.replace(used, fault="it is ill"),
        dataclasses.replace(used, driver="vfio-pci"),
        dataclasses.replace(used, vendor_id="1002"),
        dataclasses.replace(used, address="matrix"),
    ]
    assert health.list_gpus_in_use(model.HostState(devices=(used,))) == {GPU}
    for other in others:
        host = model.HostState(devices=(other,))
        assert not health.list_gpus_in_use(host)
