# SPDX-License-Identifier: Apache-2.0
"""Private names of Nova that this package reads.

A release of Nova may rename them: ``tests/functional/nova/service`` checks
each of them with each release. The private methods that
``nova_driver.AccelLibvirtDriver`` overrides are in its class body.
"""

from typing import Any

from nova import policy
from nova.limit import placement
from nova.scheduler.client import report


def tracker_of(virtapi: Any) -> Any:
    """Return Nova's resource tracker.

    :param virtapi: ``nova.compute.manager.ComputeVirtAPI`` of the driver.
    """
    return virtapi._compute.rt


def claim_resources(tracker: Any, allocations: Any) -> Any:
    """Assign slots in Nova's tracker; return a ``ResourceList`` or None.

    :param allocations: resources by the uuid of their provider.
    :raises nova.exception.ComputeResourcesUnavailable: no slot is free.
    """
    return tracker._claim_resources(allocations)


def release_resources(tracker: Any, resources: Any) -> None:
    """Free slots in Nova's tracker.

    :param resources: ``nova.objects.Resource`` objects, or None.
    """
    tracker._release_assigned_resources(resources)


def expire_provider(client: Any, uuid: str) -> None:
    """Let Nova's client read a provider again; it stays in its cache.

    As ``invalidate_resource_provider(uuid, cacheonly=True)``, which Nova 31
    does not have.

    :param client: ``nova.scheduler.client.report.SchedulerReportClient``.
    """
    client._association_refresh_time.pop(uuid, None)


def open_placement(seconds: float) -> Any:
    """Return a new ``nova.scheduler.client.report.SchedulerReportClient``.

    :param seconds: for each answer; Nova's own client waits without a limit
        unless ``[placement] timeout`` has one.
    """
    client = report.SchedulerReportClient()
    client._client.session.timeout = seconds
    return client


def limit_enforcer(context: Any, project: str) -> Any:
    """Return the enforcer of a project's unified limits."""
    return placement._get_enforcer(context, project)


def policy_enforcer() -> Any:
    """Return the enforcer of nova-compute's policy, initialized."""
    policy.init()
    return policy._ENFORCER


def list_mdev_parents(driver: Any) -> tuple[str, ...]:
    """Return the mdev parents that Nova itself reports now.

    :param driver: Nova's libvirt driver.
    :returns: names of their libvirt node devices.
    """
    return tuple(driver._get_gpu_inventories())


def list_functions(driver: Any) -> str:
    """Return the PCI functions of the host, in JSON.

    :param driver: Nova's libvirt driver.
    """
    functions: str = driver._get_pci_passthrough_devices()
    return functions
