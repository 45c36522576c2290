# SPDX-License-Identifier: Apache-2.0
"""Hot-attached profiles of a server, stored in its system_metadata.

They are stored as JSON, split into 255-character values. Users can't read
or write system_metadata.
"""

import dataclasses
import enum
import types
from collections.abc import Iterable, Mapping

from nova_accel import errors
from nova_accel.model import flavors, json_codec

# Length of a value in the table instance_system_metadata
# (nova/db/main/models.py, InstanceSystemMetadata).
MAX_VALUE_LENGTH = 255
KEY_PREFIX = "nova_accel_attached_"
NAME_PREFIX = "attached-"
# Suffixes of the request groups of attachments begin with it.
GROUP_PREFIX = "_ATTACHED"


class AttachmentState(enum.Enum):
    """Progress of an attachment; the values are stored.

    ATTACHING and DETACHING are stored before the first change of an
    attach or detach, ATTACHED after its last one. An attachment that a
    service finds in one of the first two states was interrupted.
    """

    ATTACHING = "coming"
    ATTACHED = "here"
    DETACHING = "going"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """One profile that is attached to a server.

    ``number`` is unique among the attachments of a server. ``resources``
    are the amounts by class that it takes from ``provider``, a UUID, and
    ``required`` the traits of that provider. ``slot`` is empty until Nova
    has claimed one. ``other_resources`` is the rest of the server's
    allocation from the provider. ``bitstream`` is the id of the image for
    its FPGA region, empty for none.
    """

    number: int
    profile: str
    resources: Mapping[str, int]
    required: frozenset[str]
    provider: str
    slot: str = ""
    state: AttachmentState = AttachmentState.ATTACHING
    other_resources: Mapping[str, int] = dataclasses.field(
        default_factory=dict, metadata={"key": "besides"}
    )
    bitstream: str = ""

    @property
    def name(self) -> str:
        """Return its name for users: ``attached-1``."""
        return f"{NAME_PREFIX}{self.number}"

    @property
    def total_resources(self) -> Mapping[str, int]:
        """Return the server's whole allocation from the provider."""
        return {
            name: self.other_resources.get(name, 0)
            + self.resources.get(name, 0)
            for name in sorted({*self.other_resources, *self.resources})
        }

    def request_group(self) -> flavors.RequestGroup:
        """Return its request group, which only its slot can satisfy."""
        return flavors.RequestGroup(
            suffix=f"{GROUP_PREFIX}{self.number}",
            resources=self.resources,
            required=self.required,
            bitstream=self.bitstream,
            slot=(self.provider, self.slot),
        )

    def open_group(self) -> flavors.RequestGroup:
        """Return its request group on any device, as a move requests it."""
        return dataclasses.replace(self.request_group(), slot=None)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _AttachmentsDocument:
    """Stored attachments of a server."""

    attached: tuple[Attachment, ...]


_FORMAT = json_codec.Format(kind=_AttachmentsDocument, key="version")


def parse_metadata(metadata: Mapping[str, str]) -> tuple[Attachment, ...]:
    """Return the attachments of a server, by number.

    :param metadata: the server's whole system_metadata.
    :raises MalformedError: the stored text has another form, for example
        of a newer release.
    """
    text = "".join(
        metadata[key]
        for key in sorted(filter(_is_own_key, metadata), key=_parse_key)
    )
    if not text:
        return ()
    try:
        return _FORMAT.decode(text).attached
    except ValueError as error:
        raise errors.MalformedError(
            "record of the attachments of a server",
            text,
            f"JSON of version {_FORMAT.version} ({error}); a newer nova-accel"
            " may have written it",
        ) from error


def update_metadata(
    metadata: Mapping[str, str], attachments: Iterable[Attachment]
) -> dict[str, str]:
    """Return a server's system_metadata with exactly these attachments.

    Keys of Nova are copied unchanged.
    """
    others = {k: v for k, v in metadata.items() if not _is_own_key(k)}
    attached = tuple(sorted(attachments, key=lambda a: a.number))
    if not attached:
        return others
    text = _FORMAT.encode(_AttachmentsDocument(attached=attached))
    starts = range(0, len(text), MAX_VALUE_LENGTH)
    return others | {
        f"{KEY_PREFIX}{number}": text[start : start + MAX_VALUE_LENGTH]
        for number, start in enumerate(starts)
    }


def replace(
    attachments: Iterable[Attachment], changed: Attachment
) -> tuple[Attachment, ...]:
    """Return attachments with a changed or new one, which goes last."""
    return (*remove(attachments, changed), changed)


def remove(
    attachments: Iterable[Attachment], removed: Attachment
) -> tuple[Attachment, ...]:
    return tuple(a for a in attachments if a.number != removed.number)


def with_slot(attachment: Attachment, slot: str) -> Attachment:
    """Return an attachment with the slot that Nova has claimed for it."""
    return dataclasses.replace(attachment, slot=slot)


def with_location(
    attachment: Attachment,
    provider: str,
    slot: str,
    other_resources: Mapping[str, int] = types.MappingProxyType({}),
) -> Attachment:
    """Return an attachment that has moved to another provider.

    :param other_resources: those allocated there; a detach reads them
        again.
    """
    return dataclasses.replace(
        attachment,
        provider=provider,
        slot=slot,
        other_resources=dict(other_resources),
    )


def with_state(attachment: Attachment, state: AttachmentState) -> Attachment:
    return dataclasses.replace(attachment, state=state)


def with_other_resources(
    attachment: Attachment, allocated: Mapping[str, int]
) -> Attachment:
    """Return an attachment with its present ``other_resources``.

    :param allocated: the server's whole allocation from the provider.
    """
    others = {
        name: amount - attachment.resources.get(name, 0)
        for name, amount in allocated.items()
    }
    return dataclasses.replace(
        attachment,
        other_resources={
            n: amount for n, amount in others.items() if amount > 0
        },
    )


def find_free_number(attachments: Iterable[Attachment]) -> int:
    """Return the lowest number from 1 that no attachment has."""
    used = {attachment.number for attachment in attachments}
    return next(n for n in range(1, len(used) + 2) if n not in used)


def _is_own_key(key: str) -> bool:
    return (
        key.startswith(KEY_PREFIX) and key.removeprefix(KEY_PREFIX).isdecimal()
    )


def _parse_key(key: str) -> int:
    return int(key.removeprefix(KEY_PREFIX))
