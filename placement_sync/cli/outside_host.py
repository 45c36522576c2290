# SPDX-License-Identifier: Apache-2.0
"""A compute node, read from outside of nova-compute."""

import dataclasses
import errno
import os
import socket
import threading
import uuid
from collections.abc import Iterable

from nova_accel import errors, model
from nova_accel.claims import claim_plan
from nova_accel.cli import commands
from nova_accel.config import conf, policy
from nova_accel.discovery import change_detection
from nova_accel.host.nvml import xid_events
from nova_accel.host.state import claims_file, drains, error_baseline, faults
from nova_accel.inventory import health, tree_builder
from nova_accel.model import names, providers

# The owner trait of Nova is nova-compute's to set.
OWNER_TRAITS = frozenset({names.OWNER_TRAIT})
# The file in which nova-compute keeps its node's uuid (nova/virt/node.py,
# COMPUTE_ID_FILE), and the most that Nova reads of it.
_COMPUTE_ID = "compute_id"
_MOST = 40
_MDEV = "mdev"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostView:
    """A host at one moment: what is there, whose it is, what it should be.

    ``is_shared`` tells whether a nova-compute has published what its
    servers hold, and so reports the same providers.
    """

    host: model.HostState
    claims: tuple[model.Claim, ...]
    tree: providers.ProviderTree
    is_shared: bool = False


class OutsideHost:
    """One host, read again and again, and the tree it should have.

    Thread-safe; the tree is the one that nova-compute itself reports, as
    far as what it has published tells.
    """

    def __init__(
        self,
        source: change_detection.ChangeDetector,
        rules: policy.Policy,
        book: claims_file.ClaimsFile | None = None,
        name: str = "",
    ) -> None:
        """Read the host from ``source``; nothing is read yet.

        :param book: what nova-compute has published; None for a host from
            elsewhere.
        :param name: the host's, where what is read of it tells it.
        """
        self.name = name
        self._survey = source
        self._rules = rules
        self._published = book
        self._state: model.HostState | None = None
        self._guard = threading.Lock()

    def read(self) -> model.HostState:
        """Return the host, read anew if anything can have changed.

        What could not be read is tried again each time.

        :raises UnreadableError: what is written down on its devices can't
            be read, and never was.
        """
        with self._guard:
            before = self._state
            if before is None:
                self._survey.check_notes()
            if before is None or before.unknown or not before.complete:
                self._state = self._survey.read()
            else:
                self._state = self._survey.read_changed() or before
            return self._state

    @property
    def last(self) -> model.HostState:
        """Return the last reading; of nothing, before the first."""
        return self._state or model.HostState(complete=False)

    def book(self) -> claims_file.RecordedClaims:
        """Return what nova-compute has published; nothing, where it hasn't.

        :raises UnreadableError: there is something that can't be read.
            Whoever went on without it would fight with nova-compute.
        :raises MalformedError: it does not say what it should.
        """
        if self._published is None:
            return claims_file.RecordedClaims(
                reason="--root is another machine; --state-dir names where"
                " its nova-compute publishes"
            )
        found = self._published.read()
        if not found.is_known:
            _check_absent(self._published.path, found.reason)
        return found

    def view(self, root: providers.ProviderRoot) -> HostView:
        """Return the host, read now, and the tree that it should have.

        What nova-compute has published is read after the host: it writes
        a claim down before it makes the partition.

        :param root: the compute node's provider.
        :raises UnreadableError: see ``book``.
        :raises MalformedError: see ``book``.
        """
        host, book = self.read(), self.book()
        is_known = book.root is not None and book.root.uuid == root.uuid
        held = book.claims if is_known else booked(root, host)
        return HostView(
            host=host,
            claims=held,
            tree=tree_builder.build_tree(
                root,
                host,
                self._rules,
                held,
                OWNER_TRAITS,
                book.occupied if is_known else frozenset(),
            ),
            is_shared=is_known,
        )


