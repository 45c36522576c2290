# SPDX-License-Identifier: Apache-2.0
"""Live migrations are refused with all reasons, and addresses are moved."""

import dataclasses
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel.claims import migration
from nova_accel.claims.migration import (
    MigrationHost,
    MigrationLimits,
    MigrationPartition,
)
from tests.support import strategies

HOST = MigrationHost(
    libvirt=(10, 0, 0),
    qemu=(8, 2, 2),
    kernel="6.8.0-45-generic",
    drivers={"nvidia": "570.133.10", "mtty": "", "qat_vfio_pci": ""},
)
VGPU = MigrationPartition(
    technology="mdev",
    driver="nvidia",
    profile="T4-4Q",
    size=4096,
    device_api="vfio-pci",
    handle="8d1c9d53-4f5e-4c5e-9f0c-3a0f5d1e2b7a",
)
TYPED = MigrationPartition(
    technology="vendor-vfio",
    driver="nvidia",
    profile="L40S-8Q",
    size=8192,
    handle="0000:3d:00.4",
)
QAT = MigrationPartition(
    technology="vf",
    driver="qat_vfio_pci",
    profile="8086:4941",
    handle="0000:f3:00.1",
)
MTTY = MigrationPartition(
    technology="mdev", driver="mtty", profile="mtty-2", handle="mtty-mdev"
)
NO_LIMIT = MigrationLimits(downtime=500)


def leaving(
    *parts: MigrationPartition,
    host: MigrationHost = HOST,
    limits: MigrationLimits = NO_LIMIT,
) -> tuple[str, ...]:
    return migration.check_source(parts, host, limits)


def arriving(
    *parts: MigrationPartition,
    there: MigrationHost = HOST,
    offers: tuple[MigrationPartition, ...] | None = None,
) -> tuple[str, ...]:
    offered = parts if offers is None else offers
    return migration.check_destination(parts, HOST, offered, there)


@pytest.mark.parametrize("part", [VGPU, TYPED, MTTY])
def test_movable_devices_are_accepted(part: MigrationPartition) -> None:
    assert leaving(part) == ()
    assert arriving(part) == ()


@pytest.mark.parametrize("part", [VGPU, TYPED, QAT])
def test_files_of_a_newer_vfio_count_more_than_a_version(
    part: MigrationPartition,
) -> None:
    """EL 9 has a later VFIO in a kernel that calls itself 5.14."""
    el9 = dataclasses.replace(
        HOST, kernel="5.14.0-570.12.1.el9_6.x86_64", vfio=(6, 1)
    )
    assert leaving(part, host=el9) == ()
    assert arriving(part, there=el9) == ()


def test_without_devices_nothing_is_refused() -> None:
    assert leaving(host=MigrationHost(has_post_copy=True)) == ()
    assert arriving(there=MigrationHost()) == ()


@pytest.mark.parametrize(
    ("part", "word"),
    [
        (
            MigrationPartition(
                technology="passthrough",
                driver="vfio_pci",
                profile="TU102",
                handle="0000:71:00.0",
            ),
            "whole function",
        ),
        (
            MigrationPartition(
                technology="fpga", driver="dfl_pci", profile="region"
            ),
            "FPGA region",
        ),
        (dataclasses.replace(QAT, driver="vfio_pci"), "vfio_pci"),
        (dataclasses.replace(QAT, driver=""), "is unknown"),
        (dataclasses.replace(MTTY, driver="vfio_ap"), "vfio_ap"),
    ],
)
def test_immovable_devices_are_refused(
    part: MigrationPartition, word: str
) -> None:
    (reason,) = leaving(part)
    assert word in reason
    assert "cold migration" in reason
    # One of a server's devices is enough.
    assert leaving(VGPU, part) == (reason,)


@pytest.mark.parametrize(
    ("part", "kernel", "is_refused"),
    [
        (VGPU, "6.12.107+deb13-amd64", True),
        (MTTY, "6.12.107+deb13-amd64", True),
        # The log was a part of vfio.ko before.
        (VGPU, "6.6.13-amd64", False),
        # Its driver builds the log without IOMMUFD.
        (dataclasses.replace(QAT, driver="mlx5_vfio_pci"), "6.12.107", False),
        (dataclasses.replace(QAT, driver="vfio_pci"), "6.12.107", False),
    ],
)
def test_a_kernel_without_a_log_of_written_pages(
    part: MigrationPartition, kernel: str, is_refused: bool
) -> None:
    host = dataclasses.replace(HOST, kernel=kernel)
    limits = dataclasses.replace(NO_LIMIT, has_dirty_log=False)
    reasons = "".join(migration.check_source((part,), host, limits))
    assert ("live_migration_without_iommufd = True" in reasons) is is_refused
    assert (kernel in reasons) is is_refused


