# SPDX-License-Identifier: Apache-2.0
"""Commands ``nova-accel adopt plan``, ``apply``, ``undo`` and ``status``."""

import argparse
import dataclasses
import datetime
import functools
import json
from collections.abc import Callable, Iterator

from nova_accel.cli import application, command_manager
from nova_accel.cli.inspect_output import columns
from nova_accel.host.state import adoption_plan
from nova_accel.inventory import wording
from nova_accel.inventory.adoption import planning, records, undo_planner
from placement_sync.adoption import observer
from placement_sync.cli import common_options

_State = records.AdoptionState
_OK, _BLOCKED = 0, 1
_LINE = "native_flavors"
_HEAD = ("SERVER", "NAME", "DEVICE", "CARD", "PROFILE", "SLOT")
_NEXT = {
    _State.PLANNED: "disable the host in Nova, and run `nova-accel adopt"
    " apply`",
    _State.APPLYING: "{leave}, set compute_driver = accel.AccelLibvirtDriver"
    " in nova.conf, restart nova-compute, and run `nova-accel adopt status`",
    _State.ADOPTED: "enable the host in Nova again; `nova-accel adopt undo`"
    " hands it back",
    _State.UNDOING: "stop placement-sync of this host, {restart}, and run"
    " `nova-accel adopt status`",
    _State.UNDONE: "set compute_driver = libvirt.LibvirtDriver in nova.conf,"
    " {back}, restart nova-compute, and enable the host in Nova",
}
_RESTART = "restart nova-compute with the same nova.conf"
_OPTIONS = {
    records.Source.NOVA_MDEV: {
        "leave": "remove the cards from [devices] enabled_mdev_types",
        "restart": _RESTART,
        "back": "and [devices] enabled_mdev_types as before",
    },
    # Nova's own list has only functions that the option names.
    records.Source.NOVA_PCI: {
        "leave": "remove the cards from [pci] device_spec",
        "restart": "set [pci] device_spec as before in nova.conf, and"
        " compute_driver as it is, restart nova-compute",
        "back": "and [pci] device_spec as before",
    },
    records.Source.CYBORG: {
        "leave": "stop cyborg-agent of this host",
        "restart": _RESTART,
        "back": "start cyborg-agent of this host",
    },
}
_Run = Callable[
    [argparse.Namespace, common_options.CommandOptions], application.Output
]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--server",
        metavar="UUID",
        help="print this server only; a host is adopted as a whole",
    )
    parser.add_argument(
        "--from",
        dest="source",
        choices=[source.value for source in records.Source],
        default=records.Source.NOVA_MDEV.value,
        help="set the support of Nova that the servers have their devices"
        " from: [devices] enabled_mdev_types, [pci] device_spec, or Cyborg"
        " (default: %(default)s)",
    )
    parser.add_argument(
        "--accelerator-endpoint",
        metavar="URL",
        help="use Cyborg's API at this address without credentials, for"
        " example http://127.0.0.1:6666/v2",
    )
    common_options.add_host_services(parser)
    common_options.add_arguments(parser)


def _run(run: _Run, arguments: argparse.Namespace) -> application.Output:
    """Run one of the commands.

    :raises AcceleratorError: an argument can't be used, a source can't be
        read, or the state of the adoption is another one.
    """
    return run(arguments, common_options.resolve_options(arguments))


def _open_file(
    options: common_options.CommandOptions,
) -> adoption_plan.PlanFile:
    return adoption_plan.PlanFile(observer.check_state_dir(options))


def _plan(
    arguments: argparse.Namespace, options: common_options.CommandOptions
) -> application.Output:
    file = _open_file(options)
    previous = file.read()
    if previous and previous.state in (_State.ADOPTED, _State.UNDOING):
        raise command_manager.CommandError(
            "adopt plan",
            f"this host is {previous.state.value}: {_describe_next(previous)}",
        )
    sources = observer.open_sources(arguments, options)
    plan = _build(
        sources,
        records.Source(arguments.source),
        _last_attempt(previous),
    )
    file.write(plan)
    return _print_plan(arguments, file, plan)


def _apply(
    arguments: argparse.Namespace, options: common_options.CommandOptions
) -> application.Output:
    file = _open_file(options)
    plan = _require(file, "adopt apply", _State.PLANNED)
    if plan.blockers:
        return _print_plan(arguments, file, plan)
    sources = observer.open_sources(arguments, options)
    if not observer.is_disabled(sources):
        raise command_manager.CommandError(
            "adopt apply",
            f"Nova still schedules servers to {sources.service}: openstack"
            f" compute service set --disable {sources.service} nova-compute",
        )
    now = _build(sources, plan.source, plan)
    if not now.is_same_work(plan):
        raise command_manager.CommandError(
            "adopt apply",
            "servers, devices or providers have changed since the plan; run"
            " `nova-accel adopt plan` again",
        )
    return _store(arguments, file, plan, _State.APPLYING)


