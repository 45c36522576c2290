# SPDX-License-Identifier: Apache-2.0
"""Redfish service of sushy-tools, in the place of a node's BMC.

Its system is a domain of libvirt's test driver. sushy-tools has no PCIe
devices: they are added here, where BMCs have them (ComputerSystem.PCIeDevices,
PCIeDevice and PCIeFunction of DMTF's DSP0268).
"""

import contextlib
import dataclasses
import pathlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import flask
from sushy_tools.emulator import main
from werkzeug import serving

_SYSTEM = "/redfish/v1/Systems"
_UUID = "9b7d4b4e-2f5c-4c5e-9d3f-7a0b6e1c2d3f"
_MAC = "52:54:00:b3:c1:01"
_NODE = f"""
<node>
  <domain type="test">
    <name>metal</name>
    <uuid>{_UUID}</uuid>
    <memory unit="GiB">256</memory>
    <vcpu>2</vcpu>
    <os><type arch="x86_64">hvm</type></os>
    <devices>
      <interface type="user"><mac address="{_MAC}"/></interface>
    </devices>
  </domain>
</node>
"""
Function = Mapping[str, str]


@dataclasses.dataclass(kw_only=True)
class Bmc:
    """A running service; its functions may change between inspections."""

    url: str
    mac: str = _MAC
    functions: Sequence[Function] = ()

    @property
    def driver_info(self) -> dict[str, str]:
        """Return what a node of Ironic needs to use it."""
        return {
            "redfish_address": self.url,
            "redfish_system_id": f"{_SYSTEM}/{_UUID}",
        }


@contextlib.contextmanager
def start(place: pathlib.Path) -> Iterator[Bmc]:
    """Run a service with its files in an empty directory."""
    node = place / "node.xml"
    node.write_text(_NODE)
    main.app.configure(
        extra_config={
            "SUSHY_EMULATOR_LIBVIRT_URI": f"test://{node}",
            "SUSHY_EMULATOR_STATE_DIR": str(place),
            "SUSHY_EMULATOR_STORAGE": {_UUID: []},
        }
    )
    server = serving.make_server("127.0.0.1", 0, main.app, threaded=True)
    bmc = Bmc(url=f"http://127.0.0.1:{server.server_port}")
    _add_devices(main.app, bmc)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield bmc
    finally:
        server.shutdown()
        thread.join()


def _add_devices(app: flask.Flask, bmc: Bmc) -> None:
    """Serve each function as a device of its own, with links to it."""
    system = f"{_SYSTEM}/<uuid:_>"
    device = f"{system}/PCIeDevices/<int:number>"

    def describe(path: str, **fields: Any) -> dict[str, Any]:
        name = path.rpartition("/")[2]
        return {"@odata.id": path, "Id": name, "Name": name, **fields}

    def link_devices(answer: flask.Response) -> flask.Response:
        path = flask.request.path
        if path == f"{_SYSTEM}/{_UUID}":
            places = range(len(bmc.functions))
            links = [{"@odata.id": f"{path}/PCIeDevices/{n}"} for n in places]
            answer.set_data(
                flask.json.dumps({**answer.get_json(), "PCIeDevices": links})
            )
        return answer

    def show_device(_: object, number: int) -> dict[str, Any]:
        path = flask.request.path
        functions = {"@odata.id": f"{path}/PCIeFunctions"}
        return describe(path, PCIeFunctions=functions)

    def list_functions(_: object, number: int) -> dict[str, Any]:
        path = flask.request.path
        return describe(path, Members=[{"@odata.id": f"{path}/0"}])

    def show_function(_: object, number: int) -> dict[str, Any]:
        return describe(flask.request.path, **bmc.functions[number])

    app.after_request(link_devices)
    app.add_url_rule(device, view_func=show_device)
    functions = f"{device}/PCIeFunctions"
    app.add_url_rule(functions, view_func=list_functions)
    app.add_url_rule(f"{functions}/0", view_func=show_function)
