# SPDX-License-Identifier: Apache-2.0
"""Lookup of profiles, models and hosts by name."""

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping

from nova_accel import errors
from nova_accel.catalog import mdev_names, pci_ids
from nova_accel.model import flavors, names
from placement_sync.fleet.flavors import flavor_specs, offered_devices

_NEAREST = 4
# NVIDIA's type ids in sysfs.
_TYPE_ID = re.compile(r"nvidia-\d+")
# Resource classes by the prefix of a profile's trait. Other devices are
# requested by their class.
_CLASS_BY_PREFIX = {
    names.FUNCTION_PREFIX: names.FPGA_CLASS,
    names.INTERFACE_PREFIX: names.FPGA_CLASS,
    "CUSTOM_MDEV_": names.MDEV_CLASS,
    "CUSTOM_GPU_PCI_": names.WHOLE_GPU_CLASS,
    "CUSTOM_GPU_": names.GPU_CLASS,
    "CUSTOM_VGPU_": names.GPU_CLASS,
}


class NotOfferedError(errors.AcceleratorError):
    """This cloud does not offer the profile, class or model.

    :param reason: why, and a hint.
    """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProfileQuery:
    """Query for a profile, as an operator writes it.

    ``profile`` is a vendor's name, a trait, the id of an FPGA function or
    interface, or a resource class. ``model`` restricts a class to cards of
    a model, ``traits`` are required in addition. ``charges`` are amounts
    that neither the catalog nor the trait has, by class. ``is_exclusive``
    requests the whole card with it.
    """

    profile: str
    model: str = ""
    traits: tuple[str, ...] = ()
    charges: Mapping[str, int] = dataclasses.field(default_factory=dict)
    bitstream: str = ""
    count: int = 1
    is_exclusive: bool = False


def find_profile(
    query: ProfileQuery,
    cloud: offered_devices.Cloud,
    types: offered_devices.VgpuTypes,
    is_forced: bool = False,
) -> flavor_specs.DeviceRequest:
    """Return the device request of a query.

    :param is_forced: accept a trait that no device has, and unknown
        charges.
    :raises NotOfferedError: the profile is unknown, or its charges are.
    """
    terms = (
        _find_by_class(query, cloud)
        or _find_offered(query, cloud, types)
        or _find_in_catalog(query.profile, types)
        or (_parse_trait(query.profile) if is_forced else None)
    )
    if terms is None:
        raise NotOfferedError(_explain_unknown(query.profile, cloud, types))
    is_bare_metal = terms.kind == offered_devices.BARE_METAL
    if is_bare_metal and query.count != 1:
        raise NotOfferedError(
            f"{terms.name} is a whole node, and a server takes one; remove"
            " --count"
        )
    charges = {**terms.charges, **query.charges}
    if query.is_exclusive and terms.vgpu_type is not None:
        whole = types.catalog.charges(terms.vgpu_type, is_exclusive=True)
        charges = {**whole, **query.charges}
    missing = sorted(terms.unknown - charges.keys())
    if missing and not is_forced:
        raise NotOfferedError(
            f"the charges of {terms.name} for {', '.join(missing)} are"
            " unknown; read them from `nova-accel inspect` on a host that has"
            f" it, and set them: --charge {missing[0]}=NUMBER"
        )
    return flavor_specs.DeviceRequest(
        resources=charges,
        required=terms.required
        | _list_programmable(query, terms)
        | ({_required_trait(query.model, cloud)} if query.model else set())
        | frozenset(query.traits),
        bitstream=query.bitstream,
        count=query.count,
        is_bare_metal=is_bare_metal,
    )


def _list_programmable(
    query: ProfileQuery, terms: offered_devices.ProfileTerms
) -> frozenset[str]:
    """Return the trait of programmable regions, for a bitstream.

    :raises NotOfferedError: a bitstream can't be loaded into the profile.
    """
    is_fpga = names.FPGA_CLASS in terms.charges
    if query.bitstream and not is_fpga:
        raise NotOfferedError(
            f"a bitstream needs an FPGA, and {terms.name} is not an FPGA;"
            " remove --bitstream"
        )
    is_function = any(
        t.startswith(names.FUNCTION_PREFIX) for t in terms.required
    )
    if query.bitstream and is_function:
        raise NotOfferedError(
            f"{terms.name} is a function that a region has already: with"
            " --bitstream name the interface instead, as `openstack accel"
            " profile list` shows it, or the class FPGA"
        )
    return frozenset({names.PROGRAMMABLE_TRAIT} if query.bitstream else ())


