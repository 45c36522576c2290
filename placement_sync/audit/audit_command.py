# SPDX-License-Identifier: Apache-2.0
"""Command ``nova-accel audit``, with ``--heal``."""

import argparse
import contextlib
import functools
import logging
import time
from collections.abc import Iterable, Iterator, Sequence

from nova_accel.cli import application, registered_readers, time_options
from nova_accel.cli.inspect_output import columns
from nova_accel.discovery import nova_conf, plugin
from nova_accel.host import nvml_gpus
from nova_accel.host.execute import action_executor, privileged
from nova_accel.host.execute.technologies import nvml_privileged
from nova_accel.inventory import wording
from nova_accel.model import providers
from placement_sync.audit import (
    checks,
    collected_state,
    collector,
    findings,
    heal,
)
from placement_sync.cli import common_options, outside_host, progress
from placement_sync.client import (
    nova_api,
    service_client,
    stock_compute,
)

_CLEAN, _UNHEALED = 0, 1
# Seconds between two comparisons: a finding of only one of them was a
# change in progress. Nova deletes a server's allocations within about a
# second of the server, and libvirt defines a guest as fast.
PAUSE_S = 3.0
_LOCAL_ROOT = "/"
_SOURCES = "data of Placement, Nova's API, libvirt and the kernel"
_HEAD = ("FINDING", "WHERE", "CONSUMER", "HEALS")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    common_options.add_arguments(parser)
    parser.add_argument(
        "--heal",
        action="store_true",
        help="repair findings that are proved to be safe, and print the"
        " others with a command for a repair by hand",
    )
    parser.add_argument(
        "--pause",
        type=time_options.parse_seconds,
        default=PAUSE_S,
        metavar="SECONDS",
        help="set the seconds between two comparisons; only findings of both"
        " are reported, because others were changes in progress (default"
        f" {PAUSE_S:g}). 0: compare once",
    )
    common_options.add_host_services(parser)


def _run(arguments: argparse.Namespace) -> application.Output:
    """Audit this host; return the output and the exit status.

    :raises AcceleratorError: an argument can't be used, or Placement fails.
    """
    options = common_options.resolve_options(arguments)
    node = outside_host.find_own_node(arguments, options)
    placement, root = node.placement.client, node.root
    reader = _build_collector(arguments, options, node.host, placement, root)
    report = compare_twice(reader, arguments.pause)
    results: tuple[heal.HealResult, ...] = ()
    if arguments.heal and report.findings:
        results = _heal(options, reader, placement, report)
        report = compare_twice(reader, arguments.pause)
    return application.Document(
        lambda: as_dict(root, report, results),
        lambda: as_text(root, report, results),
        lambda: _UNHEALED if report.findings else _CLEAN,
    )


def compare_twice(
    reader: collector.StateCollector, pause_s: float
) -> findings.AuditReport:
    """Return the findings that two comparisons have in common.

    :param pause_s: seconds between them; 0 for a single comparison.
    """
    with progress.waiting_for(_SOURCES):
        first = _compare_once(reader)
    if not first.findings or not pause_s:
        return first
    with progress.waiting_for(
        f"{pause_s:g} seconds before the second comparison: a finding must"
        " be in both",
    ):
        time.sleep(pause_s)
    with progress.waiting_for(_SOURCES):
        return _compare_once(reader).intersect(first)


def _compare_once(reader: collector.StateCollector) -> findings.AuditReport:
    return checks.compare(
        collected_state.merge(reader.collect(), reader.collect_all_hosts())
    )


def _build_collector(
    arguments: argparse.Namespace,
    options: common_options.CommandOptions,
    host: outside_host.OutsideHost,
    placement: service_client.ServiceClient,
    root: providers.ProviderRoot,
) -> collector.StateCollector:
    compute, reason = common_options.open_compute(arguments, options)
    uri = arguments.connect or nova_conf.read_libvirt_uri(options.parsed)
    has_libvirt = not options.is_foreign or arguments.connect
    stock = options.state_dir and stock_compute.StockComputeWatch(
        options.state_dir,
        functools.partial(nova_api.read_last_report, compute, root.uuid),
    )
    local = collector.LocalSources(
        read_host=host.read,
        read_claims=host.read_claims,
        read_domains=functools.partial(registered_readers.read_domains, uri)
        if has_libvirt
        else None,
        no_domains_reason="--root is another machine; name its libvirt with"
        " --connect",
        prove_stock=stock.prove if stock else None,
    )
    return collector.StateCollector(root, placement, compute, local, reason)


