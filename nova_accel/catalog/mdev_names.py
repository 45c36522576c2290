# SPDX-License-Identifier: Apache-2.0
"""Profiles' names and sizes, parsed from names of mdev types."""

import dataclasses
import re
from collections.abc import Callable, Iterator

from nova_accel.model import names

# NVIDIA's drivers write "GRID T4-4Q" or "NVIDIA A40-8Q": the brand in
# front changes between releases, the rest is the type's stable name.
_BRAND = re.compile(r"^(?:GRID|NVIDIA)\s+", re.IGNORECASE)
# "…, framebuffer=1024M, …, max_instance=16" (NVIDIA's description file)
_FIELD = re.compile(r"(\w+)\s*=\s*([^,\n]+)")
# "low_gm_size: 64MB", one field a line (i915 GVT-g's description file)
_LINE = re.compile(r"^(\w+):\s*(.+)$", re.MULTILINE)
# Traits of functions that are given whole, and of VFs that a GPU or another
# device is shared by: their profiles are named by vendor and product.
_PCI = re.compile(
    r"(?:CUSTOM_)?(?:(?:GPU|ACCELERATOR)_)?PCI"
    r"_([0-9A-F]{4})_([0-9A-F]{4})"
)
_VF = re.compile(
    r"(?:CUSTOM_)?(?:(?:GPU|ACCELERATOR)_)?VF"
    r"_([0-9A-Z]+)_([0-9A-F]{4})(?:_(\d+M))?"
)
_DEVICE = re.compile(rf"{names.DEVICE_PREFIX}([0-9A-F]{{4}})_([0-9A-F]{{4}})")
_MDEV = re.compile(r"(?:CUSTOM_)?MDEV_(\w+)")
_GVTG = re.compile(r"(?:CUSTOM_)?(?:VGPU_INTEL_)?I915_GVTG_V(\d+)_(\d+)")
_NVIDIA_TYPE = re.compile(r"(?:CUSTOM_)?VGPU_NVIDIA_(\w+)")
# "_4Q" behind the model in a trait, as _SHAPE in a name.
_SHAPE_IN_TRAIT = re.compile(r"(?:_\d)?_\d+[A-Z]+\d*$")
# What a type without a name goes by: "type-9999", "nvidia-222".
_NUMBERED = re.compile(r"(?:TYPE|NVIDIA)_\d+")
# Of the traits that name profiles, the part before a profile's own name.
_HEADS = re.compile(
    r"CUSTOM_(?:VGPU_[^_]+_|VGPU_|MDEV_|GPU_|FPGA_FUNCTION_|FPGA_INTERFACE_)"
)
_REGION = "region"
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
class TypeDescription:
    """What a type's description says; None where it says nothing.

    ``memory_mb`` is the framebuffer in MiB, for GVT-g the aperture (the
    graphics memory that CPUs can map; i915 calls it low), and
    ``max_instances`` the vendor's limit for one physical device.
    """

    memory_mb: int | None = None
    max_instances: int | None = None


def parse_description(text: str) -> TypeDescription:
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
    return TypeDescription(
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


def strip_head(trait: str) -> str:
    """Return the part of a profile's trait that is the profile's own."""
    return _HEADS.sub("", trait, count=1)


def name_of(trait: str) -> str:
    """Return the name of the profile that a trait stands for.

    It is the name that drivers give, as their vendors spell it; where upper
    case hides the spelling, the trait's own letters.

    :param trait: without ``CUSTOM_``, or without all that is common to
        traits of its kind, it means the same.
    """
    for pattern, spell in _NAMES:
        found = pattern.fullmatch(trait)
        if found:
            return spell(found)
    return strip_head(trait)


def whole_name(trait: str, is_vf: bool) -> str:
    """Return the name of a whole function, or a VF of it.

    :param trait: begins with ``names.DEVICE_PREFIX``.
    """
    found = _DEVICE.fullmatch(trait)
    if found is None:
        return strip_head(trait)
    return f"{found[1]}:{found[2]}".lower() + ("-VF" if is_vf else "")


def is_spelling(text: str, name: str) -> bool:
    """Return whether a text means the profile of that name.

    The brand, upper and lower case and punctuation make no difference, and
    the profile's trait is as good as its name.
    """
    plain = text.strip()
    meant = {_slug(strip_brand(plain)), _slug(name_of(plain.upper()))}
    return bool(_slug(plain)) and _slug(name) in meant


def _slug(text: str) -> str:
    return names.custom(text).removeprefix(names.CUSTOM)


def _vf_name(found: re.Match[str]) -> str:
    device = f"{names.vendor_id(found[1])}:{found[2].lower()}-VF"
    return f"{device}-{found[3]}" if found[3] else device


def _nvidia_name(found: re.Match[str]) -> str:
    """Return ``A40-8Q`` of A40_8Q: only the shape has dashes."""
    if _NUMBERED.fullmatch(found[1]):
        return found[1].lower().replace("_", "-")
    shape = _SHAPE_IN_TRAIT.search(found[1])
    at = shape.start() if shape else len(found[1])
    model, tail = found[1][:at], found[1][at:]
    return model.replace("_", " ") + tail.replace("_", "-")


# Type ids of mdevs are the driver's name, a dash and the type's
# (Documentation/driver-api/vfio-mediated-device.rst).
_NAMES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (_PCI, lambda found: f"{found[1]}:{found[2]}".lower()),
    (_VF, _vf_name),
    (_MDEV, lambda found: "-".join(found[1].lower().rsplit("_", 1))),
    (_GVTG, lambda found: f"i915-GVTg_V{found[1]}_{found[2]}"),
    (_NVIDIA_TYPE, _nvidia_name),
    (re.compile(r"(?:CUSTOM_)?FPGA_REGION"), lambda _: _REGION),
)


def model_name(profile_names: list[str], fallback: str) -> str:
    """Return the card's model as its profiles' common stem names it.

    ``T4-1Q`` and ``T4-16C`` name a ``T4``, ``A100-4C`` and ``A100-1-5CME``
    an ``A100``. The fallback is returned when the names share no stem.
    """
    stems = {_SHAPE.split(name)[0] for name in profile_names}
    shaped = all(_SHAPE.search(name) for name in profile_names)
    return stems.pop() if shaped and len(stems) == 1 else fallback