def add_memory_nodes(
    request: flavor_specs.FlavorRequest, cloud: offered_devices.Cloud
) -> flavor_specs.FlavorRequest:
    """Return a request with the NUMA nodes that its GPUs need.

    Unchanged if it sets a number, if they need none, or if only some of the
    GPUs that it may get do.
    """
    devices, settings = request.devices, request.settings
    if (
        devices is None
        or flavors.MEMORY_NODES in settings
        or names.WHOLE_GPU_CLASS not in devices.resources
    ):
        return request
    traits = [
        device.traits
        for device in cloud.devices
        if devices.resources.keys() <= device.capacities.keys()
        and devices.required <= device.traits
    ] or [devices.required]
    if not all(pci_ids.COHERENT_TRAITS & each for each in traits):
        return request
    number = str(pci_ids.MEMORY_NODES)
    return dataclasses.replace(
        request, settings={**settings, flavors.MEMORY_NODES: number}
    )


def select_host(
    devices: Iterable[offered_devices.OfferedDevice], host: str
) -> list[offered_devices.OfferedDevice]:
    """Return the devices of a host by its name, or its name without domain.

    :raises MalformedError: no host of that name has devices.
    """
    listed = list(devices)
    full = {d.host for d in listed}
    short = [name for name in full if name.partition(".")[0] == host]
    name = short[0] if host not in full and len(short) == 1 else host
    selected = [d for d in listed if d.host == name]
    if not selected:
        raise errors.MalformedError(
            "host",
            host,
            "the name of a compute node that reports accelerators:"
            f" {', '.join(sorted(full)) or 'there is none'}",
        )
    return selected


def select_hosts(
    devices: Iterable[offered_devices.OfferedDevice],
    hosts: Iterable[str],
    is_strict: bool = True,
) -> list[offered_devices.OfferedDevice]:
    """Return the devices of several hosts; see ``select_host``.

    :raises MalformedError: no host of one of the names has devices, and
        this is strict.
    """
    listed = list(devices)
    roots = set()
    for host in hosts:
        try:
            roots.add(select_host(listed, host)[0].root)
        except errors.MalformedError:
            if is_strict:
                raise
    return [device for device in listed if device.root in roots]


def model_trait(
    model: str, devices: Iterable[offered_devices.OfferedDevice]
) -> str:
    """Return the trait of a model such as ``A40`` or ``NVIDIA A40``.

    :raises NotOfferedError: no device is of this model.
    """
    traits = sorted(list_models(devices))
    slug = _slug(model)
    for trait in traits:
        tail = offered_devices.strip_model_prefix(trait)
        if slug in (_slug(trait), tail, tail.partition("_")[2]):
            return trait
    raise NotOfferedError(
        f"no host has a card of model {model}; there are:"
        f" {', '.join(map(offered_devices.model_name, traits)) or 'none'}"
    )


def _required_trait(model: str, cloud: offered_devices.Cloud) -> str:
    """Return the trait that a flavor requires for cards of a model.

    That of their PCI ids for cards with a name only: a name may change.

    :raises NotOfferedError: no device is of this model, or devices of
        several PCI ids have the name.
    """
    trait = model_trait(model, cloud.devices)
    if trait.startswith(names.MODEL_PREFIX):
        return trait
    ids = {
        own
        for device in cloud.devices
        if device.model == trait
        for own in device.traits
        if own.startswith(names.DEVICE_PREFIX)
    }
    if len(ids) != 1:
        raise NotOfferedError(
            f"cards of several PCI ids have the name {model}; name one of"
            f" them: --trait {' or --trait '.join(sorted(ids)) or '(none)'}"
        )
    return ids.pop()


def list_models(
    devices: Iterable[offered_devices.OfferedDevice],
) -> frozenset[str]:
    """Return the model traits of devices."""
    return frozenset(d.model for d in devices if d.model)


def _find_by_class(
    query: ProfileQuery, cloud: offered_devices.Cloud
) -> offered_devices.ProfileTerms | None:
    """Return the terms of a resource class, or None.

    :raises NotOfferedError: the class is ambiguous, or counts no devices.
    """
    name = query.profile.strip()
    if name in names.MEASURES:
        raise NotOfferedError(f"{name} counts no devices; name a profile")
    if name in (names.GPU_CLASS, names.MDEV_CLASS):
        raise NotOfferedError(
            f"{name} alone names no profile, and a card supports several; see"
            " `openstack accel profile list`"
        )
    if not any(name in device.capacities for device in cloud.devices):
        return None
    return offered_devices.ProfileTerms(name=name, kind="", charges={name: 1})


