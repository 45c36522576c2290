# SPDX-License-Identifier: Apache-2.0
"""The whole cloud: what starts after what, and how all of it ends."""

import concurrent.futures
import dataclasses
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.lab.cloud import backends, installations, settings
from tests.lab.cloud.layout import Layout
from tests.lab.cloud.options import Options, read_options
from tests.lab.cloud.processes import (
    LabError,
    Processes,
    http_answers,
)
from tests.lab.cloud.snapshots import Snapshots

#: Names of the image and the plain flavor that every lab has.
IMAGE = "tiny"
FLAVOR = "nano"

#: The name of nova-compute's process, of its log and its nova.conf.
COMPUTE = "nova-compute"
#: nova-compute logs this after its first report to placement, just before
#: it listens (nova.service.Service.start).
COMPUTE_READY = "Join ServiceGroup membership for this service compute"
_CONDUCTOR_READY = "Starting conductor node"
_SCHEDULER_READY = "Starting scheduler node"
#: Module of the network service without networks.
_NETWORK = "lab_network"
_PLUGIN = "[sqlalchemy.plugins]\nlab_sqlite = lab_sqlite:SharedSqlite\n"


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One step of the start: its name, what must be done before, itself."""

    name: str
    after: tuple[str, ...]
    action: Callable[[], None]


class Cloud:
    """The control plane of one lab and its nova-compute."""

    def __init__(self, layout: Layout) -> None:
        """Take the layout; nothing is started."""
        self.layout = layout
        self.processes = Processes(layout)
        #: What its own services are started from.
        self.nova = installations.find_own(layout)
        self._host: settings.ComputeHost | None = None

    def is_up(self) -> bool:
        """Return whether a cloud was started completely and not ended."""
        return (self.layout.state / "up").exists() and not self.dead()

    def dead(self) -> list[str]:
        """Return the names of recorded processes that run no more."""
        names = self.processes.names()
        return [n for n in names if self.processes.pid(n) is None]

    def up(
        self,
        options: Options,
        hardware: Callable[[], settings.ComputeHost],
    ) -> None:
        """Start everything; LabError names the step that failed and why.

        ``hardware`` starts the compute host's hardware and libvirt and
        returns how to reach them; it runs beside the other steps.
        """
        self._create_state(options)
        steps = tuple(self._steps(options, hardware))
        _run_steps(steps, self.processes.stop_all)
        (self.layout.state / "up").touch()

    def end(self) -> None:
        """End every process of the cloud; its state stays."""
        backends.drop_domains(self.layout)
        self.processes.stop_all()

    def restart_compute(self, overlay: Path | None = None) -> None:
        """End nova-compute and start it again; return when it is ready.

        An overlay is a further configuration file whose values win.
        """
        self.processes.stop(COMPUTE)
        self.start_compute(COMPUTE, self.prefix, overlay)

    def restart_control(self, overlay: Path | None = None) -> None:
        """End nova-conductor and nova-api and start them again.

        An overlay is a further configuration file whose values win.
        """
        self.processes.stop("nova-conductor")
        self._nova("nova-conductor", _CONDUCTOR_READY, overlay)
        self.restart_api(overlay)

    def restart_api(self, overlay: Path | None = None) -> None:
        """End nova-api and start it again."""
        self.processes.stop("nova-api")
        self._api(overlay)

    def restart_scheduler(self, overlay: Path | None = None) -> None:
        """End nova-scheduler and start it again.

        An overlay is a further configuration file whose values win.
        """
        self.processes.stop("nova-scheduler")
        self._scheduler(overlay)

    def restart_network(
        self, python: Path | None = None, module: str = _NETWORK
    ) -> None:
        """End the network service and start it again, or another one.

        :param python: interpreter of the other one; ``module`` has its
            WSGI application.
        """
        self.processes.stop("network")
        self._serve("network", module, 2, python)

    def map_hosts(self) -> None:
        """Map compute hosts that are new into their cell."""
        self._prepare("discover")

    def _create_state(self, options: Options) -> None:
        layout = self.layout
        if layout.log.exists():
            shutil.rmtree(layout.log)
        site = layout.state / "site"
        for path in (
            layout.log,
            layout.etc,
            layout.run,
            layout.databases,
            layout.instances,
            layout.images,
            layout.state / "locks",
        ):
            path.mkdir(parents=True)
        write_distribution(site, "lab-sqlite", _PLUGIN)
        options.save(layout)

    def _steps(
        self,
        options: Options,
        hardware: Callable[[], settings.ComputeHost],
    ) -> Iterator[Step]:
        layout, processes = self.layout, self.processes

        def host() -> None:
            self._host = hardware()
            self._remember(self._host)
            settings.write_settings(layout, options, self._host)

        def serve(name: str, target: str, threads: int) -> Callable[[], None]:
            return lambda: self._serve(name, target, threads)

        # The files must be there at once; nova-compute's is written again
        # when the hardware is known.
        nowhere = settings.ComputeHost(libvirt_uri="", virt_type="qemu")
        settings.write_settings(layout, options, nowhere)
        snapshots = Snapshots(layout)

        yield Step(
            "rabbitmq",
            (),
            lambda: backends.start_rabbitmq(layout, processes),
        )
        yield Step("hardware", (), host)
        yield Step("keystone", (), lambda: self._keystone(snapshots))
        yield Step(
            "nova databases", (), lambda: self._nova_databases(snapshots)
        )
        yield Step(
            "placement", (), serve("placement", "placement.wsgi.api", 4)
        )
        yield Step("glance", (), lambda: self._glance(snapshots))
        yield Step("network", (), serve("network", _NETWORK, 2))
        queue = ("rabbitmq", "nova databases")
        yield Step(
            "nova-conductor",
            queue,
            lambda: self._nova("nova-conductor", _CONDUCTOR_READY),
        )
        yield Step("nova-scheduler", queue, self._scheduler)
        yield Step("nova-api", queue, self._api)
        yield Step(
            "nova-compute",
            ("nova-conductor", "hardware", "keystone", "placement"),
            lambda: self.start_compute(COMPUTE, self.prefix),
        )
        yield Step(
            "cell mapping",
            ("nova-conductor",),
            self.map_hosts,
        )
        yield Step(
            "image and flavor",
            ("keystone", "glance", "nova-api"),
            lambda: self._prepare("seed", IMAGE, FLAVOR),
        )

    def _serve(
        self,
        name: str,
        module: str,
        threads: int,
        python: Path | None = None,
        **env: str,
    ) -> None:
        """Start a WSGI service and wait until it answers.

        :param python: another interpreter than that of Nova.
        """
        program = [str(python)] if python else self.nova.argv("python")
        process = self.processes.spawn(
            name,
            [
                *program,
                str(self.layout.inside / "lab_serve.py"),
                f"{module}:application",
                str(self.layout.port(name)),
                str(threads),
            ],
            env,
        )
        probe = http_answers(self.layout.url(name, "/"))
        self.processes.wait(name, probe, process)

    def _scheduler(self, overlay: Path | None = None) -> None:
        self._nova("nova-scheduler", _SCHEDULER_READY, overlay)

    def _api(self, overlay: Path | None = None) -> None:
        files = ["api-paste.ini", "nova.conf"]
        if overlay is not None:
            files.append(str(overlay))
        self._serve(
            "nova-api",
            "nova.wsgi.osapi_compute",
            6,
            OS_NOVA_CONFIG_FILES=";".join(files),
        )

    def _nova(
        self, name: str, ready: str, overlay: Path | None = None
    ) -> None:
        """Start a nova service and wait until its log says so."""
        log = self.processes.log(name)
        seen = log.stat().st_size if log.exists() else 0
        files = [self.layout.etc / "nova.conf"]
        if overlay is not None:
            files.append(overlay)
        argv = self.nova.argv(name, *(f"--config-file={f}" for f in files))
        process = self.processes.spawn(name, argv)
        probe = self.processes.says(name, ready, seen)
        self.processes.wait(name, probe, process)

    def start_compute(
        self,
        name: str,
        prefix: Sequence[str],
        overlay: Path | None = None,
        nova: installations.Installation | None = None,
    ) -> None:
        """Start a nova-compute where its hardware's /sys is /sys.

        :param name: of the process, its log and its configuration.
        :param prefix: what makes that /sys its own.
        :param nova: that of the host, if it is not the control plane's.
        """
        nova = nova or self.nova
        files = [self.layout.etc / f"{name}.conf"]
        if nova != installations.find_own(self.layout):
            files.append(settings.write_helper(self.layout, nova, files[0]))
        if overlay is not None:
            files.append(overlay)
        log = self.processes.log(name)
        seen = log.stat().st_size if log.exists() else 0
        words = nova.argv(COMPUTE, *(f"--config-file={f}" for f in files))
        argv = [*prefix, *words]
        process = self.processes.spawn(name, argv)
        ready = self.processes.says(name, COMPUTE_READY, seen)
        self.processes.wait(name, ready, process)

    def _prepare(self, *argv: str) -> None:
        program = str(self.layout.inside / "lab_prepare.py")
        self.processes.call(
            f"prepare-{argv[0]}",
            [self.layout.program("python"), program, *argv],
        )

    def _keystone(self, snapshots: Snapshots) -> None:
        url = self.layout.url
        if snapshots.restore("keystone"):
            self._serve("keystone", "keystone.wsgi.api", 4)
            return
        keys = ("fernet", "credential")
        for key in keys:
            (self.layout.etc / key).mkdir(mode=0o700)
        self._prepare("keystone", url("keystone", "/v3"))
        self._serve("keystone", "keystone.wsgi.api", 4)
        self._prepare(
            "catalog",
            f"compute={url('nova-api', '/v2.1')}",
            f"placement={url('placement')}",
            f"image={url('glance')}",
            f"network={url('network')}",
        )
        snapshots.keep("keystone", ("keystone",), keys)

    def _nova_databases(self, snapshots: Snapshots) -> None:
        cell0 = settings.database(self.layout, "nova_cell0")
        snapshots.once(
            "nova",
            ("nova_api", "nova_cell0", "nova_cell1"),
            lambda: self._prepare("nova", cell0),
        )

    def _glance(self, snapshots: Snapshots) -> None:
        conf = self.layout.etc / "glance-api.conf"
        snapshots.once(
            "glance",
            ("glance",),
            lambda: self.processes.call(
                "prepare-glance",
                [
                    self.layout.program("glance-manage"),
                    f"--config-file={conf}",
                    "db_sync",
                ],
            ),
        )
        self._serve("glance", "glance.wsgi.api", 4)

    def _remember(self, host: settings.ComputeHost) -> None:
        lines = [host.libvirt_uri, host.virt_type, *host.prefix]
        (self.layout.run / "compute-host").write_text("\0".join(lines))

    def _compute_host(self) -> settings.ComputeHost:
        """Return the compute host of the running lab."""
        if self._host is None:
            file = self.layout.run / "compute-host"
            uri, virt, *prefix = file.read_text().split("\0")
            self._host = settings.ComputeHost(
                libvirt_uri=uri, virt_type=virt, prefix=tuple(prefix)
            )
        return self._host

    @property
    def prefix(self) -> tuple[str, ...]:
        """Return what runs a command where the hardware's /sys is /sys."""
        return self._compute_host().prefix

    @property
    def libvirt_uri(self) -> str:
        """Return the URI of the libvirt that runs the servers."""
        return self._compute_host().libvirt_uri


