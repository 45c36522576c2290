# SPDX-License-Identifier: Apache-2.0
"""Commands on pages are run: against recorded hosts and a real Placement."""

import itertools
import json
import pathlib
from collections.abc import Callable, Iterator

import pytest

from nova_accel.cli import commands
from nova_accel.config.lines import native_flavors
from nova_accel.host.state import device_notes
from nova_accel.model import names as model_names
from placement_sync.cli import main as placement_sync
from tests.functional.sync.commands import programs
from tests.functional.sync.support import (
    captured_hosts,
    nova_standin,
    servers,
    sites,
)
from tests.unit.docs import own_commands, pages

Output = pytest.CaptureFixture[str]
Words = own_commands.Words
Main = Callable[[list[str]], int]

# Names on pages, and those of the hosts here.
NODE = "a40-vf-mdev"
SERVER = "aaaaaaaa-0000-4000-8000-00000000000a"
SPECS = {
    "resources_GPU1:VGPU": "1",
    "resources_GPU1:CUSTOM_GPU_MEMORY_MB": "8192",
    "trait_GPU1:CUSTOM_VGPU_NVIDIA_A40_8Q": "required",
}
CLOUD = {"node1": NODE, "FLAVOR": "gpu.small", "SERVER": "vm-1"}
FLAVORS = (
    "gpu",
    "gpu.small",
    "gpu.a40.8q",
    "gpu.mine",
    "gpu.alone",
    "fast",
    "hgx",
)
HOST = {
    "0000:41:00.0": sites.CARD,
    "0000:5e:00.0/region-0": sites.CARD,
    "ADDRESS": sites.CARD,
    "HOST": sites.HOST,
}
# The verdict of a check is the exit status: this machine is no compute node.
VERDICTS = ("nova-accel", "doctor")


def test_each_command_is_run_or_an_illustration() -> None:
    """The numbers show when a page gets commands that no test runs."""
    classified = own_commands.classify()
    run_here = [words for words in classified.here if words[0] != "python"]
    assert len(run_here) == len(classified.here) == 89
    assert (len(classified.lab), len(classified.elsewhere)) == (5, 22)
    assert len(classified.illustrations) == 7


def test_tests_elsewhere_have_the_words() -> None:
    for words, path in own_commands.ELSEWHERE.items():
        text = (pages.ROOT / path).read_text()
        *_, verb = (word for word in words if not word.startswith("-"))
        options = [word for word in words if word.startswith("--")]
        missing = [
            word
            for word in (*options, verb)
            if word != "python" and f'"{word}"' not in text
        ]
        assert not missing, (words, path)