@pytest.mark.parametrize(
    ("part", "change", "word"),
    [
        (VGPU, {"libvirt": (8, 5, 9)}, "libvirt 8.5.9"),
        (VGPU, {"qemu": (8, 0, 5)}, "QEMU 8.0.5"),
        (VGPU, {"kernel": "5.17.3"}, "Linux 5.17"),
        (TYPED, {"libvirt": (9, 10, 0)}, "libvirt 9.10.0"),
        (TYPED, {"qemu": (8, 2, 1)}, "QEMU 8.2.1"),
        (MTTY, {"kernel": "6.6.0"}, "Linux 6.6"),
    ],
)
def test_old_versions_are_refused_on_either_host(
    part: MigrationPartition, change: dict[str, object], word: str
) -> None:
    newer = dataclasses.replace(HOST, kernel="6.18.1")
    old = dataclasses.replace(newer, **change)  # type: ignore[arg-type]
    assert leaving(part, host=newer) == ()
    (reason,) = leaving(part, host=old)
    assert word in reason and "this host" in reason
    assert arriving(part, there=newer) == ()
    (reason,) = arriving(part, there=old)
    assert word in reason and "the destination" in reason


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"libvirt": ()}, "libvirt"),
        ({"qemu": ()}, "QEMU"),
        ({"kernel": ""}, "Linux"),
        ({"kernel": "unreadable"}, "Linux"),
    ],
)
def test_unknown_versions_are_refused(
    change: dict[str, object], word: str
) -> None:
    host = dataclasses.replace(HOST, **change)  # type: ignore[arg-type]
    (reason,) = leaving(VGPU, host=host)
    assert f"version of {word}" in reason and "is unknown" in reason
    (reason,) = arriving(VGPU, there=host)
    assert f"version of {word}" in reason


def test_post_copy_must_be_off_at_the_source() -> None:
    on = dataclasses.replace(HOST, has_post_copy=True)
    (reason,) = leaving(VGPU, TYPED, host=on)
    assert "live_migration_permit_post_copy" in reason
    assert arriving(VGPU, there=on) == ()


def test_vendors_drivers_must_be_the_same() -> None:
    other = dataclasses.replace(HOST, drivers={"nvidia": "550.90.05"})
    (reason,) = arriving(VGPU, there=other)
    assert "570.133.10 here and 550.90.05" in reason
    silent = dataclasses.replace(HOST, drivers={"nvidia": ""})
    (reason,) = arriving(VGPU, there=silent)
    assert "on the destination is unknown" in reason
    (reason,) = migration.check_destination([VGPU], silent, [VGPU], HOST)
    assert "on this host is unknown" in reason
    gone = dataclasses.replace(HOST, drivers={})
    (reason,) = arriving(VGPU, there=gone)
    assert "modprobe nvidia" in reason


def test_versions_of_in_tree_drivers_are_not_compared() -> None:
    newer = dataclasses.replace(HOST, kernel="6.18.1")
    reasons = migration.check_destination([MTTY], HOST, [MTTY], newer)
    assert reasons == ()


def test_the_destination_must_offer_the_profile() -> None:
    eight = dataclasses.replace(VGPU, profile="T4-8Q")
    (reason,) = arriving(VGPU, offers=(eight,))
    assert "no card that makes T4-4Q as mdev" in reason
    typed = dataclasses.replace(VGPU, technology="vf")
    assert len(arriving(VGPU, offers=(typed,))) == 1
    assert len(arriving(VGPU, offers=())) == 1
    other = dataclasses.replace(VGPU, device_api="vfio-ccw")
    (reason,) = arriving(VGPU, offers=(other,))
    assert "another device API (vfio-ccw, here vfio-pci)" in reason
    assert arriving(VGPU, offers=(other, eight, VGPU)) == ()


def test_equal_reasons_are_reported_once() -> None:
    old = dataclasses.replace(HOST, qemu=(8, 0, 0))
    assert len(leaving(VGPU, VGPU, host=old)) == 1


# -- downtime of the guest --------------------------------------------------


def test_downtime_is_framebuffer_by_bandwidth() -> None:
    # 4 GiB at 10 Gbit/s, which are 1192 MiB/s.
    assert migration.estimate_downtime([VGPU], 1192) == 3437
    assert migration.estimate_downtime([VGPU], 0) is None
    assert migration.estimate_downtime([QAT], 1) == 0


def test_too_long_a_downtime_is_refused_with_the_needed_one() -> None:
    limits = MigrationLimits(downtime=3436, link=1192)
    (reason,) = leaving(VGPU, limits=limits)
    assert "4096 MiB" in reason and "3437 ms" in reason
    enough = dataclasses.replace(limits, downtime=3437)
    assert leaving(VGPU, limits=enough) == ()
    unknown = dataclasses.replace(limits, link=0)
    assert leaving(VGPU, limits=unknown) == ()


