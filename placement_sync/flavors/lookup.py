# SPDX-License-Identifier: Apache-2.0
"""Lookup of profiles, models and hosts by name."""

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping

from nova_accel import errors
from nova_accel.catalog import mdev_names
from nova_accel.model import flavors, names
from placement_sync.flavors import flavor_specs, offered_devices

_NEAREST = 4
# NVIDIA's, as sysfs has them.
_TYPE_ID = re.compile(r"nvidia-\d+")
# Of profiles by class; what is none of them is asked for by its class.
_HEADS = {
    names.FUNCTION_PREFIX: names.FPGA_CLASS,
    names.INTERFACE_PREFIX: names.FPGA_CLASS,
    "CUSTOM_MDEV_": names.MDEV_CLASS,
    "CUSTOM_GPU_PCI_": names.WHOLE_GPU_CLASS,
    "CUSTOM_GPU_": names.GPU_CLASS,
    "CUSTOM_VGPU_": names.GPU_CLASS,
}


class NotOfferedError(errors.AcceleratorError):
    """What is asked for can't be had in this cloud.

    :param reason: why, and what to do.
    """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProfileQuery:
    """What somebody asks for, in their own words.

    ``profile`` is a name of a vendor's, a trait, the id of an FPGA's
    function or interface, or a resource class. ``model`` narrows a class
    to cards of a model, ``traits`` are more that the device must have.
    ``charges`` say what nobody else knows, by class.
    """

    profile: str
    model: str = ""
    traits: tuple[str, ...] = ()
    charges: Mapping[str, int] = dataclasses.field(default_factory=dict)
    bitstream: str = ""
    count: int = 1


def find(
    ask: ProfileQuery,
    cloud: offered_devices.Cloud,
    types: offered_devices.VgpuTypes,
    is_forced: bool = False,
) -> flavor_specs.DeviceRequest:
    """Return the extra specs' words for what is asked for.

    :param is_forced: also a trait that no device has, and none is known
        to have had.
    :raises RefusedError: nothing of that name is known, or it is known in
        part only.
    """
    terms = (
        _of_class(ask, cloud)
        or _of_offers(ask, cloud, types)
        or _of_catalogue(ask.profile, types)
        or (_of_trait(ask.profile) if is_forced else None)
    )
    if terms is None:
        raise NotOfferedError(_unknown(ask.profile, cloud, types))
    charges = {**terms.charges, **ask.charges}
    missing = sorted(terms.unknown - charges.keys())
    if missing and not is_forced:
        raise NotOfferedError(
            f"what one {terms.name} takes of {', '.join(missing)} is not"
            " known from here; see `nova-accel inspect` on a host that has"
            f" it, and say it: --charge {missing[0]}=NUMBER"
        )
    return flavor_specs.DeviceRequest(
        resources=charges,
        required=terms.required
        | _programmable(ask, terms)
        | ({model_trait(ask.model, cloud.devices)} if ask.model else set())
        | frozenset(ask.traits),
        bitstream=ask.bitstream,
        count=ask.count,
    )


def _programmable(
    ask: ProfileQuery, terms: offered_devices.ProfileTerms
) -> frozenset[str]:
    """Return the trait of regions that a bitstream can be loaded into.

    :raises RefusedError: nothing can be loaded into what is asked for.
    """
    is_fpga = names.FPGA_CLASS in terms.charges
    if ask.bitstream and not is_fpga:
        raise NotOfferedError(
            f"a bitstream goes into an FPGA, and {terms.name} is none; leave"
            " --bitstream away"
        )
    held = any(t.startswith(names.FUNCTION_PREFIX) for t in terms.required)
    if ask.bitstream and held:
        raise NotOfferedError(
            f"{terms.name} is a function that a region holds already: with"
            " --bitstream name the interface instead, as `nova-accel profile"
            " list` shows it, or the class FPGA"
        )
    return frozenset({names.PROGRAMMABLE_TRAIT} if ask.bitstream else ())


def on_host(
    devices: Iterable[offered_devices.OfferedDevice], host: str
) -> list[offered_devices.OfferedDevice]:
    """Return the devices of a host, named in full or up to its first dot.

    :raises MalformedError: no host of that name has any.
    """
    listed = list(devices)
    full = {d.host for d in listed}
    short = [name for name in full if name.partition(".")[0] == host]
    name = short[0] if host not in full and len(short) == 1 else host
    found = [d for d in listed if d.host == name]
    if not found:
        raise errors.MalformedError(
            "host",
            host,
            "the name of a compute node that reports accelerators:"
            f" {', '.join(sorted(full)) or 'there is none'}",
        )
    return found


def model_trait(
    model: str, devices: Iterable[offered_devices.OfferedDevice]
) -> str:
    """Return the trait of the model that is meant: ``A40``, ``NVIDIA A40``.

    :raises RefusedError: no device is of it.
    """
    known = sorted(models(devices))
    wanted = _slug(model)
    for trait in known:
        tail = trait.removeprefix(names.MODEL_PREFIX)
        if wanted in (_slug(trait), tail, tail.partition("_")[2]):
            return trait
    raise NotOfferedError(
        f"no host has a card of model {model}; there are:"
        f" {', '.join(map(offered_devices.spoken_model, known)) or 'none'}"
    )


