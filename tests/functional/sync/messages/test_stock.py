# SPDX-License-Identifier: Apache-2.0
"""Messages of the commands about the stock, each with its real cause."""

import pathlib

import pytest

from tests.functional.sync.fleet import stock_site
from tests.functional.sync.messages import transcript
from tests.functional.sync.support import nova_standin, servers


def test_stock(
    placement: servers.Server,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with nova_standin.serve() as nova:
        site = stock_site.Site(placement, nova, tmp_path)
        endpoints = (
            *("--endpoint", placement.url),
            *("--compute-endpoint", nova.url),
        )
        written = transcript.Transcript(
            capsys,
            {
                str(tmp_path): "DIRECTORY",
                placement.url: "PLACEMENT",
                nova.url: "NOVA",
            },
        )
        publish = f"stock publish --directory {tmp_path}"
        with stock_site.serving(site, monkeypatch):
            north = ("--os-cloud", "north")
            written.run(f"{publish} --starts 0", *endpoints)
            written.run(f"{publish}/nowhere", *endpoints)
            written.run("stock list", *north)
            written.run(publish, *endpoints)
            written.run("stock list", *north)
            nova.add_flavor("gpu.small", **stock_site.ONE)
            written.run(publish, *endpoints)
            written.run("stock list --flavor gpu.small --wait 0.1", *north)
            written.run("stock list --flavor gpu.large", *north)
            site.add_host("one", "123")
            written.run(
                f"{publish} --starts 2 --number-role member", *endpoints
            )
            written.run("stock list", *north)
        written.add((tmp_path / "stock.html").read_text())
        written.run("stock list", "--compute-endpoint", nova.url)
        written.run("stock list", "--endpoint", placement.url)
        text = pathlib.Path(site.path).read_text()
        for damaged in (
            text.replace("+00:00", ""),
            text.replace('""', '"films"'),
            "{}",
        ):
            pathlib.Path(site.path).write_text(damaged)
            written.run(publish, *endpoints)
        pathlib.Path(site.path).unlink()

        def wait(_: float) -> None:
            if nova.broken:
                raise KeyboardInterrupt
            nova.broken = ("/flavors",)

        monkeypatch.setattr("time.sleep", wait)
        written.run(f"{publish} --interval 60", *endpoints)
    written.check("stock")
