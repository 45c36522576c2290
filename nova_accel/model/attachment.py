# SPDX-License-Identifier: Apache-2.0
"""Hot-attached profiles, as JSON in a server's system_metadata.

Nova keeps some words of a server that no user sees, its system metadata.
There stands what was attached to it, as JSON cut into pieces that fit.
"""

import dataclasses
import enum
import json
from collections.abc import Iterable, Mapping
from typing import Any

from nova_accel import errors
from nova_accel.model import flavors, strict_json

# A value of the table instance_system_metadata has 255 characters
# (nova/db/main/models.py, InstanceSystemMetadata).
PIECE = 255
KEY = "nova_accel_attached_"
VERSION = 1
NAME = "attached-"


class AttachmentState(enum.Enum):
    """How far an attachment is.

    COMING and GOING are written before anything is done, and HERE when all
    is: whoever finds one of the first two mends what was left.
    """

    COMING = "coming"
    HERE = "here"
    GOING = "going"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """One profile that was attached to a server.

    ``number`` tells those of one server apart. ``resources`` are the
    amounts by class that it takes of ``provider``, a uuid, and ``required``
    the traits of that. ``slot`` is empty until Nova has claimed one.
    ``besides`` is what else the server has of the provider in Placement,
    ``bitstream`` the id of the image that its FPGA region is to hold, empty
    for none.
    """

    number: int
    profile: str
    resources: Mapping[str, int]
    required: frozenset[str]
    provider: str
    slot: str = ""
    state: AttachmentState = AttachmentState.COMING
    besides: Mapping[str, int] = dataclasses.field(default_factory=dict)
    bitstream: str = ""

    @property
    def name(self) -> str:
        """Return the name by which people know it: ``attached-1``."""
        return f"{NAME}{self.number}"

    @property
    def total(self) -> Mapping[str, int]:
        """Return what the server has of the provider together with it."""
        return {
            name: self.besides.get(name, 0) + self.resources.get(name, 0)
            for name in sorted({*self.besides, *self.resources})
        }

    def group(self) -> flavors.RequestGroup:
        """Return the request group that it is, served by its slot."""
        return flavors.RequestGroup(
            suffix=f"_ATTACHED{self.number}",
            resources=self.resources,
            required=self.required,
            bitstream=self.bitstream,
            slot=(self.provider, self.slot),
        )


def parse(metadata: Mapping[str, str]) -> tuple[Attachment, ...]:
    """Return what was attached, by number.

    :param metadata: a server's whole system metadata.
    :raises MalformedError: it can't be read; a newer release has written
        it, or somebody else.
    """
    text = "".join(
        metadata[key] for key in sorted(filter(_is_ours, metadata), key=_place)
    )
    if not text:
        return ()
    try:
        told = strict_json.loads(text)
        if told["version"] == VERSION:
            return tuple(map(_read, told["attached"]))
    except (AttributeError, KeyError, TypeError, ValueError):
        pass
    raise errors.MalformedError(
        "record of what is attached to a server",
        text,
        f"JSON of version {VERSION}; a newer nova-accel may have written it",
    )


def write(
    metadata: Mapping[str, str], attachments: Iterable[Attachment]
) -> dict[str, str]:
    """Return a server's system metadata with these, and no others.

    What is not ours stays as it was.
    """
    kept = {k: v for k, v in metadata.items() if not _is_ours(k)}
    found = sorted(attachments, key=lambda each: each.number)
    if not found:
        return kept
    text = json.dumps(
        {"version": VERSION, "attached": [_told(each) for each in found]},
        separators=(",", ":"),
        sort_keys=True,
    )
    pieces = range(0, len(text), PIECE)
    return kept | {
        f"{KEY}{number}": text[begin : begin + PIECE]
        for number, begin in enumerate(pieces)
    }


def replaced(
    attachments: Iterable[Attachment], changed: Attachment
) -> tuple[Attachment, ...]:
    """Return attachments with one that is new, or has changed."""
    return (*without(attachments, changed), changed)


def without(
    attachments: Iterable[Attachment], gone: Attachment
) -> tuple[Attachment, ...]:
    """Return attachments but one."""
    return tuple(each for each in attachments if each.number != gone.number)


def with_slot(one: Attachment, slot: str) -> Attachment:
    """Return an attachment with the slot that Nova has claimed for it."""
    return dataclasses.replace(one, slot=slot)


def in_state(one: Attachment, state: AttachmentState) -> Attachment:
    """Return an attachment that has come as far."""
    return dataclasses.replace(one, state=state)


def among(one: Attachment, booked: Mapping[str, int]) -> Attachment:
    """Return an attachment with what the server has beside it by now.

    :param booked: what it has of the provider in Placement, with this.
    """
    left = {name: n - one.resources.get(name, 0) for name, n in booked.items()}
    besides = {name: amount for name, amount in left.items() if amount > 0}
    return dataclasses.replace(one, besides=besides)


def next_number(attachments: Iterable[Attachment]) -> int:
    """Return the lowest number from 1 on that none has."""
    taken = {each.number for each in attachments}
    return next(n for n in range(1, len(taken) + 2) if n not in taken)


def _is_ours(key: str) -> bool:
    return key.startswith(KEY) and key.removeprefix(KEY).isdecimal()


def _place(key: str) -> int:
    return int(key.removeprefix(KEY))


def _told(each: Attachment) -> dict[str, Any]:
    return {
        "number": each.number,
        "profile": each.profile,
        "resources": dict(each.resources),
        "required": sorted(each.required),
        "provider": each.provider,
        "slot": each.slot,
        "state": each.state.value,
        "besides": dict(each.besides),
        "bitstream": each.bitstream,
    }


def _read(told: Any) -> Attachment:
    return Attachment(
        number=int(told["number"]),
        profile=str(told["profile"]),
        resources=_amounts(told["resources"]),
        required=frozenset(map(str, told["required"])),
        provider=str(told["provider"]),
        slot=str(told["slot"]),
        state=AttachmentState(told["state"]),
        besides=_amounts(told["besides"]),
        bitstream=str(told.get("bitstream", "")),
    )


def _amounts(told: Any) -> dict[str, int]:
    return {str(name): int(amount) for name, amount in told.items()}
