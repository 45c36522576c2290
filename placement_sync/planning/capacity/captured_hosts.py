# SPDX-License-Identifier: Apache-2.0
"""Hosts of archives of ``nova-accel capture``, for plans without a cloud."""

import pathlib
import uuid
from collections.abc import Collection

from nova_accel.cli import host_source
from nova_accel.discovery import nova_conf, scan, unoffered_devices
from nova_accel.inventory import tree_builder
from nova_accel.model import names, providers
from placement_sync.fleet.flavors import offered_devices
from placement_sync.planning import snapshot


def read(path: str, present: Collection[str]) -> snapshot.PlannedHost:
    """Return the host of an archive or a directory, as it would report.

    Its CPU and memory are not in an archive, and not limited. Partitions
    that exist count as used.

    :param present: names of other hosts; a second host of a name gets a
        number.
    :raises ArchiveError: the path is neither.
    :raises ConfigurationError: an option of the machine is not valid.
    :raises UnreadableError: a file of the machine can't be read.
    """
    host, meta = host_source.open_host(path)
    rules = nova_conf.NovaConf(host.files).read_rules()
    state = scan.read(
        host, host_source.load_drivers(nova_conf.read_files(())), rules
    )
    state = unoffered_devices.mark_read_faults(host, state)
    own = name = find_name(path, meta.get("hostname"))
    number = 1
    while name in present:
        number += 1
        name = f"{own}-{number}"
    root = providers.ProviderRoot(
        name=name, uuid=str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
    )
    return build_host(tree_builder.build_tree(root, state, rules))


def find_name(path: str, hostname: object) -> str:
    """Return the name of a captured host: its own, or that of the file."""
    name = str(hostname or "") or pathlib.Path(path).name.partition(".")[0]
    return name if name.isprintable() and name else "captured"


def build_host(tree: providers.ProviderTree) -> snapshot.PlannedHost:
    """Return the host of a provider tree."""
    by_uuid = {node.uuid: node for node in tree.nodes}
    devices = {}
    for node in tree.nodes:
        top = node
        while top.parent in by_uuid:
            top = by_uuid[top.parent]
        models = {
            trait
            for trait in top.traits
            if trait.startswith((names.MODEL_PREFIX, names.NAME_PREFIX))
        }
        devices[node.uuid] = offered_devices.OfferedDevice(
            uuid=node.uuid,
            name=node.name,
            host=tree.root.name,
            root=tree.root.uuid,
            parent=node.parent,
            card=top.uuid,
            model=min(models, default=""),
            traits=node.traits,
            capacities=providers.build_capacities(node.inventories),
        )
    return snapshot.PlannedHost(
        uuid=tree.root.uuid, name=tree.root.name, devices=devices
    )
