# SPDX-License-Identifier: Apache-2.0
"""Driver of Intel QAT: VFs for cryptography and compression.

The PF's driver makes all VFs or none, whatever number it is asked for, and
all of them give the services that the PF is set to.
"""

from collections.abc import Iterator, Mapping, Sequence

from nova_accel import errors, model
from nova_accel.catalog import pci_ids
from nova_accel.config import policy
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions, names, pci
from nova_accel.vendors.common import host_use, iommu_group, vf_card, vf_count

# Words of qat/cfg_services by what they stand for; "dcc" is "dc" that can
# hash what it then compresses (ABI/testing/sysfs-driver-qat).
_SERVICES: Mapping[str, tuple[str, ...]] = {
    "sym": ("SYM",),
    "asym": ("ASYM",),
    "dc": ("DC",),
    "dcc": ("DC", "DCC"),
    "decomp": ("DECOMP",),
}
_CFG_SERVICES = "qat/cfg_services"
_STATE = "qat/state"
_FATAL = "qat_ras/errors_fatal"


class QatDriver:
    """Describes Intel's QAT devices, and plans their VFs and services."""

    name = "qat"

    def describe(
        self,
        host: host_reader.HostReader,
        rules: policy.Policy,
        taken: frozenset[str],
    ) -> Iterator[model.Device | model.Problem]:
        """Yield one device for each PF with VFs that can be used.

        :raises UnreadableError: the PCI bus can't be listed.
        """
        for function, rule in vf_card.wanted(host, rules, _is_pf):
            if str(function.address) in taken:
                continue
            driver = _family(function).driver
            for reason in (
                _count_reason(function, rule, host),
                _services_reason(function, rule, host),
            ):
                if reason:
                    yield _problem(function, reason)
            if not function.num_vfs:
                continue
            if function.driver not in (driver, iommu_group.UNKNOWN):
                yield _problem(
                    function,
                    "its virtual functions are not offered: they need the"
                    f" driver {driver} on it, and it is bound to"
                    f" {function.driver or 'no driver'}",
                )
                continue
            card, problems = _card(self.name, function, host)
            yield from problems
            yield from vf_card.describe(card, host, rules)
        yield from vf_card.orphans(host, pci_ids.is_qat)

    def plan_prepare(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return no action: a VF is there, and libvirt detaches it."""
        return ()

    def plan_release(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return no action: libvirt gives the VF back."""
        return ()

    def plan_arrange(
        self, host: host_reader.HostReader, rules: policy.Policy
    ) -> Sequence[actions.Action]:
        """Return the changes of services and VFs that policy asks for.

        Services change only while there are no VFs: these go first, if
        nothing uses any, and come back afterwards.

        :raises UnreadableError: the PCI bus can't be listed.
        """
        return tuple(
            action
            for function, rule in vf_card.wanted(host, rules, _is_pf)
            if function.driver == _family(function).driver
            and not vf_count.used(function, host)
            for action in _arrange(function, rule, host)
        )


def _arrange(
    function: pci.PciFunction, rule: policy.Rule, host: host_reader.HostReader
) -> Iterator[actions.Action]:
    present, wanted = function.num_vfs, _wanted_vfs(function, rule)
    services = _new_services(function, rule, host)
    if services is not None:
        if present:
            yield _set_count(function, 0, present)
        yield services
        if wanted:
            yield _set_count(function, wanted, 0)
    elif bool(wanted) != bool(present):
        yield _set_count(function, wanted, present)


def _wanted_vfs(function: pci.PciFunction, rule: policy.Rule) -> int:
    """Return how many VFs to ask for: the driver makes all it can."""
    if rule.num_vfs is None:
        return function.num_vfs
    return min(rule.num_vfs, function.total_vfs)


def _set_count(
    function: pci.PciFunction, count: int, before: int
) -> actions.SetVfCount:
    return actions.SetVfCount(
        function=str(function.address),
        count=count,
        before=before,
        is_probed=False,
    )


def _new_services(
    function: pci.PciFunction, rule: policy.Rule, host: host_reader.HostReader
) -> actions.SetServices | None:
    """Return the change of services that a rule asks for, if it is one."""
    if not rule.services or _family(function).services:
        return None
    try:
        before = host.attribute(str(function.address), _CFG_SERVICES).strip()
    except errors.UnreadableError:
        return None  # its description has told
    if _words(before) == _words(rule.services):
        return None
    return actions.SetServices(
        function=str(function.address),
        services=rule.services,
        before=before,
    )


def _is_pf(function: pci.PciFunction) -> bool:
    return pci_ids.find_qat(function) is not None


def _family(function: pci.PciFunction) -> pci_ids.QatFamily:
    return pci_ids.QAT[function.product]


def _problem(function: pci.PciFunction, reason: str) -> model.Problem:
    return model.Problem(where=str(function.address), reason=reason)


def _count_reason(
    function: pci.PciFunction, rule: policy.Rule, host: host_reader.HostReader
) -> str:
    """Return what is wrong with the VFs, empty if nothing is."""
    total, present = function.total_vfs, function.num_vfs
    driver = _family(function).driver
    if not total and not present:
        return vf_card.none_to_enable(rule)
    if present and rule.num_vfs == 0:
        return vf_count.unmet(function, 0, host)
    is_asked = rule.num_vfs or (
        rule.num_vfs is None and rule.use is policy.DeviceUse.VF
    )
    if present or not is_asked:
        return ""
    if function.driver != driver:
        return (
            f"none of its {total} virtual functions is enabled, and"
            f" {function.driver or 'no driver'} can't do that; bind it to"
            f" {driver}"
        )
    if rule.num_vfs:
        return vf_count.unmet(function, min(rule.num_vfs, total), host)
    return (
        f"none of its {total} virtual functions is enabled; set num_vfs in"
        " a device_spec line for it, or write a number to its sriov_numvfs"
    )


def _card(
    plugin: str,
    function: pci.PciFunction,
    host: host_reader.HostReader,
) -> tuple[vf_card.VfCard, list[model.Problem]]:
    """Return a PF with VFs as it is to be described, and what is wrong."""
    family = _family(function)
    traits, reasons = _services(function, host)
    state, reason = _read(function, host, _STATE)
    is_down = state not in ("", "up")
    reasons += [reason, _fatal_reason(function, host)]
    fault = (
        f"its state is {state[:40]!r}; write up to its {_STATE}, and see the"
        " kernel's log if it stays so"
        if is_down
        else ""
    )
    if fault:
        reasons.append(f"its virtual functions can't be used: {fault}")
    name = f"QAT {family.name}"
    card = vf_card.VfCard(
        function=function,
        plugin=plugin,
        drivers=(),
        quotas=_refused(function, host),
        traits=traits | {names.model_trait(function.vendor, name)},
        resource_class=names.QAT_VF_CLASS,
        stem="ACCELERATOR_VF",
        model=name,
        fault=fault,
    )
    return card, [_problem(function, one) for one in reasons if one]


def _read(
    function: pci.PciFunction, host: host_reader.HostReader, name: str
) -> tuple[str, str]:
    """Return a file's text, and why it can't be read.

    The older families have no such files.
    """
    if _family(function).services:
        return "", ""
    try:
        return host.attribute(str(function.address), name).strip(), ""
    except errors.UnreadableError as error:
        return "", f"{name} can't be read: {error}"


def _words(text: str) -> frozenset[str]:
    return frozenset(filter(None, (w.strip() for w in text.split(";"))))


def _services(
    function: pci.PciFunction, host: host_reader.HostReader
) -> tuple[frozenset[str], list[str]]:
    """Return the traits of what the VFs give, and what is wrong."""
    text, reason = _read(function, host, _CFG_SERVICES)
    words = _words(text) | {*_family(function).services}
    unknown = sorted(words - _SERVICES.keys())
    if unknown:
        reason = (
            f"{_CFG_SERVICES} has {', '.join(unknown)[:40]!r}, which is not"
            " known here: flavors can't ask for that"
        )
    traits = frozenset(
        names.custom("QAT", service)
        for word in words
        for service in _SERVICES.get(word, ())
    )
    return traits, [reason]


def _services_reason(
    function: pci.PciFunction, rule: policy.Rule, host: host_reader.HostReader
) -> str:
    """Return why the VFs don't give what a rule asks for."""
    family = _family(function)
    if rule.services and family.services:
        return (
            f"device_spec asks for the services {rule.services}; a"
            f" {family.name} always gives {';'.join(family.services)}"
        )
    change = _new_services(function, rule, host)
    if change is None:
        return ""
    return (
        f"device_spec asks for the services {change.services}, and it gives"
        f" {change.before or 'none'}; that is changed"
        f" {vf_count.when(function, host)}"
    )


def _fatal_reason(
    function: pci.PciFunction, host: host_reader.HostReader
) -> str:
    """Return that the device has had errors that can't be corrected."""
    try:
        text = host.attribute(str(function.address), _FATAL).strip()
    except errors.UnreadableError:
        return ""  # kernels before 6.7 don't count them
    if not text.isdecimal() or not int(text):
        return ""
    return (
        f"it has had {text[:20]} fatal errors; see the kernel's log, and"
        " write 1 to its qat_ras/reset_error_counters once they are mended"
    )


def _refused(
    function: pci.PciFunction, host: host_reader.HostReader
) -> dict[pci.PciAddress, vf_card.VfQuota]:
    """Return the VFs that vfio-pci would not take, with the reason."""
    found = {}
    for address in function.virtual_functions:
        child = host.function(str(address))
        reason = host_use.denial(child, host) if child else ""
        if reason:
            found[address] = vf_card.VfQuota(reason=reason)
    return found
