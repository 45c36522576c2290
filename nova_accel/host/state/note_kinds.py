# SPDX-License-Identifier: Apache-2.0
"""Kinds of notes below ``state_dir``, and their fields.

The fields of the files are those of the classes: a new field has a default,
so that notes of earlier releases stay readable.
"""

import dataclasses

from nova_accel import model
from nova_accel.host.state.notes import Kind
from nova_accel.inventory import health


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScrubInProgress(model.Note):
    """A function that is being scrubbed, since ``when``.

    ``device`` is the address of the device to set aside if the scrub is
    interrupted, None if unknown.
    """

    device: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Unreleased(model.Note):
    """A function that was assigned to a server and not verified clean since.

    ``address`` is the function's, ``device`` that of its device,
    ``profile`` the profile it had and ``consumer`` the uuid of the server;
    None if unknown.
    """

    device: str | None = None
    profile: str | None = None
    consumer: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Assignment(model.Note):
    """A slot, the server that has it, and its device's serial numbers."""

    server: str | None = None
    nvme: str | None = None
    dsn: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltServer(model.Note):
    """Allocations of a server, whose uuid is ``address``, as JSON."""

    amounts: str | None = None


FAULTED = Kind(directory="faulted", note=model.Fault, subject="fault of")
DRAINED = Kind(directory="drained", note=model.Drain, subject="drain of")
SCRUBBING = Kind(
    directory="scrubbing", note=ScrubInProgress, subject="scrub of"
)
UNRELEASED = Kind(
    directory="unreleased", note=Unreleased, subject="last server of"
)
SERIALS = Kind(
    directory="serials", note=Assignment, subject="serial number of"
)
ACKNOWLEDGED = Kind(
    directory="acknowledged", note=health.Acknowledgment, subject="errors of"
)
BOOKED = Kind(
    directory="booked",
    note=RebuiltServer,
    subject="allocations of server",
)
#: The directory of each kind.
DIRECTORIES = tuple(
    kind.directory
    for kind in (
        FAULTED,
        DRAINED,
        SCRUBBING,
        UNRELEASED,
        SERIALS,
        BOOKED,
        ACKNOWLEDGED,
    )
)