def models(devices: Iterable[offered_devices.OfferedDevice]) -> frozenset[str]:
    """Return the traits of the models that there are."""
    return frozenset(d.model for d in devices if d.model)


def _of_class(
    ask: ProfileQuery, cloud: offered_devices.Cloud
) -> offered_devices.ProfileTerms | None:
    """Return the terms of what is asked for by its resource class.

    :raises RefusedError: a class says too little, or counts no devices.
    """
    name = ask.profile.strip()
    if name in names.MEASURES:
        raise NotOfferedError(f"{name} counts no devices; name a profile")
    if name in (names.GPU_CLASS, names.MDEV_CLASS):
        raise NotOfferedError(
            f"{name} alone names no profile, and a card makes several; see"
            " `nova-accel profile list`"
        )
    if not any(name in device.stock for device in cloud.devices):
        return None
    return offered_devices.ProfileTerms(name=name, kind="", charges={name: 1})


def _of_offers(
    ask: ProfileQuery,
    cloud: offered_devices.Cloud,
    types: offered_devices.VgpuTypes,
) -> offered_devices.ProfileTerms | None:
    """Return the terms of what some device can be asked for.

    :raises RefusedError: several things have that name.
    """
    found: dict[frozenset[str], offered_devices.ProfileTerms] = {}
    for device in cloud.devices:
        for terms, _ in offered_devices.terms_of(device, types):
            if _is_meant(ask.profile, terms):
                found[terms.required] = terms
    if len(found) > 1:
        traits = ", ".join(min(required) for required in found)
        raise NotOfferedError(
            f"{ask.profile} may be one of {traits}; name one"
        )
    return next(iter(found.values()), None)


def _is_meant(what: str, terms: offered_devices.ProfileTerms) -> bool:
    return mdev_names.is_spelling(what, terms.name) or any(
        _is_fpga_id(what, trait) for trait in terms.required
    )


def _is_fpga_id(what: str, trait: str) -> bool:
    """Return whether a text is the id in a function's or interface's trait."""
    if not trait.startswith((names.FUNCTION_PREFIX, names.INTERFACE_PREFIX)):
        return False
    return what.strip().upper() == trait or (
        _slug(names.fpga_id(what)) == mdev_names.strip_head(trait)
    )


def _of_catalogue(
    what: str, types: offered_devices.VgpuTypes
) -> offered_devices.ProfileTerms | None:
    """Return the terms of a type that no device of this cloud makes."""
    for facts in types.by_trait.values():
        if mdev_names.is_spelling(what, facts.name):
            return types.terms(facts)
    return None


def _of_trait(what: str) -> offered_devices.ProfileTerms | None:
    """Return what can be told of a profile by its trait alone."""
    trait = what.strip().upper()
    for head, resource_class in _HEADS.items():
        if trait.startswith(head):
            guessed = offered_devices.guess(trait) if "GPU_" in head else {}
            return offered_devices.ProfileTerms(
                name=trait,
                kind="",
                charges={resource_class: 1, **guessed},
                required=frozenset({trait}),
            )
    return None


def _slug(text: str) -> str:
    return names.custom(text).removeprefix(names.CUSTOM)


def _unknown(
    what: str, cloud: offered_devices.Cloud, types: offered_devices.VgpuTypes
) -> str:
    """Return why a name is refused, with the nearest ones."""
    here = {
        terms.name: None
        for device in cloud.devices
        for terms, _ in offered_devices.terms_of(device, types)
    }
    known = {**here, **{t.name: None for t in types.by_trait.values()}}
    slugs = {_slug(name): name for name in reversed(known)}
    given = _slug(mdev_names.strip_brand(what))
    near = difflib.get_close_matches(given, slugs, n=_NEAREST, cutoff=0.5)
    hint = f"; near it: {', '.join(slugs[n] for n in near)}" if near else ""
    if _TYPE_ID.fullmatch(what.strip()):
        hint = (
            "; it is the id of an mdev type, which changes with the host"
            " driver: name the type, as `nova-accel inspect` prints it"
        )
    return (
        f"no host makes a profile {what!r}, and none is known{hint}; see"
        " `nova-accel profile list`"
    )


def say(group: flavors.RequestGroup, types: offered_devices.VgpuTypes) -> str:
    """Return what a group asks for, in words."""
    for trait in sorted(group.required):
        facts = types.find(trait)
        if facts is not None:
            return facts.name
        if trait.startswith(names.FUNCTION_PREFIX):
            return f"FPGA function {mdev_names.name_of(trait).lower()}"
        if trait == names.REGION_TRAIT:
            return "FPGA region"
        if trait.startswith(names.PROFILE_PREFIXES):
            return mdev_names.name_of(trait)
        if trait.startswith(names.DEVICE_PREFIX):
            is_vf = any(n.endswith("_VF") for n in group.resources)
            return mdev_names.whole_name(trait, is_vf)
    own = sorted(group.resources.keys() - names.MEASURES)
    model = [
        offered_devices.spoken_model(t)
        for t in sorted(group.required)
        if t.startswith(names.MODEL_PREFIX)
    ]
    return " ".join((", ".join(own), *(f"of a {m}" for m in model)))
