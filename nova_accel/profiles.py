# SPDX-License-Identifier: Apache-2.0
"""What mdev types say of themselves, read as profiles."""

import dataclasses
import re
from collections.abc import Iterator

from nova_accel import names

# NVIDIA's drivers write "GRID T4-4Q" or "NVIDIA A40-8Q": the brand in
# front changes between releases, the rest is the type's stable name.
_BRAND = re.compile(r"^(?:GRID|NVIDIA)\s+", re.IGNORECASE)
# "…, framebuffer=1024M, …, max_instance=16" (NVIDIA's description file)
_FIELD = re.compile(r"(\w+)\s*=\s*([^,\n]+)")
# "low_gm_size: 64MB", one field a line (i915 GVT-g's description file)
_LINE = re.compile(r"^(\w+):\s*(.+)$", re.MULTILINE)
# "-4Q", "-2B4" behind the model, "-1-5C", "-1-5CME" when backed by MIG
_SHAPE = re.compile(r"(?:-\d)?-\d+[A-Z]+\d*$")
_MEBIBYTES = re.compile(r"(\d+)\s*MB?")
# The same shape in parts: compute slices if any, GiB, series, media or
# graphics engines (NVIDIA vGPU user guide, "Virtual GPU types").
_PARTS = re.compile(r"-(?:(\d)-)?(\d+)[A-Z]\d*(ME|GFX)?$")
_MIB_PER_GIB = 1024
# A limit beyond this is no limit: a card has a u16 of VFs at most.
_MOST_INSTANCES = 0xFFFF
# NVIDIA's series, for which one size is the same size: workstation,
# compute, applications, business.
_SERIES = "QCAB"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TypeFacts:
    """What a type's description says; None where it says nothing.

    ``memory_mb`` is the framebuffer in MiB, for GVT-g the aperture (the
    graphics memory that CPUs can map; i915 calls it low), and
    ``max_instances`` the vendor's limit for one physical device.
    """

    memory_mb: int | None = None
    max_instances: int | None = None


def parse_description(text: str) -> TypeFacts:
    """Return the facts in an mdev type's ``description`` file.

    Both forms in use are read: NVIDIA's ``key=value, …`` line and i915's
    ``key: value`` lines. Fields that are missing or malformed are None.
    """
    found: list[tuple[str, str]] = _FIELD.findall(text) + _LINE.findall(text)
    fields = dict(found)
    memory = _MEBIBYTES.match(
        fields.get("framebuffer", fields.get("low_gm_size", ""))
    )
    limit = fields.get("max_instance", "").strip()
    return TypeFacts(
        memory_mb=int(memory[1]) if memory else None,
        max_instances=(
            int(limit)
            if limit.isdecimal() and int(limit) <= _MOST_INSTANCES
            else None
        ),
    )


def profile_name(type_id: str, label: str | None, vendor_id: str) -> str:
    """Return the name by which a type is known on every host.

    NVIDIA's numeric type ids change from driver to driver, so the label
    (without its brand) is the name there; other drivers' ids are stable
    and labels may be missing, so the id is.

    :param type_id: the type's directory name, ``nvidia-222``, ``mtty-2``.
    :param label: content of its ``name`` file, if it has one.
    :param vendor_id: four hex digits, empty off the PCI bus.
    """
    if vendor_id == "10de" and label:
        return strip_brand(label)
    return type_id


def strip_brand(label: str) -> str:
    """Return NVIDIA's name of a type as it outlives its brands."""
    return _BRAND.sub("", label.strip())


def named_size(name: str) -> int | None:
    """Return the framebuffer that NVIDIA's name of a type tells, in MiB.

    ``A40-8Q`` and ``A100-1-5C`` name GiB; None where a name tells none.
    """
    found = _PARTS.search(name)
    return int(found[2]) * _MIB_PER_GIB if found else None


def named_instance(name: str) -> str:
    """Return the kind of GPU instance that a type's name tells.

    ``A100-1-5CME`` stands in a ``1g.5gb+me``; empty for time-sliced types.
    Where several vGPUs share an instance the name tells their own size,
    so this is a guess for types that nothing else knows.
    """
    found = _PARTS.search(name)
    if found is None or found[1] is None:
        return ""
    engines = f"+{found[3].lower()}" if found[3] else ""
    return f"{found[1]}g.{found[2]}gb{engines}"


def same_size(name: str) -> Iterator[str]:
    """Yield a type's names in NVIDIA's other series: A40-8C for A40-8Q."""
    found = _PARTS.search(name)
    if found is None:
        return
    place = found.end(2)
    for series in _SERIES.replace(name[place], ""):
        yield f"{name[:place]}{series}{name[place + 1 :]}"


def profile_trait(name: str, vendor_id: str, *, gpu: bool) -> str:
    """Return the trait that a provider has while it can make a profile."""
    if gpu:
        return names.custom("VGPU", names.vendor_name(vendor_id), name)
    return names.custom("MDEV", name)


def model_name(profile_names: list[str], fallback: str) -> str:
    """Return the card's model as its profiles' common stem names it.

    ``T4-1Q`` and ``T4-16C`` name a ``T4``, ``A100-4C`` and ``A100-1-5CME``
    an ``A100``. The fallback is returned when the names share no stem.
    """
    stems = {_SHAPE.split(name)[0] for name in profile_names}
    shaped = all(_SHAPE.search(name) for name in profile_names)
    return stems.pop() if shaped and len(stems) == 1 else fallback
