# SPDX-License-Identifier: Apache-2.0
"""Driver of Intel QAT: VFs for cryptography and compression.

The PF's driver enables all VFs or none, whatever number is requested. All
VFs provide the services that are configured on the PF.
"""

from collections.abc import Iterable, Iterator, Mapping

from nova_accel import errors, model
from nova_accel.catalog import pci_ids
from nova_accel.config import policy, remedy
from nova_accel.host.sysfs import attributes, host_reader
from nova_accel.model import actions, names, pci
from nova_accel.vendors.common import driver_base, host_use, vf_card

# Trait suffixes by the words of qat/cfg_services; "dcc" is "dc" with hash
# then compress (ABI/testing/sysfs-driver-qat).
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


class QatDriver(driver_base.VfDriver):
    """Describes Intel QAT devices, and plans their VFs and services."""

    name = "qat"
    has_sriov = True

    def is_supported(self, function: pci.PciFunction) -> bool:
        return pci_ids.find_qat(function) is not None

    def has_supported_pf(self, vf: pci.PciFunction) -> bool:
        return pci_ids.is_qat(vf)

    def check_vf_count(
        self,
        function: pci.PciFunction,
        rule: policy.Rule,
        host: host_reader.HostReader,
    ) -> str:
        total, present = function.total_vfs, function.num_vfs
        driver = _find_family(function).driver
        if present and rule.num_vfs == 0:
            return vf_card.explain_count_mismatch(function, 0, host)
        is_asked = rule.num_vfs or (
            rule.num_vfs is None and rule.use is policy.DeviceUse.VF
        )
        if present or not is_asked:
            return ""
        if reason := _explain_denylist(function, host):
            return reason
        if function.driver != driver:
            return vf_card.explain_wrong_driver(function, rule, driver)
        if rule.num_vfs:
            return vf_card.explain_count_mismatch(
                function, min(rule.num_vfs, total), host
            )
        return vf_card.explain_none_enabled(function, rule)

    def check_mode(
        self,
        function: pci.PciFunction,
        rule: policy.Rule,
        host: host_reader.HostReader,
    ) -> Iterable[str]:
        return (
            *super().check_mode(function, rule, host),
            _check_services(function, rule, host),
        )

    def list_drivers(self, function: pci.PciFunction) -> tuple[str, ...]:
        return (_find_family(function).driver,)

    def build_card(
        self, function: pci.PciFunction, host: host_reader.HostReader
    ) -> tuple[vf_card.VfCard, Iterable[model.Problem]]:
        family = _find_family(function)
        traits, reasons = read_services(function, host)
        state, reason = _read_attribute(function, host, _STATE)
        reasons += [reason, _check_fatal_errors(function, host)]
        fault = ""
        if state not in ("", "up"):
            step = remedy.WriteAttribute(
                function=str(function.address), name=_STATE, value="up"
            )
            fault = (
                f"its state is {state[:40]!r}; {step}, and see the kernel's"
                " log if it stays so"
            )
            reasons.append(f"its virtual functions can't be used: {fault}")
        name = f"QAT {family.name}"
        card = vf_card.VfCard(
            function=function,
            plugin=self.name,
            drivers=(),
            quotas=_find_denied_vfs(function, host),
            traits=traits | {names.model_trait(function.vendor, name)},
            resource_class=names.QAT_VF_CLASS,
            trait_prefix="ACCELERATOR_VF",
            model=name,
            fault=fault,
        )
        return card, [
            model.Problem.of_device(function.address, reason)
            for reason in filter(None, reasons)
        ]

    def plan_card(
        self,
        function: pci.PciFunction,
        rule: policy.Rule,
        host: host_reader.HostReader,
    ) -> Iterable[actions.Action]:
        """Return the changes of services and VFs that policy asks for.

        Services can change only while no VFs are enabled: unused VFs are
        removed before, and enabled again afterwards.
        """
        if vf_card.find_used_vf(function, host):
            return ()
        if not function.num_vfs and _explain_denylist(function, host):
            return ()
        return _plan_mode(function, rule, host)


def _plan_mode(
    function: pci.PciFunction, rule: policy.Rule, host: host_reader.HostReader
) -> Iterator[actions.Action]:
    present, requested = function.num_vfs, _requested_vfs(function, rule)
    services = _plan_services(function, rule, host)
    if services is not None:
        if present:
            yield _build_set_count(function, 0, present)
        yield services
        if requested:
            yield _build_set_count(function, requested, 0)
    elif bool(requested) != bool(present):
        yield _build_set_count(function, requested, present)


