# SPDX-License-Identifier: Apache-2.0
"""The wire format between the two hosts of a live migration."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import errors, model
from nova_accel.claims import migration
from tests.support.hosts import shapes
from virt_hooks.operations.migration import live_migration_wire

texts = st.text(max_size=8)
versions = st.lists(st.integers(0, 99), max_size=3).map(tuple)
wire_hosts = st.builds(
    live_migration_wire.WireHost,
    host=st.builds(
        migration.MigrationHost,
        libvirt=versions,
        qemu=versions,
        kernel=texts,
        drivers=st.dictionaries(texts, texts, max_size=3),
        has_post_copy=st.booleans(),
    ),
    parts=st.lists(
        st.builds(
            migration.MigrationPartition,
            technology=texts,
            driver=texts,
            profile=texts,
            size=st.integers(0, 2**20),
            device_api=texts,
            handle=texts,
        ),
        max_size=3,
    ).map(tuple),
)


PART = {"technology": "", "driver": "", "profile": ""}
LONG = "x" * 65_537


@given(wire_hosts)
def test_a_wire_host_is_parsed_as_written(
    wire_host: live_migration_wire.WireHost,
) -> None:
    assert (
        live_migration_wire.parse_text(live_migration_wire.to_text(wire_host))
        == wire_host
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nvidia-222",
        "[]",
        "{}",
        '{"form": 2, "host": {}, "parts": []}',
        '{"form": 1, "host": {"drivers": {"nvidia": 550}}, "parts": []}',
        '{"form": 1, "host": {}, "parts": [{"technology": "mdev"}]}',
        '{"form": 1, "parts": []}',
        json.dumps({"form": 1, "host": {}, "parts": [PART] * 513}),
        json.dumps({"form": 1, "host": {}, "parts": [], "topology": LONG}),
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(errors.MalformedError, match="one nova-accel"):
        live_migration_wire.parse_text(text)


def test_unknown_fields_of_a_newer_release_are_ignored() -> None:
    wire_host = live_migration_wire.WireHost(
        host=migration.MigrationHost(),
        parts=(
            migration.MigrationPartition(
                technology="mdev", driver="mtty", profile="m"
            ),
        ),
    )
    fields = json.loads(live_migration_wire.to_text(wire_host))
    for part in (fields, fields["host"], fields["parts"][0]):
        part["colour"] = "red"
    assert live_migration_wire.parse_text(json.dumps(fields)) == wire_host


def claim(technology: str) -> model.Claim:
    return model.Claim(
        consumer="",
        provider="",
        device="0000:f3:00.0",
        profile="P",
        slot="",
        parent="",
        handle="0000:f3:00.1",
        technology=technology,
    )


def device(technology: str) -> model.Device:
    return shapes.plain_device(
        "0000:f3:00.0",
        technology=technology,
        driver="4xxx-pf",
        profiles=(
            model.Profile(
                name="P",
                trait="",
                charges={"CUSTOM_GPU_MEMORY_MB": 256},
                available=0,
            ),
        ),
    )


def partition(
    technology: str, *devices: model.Device
) -> migration.MigrationPartition:
    (parsed,) = live_migration_wire.parts_of(
        [claim(technology)],
        model.HostState(devices=devices),
        {"0000:f3:00.1": "qat-vfio-pci"}.__getitem__,
    )
    return parsed


def test_a_vf_has_a_driver_of_its_own() -> None:
    assert partition("vf", device("vf")).driver == "qat_vfio_pci"
    assert partition("mdev", device("mdev")).driver == "4xxx_pf"


def test_an_unreadable_card_has_no_details() -> None:
    parsed = partition("mdev")
    assert (parsed.driver, parsed.size) == ("", 0)


def test_size_is_the_charge_if_the_type_has_none() -> None:
    assert partition("mdev", device("mdev")).size == 256
    card = device("mdev")
    offer = live_migration_wire.offer_of(card, card.profiles[0])
    assert (offer.size, offer.driver, offer.handle) == (256, "4xxx_pf", "")


def test_types_without_a_bus_are_named_after_their_driver() -> None:
    """As the kernel's own mtty shows itself."""
    card = dataclasses.replace(
        device("mdev"),
        driver=None,
        profiles=(
            dataclasses.replace(
                device("mdev").profiles[0], handles={"mtty": "mtty-2"}
            ),
        ),
    )
    assert (
        live_migration_wire.offer_of(card, card.profiles[0]).driver == "mtty"
    )
    (parsed,) = live_migration_wire.parts_of(
        [dataclasses.replace(claim("mdev"), type_id="mtty-2")],
        model.HostState(devices=(card,)),
        str,
    )
    assert parsed.driver == "mtty"
