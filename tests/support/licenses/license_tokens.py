# SPDX-License-Identifier: Apache-2.0
"""Tokens of licence servers that exist in tests only."""

import base64
import json
import pathlib
from typing import Any

#: Part of each token's signature; no output may contain it.
SECRET = "c2VjcmV0LW9mLXRoZS1saWNlbmNl"  # noqa: S105 - of the tests


def _encode(content: Any) -> str:
    text = json.dumps(content).encode()
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


def build(host: str = "dls.example.org", *ports: int, mark: str = "") -> str:
    """Return a token with the keys that NVIDIA's driver reads."""
    services = ("auth", "lease")
    port_map = [
        {"service": name, "port": port}
        for name, port in zip(services, ports or (443, 443), strict=False)
    ]
    payload = {
        "iss": "NLS Service Instance",
        "service_instance_configuration": {
            "svc_port_set_list": [{"idx": 0, "svc_port_map": port_map}],
            "node_url_list": [{"idx": 0, "url": host, "svc_port_set_idx": 0}],
        },
    }
    return f"{_encode({'alg': 'RS256'})}.{_encode(payload)}.{SECRET}{mark}"


def write(directory: pathlib.Path, name: str, text: str) -> pathlib.Path:
    """Write a token file that other users can't read."""
    directory.mkdir(exist_ok=True)
    path = directory / f"{name}.tok"
    path.write_text(f"{text}\n")
    path.chmod(0o640)
    return path
