# SPDX-License-Identifier: Apache-2.0
"""Names, sizes and traits of mdev types and other profiles.

Profile names and traits are converted into each other: traits are in upper
case and have no punctuation but the underscore.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator

from nova_accel.model import names

# NVIDIA's drivers write "GRID T4-4Q" or "NVIDIA A40-8Q": the brand changes
# between releases, the rest is the type's stable name.
_BRAND = re.compile(r"^(?:GRID|NVIDIA)\s+", re.IGNORECASE)
# Traits of whole functions, and of VFs: their profiles are named by vendor
# and product.
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
# "_4Q" after the model in a trait, as _SHAPE in a name.
_SHAPE_IN_TRAIT = re.compile(r"(?:_\d)?_\d+[A-Z]+\d*$")
# Types without a name: "type-9999", "nvidia-222".
_NUMBERED = re.compile(r"(?:TYPE|NVIDIA)_\d+")
# Prefixes of profile traits, before the profile's own name.
_TRAIT_PREFIX = re.compile(
    r"CUSTOM_(?:VGPU_[^_]+_|VGPU_|MDEV_|GPU_|FPGA_FUNCTION_|FPGA_INTERFACE_)"
)
_REGION = "region"
# "-4Q", "-2B4" after the model, "-1-5C", "-1-5CME" when backed by MIG
_SHAPE = re.compile(r"(?:-\d)?-\d+[A-Z]+\d*$")
_MEBIBYTES = re.compile(r"([0-9]{1,10})\s*MB?")
# Parts of the shape: compute slices if any, GiB, series, media or graphics
# engines (NVIDIA vGPU user guide, "Virtual GPU types").
_PARTS = re.compile(r"-(?:(\d)-)?(\d{1,5})[A-Z]\d*(ME|GFX)?$")
_MIB_PER_GIB = 1024
# More descriptions than the types of a host's cards; each pass parses all.
_MAX_DESCRIPTIONS = 1024
#: A larger limit of a type is no limit: a card has at most a u16 of VFs.
MAX_INSTANCES = 0xFFFF
_DIGITS = re.compile(r"[0-9]{1,10}")
#: NVIDIA's series with equal sizes: workstation, compute, applications,
#: business. Each needs a licence of its own product.
SERIES = "QCAB"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TypeDescription:
    """Facts of a type's description; None where it has none.

    ``memory_mb`` is the framebuffer in MiB, for GVT-g the aperture (the
    graphics memory that CPUs can map; i915 calls it low), and
    ``max_instances`` the vendor's limit for one physical device.
    """

    memory_mb: int | None = None
    max_instances: int | None = None


@functools.lru_cache(_MAX_DESCRIPTIONS)
def parse_description(text: str) -> TypeDescription:
    """Return the facts in an mdev type's ``description`` file.

    It parses NVIDIA's ``key=value, …`` line and i915's ``key: value``
    lines. Missing or malformed fields are None.
    """
    fields = {
        name: value.strip()
        for line in text.splitlines()
        for name, value in _list_fields(line)
    }
    memory = _MEBIBYTES.match(
        fields.get("framebuffer", fields.get("low_gm_size", ""))
    )
    limit = fields.get("max_instance", "").strip()
    return TypeDescription(
        memory_mb=int(memory[1]) if memory else None,
        max_instances=(
            int(limit)
            if _DIGITS.fullmatch(limit) and int(limit) <= MAX_INSTANCES
            else None
        ),
    )


def _list_fields(line: str) -> Iterator[tuple[str, str]]:
    """Yield names and values of ``name=value, …`` or of ``name: value``."""
    name, colon, value = line.partition(":")
    if colon and "=" not in name:
        yield name.strip(), value
    for field in line.split(","):
        name, equals, value = field.partition("=")
        if equals:
            yield name.strip(), value


def profile_name(type_id: str, label: str | None, vendor_id: str) -> str:
    """Return the name of a type that is the same on all hosts.

    It is the label without its brand for NVIDIA, whose numeric type ids
    change between driver releases, and the type id for other drivers, whose
    ids are stable and whose labels may be missing.

    :param type_id: the type's directory name, ``nvidia-222``, ``mtty-2``.
    :param label: content of its ``name`` file, if it has one.
    :param vendor_id: four hex digits, empty off the PCI bus.
    """
    if vendor_id == "10de" and label:
        return strip_brand(label)
    return type_id


def strip_brand(label: str) -> str:
    """Return NVIDIA's name of a type without the brand."""
    return _BRAND.sub("", label.strip())


def parse_size(name: str) -> int | None:
    """Return the framebuffer in the name of NVIDIA's type, in MiB.

    ``A40-8Q`` and ``A100-1-5C`` have GiB; None for names without a size.
    """
    match = _PARTS.search(name)
    return int(match[2]) * _MIB_PER_GIB if match else None


