# SPDX-License-Identifier: Apache-2.0
"""Checks of ``nova-accel doctor --cloud``: servers of licences."""

from collections.abc import Iterator

from nova_accel.discovery import nova_conf
from nova_accel.doctor import checked_host, host_checks
from placement_sync.licenses import license_server, tokens

AREA = host_checks.Area("cloud", page="doctor", role=host_checks.Role.CLOUD)


@AREA.check(
    "license-servers",
    why="guests get no licence; a network of guests may reach other servers"
    " than this host",
    remedy="start the licence server, or permit the connection",
)
def check_license_servers(
    host: checked_host.CheckedHost,
) -> Iterator[host_checks.Observation]:
    """The licence servers of the tokens in license_dir answer."""
    directory = nova_conf.read_files(host.config_files).license_dir
    if not directory:
        return
    try:
        all_tokens = tokens.TokenStore(directory).read_all()
    except tokens.TokenError as error:
        yield host_checks.warn(str(error))
        return
    for token in all_tokens:
        servers = token.list_servers()
        if not servers:
            yield host_checks.unknown(
                f"the servers in {token.path} are not known"
            )
        for name, port in servers:
            reason = license_server.explain_unreachable(name, port)
            if reason:
                yield host_checks.warn(
                    f"licence server {name}:{port} {reason}"
                )
