# SPDX-License-Identifier: Apache-2.0
"""``placement-sync audit`` and ``--heal``."""

import argparse
import contextlib
import functools
import json
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from nova_accel.cli.inspect_output import columns
from nova_accel.config import conf
from nova_accel.discovery import plugin
from nova_accel.host.execute import action_executor, privileged
from nova_accel.host.nvml import gpu_reader
from nova_accel.model import providers
from placement_sync.audit import (
    checks,
    collected_state,
    collector,
    findings,
    heal,
)
from placement_sync.cli import common_options, outside_host, progress
from placement_sync.client import resource_providers, rest

_CLEAN, _LEFT = 0, 1
# Between two looks, in seconds: a finding that only one of them has was on
# its way. Nova deletes a server's allocations within a second or so of the
# server, and libvirt defines a guest as fast.
PAUSE = 3.0
_OWN = "/"
_WAITS = "answers of Placement, Nova's API, libvirt and the kernel"
_HEAD = ("FINDING", "WHERE", "CONSUMER", "HEALS")


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "audit",
        help="compare allocations, claims, guests and devices",
        description="Compares what Placement, Nova's API, nova-compute,"
        " libvirt and the kernel say of this host's accelerators. Who can't"
        " be asked is named, with what could not be compared therefore.",
        epilog="exit status: 0 nothing was found, or all is mended; 1"
        " something is left; 2 the input can't be used",
        allow_abbrev=False,
    )
    common_options.add_arguments(parser, is_command=True)
    parser.add_argument(
        "--heal",
        action="store_true",
        help="mend what is proved to be used by nobody, and tell the rest",
    )
    parser.add_argument(
        "--pause",
        type=common_options.parse_seconds,
        default=PAUSE,
        metavar="SECONDS",
        help="between two looks; told is what both have, so that nothing is"
        f" that was only on its way (default {PAUSE:g}); 0: one look",
    )
    parser.add_argument(
        "--connect",
        metavar="URI",
        help="the libvirt to ask ([libvirt] connection_uri, or"
        f" {conf.LIBVIRT_URI})",
    )
    common_options.add_compute_endpoint(parser)


def run(arguments: argparse.Namespace) -> tuple[str, int]:
    """Audit this host; return what to print, and the exit status.

    :raises AcceleratorError: it can't be done as it was asked for.
    """
    chosen = common_options.choose(arguments)
    host = outside_host.open_node(
        chosen.settings,
        chosen.root,
        chosen.state_dir,
        drains_dir=chosen.drains_dir,
    )
    placement = common_options.open_door(arguments, chosen)
    with progress.waiting_for("placement-sync", "an answer of Placement"):
        root = common_options.find_root(
            arguments,
            chosen,
            host,
            resource_providers.PlacementClient(placement),
        )
    reader = _reader(arguments, chosen, host, placement, root)
    report = look_twice(reader, arguments.pause)
    outcomes: tuple[heal.HealResult, ...] = ()
    if arguments.heal and report.findings:
        outcomes = _heal(chosen, reader, placement, report)
        report = look_twice(reader, arguments.pause)
    text = as_json if arguments.json else as_text
    status = _LEFT if report.findings else _CLEAN
    return text(root, report, outcomes), status


def look_twice(
    reader: collector.StateCollector, pause_s: float
) -> findings.AuditReport:
    """Return what two looks have both found, so many seconds apart."""
    with progress.waiting_for("placement-sync", _WAITS):
        first = _look(reader)
    if not first.findings or not pause_s:
        return first
    with progress.waiting_for(
        "placement-sync",
        f"{pause_s:g} seconds before the second comparison: a finding must"
        " be in both",
    ):
        time.sleep(pause_s)
    with progress.waiting_for("placement-sync", _WAITS):
        return _look(reader).both(first)


def _look(reader: collector.StateCollector) -> findings.AuditReport:
    return checks.compare(
        collected_state.together(reader.look(), reader.look_everywhere())
    )


def _reader(
    arguments: argparse.Namespace,
    chosen: common_options.CommandOptions,
    host: outside_host.OutsideHost,
    placement: rest.RestClient,
    root: providers.ProviderRoot,
) -> collector.StateCollector:
    compute, why = common_options.open_compute(arguments, chosen)
    uri = arguments.connect or conf.libvirt_uri(chosen.parsed)
    is_asked = not chosen.is_foreign or arguments.connect
    local = collector.LocalSources(
        read_host=host.read,
        read_book=host.book,
        read_domains=functools.partial(plugin.read_domains, uri)
        if is_asked
        else None,
        why="--root is another machine; --connect names its libvirt",
    )
    return collector.StateCollector(root, placement, compute, local, why)