def open_node(
    settings: conf.Settings,
    root: str,
    state_dir: str | None,
    is_dry: bool = False,
    is_lasting: bool = False,
    drains_dir: str | None = None,
) -> OutsideHost:
    """Return the host that settings describe; nothing is read yet.

    :param root: a directory, or an archive of a captured host.
    :param state_dir: nova-compute's, None for a host from elsewhere.
    :param is_dry: leave the notes of devices that have healed.
    :param is_lasting: listen to this machine's GPUs as long as it is read.
    :param drains_dir: where the operator's drains are, if it is not there.
    :raises ArchiveError: ``root`` is neither.
    :raises ConfigurationError: a driver can't be loaded, or there is none:
        then every device would be taken for gone.
    """
    drivers = commands.load_drivers(settings)
    source, read_gpus, meta = commands.open_source(root, settings)
    name = str(meta.get("hostname") or "")
    place = drains_dir or state_dir
    drained = drains.DrainNotes(place) if place else None
    if state_dir is None:
        found = change_detection.ChangeDetector(
            source, drivers, settings.rules, read_gpus, drained=drained
        )
        return OutsideHost(found, settings.rules, name=name)
    faulted = (_ReadOnlyFaults if is_dry else faults.FaultNotes)(state_dir)
    if is_lasting and os.path.realpath(root) == "/":
        read_gpus = xid_events.listening(
            read_gpus, lambda: health.gpus_in_use(made.last), faulted
        )
    found = change_detection.ChangeDetector(
        source,
        drivers,
        settings.rules,
        read_gpus,
        faulted,
        drained,
    )
    found.seen_to = (
        _ReadOnlyBaseline if is_dry else error_baseline.ErrorBaseline
    )(state_dir)
    book = claims_file.ClaimsFile(state_dir)
    made = OutsideHost(found, settings.rules, book, name)
    return made


class _ReadOnlyFaults(faults.FaultNotes):
    """Notes on devices that failed, only to be read."""

    def heal(self, addresses: Iterable[str]) -> frozenset[str]:
        """Remove nothing."""
        return frozenset()


class _ReadOnlyBaseline(error_baseline.ErrorBaseline):
    """Notes on errors that were seen to, only to be read."""

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
    raise errors.MalformedError(
        "book that nova-compute has published", path, f"one: {reason}"
    )


def booked(
    root: providers.ProviderRoot, host: model.HostState
) -> tuple[model.Claim, ...]:
    """Return the claims that the kernel alone shows.

    A mediated device of ours has a uuid of our choosing; nothing tells
    another partition of ours from somebody else's.
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
    return claim_plan.find("", slots, root, host)


def own_name() -> str:
    """Return this machine's name as libvirt tells it to Nova.

    That is the host name; if it is short, the canonical one that the
    resolver has for it, unless that is of the loopback (virGetHostname,
    libvirt/src/util/virutil.c).
    """
    name = socket.gethostname()
    if "." in name or name.startswith("localhost"):
        return name
    try:
        found = socket.getaddrinfo(name, None, flags=socket.AI_CANONNAME)
    except OSError:
        return name
    full = found[0][3]
    return name if not full or full.startswith("localhost") else full


def own_uuid(directories: Iterable[str]) -> str | None:
    """Return the uuid that nova-compute gave its node, None before.

    :param directories: where to look: those of Nova's configuration files
        and its state directory, as nova-compute does.
    :raises UnreadableError: a file is there and can't be read.
    :raises MalformedError: it holds no uuid.
    """
    for directory in directories:
        path = os.path.join(directory, _COMPUTE_ID)
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read(_MOST).strip()
            return str(uuid.UUID(text))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise errors.UnreadableError(path, error.errno or 0) from error
        except ValueError as error:
            raise errors.MalformedError(
                "file of nova-compute's node", path, "a uuid in it"
            ) from error
    return None