@given(
    st.lists(st.integers(0, 2**20), max_size=4),
    st.integers(1, 10**5),
    st.integers(1, 10**5),
)
def test_downtime_is_the_least_that_is_enough(
    sizes: list[int], link: int, extra: int
) -> None:
    parts = [dataclasses.replace(VGPU, size=size) for size in sizes]
    downtime = migration.estimate_downtime(parts, link)
    assert downtime is not None
    # Enough, and not a millisecond more than enough.
    assert downtime * link >= sum(sizes) * 1000
    assert (downtime - 1) * link < sum(sizes) * 1000 or downtime == 0
    faster = migration.estimate_downtime(parts, link + extra)
    assert faster is not None and faster <= downtime


# -- pairs of devices on both hosts -----------------------------------------

kinds = st.sampled_from([VGPU, TYPED, QAT, MTTY])


def named(
    parts: list[MigrationPartition], host: str
) -> list[MigrationPartition]:
    return [
        dataclasses.replace(part, handle=f"{host}-{number}")
        for number, part in enumerate(parts)
    ]


@given(st.lists(kinds, max_size=6), st.randoms(use_true_random=False))
def test_devices_are_paired_by_profile(
    parts: list[MigrationPartition], random: Random
) -> None:
    before = named(parts, "old")
    random.shuffle(parts)
    after = named(parts, "new")
    pairs = migration.plan_pairs(before, after)
    assert sorted(pairs) == sorted(p.handle for p in before)
    assert sorted(pairs.values()) == sorted(p.handle for p in after)
    profiles = {p.handle: p.profile for p in (*before, *after)}
    for old, new in pairs.items():
        assert profiles[old] == profiles[new]
    # Equal devices keep their order.
    for profile in {*profiles.values()}:
        old_handles, new_handles = (
            [part.handle for part in side if part.profile == profile]
            for side in (before, after)
        )
        assert [pairs[handle] for handle in old_handles] == new_handles


@given(st.lists(kinds, max_size=4), st.lists(kinds, max_size=4))
def test_pairs_exist_only_if_all_devices_are_paired(
    old: list[MigrationPartition], new: list[MigrationPartition]
) -> None:
    alike = sorted(p.profile for p in old) == sorted(p.profile for p in new)
    pairs = migration.plan_pairs(named(old, "old"), named(new, "new"))
    assert bool(pairs) == (alike and bool(old))


# -- from an mdev to a typed VF ---------------------------------------------

NEWER = dataclasses.replace(HOST, libvirt=(11, 0, 0))
AS_VF = dataclasses.replace(
    VGPU, technology="vendor-vfio", device_api="", handle="0000:3e:00.4"
)


@pytest.mark.parametrize(
    ("parts", "source", "destination", "words"),
    [
        ((VGPU,), NEWER, NEWER, []),
        ((VGPU,), HOST, NEWER, ["this host has libvirt 10.0.0", "11.0.0"]),
        ((VGPU,), NEWER, HOST, ["the destination has libvirt 10.0.0"]),
        (
            (VGPU, TYPED),
            NEWER,
            NEWER,
            ["only if all devices of the server are mdevs"],
        ),
    ],
)
def test_an_mdev_becomes_a_typed_vf(
    parts: tuple[MigrationPartition, ...],
    source: MigrationHost,
    destination: MigrationHost,
    words: list[str],
) -> None:
    reasons = migration.check_destination(
        parts, source, (AS_VF, TYPED), destination
    )
    assert bool(reasons) == bool(words)
    assert all(word in "; ".join(reasons) for word in words)


@pytest.mark.parametrize(
    ("part", "offer"),
    [
        (AS_VF, VGPU),
        (MTTY, dataclasses.replace(AS_VF, profile="mtty-2")),
        (VGPU, dataclasses.replace(AS_VF, profile="T4-8Q")),
    ],
)
def test_no_other_partition_changes_its_technology(
    part: MigrationPartition, offer: MigrationPartition
) -> None:
    reasons = migration.check_destination((part,), NEWER, (offer,), NEWER)
    assert f"no card that makes {part.profile}" in "; ".join(reasons)


def test_mdevs_are_paired_with_typed_vfs_of_their_profile() -> None:
    other = dataclasses.replace(VGPU, profile="T4-8Q", handle="other")
    other_vf = dataclasses.replace(AS_VF, profile="T4-8Q", handle="vf")
    assert migration.plan_pairs((VGPU, other), (other_vf, AS_VF)) == {
        VGPU.handle: AS_VF.handle,
        "other": "vf",
    }
    assert migration.plan_pairs((VGPU,), (other_vf,)) == {}


