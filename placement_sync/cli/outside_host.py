# SPDX-License-Identifier: Apache-2.0
"""Host of a compute node, read outside of nova-compute."""

import argparse
import dataclasses
import errno
import os
import socket
import threading
import uuid
from collections.abc import Iterable

from nova_accel import errors, model
from nova_accel.claims import claim_plan, matching
from nova_accel.cli import command_manager, host_source
from nova_accel.config import conf, conf_options, policy
from nova_accel.discovery import change_detection, note_stores
from nova_accel.host.nvml import xid_events
from nova_accel.host.state import claims_file, device_notes
from nova_accel.host.state import state_dir as state_dirs
from nova_accel.inventory import health, tree_builder
from nova_accel.model import names, providers
from placement_sync.cli import common_options
from placement_sync.client import resource_providers

# Nova's own owner trait is set by nova-compute only.
OWNER_TRAITS = frozenset({names.OWNER_TRAIT})
# File in which nova-compute stores its node's uuid (nova/virt/node.py,
# COMPUTE_ID_FILE), and the characters that Nova reads of it.
_COMPUTE_ID = "compute_id"
_MAX_UUID = 40
_MDEV = "mdev"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostView:
    """Snapshot of a host, its claims, and the desired provider tree.

    ``is_shared`` is true if a nova-compute has published claims, and so
    reports the same providers.
    """

    host: model.HostState
    claims: tuple[model.Claim, ...]
    tree: providers.ProviderTree
    is_shared: bool = False


class _LastState:
    """The last snapshot of a host, shared with the reader of its GPUs."""

    def __init__(self) -> None:
        self.state: model.HostState | None = None

    def list_gpus_in_use(self) -> Iterable[str]:
        return health.list_gpus_in_use(
            self.state or model.HostState(complete=False)
        )


class OutsideHost:
    """A host that is read repeatedly, and its desired tree. Thread-safe.

    The tree equals that of nova-compute, as far as nova-compute has
    published its claims.
    """

    def __init__(
        self,
        source: change_detection.ChangeDetector,
        rules: policy.DeviceRules,
        claims: claims_file.ClaimsFile | None = None,
        name: str = "",
        last_state: _LastState | None = None,
    ) -> None:
        """Read nothing yet.

        :param claims: the claims that nova-compute publishes; None for
            another machine.
        :param name: name of the host, if its source has one.
        :param last_state: receives each snapshot.
        """
        self.name = name
        self._source = source
        self._rules = rules
        self._claims_file = claims
        self._last = last_state or _LastState()
        self._lock = threading.Lock()

    def read(self) -> model.HostState:
        """Return the snapshot of the host, read again after changes.

        Devices that could not be read are read again each time.

        :raises UnreadableError: the notes on its devices can't be read, and
            never were.
        """
        with self._lock:
            before = self._last.state
            if before is None:
                self._source.check_notes()
            if before is None or before.unknown or not before.complete:
                state = self._source.read()
            else:
                state = self._source.read_changed() or before
            self._last.state = state
            return state

    def read_claims(self) -> claims_file.RecordedClaims:
        """Return the claims that nova-compute has published.

        :raises UnreadableError: the file exists and can't be read. A pass
            without it would undo the reports of nova-compute.
        :raises AcceleratorError: the content of the file is malformed.
        """
        if self._claims_file is None:
            return claims_file.RecordedClaims(
                reason="--root is another machine; name the directory of its"
                " nova-compute with --state-dir"
            )
        recorded = self._claims_file.read()
        if not recorded.is_known:
            _check_absent(self._claims_file.path, recorded.reason)
        return recorded

    def read_view(self, root: providers.ProviderRoot) -> HostView:
        """Return the host, read now, and its desired tree.

        Claims are read after the host, because nova-compute publishes a
        claim before it creates the partition.

        :param root: the compute node's provider.
        :raises UnreadableError: see ``read_claims``.
        :raises MalformedError: see ``read_claims``.
        """
        host, recorded = self.read(), self.read_claims()
        is_shared = (
            recorded.root is not None and recorded.root.uuid == root.uuid
        )
        claims = (
            recorded.claims if is_shared else find_kernel_claims(root, host)
        )
        return HostView(
            host=host,
            claims=claims,
            tree=tree_builder.build_tree(
                root,
                host,
                self._rules,
                claims,
                OWNER_TRAITS,
                recorded.occupied if is_shared else frozenset(),
            ),
            is_shared=is_shared,
        )