def _heal(
    options: common_options.CommandOptions,
    reader: collector.StateCollector,
    placement: service_client.ServiceClient,
    report: findings.AuditReport,
) -> tuple[heal.HealResult, ...]:
    privileged.run_here()
    executor = None
    if not options.is_foreign:
        executor = action_executor.Executor(
            options.root,
            read_gpus=nvml_privileged.read_gpus
            if options.root == _LOCAL_ROOT
            else lambda: nvml_gpus.NvmlGpus({}),
        )
    healer = heal.Healer(
        reader, placement, plugin.load_named(options.settings), executor
    )
    with _changes_on_stderr():
        return healer.heal(report.findings)


@contextlib.contextmanager
def _changes_on_stderr() -> Iterator[None]:
    """Print the log line of each change on standard error."""
    logger, handler = logging.getLogger(heal.__name__), logging.StreamHandler()
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def as_dict(
    root: providers.ProviderRoot,
    report: findings.AuditReport,
    results: Iterable[heal.HealResult],
) -> dict[str, object]:
    """Return the report for JSON; its keys are a stable interface."""
    return {
        "host": {"name": root.name, "uuid": root.uuid},
        "findings": [_format_finding(finding) for finding in report.findings],
        "mended": [_format_finding(o.finding) for o in results if o.is_healed],
        "left": [
            {**_format_finding(o.finding), "left": o.reason}
            for o in results
            if not o.is_healed
        ],
        "unchecked": [
            {"check": g.check, "source": g.source, "reason": g.reason}
            for g in report.gaps
        ],
    }


def _format_finding(finding: findings.AuditFinding) -> dict[str, object]:
    return {
        "kind": finding.kind.value,
        "where": finding.where,
        "provider": finding.provider,
        "consumer": finding.consumer,
        "handle": finding.handle,
        "reason": finding.reason,
        "mend": finding.remedy,
        "heals": finding.is_safe,
    }


def as_text(
    root: providers.ProviderRoot,
    report: findings.AuditReport,
    results: Iterable[heal.HealResult],
) -> str:
    lines = list(_format_results(results))
    count = len(report.findings)
    text = wording.count_of(count, "finding") if count else "no findings"
    lines.append(f"{root.name}: {text}")
    lines += _format_findings(report.findings)
    lines += _format_gaps(report.gaps)
    return "\n".join(lines) + "\n"


def _format_results(results: Iterable[heal.HealResult]) -> Iterator[str]:
    for result in results:
        finding = result.finding
        subject = " ".join(
            filter(None, (finding.where, finding.consumer, finding.handle))
        )
        outcome = f"not healed: {result.reason}" if result.reason else "healed"
        yield f"{finding.kind.value} {subject}: {outcome}"


def _format_findings(
    reported: Sequence[findings.AuditFinding],
) -> Iterator[str]:
    """Yield a row for each finding, with reason and remedy below it."""
    if not reported:
        return
    rows = [_HEAD]
    rows += [
        (
            f.kind.value,
            f.where,
            f.consumer or "-",
            "yes" if f.is_safe else "no",
        )
        for f in reported
    ]
    for line, finding in zip(columns(rows), (None, *reported), strict=True):
        yield line
        if finding is not None:
            yield f"    {finding.reason}"
            yield f"    by hand: {finding.remedy}"


def _format_gaps(gaps: Sequence[findings.Gap]) -> Iterator[str]:
    """Yield the skipped checks below the source that could not be read."""
    if gaps:
        yield "Unread sources, with checks that were skipped or incomplete:"
    sources = dict.fromkeys((gap.source, gap.reason) for gap in gaps)
    for source, reason in sources:
        yield f"  {source}: {' '.join(reason.split())}"
        for gap in gaps:
            if (gap.source, gap.reason) == (source, reason):
                yield f"    - {gap.check}"


ACTION = application.Action(_add_arguments, _run)
