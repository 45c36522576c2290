# SPDX-License-Identifier: Apache-2.0
"""Tempest, OpenStack's own tests, against the lab."""

import configparser
import dataclasses
import os
import pathlib
import re
import subprocess
import venv
from collections.abc import Collection, Mapping, Sequence

from tests.e2e.support.site import SERVER_SECONDS, Site
from tests.lab.cloud import settings
from tests.lab.cloud.processes import run

# Newer ones know the same releases of Nova.
_TEMPEST = "tempest==47.0.0"
# Without Neutron, Nova accepts a server since 2.37 (networks: none).
_MIN_MICROVERSION = "2.37"
# Tests that need what the lab has not, and do not ask for it: a network for
# a server without one, and Nova's view of images, which ended with 2.35.
_EXCLUDED = (
    r"test_rebuild_server|security_groups|images\.test_image_metadata\."
)
_RESULT = re.compile(
    r"^\{\d+\} (?:setUpClass \()?(?P<name>\w+\.[\w.]+)\)?.*\.\.\. "
    r"(?P<verdict>ok|FAILED|SKIPPED)(?:: (?P<reason>.*))?$",
    re.MULTILINE,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Names of tests by their verdict; the reason of each skipped class."""

    passed: frozenset[str]
    failed: frozenset[str]
    skipped: Mapping[str, str]
    output: str


class Tempest:
    """Tempest in an environment of its own below the lab's directory.

    :param name: of the directory.
    :param plugins: requirements of its plugins.
    """

    def __init__(
        self, site: Site, name: str = "tempest", plugins: Sequence[str] = ()
    ) -> None:
        self._site = site
        self._requirements = (_TEMPEST, *plugins)
        self._place = site.layout.lab / name
        self._bin = self._place / "venv" / "bin"

    def install(self) -> None:
        """Install it, if these versions are not there."""
        stamp = self._place / "stamp"
        text = " ".join(self._requirements)
        if stamp.is_file() and stamp.read_text() == text:
            return
        venv.create(self._bin.parent, with_pip=True, clear=True)
        uv = self._site.layout.program("uv")
        python = str(self._bin / "python")
        command = (uv, "pip", "install", "--python", python)
        installed = run([*command, *self._requirements])
        assert installed.returncode == 0, installed.stderr
        stamp.write_text(text)

    def run(
        self,
        workspace: pathlib.Path,
        pattern: str,
        flavor: str,
        other: str,
        without: Collection[str] = (),
        options: settings.Ini | None = None,
        path: str = "",
    ) -> Results:
        """Return the results of all tests that a pattern matches.

        :param workspace: an empty directory.
        :param flavor: id of the flavor of all servers.
        :param other: id of the one to which they are resized.
        :param without: further features that the servers lack.
        :param options: further options, which win.
        :param path: Python's path, for plugins of a test.
        """
        env = os.environ | {"OS_LOG_PATH": str(workspace), "PYTHONPATH": path}
        self._call(env, "init", str(workspace))
        config = self._configure(workspace, flavor, other, without)
        config.read_dict(options or {})
        with open(workspace / "etc" / "tempest.conf", "w") as file:
            config.write(file)
        text = self._call(
            env,
            *("run", "--serial", "--regex", pattern),
            *("--exclude-regex", _EXCLUDED),
            directory=workspace,
        )
        lines = [match.groupdict() for match in _RESULT.finditer(text)]

        def select(verdict: str) -> frozenset[str]:
            return frozenset(
                each["name"] for each in lines if each["verdict"] == verdict
            )

        return Results(
            passed=select("ok"),
            failed=select("FAILED"),
            skipped={
                each["name"]: each["reason"] or ""
                for each in lines
                if each["verdict"] == "SKIPPED"
            },
            output=text,
        )

    def _call(
        self,
        env: Mapping[str, str],
        *words: str,
        directory: pathlib.Path | None = None,
    ) -> str:
        """Return the output of tempest; its status is that of its tests."""
        command = [str(self._bin / "tempest"), *words]
        ended = subprocess.run(  # noqa: S603 - tempest of the lab
            command,
            env=dict(env),
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return ended.stdout

    def _configure(
        self,
        workspace: pathlib.Path,
        flavor: str,
        other: str,
        without: Collection[str],
    ) -> configparser.ConfigParser:
        image = self._site.lab_image
        enabled = {
            name: str(name in {"glance", "nova", "placement"})
            for name in (
                *("glance", "nova", "placement"),
                *("cinder", "horizon", "neutron", "swift"),
            )
        }
        disabled = (
            *without,
            *("attach_encrypted_volume", "change_password", "cold_migration"),
            *("console_output", "interface_attach", "live_migration"),
            *("metadata_service", "vnc_console"),
        )
        admin = settings.ADMIN
        config = configparser.ConfigParser(interpolation=None)
        config.read_dict(
            {
                "oslo_concurrency": {"lock_path": str(workspace / "lock")},
                "auth": {
                    "use_dynamic_credentials": "True",
                    "create_isolated_networks": "False",
                    "admin_username": admin["username"],
                    "admin_password": admin["password"],
                    "admin_project_name": admin["project_name"],
                    "admin_domain_name": "Default",
                },
                "identity": {
                    "uri_v3": self._site.layout.url("keystone", "/v3"),
                    "auth_version": "v3",
                },
                "service_available": enabled,
                "compute": {
                    "image_ref": image,
                    "image_ref_alt": image,
                    "flavor_ref": flavor,
                    "flavor_ref_alt": other,
                    "min_microversion": _MIN_MICROVERSION,
                    "max_microversion": "latest",
                    "build_timeout": str(int(SERVER_SECONDS)),
                    "shelved_offload_time": "-1",
                },
                "compute-feature-enabled": {
                    "config_drive": "True",
                    "rescue": "True",
                    **dict.fromkeys(disabled, "False"),
                },
                "validation": {"run_validation": "False"},
                "placement": {"max_microversion": "latest"},
            }
        )
        return config