def _find_offered(
    query: ProfileQuery,
    cloud: offered_devices.Cloud,
    types: offered_devices.VgpuTypes,
) -> offered_devices.ProfileTerms | None:
    """Return the terms of a profile that a device supports, or None.

    :raises NotOfferedError: several profiles match.
    """
    matches: dict[frozenset[str], offered_devices.ProfileTerms] = {}
    for device in cloud.devices:
        for terms, _ in offered_devices.list_terms(device, types):
            if _matches(query.profile, terms):
                matches[terms.required] = terms
    if len(matches) > 1:
        traits = ", ".join(min(required) for required in matches)
        raise NotOfferedError(
            f"{query.profile} names several profiles; write one of {traits}"
        )
    return next(iter(matches.values()), None)


def _matches(profile: str, terms: offered_devices.ProfileTerms) -> bool:
    return mdev_names.is_profile_name(profile, terms.name) or any(
        _is_fpga_id(profile, trait) for trait in terms.required
    )


def _is_fpga_id(profile: str, trait: str) -> bool:
    """Return whether a text is the id in a function's or interface's trait."""
    if not trait.startswith((names.FUNCTION_PREFIX, names.INTERFACE_PREFIX)):
        return False
    return profile.strip().upper() == trait or (
        _slug(names.normalize_fpga_id(profile))
        == mdev_names.strip_trait_prefix(trait)
    )


def _find_in_catalog(
    profile: str, types: offered_devices.VgpuTypes
) -> offered_devices.ProfileTerms | None:
    for vgpu_type in types.by_trait.values():
        if mdev_names.is_profile_name(profile, vgpu_type.name):
            return types.terms(vgpu_type)
    return None


def _parse_trait(profile: str) -> offered_devices.ProfileTerms | None:
    """Return the terms that a profile's trait alone gives, or None."""
    trait = profile.strip().upper()
    for head, resource_class in _CLASS_BY_PREFIX.items():
        if trait.startswith(head):
            guessed = (
                offered_devices.guess_charges(trait) if "GPU_" in head else {}
            )
            return offered_devices.ProfileTerms(
                name=trait,
                kind="",
                charges={resource_class: 1, **guessed},
                required=frozenset({trait}),
            )
    return None


def _slug(text: str) -> str:
    return names.custom_name(text).removeprefix(names.CUSTOM)


def _explain_unknown(
    profile: str,
    cloud: offered_devices.Cloud,
    types: offered_devices.VgpuTypes,
) -> str:
    """Return why a name is unknown, with the most similar names."""
    offered = {
        terms.name: None
        for device in cloud.devices
        for terms, _ in offered_devices.list_terms(device, types)
    }
    profiles = {**offered, **{t.name: None for t in types.by_trait.values()}}
    slugs = {_slug(name): name for name in reversed(profiles)}
    slug = _slug(mdev_names.strip_brand(profile))
    near = difflib.get_close_matches(slug, slugs, n=_NEAREST, cutoff=0.5)
    hint = f"; similar: {', '.join(slugs[n] for n in near)}" if near else ""
    if _TYPE_ID.fullmatch(profile.strip()):
        hint = (
            "; it is the id of an mdev type, which changes with the host"
            " driver: name the type, as `nova-accel inspect` prints it"
        )
    return (
        f"no host and no catalog has a profile {profile!r}{hint}; see"
        " `openstack accel profile list`"
    )


def describe_group(
    group: flavors.RequestGroup, types: offered_devices.VgpuTypes
) -> str:
    """Return the profile or device of a request group, for messages."""
    for trait in sorted(group.required):
        vgpu_type = types.find(trait)
        if vgpu_type is not None:
            return vgpu_type.name
        if trait.startswith(names.FUNCTION_PREFIX):
            return f"FPGA function {mdev_names.name_from_trait(trait).lower()}"
        if trait == names.REGION_TRAIT:
            return "FPGA region"
        if trait.startswith(names.PROFILE_PREFIXES):
            return mdev_names.name_from_trait(trait)
        if trait.startswith(names.DEVICE_PREFIX):
            is_vf = any(n.endswith("_VF") for n in group.resources)
            return mdev_names.device_name_from_trait(trait, is_vf)
    own = sorted(group.resources.keys() - names.MEASURES)
    model = [
        offered_devices.model_name(t)
        for t in sorted(group.required)
        if t.startswith(names.MODEL_PREFIX)
    ]
    return " ".join((", ".join(own), *(f"of a {m}" for m in model)))
