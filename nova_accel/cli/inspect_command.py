# SPDX-License-Identifier: Apache-2.0
"""Command ``nova-accel inspect``."""

import argparse
import contextlib
import dataclasses
import functools
import platform
import uuid
from collections.abc import Mapping

from nova_accel import errors, model
from nova_accel.cli import (
    application,
    host_source,
    inspect_output,
    state_dir_option,
)
from nova_accel.config import conf, policy
from nova_accel.discovery import nova_conf, scan, unoffered_devices
from nova_accel.host.state import claims_file, device_notes
from nova_accel.host.state import state_dir as state_dirs
from nova_accel.host.sysfs import error_counters, host_reader
from nova_accel.inventory import conditions, tree_builder
from nova_accel.model import providers


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    host_source.add_root(parser)
    parser.add_argument(
        "--host",
        metavar="NAME",
        help="set the name of the compute node in the report (default: the"
        " name of this machine, or of the captured one)",
    )
    host_source.add_config(parser, "; with --root those of that machine")


def _inspect(arguments: argparse.Namespace) -> application.Output:
    is_own = arguments.root is None  # state_dir belongs to this host
    settings = host_source.read_settings(arguments, is_foreign=not is_own)
    host, meta = host_source.open_host(
        host_source.select_root(arguments.root, settings.root), settings
    )
    drivers = host_source.load_drivers(settings)
    rules = _read_rules(arguments, host, settings)
    state = scan.read(host, drivers, rules)
    if is_own:
        is_configured = bool(host_source.list_config_files(arguments))
        state = _mark_devices(host, state, settings, is_configured)
    else:
        state = unoffered_devices.mark_read_faults(host, state)
    published = claims_file.RecordedClaims()
    if is_own:
        state_dir = settings.state_dir
        published = claims_file.ClaimsFile(state_dir).read()
    if published.root is None or (
        arguments.host not in (None, published.root.name)
    ):
        published = claims_file.RecordedClaims()
    name = arguments.host or meta.get("hostname") or platform.node()
    if not name.isprintable():
        raise errors.MalformedError("host name", name, "printable text")
    tree = tree_builder.build_tree(
        published.root or _placeholder_root(name),
        state,
        rules,
        published.claims,
        occupied=published.occupied,
    )
    context = inspect_output.HostContext(
        claims=published.claims, is_registered=published.is_known
    )
    names = unoffered_devices.name_functions(host, meta.get("models", {}))
    rest = unoffered_devices.find_unoffered(host, state, drivers, rules, names)
    report = _set_models(state, names), tree, context, rest
    return application.Document(
        functools.partial(inspect_output.as_dict, *report),
        functools.partial(inspect_output.as_text, *report),
    )


def _read_rules(
    arguments: argparse.Namespace,
    host: host_reader.HostReader,
    settings: conf.Settings,
) -> policy.DeviceRules:
    """Return the rules for devices, with the functions that servers have.

    Another machine's are those of its own files, unless others are named.

    :raises ConfigurationError: an option of that machine is not valid.
    :raises UnreadableError: a file of that machine can't be read.
    """
    if arguments.root is None:
        notes = device_notes.FaultNotes(settings.state_dir)
        # Unreadable notes are reported with those on faults.
        with contextlib.suppress(errors.UnreadableError):
            return dataclasses.replace(
                settings.rules, assigned=frozenset(notes.read_unreleased())
            )
    elif not arguments.config_file:
        return nova_conf.NovaConf(host.files).read_rules()
    return settings.rules


def _placeholder_root(name: str) -> providers.ProviderRoot:
    """Return the root of a host without published claims."""
    return providers.ProviderRoot(
        name=name, uuid=str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
    )


def _mark_devices(
    host: host_reader.HostReader,
    state: model.HostState,
    settings: conf.Settings,
    is_configured: bool,
) -> model.HostState:
    """Return this host with its faults and drains.

    :param is_configured: a nova.conf was read. Without one this may be no
        compute host, and a missing state_dir is no problem.
    """
    state_dir = settings.state_dir
    baseline = device_notes.ErrorBaseline(state_dir)
    state = conditions.mark_unhealthy(
        state, error_counters.find_faults(host, state.devices, baseline)
    )
    try:
        faulted = device_notes.FaultNotes(state_dir).read()
        drained = device_notes.DrainNotes(state_dir).read()
        device_notes.FaultNotes(state_dir).read_unreleased()
    except errors.UnreadableError as error:
        return conditions.mark_unknown(state, str(error), is_first=True)
    hint = (
        state_dir_option.describe_missing(state_dir) if is_configured else ""
    )
    if hint:
        missing = settings.refusal("state_dir", state_dir, hint)
        where = f"{missing.file} {missing.option} = {missing.value}"
        problem = model.Problem(where=where, reason=hint)
        state = dataclasses.replace(state, problems=(*state.problems, problem))
    state, _ = conditions.mark_faults(state, faulted)
    if is_configured:
        reason = state_dirs.find_write_error(state_dir, is_dry=True)
        state = conditions.mark_unnoted(state, reason)
    return conditions.mark_drains(state, drained)


def _set_models(
    state: model.HostState, names: Mapping[str, str]
) -> model.HostState:
    """Return the host with names in place of models that are ids.

    They are for the report only; traits are made of the ids.
    """
    return dataclasses.replace(
        state,
        devices=tuple(
            dataclasses.replace(
                device, model=names.get(device.address) or device.model
            )
            if device.model == f"{device.vendor_id}:{device.product_id}"
            else device
            for device in state.devices
        ),
    )


ACTION = application.Action(_add_arguments, _inspect)
