# SPDX-License-Identifier: Apache-2.0
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
        besides=draw(AMOUNTS | st.just({})),
        bitstream=draw(UUIDS | st.just("")),
    )


MANY = st.lists(attachments(), max_size=5, unique_by=lambda one: one.number)
OTHERS = st.dictionaries(
    WORDS.filter(lambda key: not key.startswith(attachment.KEY)),
    WORDS,
    max_size=4,
)


@given(MANY, OTHERS, MANY)
def test_what_is_written_is_read(
    before: list[attachment.Attachment],
    others: dict[str, str],
    after: list[attachment.Attachment],
) -> None:
    written = attachment.write(attachment.write(others, before), after)
    found = attachment.parse(written)
    assert found == tuple(sorted(after, key=lambda one: one.number))
    ours = {k: v for k, v in written.items() if k not in others}
    assert {k: v for k, v in written.items() if k in others} == others
    assert all(0 < len(text) <= attachment.PIECE for text in ours.values())


@given(MANY, OTHERS, attachments())
def test_one_more_taken_away_leaves_nothing(
    known: list[attachment.Attachment],
    others: dict[str, str],
    one: attachment.Attachment,
) -> None:
    """Whatever is written on the way: the end is as the beginning."""
    before = attachment.write(others, known)
    number = attachment.next_number(known)
    assert number not in {each.number for each in known}
    metadata = before
    for state in attachment.AttachmentState:
        change = attachment.in_state(
            attachment.Attachment(
                number=number,
                profile=one.profile,
                resources=one.resources,
                required=one.required,
                provider=one.provider,
            ),
            state,
        )
        metadata = attachment.write(
            metadata, attachment.replaced(attachment.parse(metadata), change)
        )
    assert change in attachment.parse(metadata)
    left = attachment.without(attachment.parse(metadata), change)
    assert attachment.write(metadata, left) == before


@given(attachments())
def test_what_is_beside_it_is_what_stays(one: attachment.Attachment) -> None:
    """Allocated and given up, the server has what it had before."""
    for name, amount in one.total.items():
        assert amount == one.besides.get(name, 0) + one.resources.get(name, 0)
    assert attachment.among(one, one.total).besides == one.besides


@given(st.lists(attachments(), min_size=2, max_size=5), st.randoms())
def test_in_whatever_order_they_come_and_go(
    many: list[attachment.Attachment], rng: random.Random
) -> None:
    """Those of one provider leave each other's alone."""
    held: dict[str, int] = dict(many[0].besides)
    before = dict(held)
    for one in many:
        held = dict(dataclasses.replace(one, besides=held).total)
    for one in rng.sample(many, len(many)):
        held = dict(attachment.among(one, held).besides)
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
        attachment.parse({f"{attachment.KEY}0": text})
    assert "newer nova-accel" in str(caught.value)


def test_keys_of_others_are_left_alone() -> None:
    metadata = {f"{attachment.KEY}name": "x", "image_min_ram": "0"}
    assert attachment.parse(metadata) == ()
    assert attachment.write(metadata, ()) == metadata


def test_its_group_is_served_by_its_slot() -> None:
    one = attachment.Attachment(
        number=2,
        profile="T4-4Q",
        resources={"VGPU": 1},
        required=frozenset({"CUSTOM_X"}),
        provider="p",
        slot="slot-03",
    )
    group = one.group()
    assert one.name == "attached-2"
    assert group.slot == ("p", "slot-03")
    assert group.suffix == "_ATTACHED2"
    assert group.required == one.required
