# SPDX-License-Identifier: Apache-2.0
"""fpgaconf and xrt-smi: what the vendors' programs do to the cards.

Source: OPAE, bin/fpgaconf and libraries/argsfilter (numbers are those of
strtoul with base 0); XRT, SubCmdProgram.cpp of xbutil2 and xbmgmt2, and
icap.c: xocl remembers a uuid only when the card said it was loaded, none
when it failed, and answers for one that is there without loading it.
"""

from __future__ import annotations

import base64
import errno
import getopt
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tests.lab.fakehost import fpga
from tests.lab.fakehost.fpga import Directive, Hardware
from tests.lab.fakehost.kernel import Kernel

#: The fake tool: it sends its arguments and the files among them, prints the
#: answer and exits with its status. It has the interpreter's path in it, as
#: its caller may have cleaned the environment.
SCRIPT = """\
#!{python}
import base64, json, os, socket, sys, time
files = {{
    name: base64.b64encode(open(name, "rb").read()).decode()
    for name in sys.argv[1:] if os.path.isfile(name)
}}
server = socket.socket(socket.AF_UNIX)
server.connect({socket!r})
call = {{"tool": {tool!r}, "arguments": sys.argv[1:], "files": files}}
call = {{"command": "fpga_tool", "arguments": call}}
server.sendall(json.dumps(call).encode() + b"\\n")
answer = json.loads(server.makefile().readline())
if "error" in answer:
    sys.exit(answer["error"])
answer = answer["result"]
if answer["hangs"]:
    time.sleep({hang_s})
print(answer["output"], file=sys.stderr if answer["status"] else sys.stdout)
sys.exit(answer["status"])
"""
#: Where each is installed, below the root.
PLACES = {
    "fpgaconf": "usr/bin/fpgaconf",
    "xrt-smi": "opt/xilinx/xrt/bin/xrt-smi",
    "xbmgmt": "opt/xilinx/xrt/bin/xbmgmt",
}
#: Of fpgaconf: which card.
PLACE_OPTIONS = {"S": "segment", "B": "bus", "D": "device", "F": "function"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """Result of a tool's run; a tool that hangs has none."""

    status: int
    output: str
    hangs: bool = False


def write_tool(root: Path, tool: str, python: str, socket: Path) -> Path:
    """Write the fake of a tool below ``root`` and return its path."""
    path = root / PLACES[tool]
    path.parent.mkdir(parents=True, exist_ok=True)
    text = SCRIPT.format(
        python=python, socket=str(socket), tool=tool, hang_s=fpga.HANG_S
    )
    path.write_text(text)
    path.chmod(0o755)
    return path


def encode(content: bytes) -> str:
    """Return a file's content as it is sent."""
    return base64.b64encode(content).decode()


def run(
    kernel: Kernel, tool: str, words: list[str], files: Mapping[str, str]
) -> ToolResult:
    """Do what a tool does; the caller has the kernel's lock.

    :param files: the files among its words, in base64.
    """
    content = {k: base64.b64decode(text) for k, text in files.items()}
    if tool == "fpgaconf":
        return _fpgaconf(kernel, words, content)
    if tool == "xrt-smi":
        return _xrt_smi(kernel, words, content)
    return _xbmgmt(words, content)


def _fpgaconf(
    kernel: Kernel, words: list[str], files: Mapping[str, bytes]
) -> ToolResult:
    try:
        pairs, rest = getopt.gnu_getopt(
            words,
            "hVnS:B:D:F:",
            [
                *("help", "verbose", "dry-run", "force", "segment="),
                *("bus=", "device=", "function="),
            ],
        )
    except getopt.GetoptError as error:
        return ToolResult(status=1, output=f"Invalid argument: {error}")
    options = dict(pairs)
    where = {
        letter: options.get(f"-{letter}") or options.get(f"--{word}", "")
        for letter, word in PLACE_OPTIONS.items()
    }
    try:
        card = _card_at(kernel, where)
        interface, content = fpga.read_gbs(files[rest[0]])
    except (ValueError, KeyError, IndexError) as error:
        return ToolResult(status=1, output=f"fpgaconf: {error!r}")
    if card is None:
        return ToolResult(status=2, output="No suitable slots found.")
    if interface != card.interface:
        return ToolResult(
            status=2, output="No suitable slots found. (interface)"
        )
    if options.keys() & {"-n", "--dry-run"}:
        return ToolResult(status=0, output="dry run")
    return _load(kernel, card, fpga.read_payload(content), "fpgaconf")


def _card_at(kernel: Kernel, where: Mapping[str, str]) -> Hardware | None:
    """Return the one card that is at a place, if its driver shows it."""
    numbers = {name: int(text, 0) for name, text in where.items() if text}
    cards = []
    for address, card in kernel.fpga.cards.items():
        domain, bus, rest = address.split(":")
        slot, _, number = rest.partition(".")
        parts = {"S": domain, "B": bus, "D": slot, "F": number}
        function = kernel.pci.functions.get(address)
        driver = function.driver if function else None
        if driver is None or driver.name not in ("dfl-pci", "intel-fpga-pci"):
            continue
        if all(
            int(parts[name], 16) == number
            for name, number in numbers.items()
            if name in parts
        ):
            cards.append(card)
    if len(cards) > 1:
        raise ValueError("multiple slots found")
    return cards[0] if cards else None


def _xrt_smi(
    kernel: Kernel, words: list[str], files: Mapping[str, bytes]
) -> ToolResult:
    try:
        user, name = _program_words(words)
        interface, new = fpga.read_xclbin(files[name])
    except (ValueError, KeyError) as error:
        return ToolResult(status=1, output=f"ERROR: {error}")
    card = kernel.fpga.cards.get(f"{user[:-1]}0")
    if card is None or _driver(kernel, user) != "xocl":
        return ToolResult(status=1, output=f"ERROR: no such device: {user}")
    result = _load_axlf(kernel, card, interface, new)
    output = f"INFO: xrt-smi program succeeded on {user}"
    if result.status:
        text = f"Could not program device {user} : load_axlf: {result.output}"
        output = f"ERROR: {text}"
    return replace(result, output=output)


def _load_axlf(
    kernel: Kernel, card: Hardware, interface: str, new: fpga.Payload
) -> ToolResult:
    """Load an xclbin by xocl, which asks xclmgmt to do it."""
    if _driver(kernel, card.address) != "xclmgmt":
        return ToolResult(status=1, output="Connection timed out")
    if interface != card.interface:
        return ToolResult(status=1, output="Invalid argument")
    part = card.parts[0]
    if part.function == new.function and not new.directive.value:
        return ToolResult(status=0, output="is loaded")
    if new.directive in (Directive.ERROR, Directive.HANG, Directive.VANISH):
        part.function = ""
    result = _load(kernel, card, new, "xrt-smi")
    # no port is left disabled: it is the driver's memory that is empty
    part.is_enabled = True
    return result


def _program_words(words: list[str]) -> tuple[str, str]:
    """Return device and file of a program command; ValueError."""
    if words[:1] != ["program"]:
        raise ValueError(f"unknown command: {' '.join(words)}")
    try:
        pairs, rest = getopt.getopt(words[1:], "d:u:", ["device=", "user="])
    except getopt.GetoptError as error:
        raise ValueError(str(error)) from error
    if rest:
        raise ValueError(f"unexpected: {' '.join(rest)}")
    options = {name.lstrip("-")[0]: text for name, text in pairs}
    if options.keys() != {"d", "u"}:
        raise ValueError("needs --device and --user")
    return options["d"], options["u"]


def _xbmgmt(words: list[str], files: Mapping[str, bytes]) -> ToolResult:
    """Load past the user's driver, which doesn't notice and shows nothing."""
    try:
        _, name = _program_words(words)
        fpga.read_xclbin(files[name])
    except (ValueError, KeyError) as error:
        return ToolResult(status=1, output=f"ERROR: {error}")
    return ToolResult(status=0, output="INFO: xbmgmt2 program succeeded")


def _driver(kernel: Kernel, address: str) -> str:
    function = kernel.pci.functions.get(address)
    return function.driver.name if function and function.driver else ""


def _load(
    kernel: Kernel, card: Hardware, new: fpga.Payload, tool: str
) -> ToolResult:
    """Load into a card's first region; VANISH is a failure too."""
    try:
        if kernel.fpga.load(card, card.parts[0], new):
            return ToolResult(status=0, output="", hangs=True)
    except OSError as error:
        number = error.errno or errno.EIO
        output = f"{tool}: Error: {errno.errorcode[number]}"
        return ToolResult(status=1, output=output)
    return ToolResult(status=0, output="Done")
