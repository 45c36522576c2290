# SPDX-License-Identifier: Apache-2.0
"""Parsed ``device_spec`` lines, and which of them applies to a device."""

import dataclasses
import enum
import fnmatch
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from nova_accel import model
from nova_accel.config import device_spec

OPTION = device_spec.OPTION
EQUAL, MIXED = "equal", "mixed"
# Technologies whose VFs are where a card's vGPUs are made, and no more.
_CUT = ("mdev", "vendor-vfio")
STATIC, DYNAMIC = "static", "dynamic"
RESET, NONE = "reset", "none"


class DeviceUse(enum.Enum):
    """What a device is used for.

    VGPU: time-sliced vGPUs, by mdev or by NVIDIA's vendor-specific VFIO.
    MIG: vGPUs backed by GPU instances. VF: virtual functions as they are.
    MDEV: the mdevs of whatever else makes them. FPGA: regions whose
    function can change. AUTO: what the device can do now without a change
    of its mode.
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
    """One device_spec line. The first line that matches a device counts.

    ``address`` is a shell-style glob over the device's address or sysfs
    name; ids are four hex digits, or ``*``. ``max_slots`` limits how many
    partitions are offered, None for as many as the hardware can make.

    ``profiles`` are globs over profile names of which one must match,
    ``max_instances`` limits by profile name how many there may be at once.
    ``is_mixed`` asks for mixed or equal sizes, None for what the card does
    now; ``num_vfs`` for so many VFs, None for as many as there are.
    ``is_dynamic`` lets GPU instances be made and unmade for claims.
    ``vgpu_params`` are written to each vGPU. ``services`` are what QAT
    devices are to give, empty for what they give now. ``blank`` is the
    path of the bitstream that is loaded into FPGA regions after each
    server, empty to keep what is there. ``scrub`` tells whether functions
    are reset after each server, empty for those of which that disturbs no
    driver of the host, ``scrub_command`` what is run after that, empty for
    nothing. ``line`` is the text.
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
    line: str = ""

    def offers(self, profile: str) -> bool:
        """Return whether a profile of that name is offered."""
        return any(fnmatch.fnmatchcase(profile, p) for p in self.profiles)

    @property
    def is_specific(self) -> bool:
        """Return whether the line names devices by address or ids."""
        return (self.address, self.vendor_id, self.product_id) != ("*",) * 3

    def matches(self, address: str, vendor_id: str, product_id: str) -> bool:
        """Return whether the line speaks of that device."""
        return (
            fnmatch.fnmatchcase(address, self.address)
            and self.vendor_id in ("*", vendor_id)
            and self.product_id in ("*", product_id)
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """All lines, in the operator's order.

    ``default`` is for the devices that no line speaks of.
    """

    rules: tuple[Rule, ...] = ()
    default: Rule = Rule()

    def rule(
        self, address: str, vendor_id: str = "", product_id: str = ""
    ) -> Rule:
        """Return the line for a device; the default when none matches."""
        return next(
            (
                rule
                for rule in self.rules
                if rule.matches(address, vendor_id, product_id)
            ),
            self.default,
        )

    def of(self, device: model.Device) -> Rule:
        """Return the line for a device; a part is as its whole."""
        return self.rule(*_identity(device))


def parse_policy(lines: Iterable[str], default: Rule | None = None) -> Policy:
    """Return the policy that device_spec lines describe.

    :param lines: one JSON object each, as ``{"address": "0000:41:*",
        "use": "off"}``.
    :param default: what counts where a line, or every line, is silent.
    :raises ConfigurationError: a line is no such object; the error names
        the line and the mend.
    """
    usual = default or Rule()
    return Policy(
        rules=tuple(_parse_rule(line, usual) for line in lines),
        default=usual,
    )


def _parse_rule(line: str, usual: Rule) -> Rule:
    fields = device_spec.parse_fields(line)
    use = DeviceUse(
        device_spec.choice(
            line, fields, "use", tuple(u.value for u in DeviceUse)
        )
        or usual.use
    )
    device_spec.check_use(line, fields, use.value)
    sizes = device_spec.choice(line, fields, "sizes", (EQUAL, MIXED))
    mode = device_spec.choice(line, fields, "mig_instances", (STATIC, DYNAMIC))
    rule = Rule(
        address=device_spec.address(line, fields),
        vendor_id=device_spec.hex_id(line, fields, "vendor_id"),
        product_id=device_spec.hex_id(line, fields, "product_id"),
        use=use,
        max_slots=device_spec.number(line, fields, "max_slots", 1),
        profiles=device_spec.globs(line, fields, "profiles"),
        max_instances=device_spec.limits(line, fields, "max_instances"),
        is_mixed=usual.is_mixed if sizes is None else sizes == MIXED,
        num_vfs=device_spec.number(line, fields, "num_vfs", 0),
        is_dynamic=usual.is_dynamic if mode is None else mode == DYNAMIC,
        vgpu_params=device_spec.params(line, fields, "vgpu_params"),
        services=device_spec.services(line, fields, "services"),
        blank=device_spec.path(line, fields, "blank"),
        scrub=device_spec.choice(line, fields, "scrub", (RESET, NONE)) or "",
        scrub_command=device_spec.command(line, fields, "scrub_command"),
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
        if not rule.offers(name):
            raise device_spec.refusal(
                rule.line,
                f"max_instances limits {name}, which profiles leaves out;"
                " keep it in one of them",
            )


def check_lines(
    rules: Policy,
    present: Iterable[tuple[str, str, str]],
    devices: Collection[model.Device],
    told: Collection[str] = (),
) -> tuple[model.Problem, ...]:
    """Return the lines, or the parts of lines, that fit nothing.

    :param present: address, vendor and product id of all that the host
        has, used or not.
    :param devices: what was made of it.
    :param told: addresses of which a problem is known.
    """
    found = {*present, *map(_identity, devices)}
    return (
        *_fruitless(rules, found, devices, told),
        *(
            _idle(line, any(line.matches(*one) for one in found))
            for line in rules.rules
            if not any(rules.rule(*one) is line for one in found)
        ),
        *(
            _unfit(rules.rule(*_identity(device)), device)
            for device in devices
            if device.profiles
            and not any(
                rules.rule(*_identity(device)).offers(profile.name)
                for profile in device.profiles
            )
        ),
    )


def _fruitless(
    rules: Policy,
    found: Collection[tuple[str, str, str]],
    devices: Collection[model.Device],
    told: Collection[str],
) -> Iterator[model.Problem]:
    """Yield the lines that speak of something, and change nothing."""
    owners = {
        part: device
        for device in devices
        for part in (*device.slots, *device.members, device.address)
    }
    for line in rules.rules:
        spoken = sorted(one[0] for one in found if rules.rule(*one) is line)
        if not spoken:
            continue
        holders = {owners[one].address for one in spoken if one in owners}
        reason = ""
        if not holders and not {*told}.intersection(spoken):
            reason = _useless(line, spoken)
        elif len(holders) == 1 and owners.keys() >= {*spoken}:
            reason = _partial(owners[spoken[0]], spoken)
        if reason:
            yield model.Problem(where=f"{OPTION} = {line.line}", reason=reason)


def _useless(line: Rule, spoken: Sequence[str]) -> str:
    """Return what to do about a line whose use nothing has."""
    if line.use in (DeviceUse.AUTO, DeviceUse.OFF) or line.num_vfs == 0:
        return ""
    more = f" and {len(spoken) - 1} more" if len(spoken) > 1 else ""
    return (
        f"gives nothing: what it speaks of ({spoken[0]}{more}) can't be used"
        f" as {line.use.value}; name another use, or other devices"
    )


def _partial(device: model.Device, spoken: Sequence[str]) -> str:
    """Return what to do about a line that speaks of a part of a card."""
    if device.technology not in _CUT or device.address in spoken:
        return ""
    return (
        f"changes nothing: it speaks of virtual functions of {device.address}"
        f" only, and a card counts as a whole; name {device.address}"
    )


def _identity(device: model.Device) -> tuple[str, str, str]:
    address = device.parent or device.address
    return address, device.vendor_id, device.product_id


def _idle(line: Rule, is_shadowed: bool) -> model.Problem:
    reason = (
        "is never used: earlier lines speak of all that it matches; move it"
        " up, or narrow those"
        if is_shadowed
        else "matches nothing on this host; check its address and ids"
    )
    return model.Problem(where=f"{OPTION} = {line.line}", reason=reason)


def _unfit(line: Rule, device: model.Device) -> model.Problem:
    has = ", ".join(profile.name for profile in device.profiles)
    return model.Problem(
        where=device.address,
        reason=f"offers nothing: none of its profiles matches the profiles"
        f" of {OPTION} = {line.line}; it has {has}",
    )
