# SPDX-License-Identifier: Apache-2.0
"""Collector of ironic-python-agent: the report of a node's accelerators."""

import logging
from collections.abc import MutableMapping
from typing import Any

from nova_accel.host.nvml import gpu_reader
from nova_accel.host.sysfs import fs, host_reader
from virt_hooks.ironic import node_reader, node_report

LOG = logging.getLogger(__name__)

# Key in the data that the agent sends, the plugin data of hooks.
KEY = node_report.KEY


def collect(data: MutableMapping[str, Any], failures: object) -> None:
    """Add the report of this machine to the data of an inspection.

    A failure is part of the report. Ironic's hook ``ramdisk-error`` would
    fail the whole inspection for an entry in ``failures``.

    :param failures: the agent's, unused.
    """
    del failures
    data[KEY] = node_report.to_document(read_report())


def read_report(
    source: fs.FileSource | None = None,
) -> node_report.NodeReport:
    """Return the report of this machine; never raises.

    :param source: files to read in place of this machine's.
    """
    try:
        host = host_reader.HostReader(
            source=source, gpus=gpu_reader.read_gpus()
        )
        report = node_reader.read_report(host)
    except Exception as error:  # a vendor's driver may raise anything
        LOG.exception("Could not read the accelerators of this machine")
        return node_report.NodeReport(
            error=repr(error)[: node_report.MAX_TEXT], is_complete=False
        )
    for problem in report.problems:
        LOG.info("Accelerator %s: %s", problem.where, problem.reason)
    LOG.info("Collected %d accelerators", len(report.devices))
    return report