def write_distribution(site: Path, name: str, entry_points: str) -> None:
    """Write the metadata of a distribution whose modules are elsewhere.

    :param site: a directory of Python's path.
    """
    place = site / f"{name.replace('-', '_')}-1.0.dist-info"
    place.mkdir(parents=True)
    (place / "entry_points.txt").write_text(entry_points)
    (place / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    )


def status(cloud: Cloud) -> Iterator[str]:
    """Yield the lines of the lab's status."""
    options = read_options(cloud.layout)
    if options is None:
        yield "cloud: down"
        return
    word = "up" if cloud.is_up() else "not up"
    yield (
        f"cloud: {word} (hardware: {options.hardware}, "
        f"activation: {options.activation})"
    )
    for name in cloud.processes.names():
        pid = cloud.processes.pid(name)
        yield f"  {name:16} {f'pid {pid}' if pid else 'DEAD'}"


def _run_steps(steps: tuple[Step, ...], give_up: Callable[[], None]) -> None:
    """Run each step as soon as those before it are done.

    When one fails, ``give_up`` ends what the others wait for.  LabError
    carries what failed first.
    """
    futures: dict[str, concurrent.futures.Future[None]] = {}

    def follow(step: Step) -> None:
        for name in step.after:
            if futures[name].exception() is not None:
                raise concurrent.futures.CancelledError(name)
        step.action()

    with concurrent.futures.ThreadPoolExecutor(len(steps)) as pool:
        for step in steps:
            futures[step.name] = pool.submit(follow, step)
        done, _ = concurrent.futures.wait(
            futures.values(),
            return_when=concurrent.futures.FIRST_EXCEPTION,
        )
        errors = {
            name: error
            for name, future in futures.items()
            if future in done
            and (error := future.exception()) is not None
            and not isinstance(error, concurrent.futures.CancelledError)
        }
        if errors:
            give_up()
    if errors:
        lines = (f"{name}: {error}" for name, error in errors.items())
        raise LabError("\n".join(lines))


def host_hardware(
    layout: Layout, processes: Processes
) -> settings.ComputeHost:
    """Start libvirt on this machine; return how to reach it."""
    backends.start_libvirt(layout, processes)
    return settings.ComputeHost(
        libvirt_uri=backends.libvirt_uri(layout),
        virt_type="kvm" if backends.kvm_is_usable() else "qemu",
    )
