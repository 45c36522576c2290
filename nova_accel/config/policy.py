# SPDX-License-Identifier: Apache-2.0
"""Rules of the operator for devices: parsed ``device_spec`` lines.

The first line that matches a device is its rule.
"""

import dataclasses
import enum
import fnmatch
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from nova_accel import model
from nova_accel.catalog import mdev_names
from nova_accel.config import remedy
from nova_accel.config.lines import device_spec

OPTION = device_spec.OPTION
SERIES_OPTION = "[nova_accel] licensed_series"
EQUAL, MIXED = "equal", "mixed"
# Technologies that make a card's vGPUs on its VFs: the VFs are no devices.
_VGPU_TECHNOLOGIES = ("mdev", "vendor-vfio")
STATIC, DYNAMIC = "static", "dynamic"
RESET, NONE = "reset", "none"


class DeviceUse(enum.Enum):
    """Use of a device.

    VGPU: time-sliced vGPUs, by mdev or by NVIDIA's vendor-specific VFIO.
    MIG: vGPUs backed by GPU instances. VF: whole virtual functions. MDEV:
    mdevs of other drivers. FPGA: reconfigurable regions. AUTO: the use that
    needs no change of the device's mode.
    """

    AUTO = "auto"
    VGPU = "vgpu"
    MIG = "mig"
    VF = "vf"
    MDEV = "mdev"
    FPGA = "fpga"
    PASSTHROUGH = "passthrough"
    OFF = "off"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One device_spec line.

    ``address`` is a shell-style glob over the device's address or sysfs
    name; ids are four hex digits, or ``*``. ``max_slots`` limits the number
    of offered partitions, None for no limit.

    ``profiles`` are globs over names of offered profiles, ``max_instances``
    limits the number of partitions by profile name. ``is_mixed`` selects
    mixed or equal sizes, None for the present mode; ``num_vfs`` is the
    number of VFs, None for the present number. ``is_dynamic`` creates and
    destroys GPU instances for claims. ``vgpu_params`` are set on each vGPU.
    ``services`` are those of QAT devices, empty for the present ones.
    ``blank`` is the path of the bitstream that is loaded into FPGA regions
    after each server, empty to keep their function. ``scrub`` is RESET or
    NONE, empty to reset the functions that no driver of the host uses;
    ``scrub_command`` is run after that, empty for none. ``series`` are
    those of NVIDIA's vGPUs that the operator has licences for, empty for
    all. ``line`` is the text.
    """

    address: str = "*"
    vendor_id: str = "*"
    product_id: str = "*"
    use: DeviceUse = DeviceUse.AUTO
    max_slots: int | None = None
    profiles: tuple[str, ...] = ("*",)
    max_instances: Mapping[str, int] = dataclasses.field(default_factory=dict)
    is_mixed: bool | None = None
    num_vfs: int | None = None
    is_dynamic: bool = False
    vgpu_params: str = ""
    services: str = ""
    blank: str = ""
    scrub: str = ""
    scrub_command: str = ""
    series: frozenset[str] = frozenset()
    line: str = ""

    def offers(self, profile: str) -> bool:
        return self.selects(profile) and is_licensed(profile, self.series)

    def selects(self, profile: str) -> bool:
        """Return whether the line names a profile, licensed or not."""
        for pattern in self.profiles:
            if fnmatch.fnmatchcase(profile, pattern):
                return True
        return False

    def explain_unoffered(self, profile: str) -> str:
        """Return why a profile is not offered, empty if it is."""
        if not self.selects(profile):
            return f"the profiles of {OPTION} leave out {profile}"
        if not is_licensed(profile, self.series):
            return explain_license(profile, self.series)
        return ""

    @property
    def is_specific(self) -> bool:
        """Return whether the line names devices by address or ids."""
        return (self.address, self.vendor_id, self.product_id) != ("*",) * 3

    @property
    def is_offered_unreset(self) -> bool:
        """Return whether the line offers devices that nothing can reset.

        Only a line does that names them by address or ids.
        """
        return self.scrub == NONE and self.is_specific

    def matches(self, address: str, vendor_id: str, product_id: str) -> bool:
        """Return whether the line applies to a device, by its identity."""
        return (
            fnmatch.fnmatchcase(address, self.address)
            and self.vendor_id in ("*", vendor_id)
            and self.product_id in ("*", product_id)
        )

    def amend(self, address: str, **changes: str | int) -> remedy.SpecLine:
        """Return the line of one device that changes some keys of this one.

        It has all others that the operator has written, if they have an
        effect for its use. It has to precede this one.
        """
        written = device_spec.parse_fields(self.line) if self.line else {}
        fields = {**written, **changes}
        use = str(fields.get("use") or self.use.value)
        applicable = {
            key: value
            for key, value in fields.items()
            if key not in device_spec.IDENTITY
            and value is not None
            and (key in changes or device_spec.has_effect(key, use))
        }
        return remedy.SpecLine.build({"address": address, **applicable})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRules:
    """The device_spec lines, in the operator's order.

    ``default`` is the rule of devices that no line matches. ``assigned``
    are the functions that servers have: they stay offered even if nothing
    can reset them.
    """

    rules: tuple[Rule, ...] = ()
    default: Rule = Rule()
    assigned: frozenset[str] = frozenset()

    def rule(
        self, address: str, vendor_id: str = "", product_id: str = ""
    ) -> Rule:
        """Return the first line that matches, or the default."""
        return next(
            (
                rule
                for rule in self.rules
                if rule.matches(address, vendor_id, product_id)
            ),
            self.default,
        )

    def of(self, device: model.Device) -> Rule:
        """Return the rule of a device; a part has the rule of its card."""
        return self.rule(*_identify(device))


def is_licensed(profile: str, series: Collection[str]) -> bool:
    """Return whether the licences of some series serve a profile.

    :param series: letters of NVIDIA's series, empty for no restriction.
        Profiles without a series need no licence.
    """
    own = mdev_names.parse_series(profile)
    return not (own and series) or own in series


def explain_license(profile: str, series: Collection[str]) -> str:
    """Return that a profile needs a licence that the operator lacks."""
    return (
        f"{profile} needs a licence of series"
        f" {mdev_names.parse_series(profile)}, and {SERIES_OPTION} ="
        f" {','.join(sorted(series))}"
    )


def parse_rules(
    lines: Iterable[str], default: Rule | None = None
) -> DeviceRules:
    """Return the rules of device_spec lines.

    :param lines: one JSON object each, as ``{"address": "0000:41:*",
        "use": "off"}``.
    :param default: values of missing keys, and the rule of devices that no
        line matches.
    :raises ConfigurationError: a line is not valid.
    """
    default = default or Rule()
    return DeviceRules(
        rules=tuple(_parse_rule(line, default) for line in lines),
        default=default,
    )


def _parse_rule(line: str, default: Rule) -> Rule:
    fields = device_spec.parse_fields(line)
    use = DeviceUse(
        device_spec.parse_choice(
            line, fields, "use", tuple(u.value for u in DeviceUse)
        )
        or default.use
    )
    device_spec.check_use(line, fields, use.value)
    sizes = device_spec.parse_choice(line, fields, "sizes", (EQUAL, MIXED))
    mode = device_spec.parse_choice(
        line, fields, "mig_instances", (STATIC, DYNAMIC)
    )
    rule = Rule(
        address=device_spec.parse_address(line, fields),
        vendor_id=device_spec.parse_hex_id(line, fields, "vendor_id"),
        product_id=device_spec.parse_hex_id(line, fields, "product_id"),
        use=use,
        max_slots=device_spec.parse_number(line, fields, "max_slots", 1),
        profiles=device_spec.parse_globs(line, fields, "profiles"),
        max_instances=device_spec.parse_limits(line, fields, "max_instances"),
        is_mixed=default.is_mixed if sizes is None else sizes == MIXED,
        num_vfs=device_spec.parse_number(line, fields, "num_vfs", 0),
        is_dynamic=default.is_dynamic if mode is None else mode == DYNAMIC,
        vgpu_params=device_spec.parse_params(line, fields, "vgpu_params"),
        services=device_spec.parse_services(line, fields, "services"),
        blank=device_spec.parse_path(line, fields, "blank"),
        scrub=device_spec.parse_choice(line, fields, "scrub", (RESET, NONE))
        or "",
        scrub_command=device_spec.parse_command(line, fields, "scrub_command"),
        series=default.series,
        line=line,
    )
    _check_limits(rule)
    return rule


def _check_limits(rule: Rule) -> None:
    for name in rule.max_instances:
        if not {"*", "?", "["}.isdisjoint(name):
            raise device_spec.refusal(
                rule.line,
                f"max_instances counts one profile by its name; {name} is a"
                " glob",
            )
        if not rule.selects(name):
            raise device_spec.refusal(
                rule.line,
                f"max_instances limits {name}, which profiles leaves out;"
                " add it to profiles",
            )


def check_lines(
    rules: DeviceRules,
    present: Iterable[tuple[str, str, str]],
    devices: Collection[model.Device],
    addresses_with_problems: Collection[str] = (),
) -> tuple[model.Problem, ...]:
    """Return the lines, or the parts of lines, without effect.

    :param present: address, vendor id and product id of all functions and
        mdev parents of the host.
    :param devices: the devices of the host.
    :param addresses_with_problems: their lines are not reported: another
        problem is the cause.
    """
    identities = {*present, *map(_identify, devices)}
    return (
        *_find_ineffective(
            rules, identities, devices, addresses_with_problems
        ),
        *(
            _report_unused(line, any(line.matches(*i) for i in identities))
            for line in rules.rules
            if not any(rules.rule(*i) is line for i in identities)
        ),
        *(
            _report_no_profile(rules.of(device), device)
            for device in devices
            if device.profiles
            and not any(
                rules.of(device).offers(profile.name)
                for profile in device.profiles
            )
        ),
    )


def _find_ineffective(
    rules: DeviceRules,
    identities: Collection[tuple[str, str, str]],
    devices: Collection[model.Device],
    addresses_with_problems: Collection[str],
) -> Iterator[model.Problem]:
    """Yield the lines that match functions, but change no device."""
    owners = {
        part: device
        for device in devices
        for part in (*device.slots, *device.members, device.address)
    }
    for line in rules.rules:
        matched = sorted(
            identity[0]
            for identity in identities
            if rules.rule(*identity) is line
        )
        if not matched:
            continue
        matched_devices = {
            owners[address].address for address in matched if address in owners
        }
        reason = ""
        if not matched_devices and not {*addresses_with_problems}.intersection(
            matched
        ):
            reason = _explain_unusable(line, matched)
        elif len(matched_devices) == 1 and owners.keys() >= {*matched}:
            reason = _explain_partial(owners[matched[0]], matched)
        if reason:
            yield model.Problem(where=f"{OPTION} = {line.line}", reason=reason)


def _explain_unusable(line: Rule, matched: Sequence[str]) -> str:
    """Return the problem of a line whose use no matched function has."""
    if line.use in (DeviceUse.AUTO, DeviceUse.OFF) or line.num_vfs == 0:
        return ""
    others = f" and {len(matched) - 1} more" if len(matched) > 1 else ""
    return (
        f"gives nothing: what it speaks of ({matched[0]}{others}) can't be"
        f" used as {line.use.value}; name another use, or other devices"
    )


def _explain_partial(device: model.Device, matched: Sequence[str]) -> str:
    """Return the problem of a line that only matches VFs of a card."""
    if (
        device.technology not in _VGPU_TECHNOLOGIES
        or device.address in matched
    ):
        return ""
    return (
        f"changes nothing: it speaks of virtual functions of {device.address}"
        f" only, and a card counts as a whole; name {device.address}"
    )


def _identify(device: model.Device) -> tuple[str, str, str]:
    address = device.parent or device.address
    return address, device.vendor_id, device.product_id


def _report_unused(line: Rule, is_shadowed: bool) -> model.Problem:
    reason = (
        "is never used: earlier lines speak of all that it matches; move it"
        " up, or narrow those"
        if is_shadowed
        else "matches nothing on this host; check its address and ids"
    )
    return model.Problem(where=f"{OPTION} = {line.line}", reason=reason)


def _report_no_profile(line: Rule, device: model.Device) -> model.Problem:
    names = ", ".join(profile.name for profile in device.profiles)
    reason = (
        "offers nothing: none of its profiles matches the profiles"
        f" of {OPTION} = {line.line}; it has {names}"
    )
    if any(line.selects(profile.name) for profile in device.profiles):
        reason = (
            f"offers nothing: {SERIES_OPTION} ="
            f" {','.join(sorted(line.series))} has no licence for its"
            f" profiles; it has {names}"
        )
    return model.Problem.of_device(device.address, reason)
