# SPDX-License-Identifier: Apache-2.0
"""Checks of ``nova-accel doctor --cloud``: services, and other hosts.

They use the credentials of nova.conf, and read only. No value of nova.conf
and no token gets into a result.
"""

import collections
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from nova_accel import errors
from nova_accel.catalog import pci_ids
from nova_accel.discovery import nova_conf
from nova_accel.doctor import checked_host, host_checks
from nova_accel.doctor.host_checks import (
    Observation,
    fail,
    note,
    unknown,
    warn,
)
from nova_accel.model import flavors, names
from placement_sync.client import (
    cloud_client,
    nova_api,
    provider_records,
    rest,
)
from placement_sync.fleet.flavors import cloud

AREA = host_checks.Area("cloud", page="doctor", role=host_checks.Role.CLOUD)
_Host = checked_host.CheckedHost
_Results = Iterator[Observation]

_UNREAD = unknown(
    "no nova.conf is on this machine", remedy="name one with --config-file"
)
# Hypervisors lose the fields of versions with 2.88; see rest.COMPUTE.
_HYPERVISORS = "/os-hypervisors/detail"
_SHOWN_HOSTS = 3
# Nova's default of [scheduler] max_placement_results.
_MAX_RESULTS = 1000


@AREA.check(
    "placement",
    why="no device of this host is reported, and no server gets one",
    remedy="correct [placement] of nova.conf; see whether Placement runs",
)
def check_placement(host: _Host) -> _Results:
    """Placement answers with the credentials of nova.conf."""
    yield from _judge_answer(
        host,
        lambda: _open_placement(host).read(
            "/resource_classes", provider_records.parse_classes
        ),
        fail,
    )


@AREA.check(
    "compute-api",
    why="audits, the names of servers and tokens of a series need it",
    remedy="set credentials in [nova] of nova.conf",
)
def check_compute_api(host: _Host) -> _Results:
    """Nova's API answers with the credentials of nova.conf."""
    yield from _judge_answer(
        host,
        lambda: _open_compute(host).read(
            f"{_HYPERVISORS}?limit=1", lambda body: body["hypervisors"]
        ),
        warn,
    )


@AREA.check(
    "message-bus",
    why="nova-compute gets no request, and openstack accel server does not"
    " work",
    remedy="correct [DEFAULT] transport_url; see whether RabbitMQ runs",
)
def check_message_bus(host: _Host) -> _Results:
    """Nova's message bus can be reached."""
    try:
        yield from _judge_answer(host, lambda: _open_bus(host), fail)
    except ImportError as error:
        yield unknown(
            f"Nova is not installed here: {error}",
            remedy="run this with the Python of nova-compute",
        )


@AREA.check(
    "driver-versions",
    why="a live migration is refused between releases that do not fit",
    remedy="install one release on all hosts of a pool",
)
def check_driver_versions(host: _Host) -> _Results:
    """Hosts of the cloud have one release of each vendor's driver."""
    if not host.config_files:
        yield _UNREAD
        return
    by_vendor: dict[str, dict[str, set[str]]] = {}
    for device in cloud.read(_open_placement(host)).devices:
        for trait in device.traits:
            if trait.startswith(names.DRIVER_PREFIX):
                text = trait.removeprefix(names.DRIVER_PREFIX)
                vendor, _, version = text.partition("_")
                releases = by_vendor.setdefault(vendor.lower(), {})
                hosts = releases.setdefault(version.replace("_", "."), set())
                hosts.add(device.host)
    for vendor, releases in sorted(by_vendor.items()):
        if len(releases) > 1:
            yield note(f"drivers of {vendor} differ: {_format(releases)}")


@AREA.check(
    "memory-nodes",
    why="the driver in the guest can't use the memory of these GPUs",
    remedy="openstack accel flavor set NAME --memory-nodes"
    f" {pci_ids.MEMORY_NODES}",
)
def check_memory_nodes(host: _Host) -> _Results:
    """Flavors of GH200 and GB200 have NUMA nodes for their memory."""
    if not host.config_files:
        yield _UNREAD
        return
    key = f"{flavors.NAMESPACE}{flavors.MEMORY_NODES}"
    for flavor in cloud.list_flavors(_open_compute(host)):
        groups = flavors.parse_groups(flavor.specs)
        traits = {trait for group in groups for trait in group.required}
        if traits & pci_ids.COHERENT_TRAITS and key not in flavor.specs:
            yield warn(f"flavor {flavor.name} has no {key}")


