# SPDX-License-Identifier: Apache-2.0
"""Mediated devices, their parents and types: value types."""

import dataclasses

from nova_accel.model import pci


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MdevType:
    """One type directory of an mdev parent.

    ``label`` is the content of its ``name`` file, None without one;
    ``available`` is how many the parent can make now, None when it does
    not say. Missing texts are empty.
    """

    type_id: str
    label: str | None
    description: str
    device_api: str
    available: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MdevParent:
    """A device that makes mediated devices.

    ``name`` is its directory's name: ``0000:3b:00.0``, ``mtty``,
    ``matrix``, ``0.0.0052``. ``function`` is None off the PCI bus, and for
    a function whose ids can't be read; ``physfn`` is the PF's address when
    this is a VF.
    """

    name: str
    function: pci.PciFunction | None
    driver: str | None
    physfn: str | None
    types: tuple[MdevType, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mdev:
    """A mediated device that exists; ``type_id`` is empty if unknown."""

    uuid: str
    parent: str
    type_id: str