# -- laws -------------------------------------------------------------------

versions = st.tuples(st.integers(5, 12), st.integers(0, 12), st.integers(0, 9))
hosts = st.builds(
    MigrationHost,
    libvirt=versions | st.just(()),
    qemu=versions | st.just(()),
    kernel=st.builds("{}.{}.0".format, st.integers(5, 7), st.integers(0, 20))
    | st.just(""),
    drivers=st.dictionaries(
        st.sampled_from(["nvidia", "mtty", "qat_vfio_pci"]),
        st.sampled_from(["", "1", "2"]),
    ),
    has_post_copy=st.booleans(),
)


@given(st.lists(kinds, min_size=1, max_size=4), hosts)
def test_reasons_of_a_server_are_those_of_its_devices(
    parts: list[MigrationPartition], host: MigrationHost
) -> None:
    """A server is refused for each reason that one of its devices has."""
    alone = {r for part in parts for r in leaving(part, host=host)}
    assert alone == set(leaving(*parts, host=host))


@given(kinds, hosts)
def test_a_migration_to_an_equal_host_finds_its_device(
    part: MigrationPartition, host: MigrationHost
) -> None:
    """Only versions of the host itself are reasons."""
    reasons = migration.check_destination([part], host, [part], host)
    assert not any("at the destination, and" in reason for reason in reasons)
    assert not any("no card" in reason for reason in reasons)


A, B, C, D = (f"0000:41:00.{n}" for n in (4, 5, 6, 7))


def replaced(guest: list[str], steps: dict[str, str]) -> list[str]:
    """Return a guest's addresses after Nova's replacing.

    As its ``_update_pci_dev_xml``: pair by pair, the first that matches,
    and an error where none does.
    """
    addresses = list(guest)
    for old, new in steps.items():
        addresses[addresses.index(old)] = new
    return addresses


@st.composite
def injections(draw: st.DrawFn) -> dict[str, str]:
    """Draw new addresses for old ones, from few: circles are common."""
    few = draw(
        st.lists(strategies.pci_addresses, min_size=2, max_size=6, unique=True)
    )
    old = draw(st.lists(st.sampled_from(few), unique=True))
    new = draw(st.permutations(few))
    return dict(zip(old, new, strict=False))


@given(injections(), st.randoms(use_true_random=False))
def test_sequential_steps_equal_simultaneous_moves(
    pairs: dict[str, str], random: Random
) -> None:
    guest = list(pairs)
    random.shuffle(guest)
    steps = dict(migration.plan_pci_changes(pairs))
    assert replaced(guest, steps) == [pairs[old] for old in guest]


def test_a_device_that_stays_needs_no_step() -> None:
    assert migration.plan_pci_changes({A: A, B: C}) == {B: C}
    assert migration.plan_pci_changes({}) == {}


def test_addresses_of_no_other_device_need_no_detour() -> None:
    assert migration.plan_pci_changes({A: B, C: D}) == {A: B, C: D}


@pytest.mark.parametrize("new", [A, C])
def test_others_are_unused_ones_first(new: str) -> None:
    steps = migration.plan_pci_changes({A: B, B: new})
    assert list(steps.items()) == [
        (A, "ffff:ff:1f.7"),
        (B, "ffff:ff:1f.6"),
        ("ffff:ff:1f.7", B),
        ("ffff:ff:1f.6", new),
    ]


def test_there_are_temporary_addresses_for_any_guest() -> None:
    old = [f"0000:{n >> 3:02x}:00.{n & 7}" for n in range(600)]
    pairs = dict(zip(old, [*old[1:], old[0]], strict=True))
    steps = dict(migration.plan_pci_changes(pairs))
    assert replaced(old, steps) == [pairs[each] for each in old]


def test_the_detour_avoids_addresses_in_use() -> None:
    last = "ffff:ff:1f.7"
    pairs = {last: A, A: last}
    assert replaced([last, A], dict(migration.plan_pci_changes(pairs))) == [
        A,
        last,
    ]
    assert "ffff:ff:1f.6" in migration.plan_pci_changes(pairs)


def test_two_devices_cannot_get_one_address() -> None:
    with pytest.raises(ValueError, match="one address"):
        migration.plan_pci_changes({A: C, B: C})


@pytest.mark.parametrize("pairs", [{A: B}, {B: A}])
def test_an_address_of_a_device_that_was_an_mdev_is_refused(
    pairs: dict[str, str],
) -> None:
    with pytest.raises(ValueError, match=f"{A} is the address of a typed VF"):
        migration.plan_pci_changes(pairs, {A})
    assert migration.plan_pci_changes(pairs, {C}) == pairs
