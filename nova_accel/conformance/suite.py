# SPDX-License-Identifier: Apache-2.0
"""All checks of the conformance suite, run on one driver."""

import dataclasses
import os
import re
import tempfile
import types
from collections.abc import Iterator, Mapping

from nova_accel import errors
from nova_accel.cli import host_source
from nova_accel.config import policy
from nova_accel.conformance import (
    check_errors,
    check_hosts,
    check_plans,
    driver_calls,
)
from nova_accel.conformance.findings import Finding
from nova_accel.discovery import capture, plugin
from nova_accel.discovery.capture import RecordedFiles, list_records
from nova_accel.host import nvml_gpus
from nova_accel.host.sysfs import fs, host_reader
from nova_accel.inventory import tree_builder
from nova_accel.model import pci

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_ALL_OFF = policy.DeviceRules(default=policy.Rule(use=policy.DeviceUse.OFF))
_NO_GPUS: Mapping[str, nvml_gpus.NvmlGpu] = types.MappingProxyType({})


def check_driver(
    driver: object,
    source: fs.FileSource,
    *,
    name: str = "",
    gpus: Mapping[str, nvml_gpus.NvmlGpu] = _NO_GPUS,
    every: bool = False,
) -> tuple[Finding, ...]:
    """Return the rules that a driver breaks on a host, none if it passes.

    Writes nothing. The host is read once, and all checks use the recorded
    files, so a running host is as good as a directory. An exception of the
    driver is a finding, not an error.

    :param driver: an instance of the entry point's class.
    :param source: ``fs.DiskSource(root)``, or the files of an archive.
    :param name: the name of the entry point, if it has one.
    :param gpus: the state that NVML reports, by address.
    :param every: make every file that is read unreadable in turn, instead
        of two of each kind.
    """
    broken = tuple(_check_protocol(driver, name))
    if broken or not isinstance(driver, plugin.Driver):
        return broken
    reader = host_reader.HostReader(source=source, gpus=gpus)
    target = driver_calls.DriverUnderTest(
        driver=driver, source=source, gpus=gpus
    )
    baseline = _describe(target, reader)
    if baseline.error is not None:
        return (_build_raise_finding("describe", driver.name, baseline.error),)
    recorded = dataclasses.replace(
        target,
        source=RecordedFiles(list_records(reader.files)),
    )
    findings = (
        *_check_capture(recorded, reader, baseline),
        *_check_pure(recorded, baseline),
        *check_hosts.check_described(
            baseline.value, driver.name, _list_addresses(reader)
        ),
        *_check_cards(recorded),
        *_check_taken(recorded, baseline),
        *_check_policy(recorded, baseline),
        *_check_tree(recorded),
        *check_plans.check_claims(recorded),
        *check_plans.check_arrange(recorded),
        *check_errors.check(recorded, baseline, every),
    )
    return tuple(dict.fromkeys(findings))


def _check_protocol(driver: object, name: str) -> Iterator[Finding]:
    where = type(driver).__name__
    if not isinstance(driver, plugin.Driver):
        yield Finding(
            check="protocol",
            where=where,
            reason="has not all of name, describe, plan_prepare,"
            " plan_release and plan_arrange"
            " (nova_accel.discovery.plugin.Driver)",
        )
    elif not _NAME.fullmatch(str(driver.name)):
        yield Finding(
            check="protocol",
            where=where,
            reason=f"name is {driver.name!r}; write small letters, digits and"
            " _",
        )
    elif name and driver.name != name:
        yield Finding(
            check="protocol",
            where=where,
            reason=f"name is {driver.name!r}, its entry point's is {name!r};"
            " claims are released by the driver of their device's plugin,"
            " so write one name",
        )


def _describe(
    target: driver_calls.DriverUnderTest, reader: host_reader.HostReader
) -> driver_calls.CallResult:
    """Return the description, empty if the driver can't read the host."""
    result = target.describe(reader)
    if isinstance(result.error, errors.UnreadableError):
        return dataclasses.replace(result, error=None, value=())
    return result


def _build_raise_finding(check: str, where: str, error: Exception) -> Finding:
    return Finding(
        check=check, where=where, reason=f"raises {error!r}; it never may"
    )


