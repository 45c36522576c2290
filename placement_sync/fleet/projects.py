# SPDX-License-Identifier: Apache-2.0
"""Names of projects, read from Keystone."""

from collections.abc import Iterable, Mapping

from nova_accel.cli import command_manager
from placement_sync.client import cloud_client, provider_records, rest


def read_names(
    identity: rest.RestClient, projects: Iterable[str]
) -> Mapping[str, str]:
    """Return the names of projects by id, with one request for each.

    Keystone lists projects to administrators only, and shows each user the
    user's own one. A deleted project has no name.

    :param projects: ids.
    :raises ServiceError: Keystone can't be read, or refuses.
    """
    ids = sorted(set(projects) - {""})
    names = cloud_client.find_each(identity, ids, _fetch_name)
    return {
        project: name
        for project, name in zip(ids, names, strict=True)
        if name is not None
    }


def select(text: str, names: Mapping[str, str]) -> str:
    """Return the id of the project that a text names, "" for none.

    An id counts before a name: users choose the names of projects.

    :param names: the names of all projects by id, empty if unknown.
    :raises UsageError: projects of several domains have this name.
    """
    if text in names:
        return text
    ids = sorted(project for project, name in names.items() if name == text)
    if len(ids) > 1:
        raise command_manager.UsageError(
            f"several projects have the name {text!r}; write the id of one:"
            f" {', '.join(ids)}"
        )
    return ids[0] if ids else ""


def _fetch_name(get: provider_records.Get, project: str) -> str | None:
    return provider_records.find(
        get,
        f"/projects/{provider_records.quote_name(project)}",
        lambda body: str(body["project"]["name"]),
    )