@AREA.check(
    "flavor-traits",
    why="no host of this release has these traits: its cards are not chosen",
    remedy="remove them from the flavor: a profile or a model implies them",
)
def check_flavor_traits(host: _Host) -> _Results:
    """Flavors require no trait that cards of this release lack."""
    if not host.config_files:
        yield _UNREAD
        return
    for flavor in cloud.list_flavors(_open_compute(host)):
        groups = flavors.parse_groups(flavor.specs)
        required = {
            trait
            for group in groups
            if any(map(pci_ids.is_accelerator, group.resources))
            for trait in group.required
            if trait.startswith(names.IMPLIED_PREFIXES)
        }
        if required:
            traits = ", ".join(sorted(required))
            yield warn(f"flavor {flavor.name} requires {traits}")


@AREA.check(
    "candidate-limit",
    why="some hosts are in no answer of Placement, although they have room",
    remedy="in placement.conf [placement]"
    " allocation_candidates_generation_strategy = breadth-first, and the"
    " same number in its max_allocation_candidates and in nova.conf"
    " [scheduler] max_placement_results, above the number of hosts",
)
def check_candidate_limit(host: _Host) -> _Results:
    """Placement's answers have room for each card of the cloud."""
    if not host.config_files:
        yield _UNREAD
        return
    value = host.option("scheduler", "max_placement_results")
    limit = int(value) if value.isdecimal() else _MAX_RESULTS
    cards: collections.Counter[str] = collections.Counter()
    hosts: dict[str, set[str]] = collections.defaultdict(set)
    for device in cloud.read(_open_placement(host)).devices:
        for name in device.capacities.keys() - names.MEASURES:
            cards[name] += 1
            hosts[name].add(device.root)
    for name, count in sorted(cards.items()):
        if count > limit:
            judge = warn if len(hosts[name]) > limit else note
            yield judge(
                f"{len(hosts[name])} hosts have {count} providers of {name},"
                f" and nova-scheduler asks for {limit} candidates"
            )


@AREA.check(
    "hypervisor-versions",
    why="a guest can't be moved live to a host with an older QEMU",
    remedy="install one release on all hosts of a pool",
)
def check_hypervisor_versions(host: _Host) -> _Results:
    """Hosts of the cloud have one version of QEMU."""
    if not host.config_files:
        yield _UNREAD
        return
    versions: dict[str, set[str]] = collections.defaultdict(set)
    for name, number in _list_hypervisors(host):
        versions[_format_version(number)].add(name)
    if len(versions) > 1:
        yield note(f"versions of QEMU differ: {_format(versions)}")


def _judge_answer(
    host: _Host,
    ask: Callable[[], object],
    judge: Callable[[str], Observation],
) -> _Results:
    """Yield an observation unless a service answers.

    :param ask: calls the service.
    :param judge: returns the observation of its error.
    """
    if not host.config_files:
        yield _UNREAD
        return
    try:
        ask()
    except errors.AcceleratorError as error:
        yield judge(str(error))


def _open_bus(host: _Host) -> object:
    """Return a client of Nova's message bus.

    :raises AcceleratorError: the bus can't be reached.
    :raises ImportError: Nova is not installed.
    """
    rpc = importlib.import_module("placement_sync.fleet.compute_rpc")
    return rpc.ComputeRpc(host.config_files)


def _open_placement(host: _Host) -> rest.RestClient:
    """Return a client of Placement.

    :raises ConfigurationError: there are no usable credentials.
    """
    return cloud_client.from_conf(nova_conf.parse_files(host.config_files)[0])


def _open_compute(host: _Host) -> rest.RestClient:
    """Return a client of Nova's API.

    :raises ConfigurationError: there are no usable credentials.
    """
    parsed, _ = nova_conf.parse_files(host.config_files)
    return cloud_client.from_conf(parsed, rest.COMPUTE)


def _list_hypervisors(host: _Host) -> Iterator[tuple[str, int]]:
    """Yield name and version of each hypervisor.

    :raises AcceleratorError: Nova's API can't be read.
    """
    yield from nova_api.read_pages(
        _open_compute(host), _HYPERVISORS, "hypervisors", _parse_hypervisor
    )


def _parse_hypervisor(body: Any) -> tuple[str, int]:
    return str(body["hypervisor_hostname"]), int(body["hypervisor_version"])


def _format_version(number: int) -> str:
    """Return libvirt's number of a version, 10002001, as 10.2.1."""
    return f"{number // 1000000}.{number // 1000 % 1000}.{number % 1000}"


def _format(hosts_by_version: Mapping[str, Iterable[str]]) -> str:
    parts = []
    for version, hosts in sorted(hosts_by_version.items()):
        listed = sorted(hosts)
        text = ", ".join(listed[:_SHOWN_HOSTS])
        if len(listed) > _SHOWN_HOSTS:
            text += f" and {len(listed) - _SHOWN_HOSTS} more"
        parts.append(f"{version} on {text}")
    return "; ".join(parts)