def _requested_vfs(function: pci.PciFunction, rule: policy.Rule) -> int:
    """Return the number of VFs to write; the driver enables all or none."""
    if rule.num_vfs is None:
        return function.num_vfs
    return min(rule.num_vfs, function.total_vfs)


def _build_set_count(
    function: pci.PciFunction, count: int, before: int
) -> actions.SetVfCount:
    return actions.SetVfCount(
        function=str(function.address),
        count=count,
        before=before,
        is_probed=False,
    )


def _plan_services(
    function: pci.PciFunction, rule: policy.Rule, host: host_reader.HostReader
) -> actions.SetServices | None:
    """Return the action that sets the services of a rule, or None."""
    if not rule.services or _find_family(function).services:
        return None
    try:
        before = host.attribute(str(function.address), _CFG_SERVICES).strip()
    except errors.UnreadableError:
        return None  # describe reports it
    if _parse_services(before) == _parse_services(rule.services):
        return None
    return actions.SetServices(
        function=str(function.address),
        services=rule.services,
        before=before,
    )


def _find_family(function: pci.PciFunction) -> pci_ids.QatFamily:
    return pci_ids.QAT[function.product]


def _read_attribute(
    function: pci.PciFunction, host: host_reader.HostReader, name: str
) -> tuple[str, str]:
    """Return a file's text and, if it can't be read, the reason.

    Both are empty for the older families, which have no such files.
    """
    if _find_family(function).services:
        return "", ""
    try:
        return host.attribute(str(function.address), name).strip(), ""
    except errors.UnreadableError as error:
        return "", f"{name} can't be read: {error}"


def _parse_services(text: str) -> frozenset[str]:
    return frozenset(filter(None, (w.strip() for w in text.split(";"))))


def read_services(
    function: pci.PciFunction, host: host_reader.HostReader
) -> tuple[frozenset[str], list[str]]:
    """Return the traits of the VFs' services, and reasons of problems."""
    text, reason = _read_attribute(function, host, _CFG_SERVICES)
    words = _parse_services(text) | {*_find_family(function).services}
    unsupported = sorted(words - _SERVICES.keys())
    if unsupported:
        reason = (
            f"{_CFG_SERVICES} has {', '.join(unsupported)[:40]!r}, which is"
            " not known here: flavors can't ask for that"
        )
    traits = frozenset(
        names.custom_name("QAT", service)
        for word in words
        for service in _SERVICES.get(word, ())
    )
    return traits, [reason]


def _check_services(
    function: pci.PciFunction, rule: policy.Rule, host: host_reader.HostReader
) -> str:
    """Return why the services differ from those of a rule, or ""."""
    family = _find_family(function)
    if rule.services and family.services:
        return (
            f"device_spec asks for the services {rule.services}; a"
            f" {family.name} always gives {';'.join(family.services)}"
        )
    change = _plan_services(function, rule, host)
    if change is None:
        return ""
    return (
        f"device_spec asks for the services {change.services}, and it gives"
        f" {change.before or 'none'}; that is changed"
        f" {vf_card.describe_count_change(function, host)}"
    )


def _check_fatal_errors(
    function: pci.PciFunction, host: host_reader.HostReader
) -> str:
    """Return that the device counted fatal errors, or ""."""
    try:
        text = host.attribute(str(function.address), _FATAL).strip()
    except errors.UnreadableError:
        return ""  # Linux before 6.7 does not count them
    if not attributes.parse_number(text):
        return ""
    step = remedy.WriteAttribute(
        function=str(function.address),
        name="qat_ras/reset_error_counters",
        value="1",
    )
    return (
        f"it has had {text[:20]} fatal errors; see the kernel's log, and once"
        f" they are repaired {step}"
    )


def _explain_denylist(
    function: pci.PciFunction, host: host_reader.HostReader
) -> str:
    """Return that vfio-pci would refuse the VFs of a PF without VFs."""
    ids = f"{function.vendor}:{_find_family(function).vf}"
    reason = host_use.check_denied_ids(ids, host)
    return f"its virtual functions can't be used: {reason}" if reason else ""


def _find_denied_vfs(
    function: pci.PciFunction, host: host_reader.HostReader
) -> dict[pci.PciAddress, vf_card.VfQuota]:
    """Return quotas with the reason for VFs that vfio-pci would refuse."""
    quotas = {}
    for address in function.virtual_functions:
        vf = host.function(str(address))
        reason = host_use.check_denylist(vf, host) if vf else ""
        if reason:
            quotas[address] = vf_card.VfQuota(reason=reason)
    return quotas
