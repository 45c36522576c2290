# SPDX-License-Identifier: Apache-2.0
"""python-openstackclient in this process, with an entry of clouds.yaml."""

import json
import logging
import pathlib

import pytest
from openstackclient import shell
from osc_lib import clientmanager


class OpenStack:
    """The command ``openstack``, for a Placement, a Nova and a Keystone.

    All accept any token, and take it for the user's name.
    """

    def __init__(
        self,
        placement: str,
        nova: str,
        keystone: str,
        place: pathlib.Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        self.capsys = capsys
        clouds = {
            user: {
                "auth_type": "admin_token",
                "auth": {"endpoint": placement, "token": user},
                "placement_endpoint_override": placement,
                "compute_endpoint_override": nova,
                "identity_endpoint_override": keystone,
            }
            for user in ("admin", "alice")
        }
        path = place / "clouds.yaml"
        path.write_text(json.dumps({"clouds": clouds}))
        monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(path))
        # Each shell adds a handler, which has the output of its test.
        monkeypatch.setattr(logging.root, "handlers", [])
        # A client of an earlier test would be used again.
        monkeypatch.setattr(
            clientmanager.ClientCache,
            "__get__",
            lambda cache, instance, _: cache.factory(instance),
        )

    def run(self, *words: str, user: str = "admin") -> tuple[int, str, str]:
        """Run a command; return exit status and output."""
        status = self.execute(*words, user=user)
        return status, *self.capsys.readouterr()

    def execute(self, *words: str, user: str = "admin") -> int:
        """Run a command; return exit status."""
        line = ["--os-cloud", user, *words]
        status: int = shell.OpenStackShell().run(line)
        return status
