# SPDX-License-Identifier: Apache-2.0
"""Inspection hook of Ironic: traits, resource class and properties of a node.

The hook runs in ironic-conductor, with the node locked. It reads the data of
the inspection only, and never fails one: without usable data the node stays as
it is.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from ironic import objects
from ironic.db.sqlalchemy import api as database
from ironic.drivers.modules.inspector.hooks import base

from nova_accel.catalog import loader
from virt_hooks.ironic import inspection_data, node_report, node_traits

LOG = logging.getLogger(__name__)

# Traits that the last inspection set, in driver_internal_info. A user can't
# change it through Ironic's API.
_RECORD = "accelerator_traits"
_PROPERTY = "accelerators"
# Names of traits in one line of the log.
_MAX_LOGGED = 10


class AcceleratorHook(base.InspectionHook):
    """Sets what flavors and runbooks select nodes with accelerators by."""

    def preprocess(
        self,
        task: Any,
        inventory: Mapping[str, Any],
        plugin_data: Mapping[str, Any],
    ) -> None:
        """Set the property for an inspection over Redfish.

        After all hooks, Ironic's RedfishInspect replaces the properties by the
        dict that the node had before them. A property set after a hook has
        saved the node, which makes a new dict, is lost.
        """
        data = inspection_data.read(inventory, {}, loader.load())
        if data.report is not None:
            _set_property(task.node, data.report)

    def __call__(
        self,
        task: Any,
        inventory: Mapping[str, Any],
        plugin_data: Mapping[str, Any],
    ) -> None:
        """Update the node of a task from the data of its inspection."""
        node = task.node
        report = _find_report(node.uuid, inventory, plugin_data)
        if report is None:
            return
        if report.problems:
            first = report.problems[0]
            LOG.info(
                "Node %s: accelerators have %d problems, the first: %.200r",
                node.uuid,
                len(report.problems),
                f"{first.where}: {first.reason}",
            )
        _set_traits(task, report)
        _set_property(node, report)
        suggestion = node_traits.suggest_resource_class(report)
        if suggestion and report.is_complete and not node.resource_class:
            LOG.info("Node %s: set resource class %s", node.uuid, suggestion)
            node.resource_class = suggestion
        node.save()


def _find_report(
    node: str, inventory: Mapping[str, Any], plugin_data: Mapping[str, Any]
) -> node_report.NodeReport | None:
    """Return the report in the data of an inspection, None without one.

    :param node: uuid, for the log.
    """
    data = inspection_data.read(inventory, plugin_data, loader.load())
    for warning in data.warnings:
        LOG.warning("Node %s: %.400s", node, warning)
    if data.report is None:
        LOG.warning(
            "Node %s: no data of accelerators: its traits stay as they are;"
            " add 'accel' to inspection_collectors of the ramdisk",
            node,
        )
    return data.report


def _set_property(node: Any, report: node_report.NodeReport) -> None:
    if not report.is_complete and node.properties.get(_PROPERTY):
        return
    rows = node_traits.list_properties(report)
    node.set_property(_PROPERTY, rows)
    if len(rows) < len(report.devices):
        LOG.warning(
            "Node %s: the property %s has %d of %d devices: it may have %d"
            " bytes",
            node.uuid,
            _PROPERTY,
            len(rows),
            len(report.devices),
            node_traits.MAX_PROPERTIES,
        )


def _set_traits(task: Any, report: node_report.NodeReport) -> None:
    """Replace the traits that the last inspection has set."""
    node = task.node
    listed = objects.TraitList.get_by_node_id(task.context, node.id)
    present = frozenset(listed.get_trait_names())
    recorded = node.driver_internal_info.get(_RECORD) or ()
    change = node_traits.plan_traits(report, present, recorded)
    if change.dropped:
        LOG.warning(
            "Node %s: Ironic allows %d traits; not set are %d, the first: %s",
            node.uuid,
            node_traits.MAX_TRAITS,
            len(change.dropped),
            ", ".join(change.dropped[:_MAX_LOGGED]),
        )
    if change.retained:
        LOG.warning(
            "Node %s: retained, since they could not be read: %s",
            node.uuid,
            ", ".join(change.retained),
        )
    node.set_driver_internal_info(_RECORD, list(change.own))
    traits = frozenset(change.traits)
    if traits != present:
        _replace_traits(task, traits)
        LOG.info(
            "Node %s: added traits %s, removed %s",
            node.uuid,
            ", ".join(sorted(traits - present)) or "none",
            ", ".join(sorted(present - traits)) or "none",
        )


# Ironic on SQLite can't write two nodes at the same time.
@database.wrap_sqlite_retry
def _replace_traits(task: Any, traits: Iterable[str]) -> None:
    objects.TraitList.create(task.context, task.node.id, sorted(traits))