def parse_instance_kind(name: str) -> str:
    """Return the kind of GPU instance in a type's name.

    ``A100-1-5CME`` is inside a ``1g.5gb+me``; empty for time-sliced types.
    Where several vGPUs share an instance the name has their own size, so
    use it only for types without another source.
    """
    match = _PARTS.search(name)
    if match is None or match[1] is None:
        return ""
    engines = f"+{match[3].lower()}" if match[3] else ""
    return f"{match[1]}g.{match[2]}gb{engines}"


def parse_series(name: str) -> str:
    """Return the series of NVIDIA's type: Q for ``A40-8Q``, "" for none."""
    match = _PARTS.search(name)
    letter = name[match.end(2)] if match else ""
    return letter if letter in SERIES else ""


def list_series_names(name: str) -> Iterator[str]:
    """Yield a type's names in NVIDIA's other series: A40-8C for A40-8Q."""
    match = _PARTS.search(name)
    if match is None:
        return
    index = match.end(2)
    for series in SERIES.replace(name[index], ""):
        yield f"{name[:index]}{series}{name[index + 1 :]}"


def profile_trait(name: str, vendor_id: str, *, gpu: bool) -> str:
    """Return the trait of a provider that can make the profile."""
    if gpu:
        return names.custom_name("VGPU", names.vendor_name(vendor_id), name)
    return names.custom_name("MDEV", name)


def strip_trait_prefix(trait: str) -> str:
    """Return a profile's trait without the prefix of its kind."""
    return _TRAIT_PREFIX.sub("", trait, count=1)


def name_from_trait(trait: str) -> str:
    """Return the name of a trait's profile in the vendor's spelling.

    Where the spelling can't be derived, it returns the trait without its
    prefix.

    :param trait: with or without ``CUSTOM_``, or the prefix of its kind.
    """
    for pattern, to_name in _NAMES:
        match = pattern.fullmatch(trait)
        if match:
            return to_name(match)
    return strip_trait_prefix(trait)


def device_name_from_trait(trait: str, is_vf: bool) -> str:
    """Return the profile name of a whole function, or of its VFs.

    :param trait: begins with ``names.DEVICE_PREFIX``.
    """
    match = _DEVICE.fullmatch(trait)
    if match is None:
        return strip_trait_prefix(trait)
    return f"{match[1]}:{match[2]}".lower() + ("-VF" if is_vf else "")


def is_profile_name(text: str, name: str) -> bool:
    """Return whether a text is the name or the trait of a profile.

    The comparison ignores brand, case and punctuation.
    """
    text = text.strip()
    slugs = {_slug(strip_brand(text)), _slug(name_from_trait(text.upper()))}
    return bool(_slug(text)) and _slug(name) in slugs


def _slug(text: str) -> str:
    return names.custom_name(text).removeprefix(names.CUSTOM)


def _vf_name(match: re.Match[str]) -> str:
    device = f"{names.vendor_id(match[1])}:{match[2].lower()}-VF"
    return f"{device}-{match[3]}" if match[3] else device


def _nvidia_name(match: re.Match[str]) -> str:
    """Return ``A40-8Q`` for A40_8Q: only the shape has dashes."""
    if _NUMBERED.fullmatch(match[1]):
        return match[1].lower().replace("_", "-")
    shape = _SHAPE_IN_TRAIT.search(match[1])
    end = shape.start() if shape else len(match[1])
    model, shape_text = match[1][:end], match[1][end:]
    return model.replace("_", " ") + shape_text.replace("_", "-")


# Type ids of mdevs are the driver's name, a dash and the type's name
# (Documentation/driver-api/vfio-mediated-device.rst).
_NAMES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (_PCI, lambda match: f"{match[1]}:{match[2]}".lower()),
    (_VF, _vf_name),
    (_MDEV, lambda match: "-".join(match[1].lower().rsplit("_", 1))),
    (_GVTG, lambda match: f"i915-GVTg_V{match[1]}_{match[2]}"),
    (_NVIDIA_TYPE, _nvidia_name),
    (re.compile(r"(?:CUSTOM_)?FPGA_REGION"), lambda _: _REGION),
)


def model_name(profile_names: list[str], fallback: str) -> str:
    """Return a card's model, the common stem of its profile names.

    ``T4-1Q`` and ``T4-16C`` are of a ``T4``, ``A100-4C`` and
    ``A100-1-5CME`` of an ``A100``. Without a common stem it returns the
    fallback.
    """
    stems = {_SHAPE.split(name)[0] for name in profile_names}
    have_shapes = all(map(_SHAPE.search, profile_names))
    return stems.pop() if have_shapes and len(stems) == 1 else fallback
