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


MANY = st.lists(attachments(), max_size=5, unique_by=lambda one: one.number)
OTHERS = st.dictionaries(
    WORDS.filter(lambda key: not key.startswith(attachment.KEY_PREFIX)),
    WORDS,
    max_size=4,
)


@given(MANY, OTHERS, MANY)
def test_what_is_written_is_read(
    before: list[attachment.Attachment],
    others: dict[str, str],
    after: list[attachment.Attachment],
) -> None:
    written = attachment.update_metadata(
        attachment.update_metadata(others, before), after
    )
    found = attachment.parse_metadata(written)
    assert found == tuple(sorted(after, key=lambda one: one.number))
    ours = {k: v for k, v in written.items() if k not in others}
    assert {k: v for k, v in written.items() if k in others} == others
    assert all(
        0 < len(text) <= attachment.MAX_VALUE_LENGTH for text in ours.values()
    )


@given(MANY, OTHERS, attachments())
def test_one_more_taken_away_leaves_nothing(
    known: list[attachment.Attachment],
    others: dict[str, str],
    one: attachment.Attachment,
) -> None:
    """Whatever is written on the way: the end is as the beginning."""
    before = attachment.update_metadata(others, known)
    number = attachment.find_free_number(known)
    assert number not in {each.number for each in known}
    metadata = before
    for state in attachment.AttachmentState:
        change = attachment.with_state(
            attachment.Attachment(
                number=number,
                profile=one.profile,
                resources=one.resources,
                required=one.required,
                provider=one.provider,
            ),
            state,
        )
        metadata = attachment.update_metadata(
            metadata,
            attachment.replace(attachment.parse_metadata(metadata), change),
        )
    assert change in attachment.parse_metadata(metadata)
    left = attachment.remove(attachment.parse_metadata(metadata), change)
    assert attachment.update_metadata(metadata, left) == before


@given(attachments())
def test_what_is_beside_it_is_what_stays(one: attachment.Attachment) -> None:
    """Allocated and given up, the server has what it had before."""
    for name, amount in one.total_resources.items():
        assert amount == one.other_resources.get(name, 0) + one.resources.get(
            name, 0
        )
    assert (
        attachment.with_other_resources(
            one, one.total_resources
        ).other_resources
        == one.other_resources
    )


@given(st.lists(attachments(), min_size=2, max_size=5), st.randoms())
def test_in_whatever_order_they_come_and_go(
    many: list[attachment.Attachment], rng: random.Random
) -> None:
    """Those of one provider leave each other's alone."""
    held: dict[str, int] = dict(many[0].other_resources)
    before = dict(held)
    for one in many:
        held = dict(
            dataclasses.replace(one, other_resources=held).total_resources
        )
    for one in rng.sample(many, len(many)):
        held = dict(attachment.with_other_resources(one, held).other_resources)
    assert held == before


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
def test_what_a_newer_release_wrote_is_refused(text: str) -> None:
    with pytest.raises(errors.MalformedError) as caught:
        attachment.parse_metadata({f"{attachment.KEY_PREFIX}0": text})
    assert "newer nova-accel" in str(caught.value)


def test_keys_of_others_are_left_alone() -> None:
    metadata = {f"{attachment.KEY_PREFIX}name": "x", "image_min_ram": "0"}
    assert attachment.parse_metadata(metadata) == ()
    assert attachment.update_metadata(metadata, ()) == metadata


def test_its_group_is_served_by_its_slot() -> None:
    one = attachment.Attachment(
        number=2,
        profile="T4-4Q",
        resources={"VGPU": 1},
        required=frozenset({"CUSTOM_X"}),
        provider="p",
        slot="slot-03",
    )
    group = one.request_group()
    assert one.name == "attached-2"
    assert group.slot == ("p", "slot-03")
    assert group.suffix == "_ATTACHED2"
    assert group.required == one.required