@pytest.fixture(scope="module")
def placement(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[servers.Server]:
    with servers.start_sqlite(tmp_path_factory.mktemp("placement")) as server:
        yield server


def list_commands(*programs: str) -> list[Words]:
    """Return the commands of some programs, in a stable order."""
    return sorted(
        words
        for words in own_commands.classify().here
        if " ".join(words).startswith(programs)
    )


def replace(words: Words, names: dict[str, str]) -> list[str]:
    """Return the words with the names of the hosts here."""
    replaced = []
    for word in words:
        for name, value in names.items():
            word = word.replace(name, value)  # noqa: PLW2901
        replaced.append(word)
    return replaced


@pytest.mark.slow
def test_commands_of_the_cloud_run(
    placement: servers.Server,
    tmp_path: pathlib.Path,
    capsys: Output,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    placement.empty()
    monkeypatch.chdir(tmp_path)
    with nova_standin.serve() as nova:
        cloud = fill_cloud(placement, tmp_path, capsys, nova)
        failed = {}
        for words in list_commands("openstack accel"):
            status, out, err = run_in_cloud(cloud, words)
            if status or not out + err:
                failed[" ".join(words)] = f"{status}: {out[-300:]} {err}"
    assert not failed, "\n".join(f"{k}: {v}" for k, v in failed.items())


def fill_cloud(
    placement: servers.Server,
    place: pathlib.Path,
    capsys: Output,
    nova: nova_standin.Nova,
) -> captured_hosts.Cloud:
    """Return a cloud with the cards, flavors and the server of the pages."""
    cloud = captured_hosts.Cloud(placement, place, capsys, nova)
    for name in (NODE, "t4-mdev", "qat", "dfl-pac", "passthrough"):
        root = cloud.add(name, VCPU=64, MEMORY_MB=999999, DISK_GB=999)
        nova.add_host(root, f"{name}.example.org")
        if name == "t4-mdev":
            cloud.drain(model_names.provider_uuid(root, sites.CARD), VGPU=16)
    nova.add_server(SERVER, f"{NODE}.example.org", "vm-1", **SPECS)
    for flavor in FLAVORS:
        nova.add_flavor(flavor, **SPECS)
    listing = ("openstack", "accel", "profile", "list", "-f", "json")
    _, profiles, _ = run_in_cloud(cloud, listing)
    (place / "profiles.json").write_text(profiles)
    assert json.loads(profiles)
    (place / "lines.json").write_text(native_flavors.EXAMPLE)
    archive = ("--root", str(place / NODE), "-o", str(place / "host.tar.gz"))
    assert run(programs.main, ["capture", *archive]) == 0
    return cloud


def run_in_cloud(
    cloud: captured_hosts.Cloud, words: Words
) -> tuple[int, str, str]:
    """Run a command; flavors are not written, as Nova is a fake here."""
    replaced = replace(words[2:], CLOUD)
    if replaced[0] == "flavor" and replaced[1] != "show":
        replaced.append("--dry-run")
    assert cloud.nova is not None
    endpoints = {
        "--endpoint": cloud.placement.url,
        "--compute-endpoint": cloud.nova.url,
    }
    for option, url in endpoints.items():
        replaced += [option, url]
    status = run(programs.main, replaced)
    return status, *cloud.capsys.readouterr()


def run(main: Main, words: list[str]) -> int:
    """Run a command in this process; return its exit status."""
    try:
        return main(words)
    except SystemExit as end:
        return int(end.code or 0)


def read_help(main: Main, words: list[str], capsys: Output) -> str:
    """Return the help of a command."""
    capsys.readouterr()
    verbs = list(itertools.takewhile(str.isalpha, words))
    while verbs and run(main, [*verbs, "--help"]):
        verbs.pop()
    return capsys.readouterr().out


@pytest.mark.slow
def test_commands_of_a_host_run(
    placement: servers.Server,
    tmp_path: pathlib.Path,
    capsys: Output,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    placement.empty()
    monkeypatch.chdir(tmp_path)
    site = sites.Site(placement, tmp_path, capsys)
    site.register()
    token = tmp_path / "client_configuration_token.tok"
    token.write_text("e30.e30.c2ln")
    token.chmod(0o600)
    cloud = {
        "auth_type": "admin_token",
        "auth": {"endpoint": placement.url, "token": "admin"},
        "placement_endpoint_override": placement.url,
    }
    clouds = tmp_path / "clouds.yaml"
    clouds.write_text(json.dumps({"clouds": {"lab": cloud}}))
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(clouds))
    names = HOST | {
        "/etc/nova/nova.conf": str(site.conf),
        "FILE": str(site.conf),
        "/etc/nova/vendor_data.json": str(tmp_path / "vendor_data.json"),
        "/tmp/host": str(site.root),  # noqa: S108
    }
    failed = {}
    # An archive, and the status of a pass, are written before they are read.
    for words in sorted(
        list_commands("nova-accel", "placement-sync"),
        key=lambda words: not {"capture", "run"} & {*words},
    ):
        device_notes.FaultNotes(str(site.state)).put(
            sites.CARD, "of a test", None
        )
        if "undrain" in words:
            drain = [
                "nova-accel",
                "drain",
                sites.CARD,
                "--reason",
                "of a test",
            ]
            run_on_host(site, drain, capsys)
        status, text = run_on_host(site, replace(words, names), capsys)
        if not text or (status and words[:2] != VERDICTS):
            failed[" ".join(words)] = f"{status}: {text[-300:]}"
    assert not failed, "\n".join(f"{k}: {v}" for k, v in failed.items())


def run_on_host(
    site: sites.Site, words: list[str], capsys: Output
) -> tuple[int, str]:
    """Run a command with the nova.conf of the site, where it reads one."""
    program, *arguments = words
    main: Main = placement_sync.main
    if program == "nova-accel":
        main = commands.main
    options = {"--config-file", "--root", "--print-unit"}
    # A global option and its value precede the command.
    command = arguments[2 if arguments[0] == "--os-cloud" else 0 :]
    text = read_help(main, command, capsys)
    if "--config-file FILE" in text and not options & {*arguments}:
        arguments += ["--config-file", str(site.conf)]
        if "--host NAME" in text and "--host" not in arguments:
            arguments += sites.NODE
    once = {"--once", "--dry-run", "--print-unit"}
    if command[0] == "run" and not once & {*arguments}:
        arguments.append("--once")
    status = run(main, arguments)
    output = capsys.readouterr()
    return status, output.out + output.err
