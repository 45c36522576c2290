# SPDX-License-Identifier: Apache-2.0
"""Host as an operator is shown it: faults, accelerators that are not offered.

The commands of a host read it themselves; other machines ask nova-compute.
"""

import dataclasses
import functools
import json
import logging
import types
from collections.abc import Iterable, Mapping

from nova_accel import errors, model
from nova_accel.catalog import loader, pci_ids
from nova_accel.config import policy, remedy
from nova_accel.discovery import plugin, scan
from nova_accel.host import bounded_calls, nvml_gpus
from nova_accel.host.state import device_notes
from nova_accel.host.sysfs import error_counters, fs, host_reader, hwdata
from nova_accel.inventory import conditions, unoffered
from nova_accel.model import actions, pci

LOG = logging.getLogger(__name__)


def mark_read_faults(
    host: host_reader.HostReader,
    state: model.HostState,
    baseline: device_notes.ErrorBaseline | None = None,
) -> model.HostState:
    """Return a host with the faults that its devices show.

    :param host: the reader that has just described the devices.
    :param baseline: error counts that the operator acknowledged.
    """
    faults = error_counters.find_faults(host, state.devices, baseline)
    if not faults:
        return state
    state = conditions.mark_unhealthy(state, faults)
    return conditions.mark_faults(state, {})[0]


def find_unoffered(
    host: host_reader.HostReader,
    state: model.HostState,
    drivers: Mapping[str, plugin.Driver],
    rules: policy.DeviceRules,
    models: Mapping[str, str] = types.MappingProxyType({}),
) -> tuple[unoffered.Unoffered, ...]:
    """Return the accelerators of a host that are not offered.

    :param state: of the same host, drivers and rules.
    :param models: names of models by address.
    """

    def find() -> tuple[unoffered.Unoffered, ...]:
        return unoffered.find(
            state,
            scan.list_functions(host),
            rules,
            (*host.problems(), *nvml_gpus.problems(host.gpus)),
            models,
            host.accelerators(),
            functools.partial(_try_line, host, drivers, rules),
        )

    return bounded_calls.run(find)


def read_unoffered(
    host: host_reader.HostReader,
    drivers: Mapping[str, plugin.Driver],
    rules: policy.DeviceRules,
) -> tuple[unoffered.Unoffered, ...]:
    """Read a host and return its accelerators that are not offered.

    :param host: a fresh reader.
    """
    state = scan.read(host, drivers, rules)
    return find_unoffered(host, state, drivers, rules, name_functions(host))


def list_functions(
    host: host_reader.HostReader,
) -> tuple[pci.PciFunction, ...]:
    """Return the host's functions; none if the bus can't be listed."""
    try:
        return host.functions()
    except errors.UnreadableError:
        return ()  # the drivers report the error


def list_models(
    host: host_reader.HostReader,
    functions: Iterable[pci.PciFunction],
    recorded: Mapping[str, str] = types.MappingProxyType({}),
) -> Mapping[str, str]:
    """Return model names by ids, from the host's pci.ids if none is recorded.

    :param recorded: those of an archive, which has no pci.ids.
    """
    ids = {f"{function.vendor}:{function.product}" for function in functions}
    # Separate files: an archive must not contain the whole pci.ids.
    return recorded or hwdata.read(fs.Files(host.files.source), ids)


def name_functions(
    host: host_reader.HostReader,
    recorded: Mapping[str, str] = types.MappingProxyType({}),
) -> dict[str, str]:
    """Return the models of functions by address, empty if unknown.

    :param recorded: see ``list_models``.
    """
    functions = list_functions(host)
    models = list_models(host, functions, recorded)
    names = {}
    for function in functions:
        card = loader.load().of_card(
            (),
            function.vendor,
            function.product,
            function.subsystem_vendor,
            function.subsystem_product,
        )
        names[str(function.address)] = (
            (card.product if card else pci_ids.find_model(function))
            or models.get(f"{function.vendor}:{function.product}", "")
            or pci_ids.find_vendor(function)
        )
    return names


def _try_line(
    host: host_reader.HostReader,
    drivers: Mapping[str, plugin.Driver],
    rules: policy.DeviceRules,
    line: remedy.SpecLine,
) -> str | None:
    """Return why a further first line has nothing offered, None if it has.

    A number of VFs is set when nova-compute starts; a line with one works if
    a driver plans to do so.
    """
    added = policy.parse_rules((json.dumps(line.fields),), rules.default)
    changed = dataclasses.replace(rules, rules=(*added.rules, *rules.rules))
    if line.num_vfs:
        arranged = _list_arranged(host, drivers, changed)
        return None if line.address in arranged else ""
    results = scan.describe_all(host, drivers, changed)
    if any(
        line.address in scan.list_addresses(device)
        for device in results.devices.values()
        if device.counters
    ):
        return None
    reasons = (p.reason for p in results.problems if p.address == line.address)
    return "; ".join(reasons)


def _list_arranged(
    host: host_reader.HostReader,
    drivers: Mapping[str, plugin.Driver],
    rules: policy.DeviceRules,
) -> set[str]:
    """Return the functions whose number of VFs will be changed."""
    functions: set[str] = set()
    for name, driver in drivers.items():
        try:
            functions |= {
                action.function
                for action in driver.plan_arrange(host, rules)
                if isinstance(action, actions.SetVfCount)
            }
        except Exception:  # third-party code may raise anything
            LOG.debug("driver %s failed", name, exc_info=True)
    return functions
