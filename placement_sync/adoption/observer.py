# SPDX-License-Identifier: Apache-2.0
"""State of a host for the plan of its adoption, or of the undo.

The order of the reads reverses that of a server's life, as in the audit: the
kernel first, then libvirt, Placement, and Nova last.
"""

import argparse
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nova_accel import errors
from nova_accel.cli import (
    assigned_functions,
    command_manager,
    registered_readers,
)
from nova_accel.discovery import nova_conf, service_start
from nova_accel.host.sysfs import fs, host_reader
from nova_accel.inventory.adoption import (
    planner,
    planning,
    records,
)
from nova_accel.model import domains, names, providers
from placement_sync.adoption import cyborg, pci_options
from placement_sync.cli import common_options, outside_host
from placement_sync.client import (
    nova_api,
    provider_records,
    rest,
    service_client,
)

# Trait of the providers of Nova's PCI devices (os-traits).
_PCI_TRAIT = "COMPUTE_MANAGED_PCI_DEVICE"
_RESIZED = "VERIFY_RESIZE"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Clients and readers of one host."""

    options: common_options.CommandOptions
    host: outside_host.OutsideHost
    placement: service_client.ServiceClient
    compute: rest.RestClient
    root: providers.ProviderRoot
    service: str
    read_domains: Callable[[], tuple[domains.Domain, ...]]
    open_cyborg: Callable[[], rest.RestClient]


def open_sources(
    arguments: argparse.Namespace, options: common_options.CommandOptions
) -> Sources:
    """Return the sources of a command's arguments.

    :raises AcceleratorError: an argument can't be used, or a service fails.
    """
    node = outside_host.find_own_node(arguments, options)
    compute, reason = common_options.open_compute(arguments, options)
    if compute is None:
        raise nova_api.NoAnswerError(reason)
    if options.is_foreign and not arguments.connect:
        raise command_manager.UsageError(
            "--root is another machine; name its libvirt with --connect"
        )
    uri = arguments.connect or nova_conf.read_libvirt_uri(options.parsed)
    return Sources(
        options=options,
        host=node.host,
        placement=node.placement.client,
        compute=compute,
        root=node.root,
        service=nova_api.read_service_host(compute, node.root.uuid),
        read_domains=functools.partial(registered_readers.read_domains, uri),
        open_cyborg=functools.partial(
            common_options.open_client, arguments, options, rest.ACCELERATOR
        ),
    )


def observe(
    sources: Sources,
    source: records.Source,
    previous: records.Plan | None = None,
) -> planner.Observed:
    """Return the state of a host under Nova's own driver.

    :param source: the support of Nova to read.
    :param previous: the plan of an attempt that failed: flavors that it has
        rewritten count as they were.
    :raises AcceleratorError: a source can't be read.
    """
    host, guests = sources.host.read(), sources.read_domains()
    is_pci = source is records.Source.NOVA_PCI
    functions = pci_options.read_functions(sources.options) if is_pci else {}
    requests: tuple[records.CyborgRequest, ...] = ()
    if source is records.Source.CYBORG:
        managed = cyborg.read(
            sources.open_cyborg(),
            frozenset({sources.service, sources.root.name}),
        )
        requests = managed.requests
        natives, own = _read_providers(
            sources, functools.partial(managed.find_address, host=host)
        )
    else:
        addresses = planning.NATIVE_NAMES[source](sources.root, host)
        natives, own = _read_providers(
            sources,
            lambda provider: (
                addresses.get(provider.name)
                if is_pci is (_PCI_TRAIT in provider.traits)
                else None
            ),
        )
    classes = {
        native.address: name
        for native in natives
        for name in native.inventories
    }
    get = sources.placement.fetch
    allocations: dict[str, dict[str, Mapping[str, int]]] = {}
    for native in natives:
        for each in provider_records.list_allocations(get, native.uuid):
            of_consumer = allocations.setdefault(each.consumer, {})
            of_consumer[native.uuid] = each.amounts
    return planner.Observed(
        root=sources.root,
        host=host,
        rules=sources.options.settings.rules,
        domains=guests,
        servers={
            server.uuid: _without_rewrite(server, previous)
            for server in read_servers(sources)
        },
        natives=natives,
        allocations=allocations,
        own=frozenset(
            each.consumer
            for uuid in own
            for each in provider_records.list_allocations(get, uuid)
        ),
        shared=dict(_find_shared(sources, source)),
        functions={
            address: dataclasses.replace(
                function,
                resource_class=classes.get(address, function.resource_class),
            )
            for address, function in functions.items()
        },
        aliases=pci_options.read_aliases(sources.options) if is_pci else (),
        requests=requests,
        moving=frozenset(_list_moving(sources)),
    )


def _list_moving(sources: Sources) -> Iterator[str]:
    """Yield the servers with a migration from or to the host."""
    for migration in nova_api.read_migrations(
        sources.compute, sources.service
    ):
        if not migration.is_over:
            yield migration.server


def read_servers(sources: Sources) -> Iterator[planner.NovaServer]:
    """Yield the servers of the host.

    :raises ServiceError: Nova can't be read.
    """
    moving = {*_list_moving(sources)}
    query = {"all_tenants": 1, "host": sources.service}
    for server in nova_api.list_servers(sources.compute, query):
        busy = f"its task is {server.task}" if server.task else ""
        if server.uuid in moving:
            busy = "it is migrating, or the end of a move is missing"
        if server.status == _RESIZED:
            busy = "its resize waits to be confirmed or reverted"
        yield planner.NovaServer(
            uuid=server.uuid,
            name=server.name,
            specs=server.flavor.extra_specs if server.flavor else None,
            busy=busy,
        )


def read_own_allocations(
    sources: Sources,
) -> dict[str, dict[str, Mapping[str, int]]]:
    """Return the allocations of this library's providers, by consumer."""
    allocations: dict[str, dict[str, Mapping[str, int]]] = {}
    get = sources.placement.fetch
    for own in provider_records.list_with_trait(
        get, names.OWNER_TRAIT, sources.root.uuid
    ):
        for each in provider_records.list_allocations(get, own.uuid):
            of_consumer = allocations.setdefault(each.consumer, {})
            of_consumer[own.uuid] = each.amounts
    return allocations


