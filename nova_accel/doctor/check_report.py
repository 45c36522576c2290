# SPDX-License-Identifier: Apache-2.0
"""Results of checks as text, JSON, and variables for Ansible.

The keys of the JSON are a stable interface.
"""

import collections
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from nova_accel.doctor import host_checks, remedies
from nova_accel.inventory import wording
from nova_accel.model import pci

_ORDER = list(host_checks.Level)
# Exit statuses, as those of ``nova-status upgrade check``.
SUCCESS, WARNING, FAILURE = 0, 1, 2
_INDENT = " " * 8
_WIDTH = 100


def as_dict(
    results: Iterable[host_checks.CheckResult], accelerators: str = ""
) -> dict[str, Any]:
    """Return the results as a JSON object.

    :param accelerators: the devices of the host in words, empty for a host
        of another service.
    """
    results = tuple(results)
    return {
        "accelerators": accelerators,
        "counts": count_levels(results),
        "checks": [
            {
                "id": result.check.name,
                "technology": result.check.technology,
                "title": result.check.title,
                "verdict": result.level.value,
                "why": result.check.why,
                "page": result.check.page,
                "findings": list(_list_findings(result)),
            }
            for result in results
        ],
    }


def _list_findings(
    result: host_checks.CheckResult,
) -> Iterator[dict[str, Any]]:
    for observation, reading in zip(
        result.observations, result.readings, strict=True
    ):
        yield {
            "verdict": observation.level.value,
            "text": observation.text,
            "read": [{"path": p, "value": v} for p, v in reading],
            "remedy": _remedy(result, observation),
        }


def _remedy(
    result: host_checks.CheckResult, observation: host_checks.Observation
) -> str:
    """Return the lines that correct a state, empty if it is right.

    They name the device of the observation.
    """
    if observation.level is host_checks.Level.OK:
        return ""
    remedy = observation.remedy or result.check.remedy
    address = pci.find_address(observation.text) or remedies.ADDRESS
    return remedy.replace(remedies.ADDRESS, address)


def count_levels(
    results: Iterable[host_checks.CheckResult],
) -> dict[str, int]:
    counts = collections.Counter(result.level for result in results)
    return {level.value: counts[level] for level in _ORDER}


def exit_status(results: Iterable[host_checks.CheckResult]) -> int:
    """Return 2 with a failure, 1 with a warning, else 0."""
    levels = {result.level for result in results}
    if host_checks.Level.FAIL in levels:
        return FAILURE
    return WARNING if host_checks.Level.WARN in levels else SUCCESS


def as_text(
    results: Sequence[host_checks.CheckResult], accelerators: str = ""
) -> str:
    """Return the results as text, the most severe ones first.

    Checks without an observation are only counted.

    :param accelerators: see ``as_dict``.
    """
    lines = [f"{accelerators}\n"] if accelerators else []
    by_severity = sorted(
        results, key=lambda result: _ORDER.index(result.level), reverse=True
    )
    for group in _group_unread(by_severity):
        lines += _group_lines(group)
    counts = count_levels(results)
    summary = ", ".join(f"{n} {level}" for level, n in counts.items() if n)
    number = wording.count_of(len(results), "check")
    lines.append(f"{number}: {summary or 'none'}.")
    if exit_status(results):
        lines.append("For a bug report: nova-accel capture")
    return "\n".join(lines) + "\n"


def _group_unread(
    results: Iterable[host_checks.CheckResult],
) -> Iterable[Sequence[host_checks.CheckResult]]:
    """Return the results with observations; unknown ones by their text.

    A directory that can't be read is the same cause for many checks.
    """
    groups: dict[object, list[host_checks.CheckResult]] = {}
    for result in results:
        is_unknown = result.level is host_checks.Level.UNKNOWN
        texts = tuple(observation.text for observation in result.observations)
        if texts:
            key = texts if is_unknown else result.check.name
            groups.setdefault(key, []).append(result)
    return groups.values()


def _group_lines(
    group: Sequence[host_checks.CheckResult],
) -> Iterator[str]:
    first, *others = group
    if not others:
        yield from _result_lines(first)
        return
    for observation in first.observations:
        yield f"UNKNOWN {len(group)} checks: {observation.text}"
        yield f"{_INDENT}remedy  {_remedy(first, observation)}"
    names = ", ".join(result.check.name for result in group)
    yield from textwrap.wrap(
        f"checks  {names}",
        _WIDTH,
        initial_indent=_INDENT,
        subsequent_indent=_INDENT * 2,
        break_on_hyphens=False,
    )
    yield ""


def _result_lines(result: host_checks.CheckResult) -> Iterator[str]:
    check = result.check
    if result.level is host_checks.Level.OK:
        for observation in result.observations:
            yield f"{'OK':<7} {check.name}: {observation.text}"
        yield ""
        return
    remedies: dict[str, None] = {}
    for observation, reading in zip(
        result.observations, result.readings, strict=True
    ):
        level = observation.level.value.upper()
        yield f"{level:<7} {check.name}: {observation.text}"
        yield from (f"{_INDENT}read    {p} = {v}" for p, v in reading)
        remedies[_remedy(result, observation)] = None
    yield f"{_INDENT}why     {check.why}"
    for remedy in filter(None, remedies):
        first, *rest = remedy.splitlines()
        yield f"{_INDENT}remedy  {first}"
        yield from (f"{_INDENT}        {line}" for line in rest)
    yield f"{_INDENT}page    admin/{check.page}"
    yield ""


def as_fix_plan(results: Iterable[host_checks.CheckResult]) -> str:
    """Return the Ansible roles that apply remedies, as YAML variables.

    ``nova_accel_roles`` are the roles, each with the checks that it
    corrects; ``nova_accel_manual`` are the checks that no role corrects.
    """
    roles: dict[str, list[str]] = {}
    manual: list[str] = []
    for result in results:
        if result.level in (host_checks.Level.FAIL, host_checks.Level.WARN):
            role = result.check.ansible
            names = roles.setdefault(role, []) if role else manual
            names.append(result.check.name)
    lines = ["---", "nova_accel_roles:" + ("" if roles else " {}")]
    for role, names in sorted(roles.items()):
        lines += [f"  {role}:", *(f"    - {name}" for name in names)]
    lines.append("nova_accel_manual:" + ("" if manual else " []"))
    lines += [f"  - {name}" for name in manual]
    return "\n".join(lines) + "\n"