def open_own_node(options: common_options.CommandOptions) -> OutsideHost:
    """Return the host of a command's options; nothing is read yet.

    :raises ArchiveError: as ``open_node`` does.
    :raises ConfigurationError: as ``open_node`` does.
    """
    return open_node(
        options.settings,
        options.root,
        options.state_dir,
        drains_dir=options.drains_dir,
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OwnNode:
    """The host of a command's options, with its node in Placement."""

    host: OutsideHost
    placement: resource_providers.PlacementClient
    root: providers.ProviderRoot


def find_own_node(
    arguments: argparse.Namespace, options: common_options.CommandOptions
) -> OwnNode:
    """Return the host of a command's options and its node in Placement.

    :raises AcceleratorError: an argument can't be used, or Placement can't.
    """
    host = open_own_node(options)
    placement = resource_providers.PlacementClient(
        common_options.open_placement(arguments, options)
    )
    root = find_root(arguments, options, host, placement)
    return OwnNode(host=host, placement=placement, root=root)


def open_node(
    settings: conf.Settings,
    root: str,
    state_dir: str | None,
    is_dry: bool = False,
    is_lasting: bool = False,
    drains_dir: str | None = None,
) -> OutsideHost:
    """Return the host of some settings; nothing is read yet.

    :param root: a directory, or an archive of a captured host.
    :param state_dir: state_dir of nova-compute, None for another machine.
    :param is_dry: do not delete notes of devices that have recovered.
    :param is_lasting: listen to Xid events of this machine's GPUs.
    :param drains_dir: directory of the drain notes, if not ``state_dir``.
    :raises ArchiveError: ``root`` is neither.
    :raises ConfigurationError: a driver can't be loaded, or there is none,
        and every device would count as gone.
    """
    drivers = host_source.load_drivers(settings)
    source, read_gpus, meta = host_source.open_source(root, settings)
    name = str(meta.get("hostname") or "")
    notes_dir = drains_dir or state_dir
    drained = device_notes.DrainNotes(notes_dir) if notes_dir else None
    stores = note_stores.NoteStores(drained=drained)
    last_state = _LastState()
    claims = None
    if state_dir is not None:
        claims = claims_file.ClaimsFile(state_dir)
        faulted = (_ReadOnlyFaults if is_dry else device_notes.FaultNotes)(
            state_dir
        )
        stores = note_stores.NoteStores(
            faulted=faulted,
            drained=drained,
            baseline=(
                _ReadOnlyBaseline if is_dry else device_notes.ErrorBaseline
            )(state_dir),
        )
        if is_lasting and os.path.realpath(root) == "/":
            read_gpus = xid_events.listening(
                read_gpus, last_state.list_gpus_in_use, faulted
            )
    detector = change_detection.ChangeDetector(
        source, drivers, settings.rules, read_gpus, stores
    )
    return OutsideHost(detector, settings.rules, claims, name, last_state)


class _ReadOnlyFaults(device_notes.FaultNotes):
    """Read-only notes on faulted devices."""

    def heal(self, addresses: Iterable[str]) -> frozenset[str]:
        """Remove nothing."""
        return frozenset()

    def _find_write_error(self, path: str) -> str:
        return state_dirs.find_write_error(path, is_dry=True)


class _ReadOnlyBaseline(device_notes.ErrorBaseline):
    """Read-only notes on acknowledged errors."""

    def forget(self, addresses: Iterable[str]) -> None:
        """Remove nothing."""


def _check_absent(path: str, reason: str) -> None:
    try:
        os.stat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise errors.UnreadableError(path, error.errno or 0) from error
    if not os.access(path, os.R_OK):
        raise errors.UnreadableError(path, errno.EACCES)
    raise errors.AcceleratorError(
        f"{reason}; restart nova-compute, which writes it anew"
    )


def find_kernel_claims(
    root: providers.ProviderRoot, host: model.HostState
) -> tuple[model.Claim, ...]:
    """Return the claims that the kernel alone proves.

    The uuid of an mdev proves that this library created it; other
    partitions have no such proof.
    """
    slots = (
        model.Slot(
            provider=names.provider_uuid(root.uuid, device.address),
            resource_class=device.resource_class,
            identifier=identifier,
        )
        for device in host.devices
        if device.technology == _MDEV
        for identifier in device.slots
    )
    existing = claim_plan.find_existing("", slots, root, host)
    return tuple(filter(matching.is_in_own_slot, existing))


def read_host_name() -> str:
    """Return this machine's name as libvirt reports it to Nova.

    That is the host name; for a short one the resolver's canonical name,
    unless that is localhost (virGetHostname, libvirt/src/util/virutil.c).
    """
    name = socket.gethostname()
    if "." in name or name.startswith("localhost"):
        return name
    try:
        addresses = socket.getaddrinfo(name, None, flags=socket.AI_CANONNAME)
    except OSError:
        return name
    full = addresses[0][3]
    return name if not full or full.startswith("localhost") else full


def read_node_uuid(directories: Iterable[str]) -> str | None:
    """Return the uuid that nova-compute stored for its node, or None.

    :param directories: those of Nova's configuration files, and its state
        directory, in the order of nova-compute.
    :raises UnreadableError: a file exists and can't be read.
    :raises MalformedError: a file has no uuid.
    """
    for directory in directories:
        path = os.path.join(directory, _COMPUTE_ID)
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read(_MAX_UUID).strip()
            return str(uuid.UUID(text))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise errors.UnreadableError(path, error.errno or 0) from error
        except ValueError as error:
            raise errors.MalformedError(
                "uuid of a compute node",
                text,
                f"that of this host's node in Placement, in {path}",
            ) from error
    return None


def find_root(
    arguments: argparse.Namespace,
    options: common_options.CommandOptions,
    host: OutsideHost,
    placement: resource_providers.PlacementClient,
    create: bool = False,
) -> providers.ProviderRoot:
    """Return the compute node of the arguments.

    Placement is read only if the name or the uuid is not known here.

    :param create: whether the node may be missing in Placement.
    :raises MalformedError: Placement has no such node, or nothing names it.
    :raises ServiceError: Placement can't be read.
    """
    name, node_uuid = resolve_root_name(arguments, options, host)
    if name and node_uuid:
        return providers.ProviderRoot(name=name, uuid=node_uuid)
    if node_uuid:
        root = placement.fetch(node_uuid).root
    else:
        root = placement.find_root(name)
    if root is not None:
        return root
    if create and not name and not options.is_foreign:
        name = read_host_name()
    if not create or not name:
        raise errors.MalformedError(
            "compute node in Placement",
            name or node_uuid,
            "one that nova-compute has registered; name it with --host or"
            " --host-uuid, or register a host without nova-compute by"
            " --create-root and --host",
        )
    return providers.ProviderRoot(
        name=name, uuid=node_uuid or str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
    )


def resolve_root_name(
    arguments: argparse.Namespace,
    options: common_options.CommandOptions,
    host: OutsideHost,
) -> tuple[str, str]:
    """Return the compute node's name and uuid; one of them may be empty.

    :raises UsageError: nothing names it.
    :raises UnreadableError: a file of nova-compute can't be read.
    """
    name, node_uuid = arguments.host or "", arguments.host_uuid or ""
    recorded = host.read_claims()
    root = recorded.root if recorded.is_known else None
    if root and name in ("", root.name) and node_uuid in ("", root.uuid):
        return root.name, root.uuid
    if name or node_uuid:
        return name, node_uuid
    if options.is_foreign:
        if host.name:
            return host.name, ""
        raise command_manager.UsageError(
            "the machine of --root has not stored its name; name its compute"
            " node with --host"
        )
    # nova-compute stores the uuid of its node in its state_path or beside a
    # configuration file (nova/virt/node.py, COMPUTE_ID_FILE).
    directories = [os.path.dirname(path) for path in options.files]
    parsed = options.parsed
    directories.append(
        parsed.state_path if parsed else conf_options.STATE_PATH
    )
    node_uuid = read_node_uuid(directories) or ""
    return "" if node_uuid else read_host_name(), node_uuid
