# SPDX-License-Identifier: Apache-2.0
"""Roles that a host needs, from its cards and its checks."""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Sequence

from nova_accel.cli import command_manager
from nova_accel.doctor import checked_host, host_checks
from nova_accel.doctor.ansible import roles

_CORRECTED = (host_checks.Level.FAIL, host_checks.Level.WARN)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRole:
    """Role that a host needs.

    ``checks`` are the checks that it corrects, ``cards`` the addresses that
    need it. ``missing`` are the variables that the operator has to set: one
    of these sets.
    """

    role: roles.DriverRole
    checks: tuple[str, ...] = ()
    cards: tuple[str, ...] = ()
    missing: tuple[tuple[str, ...], ...] = ()

    @property
    def name(self) -> str:
        """Return the name of the role."""
        return self.role.name

    def describe_missing(self) -> str:
        """Return the variables to set as text, empty for none."""
        return ", or ".join(" and ".join(names) for names in self.missing)


def build_plan(
    host: checked_host.CheckedHost,
    results: Iterable[host_checks.CheckResult],
    selected: Sequence[roles.DriverRole],
    names: Collection[str] = (),
    variables: Collection[str] = (),
) -> tuple[PlannedRole, ...]:
    """Return the selected roles that a host needs, in their order.

    :param names: roles that are planned whether the host needs them or not.
    :param variables: names of the variables that the operator has set.
    """
    checks: dict[str, list[str]] = {}
    for result in results:
        if result.level in _CORRECTED:
            names_of_role = checks.setdefault(result.check.ansible, [])
            names_of_role.append(result.check.name)
    return tuple(
        planned
        for role in selected
        for planned in [
            PlannedRole(
                role=role,
                checks=tuple(checks.get(role.name, ())),
                cards=tuple(
                    str(card.address)
                    for card in role.find_cards(host)
                    if host.needs_driver(card)
                ),
                missing=_list_missing(role, variables),
            )
        ]
        if planned.checks or planned.cards or role.name in names
    )


def _list_missing(
    role: roles.DriverRole, variables: Collection[str]
) -> tuple[tuple[str, ...], ...]:
    is_set = any(set(names) <= set(variables) for names in role.inputs)
    return () if is_set else role.inputs


def check_complete(plan: Iterable[PlannedRole]) -> None:
    """Check that all variables are set before anything is changed.

    :raises UsageError: a role lacks its source.
    """
    for planned in plan:
        if planned.missing:
            raise command_manager.UsageError(
                f"the role {planned.name} needs {planned.describe_missing()};"
                " write it into the file of --vars"
            )


def list_technologies(plan: Iterable[PlannedRole]) -> frozenset[str]:
    """Return the technologies whose devices the roles interrupt."""
    return frozenset(
        planned.role.technology
        for planned in plan
        if planned.role.technology != host_checks.HOST
    )


def format_reasons(planned: PlannedRole) -> Iterator[str]:
    yield from planned.checks
    yield from (f"no driver for {address}" for address in planned.cards)