def _undo(
    arguments: argparse.Namespace, options: common_options.CommandOptions
) -> application.Output:
    file = _open_file(options)
    plan = _require(
        file,
        "adopt undo",
        _State.APPLYING,
        _State.ADOPTED,
        _State.UNDOING,
    )
    sources = observer.open_sources(arguments, options)
    recorded = sources.host.read_claims()
    if not recorded.is_known:
        raise command_manager.CommandError(
            "adopt undo", f"the servers' claims are unknown: {recorded.reason}"
        )
    undo = undo_planner.build(
        plan,
        undo_planner.AdoptedHost(
            servers={s.uuid: s for s in observer.read_servers(sources)},
            allocations=observer.read_own_allocations(sources),
            claims=recorded.claims,
        ),
    )
    if undo.blockers:
        return _print_plan(arguments, file, undo)
    return _store(arguments, file, undo, _State.UNDOING)


def _status(
    arguments: argparse.Namespace, options: common_options.CommandOptions
) -> application.Output:
    file = _open_file(options)
    return _print_plan(arguments, file, _require(file, "adopt status"))


def _build(
    sources: observer.Sources,
    source: records.Source,
    previous: records.Plan | None,
) -> records.Plan:
    return planning.build(observer.observe(sources, source, previous), source)


def _describe_next(plan: records.Plan) -> str:
    return _NEXT[plan.state].format(**_OPTIONS[plan.source])


def _last_attempt(previous: records.Plan | None) -> records.Plan | None:
    """Return a plan whose flavors may be written already."""
    is_undone = previous is None or previous.state is _State.UNDONE
    return None if is_undone else previous


def _require(
    file: adoption_plan.PlanFile, command: str, *states: records.AdoptionState
) -> records.Plan:
    """Return the plan in one of some states; in any state without them.

    :raises CommandError: there is none, or its state is another one.
    """
    plan = file.read()
    if plan is None:
        raise command_manager.CommandError(
            command, "this host has no plan; run `nova-accel adopt plan`"
        )
    if states and plan.state not in states:
        raise command_manager.CommandError(
            command,
            f"this host is {plan.state.value}: {_describe_next(plan)}",
        )
    return plan


def _store(
    arguments: argparse.Namespace,
    file: adoption_plan.PlanFile,
    plan: records.Plan,
    state: records.AdoptionState,
) -> application.Output:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    plan = dataclasses.replace(plan, state=state, applied_at=now)
    file.write(plan)
    return _print_plan(arguments, file, plan)


def _print_plan(
    arguments: argparse.Namespace,
    file: adoption_plan.PlanFile,
    plan: records.Plan,
) -> application.Output:
    printed = dataclasses.replace(
        plan,
        servers=tuple(
            server
            for server in plan.servers
            if arguments.server in (None, server.uuid)
        ),
    )
    return application.Document(
        lambda: _as_dict(printed),
        lambda: "\n".join(_as_lines(file, printed)) + "\n",
        lambda: _BLOCKED if plan.blockers else _OK,
    )


def _as_dict(plan: records.Plan) -> object:
    """Return the plan for JSON, with the keys of its file."""
    document = adoption_plan.FORMAT.encode(plan)
    return adoption_plan.FORMAT.load(document) | {
        "next": "" if plan.blockers else _describe_next(plan)
    }


def _as_lines(
    file: adoption_plan.PlanFile, plan: records.Plan
) -> Iterator[str]:
    count = wording.count_of(len(plan.servers), "server")
    yield f"{plan.root.name}: {plan.state.value}, {count} ({file.path})"
    rows = [
        (server.uuid, server.name, p.handle, p.device, p.profile, p.slot)
        for server in plan.servers
        for p in server.partitions
    ]
    if rows:
        yield from columns([_HEAD, *rows])
    for mapping in plan.flavors:
        line = {"replace": dict(mapping.before), "by": dict(mapping.after)}
        yield f"Flavors of {mapping.profile}: {_LINE} = {json.dumps(line)}"
    for handle in plan.reserved:
        yield f"Reserved: {handle} is of a domain that is not Nova's"
    for blocker in plan.blockers:
        yield f"Blocked, {blocker.kind.value}: {blocker.subject}"
        yield f"    {blocker.reason}"
        yield f"    by hand: {blocker.remedy}"
    if not plan.blockers:
        yield f"Next: {_describe_next(plan)}"


def _build_action(run: _Run) -> application.Action:
    return application.Action(_add_arguments, functools.partial(_run, run))


PLAN, APPLY, UNDO, STATUS = map(_build_action, (_plan, _apply, _undo, _status))
