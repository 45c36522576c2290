# SPDX-License-Identifier: Apache-2.0
"""Attachments survive a round trip through system_metadata."""

import dataclasses
import json
import random
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import errors
from nova_accel.model import attachment

UUIDS = st.uuids().map(str)
AMOUNTS = st.dictionaries(
    st.sampled_from(["VGPU", "CUSTOM_GPU_MEMORY_MB", "PGPU"]),
    st.integers(1, 1 << 20),
    min_size=1,
)
WORDS = st.text(string.printable + "äß漢", max_size=300)


@st.composite
def attachments(draw: st.DrawFn) -> attachment.Attachment:
    return attachment.Attachment(
        number=draw(st.integers(1, 999)),
        profile=draw(WORDS),
        resources=draw(AMOUNTS),
        required=draw(st.frozensets(WORDS, max_size=3)),
        provider=draw(UUIDS),
        slot=draw(WORDS),
        state=draw(st.sampled_from(attachment.AttachmentState)),
        other_resources=draw(AMOUNTS | st.just({})),
        bitstream=draw(UUIDS | st.just("")),
    )


MANY = st.lists(
    attachments(), max_size=5, unique_by=lambda attached: attached.number
)
OTHERS = st.dictionaries(
    WORDS.filter(lambda key: not key.startswith(attachment.KEY_PREFIX)),
    WORDS,
    max_size=4,
)


@given(MANY, OTHERS, MANY)
def test_attachments_survive_the_round_trip(
    before: list[attachment.Attachment],
    others: dict[str, str],
    after: list[attachment.Attachment],
) -> None:
    written = attachment.update_metadata(
        attachment.update_metadata(others, before), after
    )
    parsed = attachment.parse_metadata(written)
    assert parsed == tuple(sorted(after, key=lambda attached: attached.number))
    entries = {k: v for k, v in written.items() if k not in others}
    assert {k: v for k, v in written.items() if k in others} == others
    assert all(
        0 < len(text) <= attachment.MAX_VALUE_LENGTH
        for text in entries.values()
    )


@given(MANY, OTHERS, attachments())
def test_adding_and_removing_restores_the_metadata(
    attached: list[attachment.Attachment],
    others: dict[str, str],
    new: attachment.Attachment,
) -> None:
    """States in between leave no trace."""
    before = attachment.update_metadata(others, attached)
    number = attachment.find_free_number(attached)
    assert number not in {each.number for each in attached}
    metadata = before
    for state in attachment.AttachmentState:
        change = attachment.with_state(
            attachment.Attachment(
                number=number,
                profile=new.profile,
                resources=new.resources,
                required=new.required,
                provider=new.provider,
            ),
            state,
        )
        metadata = attachment.update_metadata(
            metadata,
            attachment.replace(attachment.parse_metadata(metadata), change),
        )
    assert change in attachment.parse_metadata(metadata)
    remaining = attachment.remove(attachment.parse_metadata(metadata), change)
    assert attachment.update_metadata(metadata, remaining) == before


@given(attachments())
def test_total_resources_are_the_sum(
    attached: attachment.Attachment,
) -> None:
    """A released attachment leaves the server's other resources."""
    for name, amount in attached.total_resources.items():
        assert amount == attached.other_resources.get(
            name, 0
        ) + attached.resources.get(name, 0)
    assert (
        attachment.with_other_resources(
            attached, attached.total_resources
        ).other_resources
        == attached.other_resources
    )


@given(st.lists(attachments(), min_size=2, max_size=5), st.randoms())
def test_attachments_are_removed_in_any_order(
    many: list[attachment.Attachment], rng: random.Random
) -> None:
    """Attachments of one provider do not affect each other."""
    resources: dict[str, int] = dict(many[0].other_resources)
    before = dict(resources)
    for attached in many:
        resources = dict(
            dataclasses.replace(
                attached, other_resources=resources
            ).total_resources
        )
    for attached in rng.sample(many, len(many)):
        resources = dict(
            attachment.with_other_resources(
                attached, resources
            ).other_resources
        )
    assert resources == before


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "1",
        json.dumps({"version": 2, "attached": []}),
        json.dumps({"version": 1}),
        json.dumps({"version": 1, "attached": [{}]}),
    ],
)
def test_metadata_of_a_newer_release_are_refused(text: str) -> None:
    with pytest.raises(errors.MalformedError) as caught:
        attachment.parse_metadata({f"{attachment.KEY_PREFIX}0": text})
    assert "newer nova-accel" in str(caught.value)


def test_other_keys_are_not_changed() -> None:
    metadata = {f"{attachment.KEY_PREFIX}name": "x", "image_min_ram": "0"}
    assert attachment.parse_metadata(metadata) == ()
    assert attachment.update_metadata(metadata, ()) == metadata


def test_the_request_group_has_slot_and_traits() -> None:
    attached = attachment.Attachment(
        number=2,
        profile="T4-4Q",
        resources={"VGPU": 1},
        required=frozenset({"CUSTOM_X"}),
        provider="p",
        slot="slot-03",
    )
    group = attached.request_group()
    assert attached.name == "attached-2"
    assert group.slot == ("p", "slot-03")
    assert group.suffix == "_ATTACHED2"
    assert group.required == attached.required
