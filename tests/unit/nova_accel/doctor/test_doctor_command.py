# SPDX-License-Identifier: Apache-2.0
"""``nova-accel doctor`` prints results, and its status is the worst one."""

import errno
import importlib.metadata
import json
import pathlib
import sys
import types

import pytest

from nova_accel import errors
from nova_accel.cli import commands
from nova_accel.discovery import capture
from nova_accel.doctor import checked_host, host_checks, registry
from nova_accel.host.sysfs import host_reader
from tests.support import entry_points, examples
from tests.support.hosts import prepared
from tests.unit.nova_accel.doctor import changes

Output = pytest.CaptureFixture[str]
ALL = registry.list_checks()


def save(change: prepared.Change, path: pathlib.Path) -> str:
    """Capture the changed host as the command does; return the archive."""
    host = prepared.changed(change)
    registry.run(ALL, host)
    capture.save(host.reader, str(path), {"format": capture.FORMAT})
    return str(path)


@pytest.fixture
def archive(tmp_path: pathlib.Path) -> str:
    return save({}, tmp_path / "host.tar.gz")


def run(*arguments: str) -> int:
    return commands.main(["doctor", *arguments])


def test_a_good_host_is_a_success(archive: str, capsys: Output) -> None:
    assert run("--root", archive) == 0
    first, _, out = capsys.readouterr().out.partition("\n\n")
    assert first.startswith("8 accelerators: ")
    assert "NVIDIA L40S (1), " in first
    count = len(registry.select(ALL, (host_checks.Role.COMPUTE,)))
    assert out == (
        "OK      pci.reset: 0000:65:00.0 is reset between guests: flr bus\n"
        f"\n{count} checks: {count} ok.\n"
    )


@pytest.mark.parametrize(
    ("name", "status"), [("pci.bars", 2), ("drv.headers", 1), ("pci.numa", 0)]
)
def test_the_status_is_that_of_the_worst_result(
    tmp_path: pathlib.Path, name: str, status: int
) -> None:
    change = changes.CASES[name].change
    assert run("--root", save(change, tmp_path / "a.tar.gz")) == status


def test_json_has_each_check(archive: str, capsys: Output) -> None:
    assert run("--root", archive, "-f", "json", "--only", "pci") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["counts"]["ok"] == len(report["checks"]) > 10
    assert all(c["id"].startswith("pci.") for c in report["checks"])


def test_a_technology_has_the_checks_of_each_host(
    archive: str, capsys: Output
) -> None:
    assert run("--root", archive, "-f", "json", "--technology", "qat") == 0
    report = json.loads(capsys.readouterr().out)
    technologies = {check["technology"] for check in report["checks"]}
    assert technologies == {"host", "qat"}


@pytest.mark.parametrize(
    ("option", "area"), [("--scheduler", "sched"), ("--remove", "remove")]
)
def test_other_roles_have_their_own_checks(
    archive: str, capsys: Output, option: str, area: str
) -> None:
    run("--root", archive, "-f", "json", option)
    report = json.loads(capsys.readouterr().out)
    assert {c["id"].partition(".")[0] for c in report["checks"]} == {area}


def test_the_plan_names_roles_and_manual_work(
    tmp_path: pathlib.Path, capsys: Output
) -> None:
    cases = changes.CASES
    change = cases["drv.wrong"].change | cases["pci.aer-fatal"].change
    root = save(change, tmp_path / "a.tar.gz")
    assert run("--root", root, "--fix-plan") == 2
    assert capsys.readouterr().out == (
        "---\nnova_accel_roles:\n  blacklist:\n    - drv.wrong\n"
        "nova_accel_manual:\n  - pci.aer-fatal\n  - nv.offers\n"
    )


@pytest.mark.parametrize("name", examples.share(tuple(changes.CASES)))
def test_a_capture_has_the_results_of_its_host(
    tmp_path: pathlib.Path, name: str
) -> None:
    case = changes.CASES[name]
    host = prepared.changed(case.before | case.change, case.gpus)
    results = registry.run(ALL, host)
    path = str(tmp_path / "a.tar.gz")
    capture.save(host.reader, path, {"format": capture.FORMAT})
    image, meta = capture.load(path)
    reader = host_reader.HostReader(
        source=image, gpus=capture.load_gpus(path, meta)
    )
    again = registry.run(ALL, checked_host.CheckedHost(reader))
    assert [r.level for r in again] == [r.level for r in results]


def install(
    monkeypatch: pytest.MonkeyPatch,
    site: pathlib.Path,
    area: object,
    group: str = registry.GROUP,
) -> None:
    """Install a package with checks; an exception is what it raises."""

    def load(name: str) -> object:
        if isinstance(area, Exception):
            raise area
        return area

    module = types.ModuleType("other")
    monkeypatch.setattr(module, "__getattr__", load, raising=False)
    monkeypatch.setitem(sys.modules, "other", module)
    point = importlib.metadata.EntryPoint("other", "other:AREA", group)
    entry_points.install(monkeypatch, site, [point])


ODD = host_checks.Area("other", "gpus", "other")


@ODD.check("odd", why="w", remedy="r")
def check_odd(
    host: checked_host.CheckedHost,
) -> list[host_checks.Observation]:
    """The card is even."""
    raise ZeroDivisionError


@ODD.check("denied", why="w", remedy="r")
def check_denied(
    host: checked_host.CheckedHost,
) -> list[host_checks.Observation]:
    """Its file can be read."""
    raise errors.UnreadableError("/sys/odd", errno.EACCES)


@ODD.check("slow", why="w", remedy="r")
def check_slow(
    host: checked_host.CheckedHost,
) -> list[host_checks.Observation]:
    """Its file can be read in time."""
    raise errors.UnreadableError("/sys/odd", errno.ETIMEDOUT)


def test_another_package_adds_checks(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, tmp_path, ODD)
    check, *_ = registry.list_checks()[len(ALL) :]
    assert check.title == "The card is even"


def test_services_are_called_only_if_asked_for(
    archive: str, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    calls: list[tuple[str, ...]] = []
    area = host_checks.Area("cloud", "doctor", role=host_checks.Role.CLOUD)

    @area.check("service", why="w", remedy="r")
    def check_service(
        host: checked_host.CheckedHost,
    ) -> list[host_checks.Observation]:
        """The service answers."""
        calls.append(host.config_files)
        return [host_checks.fail("no answer")]

    site = pathlib.Path(archive).with_name("site")
    entry_points.remove_groups(monkeypatch, site, registry.CLOUD_GROUP)
    install(monkeypatch, site, area, registry.CLOUD_GROUP)
    assert run("--root", archive) == 0
    assert calls == []
    assert run("--root", archive, "--cloud") == 2
    assert "--cloud can't be used with --root" in capsys.readouterr().err
    conf = str(pathlib.Path(archive).with_name("nova.conf"))
    pathlib.Path(conf).write_text("")
    words = ("--cloud", "--only", "cloud", "--config-file", conf)
    assert run(*words) == 2
    assert calls == [(conf,)]
    assert "FAIL    cloud.service: no answer" in capsys.readouterr().out
