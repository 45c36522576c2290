# SPDX-License-Identifier: Apache-2.0
"""python -m tests.lab.vm VERB: the lab VM from a shell."""

import argparse
import os
import pathlib
import subprocess
import sys

from tests.lab import vm
from tests.lab.vm import layout


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.vm")
    home = os.environ.get("NOVA_ACCEL_LAB", ".lab")
    parser.add_argument("--lab", type=pathlib.Path, default=home)
    verbs = parser.add_subparsers(dest="verb", required=True)
    prepare = verbs.add_parser("prepare", help="download and build; cached")
    prepare.add_argument(
        "--root",
        choices=layout.ROOTS,
        help="Debian release of the machines from now on; stock: this one's",
    )
    job = verbs.add_parser("run", help="boot, run a script inside, power off")
    job.add_argument("job", type=pathlib.Path)
    job.add_argument("--timeout", type=float, default=300, metavar="SECONDS")
    start = verbs.add_parser("start", help="boot and serve libvirt and /sys")
    start.add_argument("share", type=pathlib.Path)
    verbs.add_parser("stop", help="end what start began")
    verbs.add_parser("status", help="up or down, and the libvirt URI")
    for name, text in (
        ("exec", "run a command here, with the machine's /sys"),
        ("guest", "run a command inside the machine"),
    ):
        verb = verbs.add_parser(name, help=text)
        verb.add_argument("argv", nargs=argparse.REMAINDER, metavar="COMMAND")
    return parser


def _guest(lab: pathlib.Path, argv: list[str]) -> int:
    done = vm.guest_exec(lab, argv)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return done.returncode


def _status(lab: pathlib.Path) -> int:
    up = vm.is_up(lab)
    print(f"up {vm.libvirt_uri()} {vm.virt_type(lab)}" if up else "down")
    return 0 if up else 1


def _run(args: argparse.Namespace) -> int:
    match args.verb:
        case "prepare":
            vm.prepare(args.lab, args.root)
        case "run":
            return vm.run_job(args.lab, args.job, timeout_s=args.timeout)
        case "start":
            vm.start(args.lab, share=args.share)
        case "stop":
            vm.stop(args.lab)
        case "status":
            return _status(args.lab)
        case "guest":
            return _guest(args.lab, args.argv)
        case "exec":
            argv = [*vm.exec_prefix(args.lab), *args.argv]
            return subprocess.run(argv, check=False).returncode  # noqa: S603
    return 0


def main() -> int:
    """Run one verb; return the exit status."""
    try:
        return _run(_parser().parse_args())
    except vm.LabVmError as exc:
        print(f"lab VM: {exc}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
