# SPDX-License-Identifier: Apache-2.0
"""All checks of the conformance suite, run on one driver."""

import dataclasses
import os
import re
import tempfile
import types
from collections.abc import Iterator, Mapping

from nova_accel import errors
from nova_accel.cli import commands
from nova_accel.config import policy
from nova_accel.conformance import (
    check_arrange,
    check_claims,
    check_errors,
    check_hosts,
    driver_calls,
)
from nova_accel.conformance.findings import Finding
from nova_accel.discovery import capture, plugin
from nova_accel.host.nvml import gpu_reader
from nova_accel.host.sysfs import fs, host_reader
from nova_accel.inventory import tree_builder

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_EVERYTHING_OFF = policy.Policy(default=policy.Rule(use=policy.DeviceUse.OFF))
_NOTHING: Mapping[str, gpu_reader.NvmlGpu] = types.MappingProxyType({})


def check_driver(
    driver: object,
    source: fs.FileSource,
    *,
    name: str = "",
    gpus: Mapping[str, gpu_reader.NvmlGpu] = _NOTHING,
    every: bool = False,
) -> tuple[Finding, ...]:
    """Return the rules that a driver breaks on a host; none is what passes.

    Nothing is written. The host is read once; everything after that is
    asked of what was read, so a running host serves as well as a
    directory. A driver that raises is a finding, never an error here.

    :param driver: an instance of the class that the entry point names.
    :param source: ``fs.DiskSource(root)``, or the files of an archive.
    :param name: the name of the entry point, if it has one.
    :param gpus: what NVML says.
    :param every: whether to make each single file unreadable that is
        read, and not two of each kind.
    """
    wrong = tuple(_protocol(driver, name))
    if wrong or not isinstance(driver, plugin.Driver):
        return wrong
    reader = host_reader.HostReader(source=source, gpus=gpus)
    patient = driver_calls.DriverUnderTest(
        driver=driver, source=source, gpus=gpus
    )
    first = _read(patient, reader)
    if first.error is not None:
        return (_raised("describe", driver.name, first.error),)
    still = dataclasses.replace(
        patient, source=fs.RecordedFiles(reader.files.records())
    )
    found = (
        *_captured(still, reader, first),
        *_pure(still, first),
        *check_hosts.check_described(
            first.value, driver.name, _present(reader)
        ),
        *_untaken(still, first),
        *_obeyed(still, first),
        *_reported(still),
        *check_claims.check(still),
        *check_arrange.check(still),
        *check_errors.check(still, first, every),
    )
    return tuple(dict.fromkeys(found))


def _protocol(driver: object, name: str) -> Iterator[Finding]:
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


def _read(
    patient: driver_calls.DriverUnderTest, reader: host_reader.HostReader
) -> driver_calls.CallResult:
    """Return what is described, nothing where the host can't be read."""
    answer = patient.describe(reader)
    if isinstance(answer.error, errors.UnreadableError):
        return dataclasses.replace(answer, error=None, value=())
    return answer


def _raised(check: str, where: str, error: Exception) -> Finding:
    return Finding(
        check=check, where=where, reason=f"raises {error!r}; it never may"
    )


def _captured(
    patient: driver_calls.DriverUnderTest,
    reader: host_reader.HostReader,
    first: driver_calls.CallResult,
) -> Iterator[Finding]:
    """Check that an archive of what was read shows the same."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "host.tar.gz")
        capture.save(reader, path, capture.describe_host(directory))
        again, _ = commands.open_host(path)
    answer = _read(patient, again)
    if answer.value != first.value or answer.error is not None:
        yield Finding(
            check="capture",
            where=patient.driver.name,
            reason="describes something else of an archive of `nova-accel"
            " capture`; read through the HostReader only",
        )


def _pure(
    patient: driver_calls.DriverUnderTest, first: driver_calls.CallResult
) -> Iterator[Finding]:
    answer = _read(patient, patient.reader())
    for effect in answer.effects:
        yield Finding(
            check="effect",
            where=patient.driver.name,
            reason=f"describe causes {effect}; a driver writes nothing, and"
            " reads through the HostReader only",
        )
    if answer.value != first.value or answer.error is not None:
        yield Finding(
            check="pure",
            where=patient.driver.name,
            reason="describes one host in two ways when it is asked twice",
        )


def _present(reader: host_reader.HostReader) -> frozenset[str]:
    try:
        functions = reader.functions()
    except errors.UnreadableError:
        return reader.unknown()
    return reader.unknown() | {str(one.address) for one in functions}


def _untaken(
    patient: driver_calls.DriverUnderTest, first: driver_calls.CallResult
) -> Iterator[Finding]:
    """Check that what another driver has described is left alone."""
    for members in check_hosts.families(driver_calls.devices(first)).values():
        taken = frozenset[str]().union(*map(check_hosts.parts, members))
        answer = patient.describe(taken=taken)
        if answer.error is not None:
            yield _raised("taken", members[0].address, answer.error)
        for device in driver_calls.devices(answer):
            if taken & check_hosts.parts(device):
                yield Finding(
                    check="taken",
                    where=device.address,
                    reason="is described, though another driver has"
                    f" described {min(taken & check_hosts.parts(device))}",
                )


def _obeyed(
    patient: driver_calls.DriverUnderTest, first: driver_calls.CallResult
) -> Iterator[Finding]:
    """Check that devices that are switched off are neither shown nor set."""
    off = dataclasses.replace(patient, rules=_EVERYTHING_OFF)
    yield from _unseen(off)
    answer = off.arrange()
    if answer.value and answer.error is None:
        yield Finding(
            check="policy",
            where=patient.driver.name,
            reason=f"would {answer.value[0]} where everything is off",
        )
    for top in check_hosts.families(driver_calls.devices(first)):
        rule = policy.Rule(address=top, use=policy.DeviceUse.OFF)
        yield from _unseen(
            dataclasses.replace(patient, rules=policy.Policy(rules=(rule,))),
            top,
        )


def _unseen(
    patient: driver_calls.DriverUnderTest, top: str = ""
) -> Iterator[Finding]:
    """Check that nothing is shown of a device, or nothing at all."""
    for device in patient.state().devices:
        if top in ("", device.address, device.parent):
            yield Finding(
                check="policy",
                where=device.address,
                reason="is offered, though device_spec says use off for it",
            )


def _reported(patient: driver_calls.DriverUnderTest) -> Iterator[Finding]:
    """Check that discovery understands it, and that a tree can be built."""
    state = patient.state()
    for problem in state.problems:
        if problem.where == f"driver {patient.driver.name}" and state.complete:
            yield Finding(
                check="tree", where=problem.where, reason=problem.reason
            )
    answer = driver_calls.ask(
        lambda: tree_builder.build_tree(
            check_claims.ROOT, state, policy.Policy()
        )
    )
    if answer.error is not None:
        yield _raised("tree", patient.driver.name, answer.error)