def _heal(
    chosen: common_options.CommandOptions,
    reader: collector.StateCollector,
    placement: rest.RestClient,
    report: findings.AuditReport,
) -> tuple[heal.HealResult, ...]:
    privileged.run_here()
    executor = None
    if not chosen.is_foreign:
        executor = action_executor.Executor(
            chosen.root,
            read_gpus=privileged.read_gpus
            if chosen.root == _OWN
            else lambda: gpu_reader.NvmlGpus({}),
        )
    mend = heal.Healer(
        reader, placement, plugin.load(chosen.settings.drivers), executor
    )
    with _changes_on_stderr():
        return mend.mend(report.findings)


@contextlib.contextmanager
def _changes_on_stderr() -> Iterator[None]:
    """Print each change in a line, as the service logs it."""
    log, changes = logging.getLogger(heal.__name__), logging.StreamHandler()
    log.setLevel(logging.INFO)
    log.addHandler(changes)
    try:
        yield
    finally:
        log.removeHandler(changes)


def as_json(
    root: providers.ProviderRoot,
    report: findings.AuditReport,
    outcomes: Iterable[heal.HealResult],
) -> str:
    """Return the report for programs; its keys are a stable interface."""
    found = {
        "host": {"name": root.name, "uuid": root.uuid},
        "findings": [_plain(finding) for finding in report.findings],
        "mended": [_plain(o.finding) for o in outcomes if o.is_mended],
        "left": [
            {**_plain(o.finding), "left": o.left}
            for o in outcomes
            if not o.is_mended
        ],
        "unchecked": [
            {"check": g.check, "source": g.source, "reason": g.reason}
            for g in report.gaps
        ],
    }
    return json.dumps(found, indent=2) + "\n"


def _plain(finding: findings.AuditFinding) -> dict[str, object]:
    return {
        "kind": finding.kind.value,
        "where": finding.where,
        "provider": finding.provider,
        "consumer": finding.consumer,
        "handle": finding.handle,
        "reason": finding.reason,
        "mend": finding.mend,
        "heals": finding.is_safe,
    }


def as_text(
    root: providers.ProviderRoot,
    report: findings.AuditReport,
    outcomes: Iterable[heal.HealResult],
) -> str:
    """Return the report for people."""
    lines = list(_told(outcomes))
    count = len(report.findings)
    plural = "" if count == 1 else "s"
    lines.append(f"{root.name}: {count or 'no'} finding{plural}")
    lines += _table(report.findings)
    lines += _unchecked(report.gaps)
    return "\n".join(lines) + "\n"


def _told(outcomes: Iterable[heal.HealResult]) -> Iterator[str]:
    for outcome in outcomes:
        finding = outcome.finding
        who = " ".join(
            filter(None, (finding.where, finding.consumer, finding.handle))
        )
        what = f"left: {outcome.left}" if outcome.left else "mended"
        yield f"{finding.kind.value} {who}: {what}"


def _table(found: Sequence[findings.AuditFinding]) -> Iterator[str]:
    """Yield a line for each finding, its reason and mend below it."""
    if not found:
        return
    rows = [_HEAD]
    for each in found:
        heals = "yes" if each.is_safe else "no"
        rows.append((each.kind.value, each.where, each.consumer or "-", heals))
    for line, finding in zip(columns(rows), (None, *found), strict=True):
        yield line
        if finding is not None:
            yield f"    {finding.reason}"
            yield f"    by hand: {finding.mend}"


def _unchecked(gaps: Sequence[findings.Gap]) -> Iterator[str]:
    """Yield what could not be compared, by whom was not asked."""
    if gaps:
        yield "Not known, so that this was not compared, or in part only:"
    known = dict.fromkeys((gap.source, gap.reason) for gap in gaps)
    for source, reason in known:
        yield f"  {source}: {' '.join(reason.split())}"
        for gap in gaps:
            if (gap.source, gap.reason) == (source, reason):
                yield f"    - {gap.check}"
