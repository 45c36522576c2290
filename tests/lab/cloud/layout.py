# SPDX-License-Identifier: Apache-2.0
"""Paths and ports of the lab."""

import dataclasses
import os
from pathlib import Path

#: Environment variable that moves the lab's state out of the checkout.
STATE_VARIABLE = "NOVA_ACCEL_LAB"
#: Environment variable that moves the lab's ports.
PORT_VARIABLE = "NOVA_ACCEL_LAB_CLOUD_PORT"
#: In the environment of every process of the lab, so that ``down`` can prove
#: that none is left.
MARK_VARIABLE = "NOVA_ACCEL_LAB_MARK"

_BASE_PORT = 18800
_SERVICES = (
    "keystone",
    "placement",
    "glance",
    "nova-api",
    "network",
    "rabbitmq",
    "rabbitmq-dist",
    "epmd",
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Paths, ports and URLs of one lab."""

    repo: Path
    lab: Path
    base_port: int = _BASE_PORT

    @property
    def venv(self) -> Path:
        """Return the virtual environment of the services."""
        return self.lab / "venv"

    @property
    def cache(self) -> Path:
        """Return what is kept between two runs to save time."""
        return self.lab / "cache"

    @property
    def log(self) -> Path:
        """Return the directory of the logs; ``down`` leaves it."""
        return self.lab / "log"

    @property
    def state(self) -> Path:
        """Return what lives as long as the cloud does."""
        return self.lab / "state"

    @property
    def etc(self) -> Path:
        """Return the directory of the services' configuration files."""
        return self.state / "etc"

    @property
    def run(self) -> Path:
        """Return the directory of pid files and sockets."""
        return self.state / "run"

    @property
    def databases(self) -> Path:
        """Return the directory of the sqlite files."""
        return self.state / "db"

    @property
    def instances(self) -> Path:
        """Return nova's instances directory, shared with the VM."""
        return self.state / "instances"

    @property
    def images(self) -> Path:
        """Return the directory of glance's files, one for each image."""
        return self.state / "images"

    @property
    def accel(self) -> Path:
        """Return [nova_accel] state_dir."""
        return self.state / "accel"

    @property
    def inside(self) -> Path:
        """Return the directory of the programs run inside services."""
        return Path(__file__).resolve().parent / "inside"

    def program(self, name: str) -> str:
        """Return the path of a program of the virtual environment."""
        return str(self.venv / "bin" / name)

    def port(self, service: str) -> int:
        """Return the port of a service; ValueError when there is none."""
        return self.base_port + _SERVICES.index(service)

    def url(self, service: str, path: str = "") -> str:
        """Return the URL of a service on the loopback."""
        return f"http://127.0.0.1:{self.port(service)}{path}"

    def client_environment(self) -> dict[str, str]:
        """Return the environment in which clients reach this cloud."""
        env = {
            name: value
            for name, value in os.environ.items()
            if not name.lower().endswith("_proxy")
            and not name.startswith(("OS_", "PYTHON"))
        }
        env["PATH"] = f"{self.venv / 'bin'}:{os.environ['PATH']}"
        env.update(self.client_variables())
        return env

    def client_variables(self) -> dict[str, str]:
        """Return only the variables that point clients at this cloud."""
        return {
            "OS_CLIENT_CONFIG_FILE": str(self.etc / "clouds.yaml"),
            "OS_CLOUD": "lab",
            # osc-placement's default is too old for traits and mappings.
            "OS_PLACEMENT_API_VERSION": "1.39",
            "OS_COMPUTE_API_VERSION": "2.96",
        }

    def service_environment(self) -> dict[str, str]:
        """Return the environment of the services."""
        env = self.client_environment()
        env.update(
            {
                "PYTHONPATH": f"{self.inside}:{self.state / 'site'}",
                "PYTHONUNBUFFERED": "1",
                "PYTHONWARNINGS": "ignore",
                MARK_VARIABLE: str(self.state),
            }
        )
        for project in ("NOVA", "PLACEMENT", "GLANCE", "KEYSTONE", "NEUTRON"):
            env[f"OS_{project}_CONFIG_DIR"] = str(self.etc)
        env["OS_NEUTRON_CONFIG_FILES"] = "neutron.conf"
        return env


def read_layout() -> Layout:
    """Return the layout for this checkout and environment."""
    repo = Path(__file__).resolve().parents[3]
    lab = Path(os.environ.get(STATE_VARIABLE) or repo / ".lab")
    port = int(os.environ.get(PORT_VARIABLE) or _BASE_PORT)
    return Layout(repo=repo, lab=lab.resolve(), base_port=port)