def is_disabled(sources: Sources) -> bool:
    """Return whether Nova schedules no new server to the host."""
    path = f"/os-services?binary=nova-compute&host={sources.service}"
    return sources.compute.read(
        path,
        lambda body: all(
            row["status"] == "disabled" for row in body["services"]
        ),
    )


def _without_rewrite(
    server: planner.NovaServer, previous: records.Plan | None
) -> planner.NovaServer:
    planned = previous.server(server.uuid) if previous else None
    if planned is None or server.specs != planned.specs_after:
        return server
    return dataclasses.replace(server, specs=planned.specs_before)


def _read_providers(
    sources: Sources,
    find_address: Callable[[providers.Provider], str | None],
) -> tuple[tuple[records.NativeProvider, ...], list[str]]:
    """Return Nova's or Cyborg's providers, and the uuids of this library's.

    :param find_address: returns the address of the mdevs' parent or of the
        function, None for a provider of another kind.
    """
    get = sources.placement.fetch
    natives, own = [], []
    for identity in provider_records.list_providers(
        get, {"in_tree": sources.root.uuid}
    ):
        provider = provider_records.fetch_provider(get, identity)
        if provider is None or identity.uuid == sources.root.uuid:
            continue
        if names.OWNER_TRAIT in provider.traits:
            own.append(provider.uuid)
        elif (address := find_address(provider)) is not None:
            natives.append(
                records.NativeProvider(
                    uuid=provider.uuid,
                    name=provider.name,
                    address=address,
                    inventories=provider.inventories,
                    traits=provider.traits,
                    aggregates=_read_aggregates(sources, provider.uuid),
                    generation=provider.generation or 0,
                )
            )
    return tuple(natives), own


def _read_aggregates(sources: Sources, uuid: str) -> frozenset[str]:
    return sources.placement.read(
        provider_records.provider_path(uuid, "aggregates"), _parse_aggregates
    )


def _parse_aggregates(body: Any) -> frozenset[str]:
    return frozenset(map(str, body["aggregates"] if body else ()))


def _find_shared(
    sources: Sources, source: records.Source
) -> Iterator[tuple[str, str]]:
    """Yield cards that another option of Nova names, with the line.

    Each source has an option, which is emptied when the host is adopted.
    """
    options = sources.options
    if options.parsed is None:
        return
    service_start.register(options.parsed)
    reader = host_reader.HostReader(source=fs.DiskSource(options.root))
    state = sources.host.read()
    for conflict in service_start.find_conflicts(
        options.parsed,
        reader,
        state,
        options.settings.rules,
        assigned_functions.list_matches,
    ):
        is_mdev = conflict.option == service_start.MDEV_TYPES
        kind = records.Source.NOVA_MDEV if is_mdev else records.Source.NOVA_PCI
        if kind is source:
            continue  # that is the support to be replaced
        for device in state.devices:
            if device.address in conflict.hint:
                yield device.address, str(conflict)


def check_state_dir(options: common_options.CommandOptions) -> str:
    """Return the state directory of nova-compute.

    :raises CommandError: another machine is named without it.
    """
    if options.state_dir is None:
        raise errors.ConfigurationError(
            "--state-dir",
            "",
            "name the state directory of nova-compute of --root",
            "command line",
        )
    return options.state_dir