def _check_capture(
    target: driver_calls.DriverUnderTest,
    reader: host_reader.HostReader,
    baseline: driver_calls.CallResult,
) -> Iterator[Finding]:
    """Check that a captured archive gives the same description."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "host.tar.gz")
        capture.save(reader, path, capture.describe_host(directory))
        again, _ = host_source.open_host(path)
    result = _describe(target, again)
    if result.value != baseline.value or result.error is not None:
        yield Finding(
            check="capture",
            where=target.driver.name,
            reason="describes something else of an archive of `nova-accel"
            " capture`; read through the HostReader only",
        )


def _check_pure(
    target: driver_calls.DriverUnderTest, baseline: driver_calls.CallResult
) -> Iterator[Finding]:
    result = _describe(target, target.reader())
    for effect in result.effects:
        yield Finding(
            check="effect",
            where=target.driver.name,
            reason=f"describe causes {effect}; a driver writes nothing, and"
            " reads through the HostReader only",
        )
    if result.value != baseline.value or result.error is not None:
        yield Finding(
            check="pure",
            where=target.driver.name,
            reason="describes one host in two ways when it is asked twice",
        )


def _check_cards(
    target: driver_calls.DriverUnderTest,
) -> Iterator[Finding]:
    """Check that a card is described by itself, and without the others."""
    reader = target.reader()
    for card in driver_calls.list_cards(reader):
        among = target.describe_card(card)
        devices = driver_calls.list_devices(among)
        names = frozenset(card.card_names)
        for device in devices:
            others = check_hosts.list_addresses(device) - names
            if functions := sorted(filter(pci.is_address, others)):
                yield Finding(
                    check="card",
                    where=device.address,
                    reason=f"has {functions[0]}, which is not of the card that"
                    " is described; describe functions of that card only",
                )
        if not devices:
            continue
        alone = target.describe_card(target.reader().card_of(min(names)))
        if alone.value != among.value or alone.error is not None:
            yield Finding(
                check="card",
                where=devices[0].address,
                reason="is described in another way if its card is the first"
                " one; a card is read again without the others",
            )


def _list_addresses(reader: host_reader.HostReader) -> frozenset[str]:
    try:
        functions = reader.functions()
    except errors.UnreadableError:
        return reader.unknown()
    return reader.unknown() | {str(function.address) for function in functions}


def _check_taken(
    target: driver_calls.DriverUnderTest, baseline: driver_calls.CallResult
) -> Iterator[Finding]:
    """Check that devices of another driver are not described."""
    for members in check_hosts.group_by_card(
        driver_calls.list_devices(baseline)
    ).values():
        taken = frozenset[str]().union(
            *map(check_hosts.list_addresses, members)
        )
        result = target.describe(taken=taken)
        if result.error is not None:
            yield _build_raise_finding(
                "taken", members[0].address, result.error
            )
        for device in driver_calls.list_devices(result):
            overlap = taken & check_hosts.list_addresses(device)
            if overlap:
                yield Finding(
                    check="taken",
                    where=device.address,
                    reason="is described, though another driver has"
                    f" described {min(overlap)}",
                )


def _check_policy(
    target: driver_calls.DriverUnderTest, baseline: driver_calls.CallResult
) -> Iterator[Finding]:
    """Check that devices with ``use`` ``off`` are not offered or changed."""
    off = dataclasses.replace(target, rules=_ALL_OFF)
    yield from _check_not_offered(off)
    result = off.arrange()
    if result.value and result.error is None:
        yield Finding(
            check="policy",
            where=target.driver.name,
            reason=f"would {result.value[0]} where everything is off",
        )
    for top in check_hosts.group_by_card(driver_calls.list_devices(baseline)):
        rule = policy.Rule(address=top, use=policy.DeviceUse.OFF)
        yield from _check_not_offered(
            dataclasses.replace(
                target, rules=policy.DeviceRules(rules=(rule,))
            ),
            top,
        )


def _check_not_offered(
    target: driver_calls.DriverUnderTest, top: str = ""
) -> Iterator[Finding]:
    """Check that a card is not offered; without ``top``, that none is."""
    for device in target.state().devices:
        if top in ("", device.address, device.parent):
            yield Finding(
                check="policy",
                where=device.address,
                reason="is offered, though device_spec says use off for it",
            )


def _check_tree(target: driver_calls.DriverUnderTest) -> Iterator[Finding]:
    """Check that discovery accepts the description and a tree builds."""
    state = target.state()
    for problem in state.problems:
        if problem.where == f"driver {target.driver.name}" and state.complete:
            yield Finding(
                check="tree", where=problem.where, reason=problem.reason
            )
    result = driver_calls.call(
        lambda: tree_builder.build_tree(
            check_plans.ROOT, state, policy.DeviceRules()
        )
    )
    if result.error is not None:
        yield _build_raise_finding("tree", target.driver.name, result.error)
