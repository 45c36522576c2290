# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.lab VERB``: what tests/lab/lab runs once it has a venv."""

import argparse
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from tests.lab import demo
from tests.lab.cloud import machine
from tests.lab.cloud.cloud import Cloud
from tests.lab.cloud.layout import Layout, read_layout
from tests.lab.cloud.options import ACTIVATIONS, HARDWARE, Options
from tests.lab.cloud.processes import LabError, say, tail
from tests.lab.vm.layout import ROOTS, STOCK

# Set by tests/run where what takes long is left out.
_SHORT = "NOVA_ACCEL_SHORT"
_PLAIN_VERBS = {
    "down": "end everything that the lab started",
    "status": "what runs",
    "restart-compute": "end nova-compute and start it again",
}
_COMMAND_VERBS = {
    "exec": "run a command against the cloud; without one, its variables",
    "hardware": "run a command in the VM, on the compute host's kernel",
    "logs": "the last lines of all logs, or of those named",
}


@contextlib.contextmanager
def _alone(layout: Layout) -> Iterator[None]:
    """Hold the lab's lock; LabError when another command holds it."""
    layout.lab.mkdir(parents=True, exist_ok=True)
    with (layout.lab / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LabError(
                f"another command starts or ends the lab in {layout.lab}: "
                "wait for it"
            ) from None
        yield


def _up(layout: Layout, options: Options) -> int:
    with _alone(layout):
        machine.up(layout, options)
    return 0


def _down(layout: Layout) -> int:
    with _alone(layout):
        machine.down(layout)
    return 0


def _status(layout: Layout) -> int:
    sys.stdout.writelines(f"{li}\n" for li in machine.status(layout))
    return 0 if Cloud(layout).is_up() else 3


def _exec(layout: Layout, command: Sequence[str]) -> int:
    """Become the command, with the clients pointed at the lab's cloud."""
    env = machine.client_environment(layout)
    if not command:
        names = sorted(machine.client_variables(layout))
        sys.stdout.writelines(f"export {n}='{env[n]}'\n" for n in names)
        sys.stdout.write(f"export PATH='{layout.venv / 'bin'}':$PATH\n")
        return 0
    os.execvpe(command[0], list(command), env)  # noqa: S606 - asked for


def _test(layout: Layout, options: Options, arguments: Sequence[str]) -> int:
    _up(layout, options)
    marks = "lab and not long" if os.environ.get(_SHORT) else "lab"
    argv = [layout.program("python"), "-m", "pytest", "-m", marks]
    argv += arguments or ["tests/e2e"]
    done = subprocess.run(  # noqa: S603 - our own pytest
        argv,
        cwd=layout.repo,
        env=machine.client_environment(layout),
        check=False,
    )
    return done.returncode


def _hardware(layout: Layout, command: Sequence[str]) -> int:
    """Run a command on the compute host's kernel."""
    if not command:
        raise LabError("hardware: give a command, such as ls /sys/bus")
    sys.stdout.write(machine.on_hardware(layout, list(command)))
    return 0


def _restart_compute(layout: Layout) -> int:
    with _alone(layout):
        Cloud(layout).restart_compute()
    return 0


def _logs(layout: Layout, names: Sequence[str]) -> int:
    for path in sorted(layout.log.glob("*.log")):
        if not names or path.stem in names:
            sys.stdout.write(f"{tail(path, 60)}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tests/lab/lab")
    parser.add_argument(
        "--root",
        choices=ROOTS,
        default=STOCK,
        help="Debian release of the VM; stock: this machine's own files",
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, text in (
        ("up", "start the VM and the cloud with the library inside"),
        ("demo", "show the life of servers with accelerators"),
        ("test", "run tests/e2e (or the given pytest arguments)"),
    ):
        sub = verbs.add_parser(verb, help=text)
        sub.add_argument("--hardware", choices=HARDWARE, default="vm")
        sub.add_argument(
            "--activation", choices=ACTIVATIONS, default=ACTIVATIONS[0]
        )
        if verb == "test":
            sub.add_argument("rest", nargs="*")
    for verb, text in _PLAIN_VERBS.items():
        verbs.add_parser(verb, help=text)
    for verb, text in _COMMAND_VERBS.items():
        sub = verbs.add_parser(verb, help=text)
        sub.add_argument("rest", nargs=argparse.REMAINDER)
    return parser


def _run(layout: Layout, args: argparse.Namespace, rest: list[str]) -> int:
    """Do what the command line asks; return the exit status."""
    verb = str(args.verb)
    if verb in ("up", "demo", "test"):
        options = Options(
            hardware=args.hardware,
            activation=args.activation,
            root=args.root,
        )
        if verb == "test":
            return _test(layout, options, [*args.rest, *rest])
        _up(layout, options)
        return demo.show(layout) if verb == "demo" else 0
    if verb in _COMMAND_VERBS:
        action = {"exec": _exec, "hardware": _hardware, "logs": _logs}[verb]
        return action(layout, args.rest)
    return {
        "down": _down,
        "status": _status,
        "restart-compute": _restart_compute,
    }[verb](layout)


def main() -> int:
    """Run one verb; return the exit status."""
    # `lab status | head` is no error.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    began = time.monotonic()
    parser = _parser()
    args, rest = parser.parse_known_args()
    if rest and args.verb != "test":
        parser.error(f"unknown arguments: {' '.join(rest)}")
    try:
        code = _run(read_layout(), args, rest)
    except LabError as error:
        sys.stderr.write(f"lab: {error}\n")
        return 1
    if args.verb in ("up", "down", "demo"):
        say(f"{args.verb}: {time.monotonic() - began:.0f} s")
    return code


if __name__ == "__main__":
    sys.exit(main())
