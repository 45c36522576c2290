# SPDX-License-Identifier: Apache-2.0
"""One life of the campaign: servers, their operations, and the faults."""

import dataclasses
import json
import logging
import random
import re
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nova import exception, objects
from nova.compute import vm_states
from nova.tests.functional.api import client

from nova_accel.model import names, rpc_names
from tests.campaign import cards, endings
from tests.campaign import world as worlds
from tests.campaign.faults import DOWN, Fault, KilledError, has_points
from tests.functional.nova.support import harness

LOG = logging.getLogger(__name__)

#: What can be done to a server in a state, with its share.
_SERVER = {
    vm_states.ACTIVE: {
        "stop": 4,
        "reboot": 3,
        "rebuild": 2,
        "resize_here": 2,
        "resize_there": 2,
        "live_migrate": 2,
        "attach": 2,
        "detach": 2,
        "suspend": 1,
        "pause": 1,
        "offload": 1,
        "rescue": 1,
        "delete": 5,
    },
    vm_states.STOPPED: {
        "start": 6,
        "reboot": 1,
        "rebuild": 1,
        "resize_here": 1,
        "resize_there": 1,
        "delete": 3,
    },
    vm_states.RESIZED: {"confirm": 4, "revert": 4, "delete": 1},
    vm_states.ERROR: {"reboot": 3, "rebuild": 1, "delete": 3},
    vm_states.SUSPENDED: {"resume": 3, "delete": 1},
    vm_states.PAUSED: {"unpause": 3, "delete": 1},
    vm_states.RESCUED: {"unrescue": 3, "delete": 1},
    vm_states.SHELVED_OFFLOADED: {"unshelve": 3, "delete": 1},
}
_DOWN = {"evacuate": 5, "delete": 1}
_HOST = {
    "restart": 3,
    "passes": 3,
    "unplug": 1,
    "down": 0.7,
    "blackout": 0.3,
    "hang": 0.7,
    "drain": 1,
    "undrain": 1,
    "heal": 0.7,
    "set_vfs": 0.4,
    "set_mig": 0.7,
    "rebind": 0.7,
}
#: Those that last until they are undone.
_LASTING = ("set_vfs", "set_mig", "rebind")
_MOST_SERVERS = 3
#: The directories of a simulated host, and of its ``state_dir``.
_TEMPORARY = re.compile(r"/\S*/tmp[^/ ]*")
_PATIENCE_S = 60
#: How a card hangs: until the end of the life, or once for some seconds,
#: longer than nova-compute waits for it.
_HANGS = ("read", "read once", "write", "write once")
_HANG_S = 5.0
#: Files that only the library writes. The simulated libvirt writes others,
#: in the thread of its caller.
_WRITTEN = ("reset", "create", "remove", "current_vgpu_type")
_OVERLAP_S = 0.3
#: Operations in the middle of which another one begins, and those that do.
_OVERLAPPED = (
    "boot",
    "start",
    "reboot",
    "rebuild",
    "attach",
    "detach",
    "resume",
    "rescue",
    "unrescue",
    "unshelve",
    "resize_here",
    "resize_there",
    "confirm",
    "revert",
    "live_migrate",
    "delete",
)
_OVERLAPPING = ("delete", "delete", "delete", "boot", "passes")
#: How many further steps a fault lasts.
_MOST_FURTHER = 4


@dataclasses.dataclass
class Step:
    """One thing that is done, and what fails meanwhile.

    :ivar target: the number of a server, or the name of a host.
    :ivar meanwhile: what is done before a point, as kind and number of the
        point, and the operation: on the same server, or on its host.
    :ivar further: the number of steps after this one in which its faults
        occur, too, from the first call on.
    """

    name: str
    target: int | str = ""
    flavor: str = ""
    faults: tuple[Fault, ...] = ()
    meanwhile: tuple[str, int, str] | None = None
    further: int = 0

    def to_plain(self) -> list[Any]:
        plain = [self.name, self.target, self.flavor]
        faults = [str(f) for f in self.faults]
        return [*plain, faults, self.meanwhile, self.further]

    @classmethod
    def from_plain(cls, plain: list[Any]) -> "Step":
        name, target, flavor, faults, meanwhile, *rest = plain
        return cls(
            name,
            target,
            flavor,
            tuple(map(Fault.parse, faults)),
            (meanwhile[0], meanwhile[1], meanwhile[2]) if meanwhile else None,
            *rest,
        )


def to_text(steps: list[Step]) -> str:
    """Return a schedule as one line that ``--schedule`` takes."""
    return json.dumps([step.to_plain() for step in steps])


def from_text(text: str) -> list[Step]:
    """Return the schedule of such a line."""
    return [Step.from_plain(plain) for plain in json.loads(text)]


class Life(cards.CardChanges):
    """Servers of one world, from the first to the last one's end."""

    def __init__(self, world: worlds.World) -> None:
        """Begin in a world where nothing is held."""
        super().__init__(world)
        self.steps: list[Step] = []
        self.servers: list[str] = []
        #: Faults that struck, and the calls they hit.
        self.struck: list[str] = []
        #: Hosts with a card whose files hang, or did.
        self.hanging: set[str] = set()
        #: Faults that last, with the number of steps that are left.
        self._lasting: list[tuple[Fault, int]] = []
        self.log: list[str] = []
        #: Errors of the campaign's own code.
        self.defects: list[str] = []
        #: What failed operations have left, before any pass.
        self.leftovers: list[str] = []

    # -- what is done ------------------------------------------------------

    def live(self, rng: random.Random) -> None:
        """Do random things; the steps say later what they were."""
        for _ in range(rng.randint(4, 12)):
            step = self._draw(rng)
            self.take(step)

    def replay(self, steps: list[Step]) -> None:
        """Do what a schedule says, as far as it can be done."""
        for step in steps:
            self.take(step)

    def take(self, step: Step) -> None:
        """Do one thing, with its faults."""
        self.steps.append(step)
        call = getattr(self, f"do_{step.name}", None) or getattr(
            self, f"host_{step.name}"
        )
        threads: list[threading.Thread] = []
        meanwhile = None
        if step.meanwhile is not None:
            kind, number, name = step.meanwhile

            def overlap() -> None:
                other, call = self._overlapping(name, step)
                thread = threading.Thread(
                    target=self._try, args=(name, call, other), daemon=True
                )
                threads.append(thread)
                thread.start()
                thread.join(_OVERLAP_S)

            meanwhile = kind, number, overlap
        lasting = tuple(fault for fault, _ in self._lasting)
        before = None if lasting else self._read_before(step)
        with self.world.injector.armed((*step.faults, *lasting), meanwhile):
            error = self._try(step.name, call, step)
            for thread in threads:
                thread.join(_PATIENCE_S)
                assert not thread.is_alive(), f"{step} does not end"
            for fault, name in self.world.injector.struck.items():
                self.struck.append(f"{fault} {name}")
                stable_name = _TEMPORARY.sub("", name)
                self.log.append(f"   struck {fault} {stable_name}")
        if before is not None:
            self._compare(before, step, error)
        self._lasting = [(f, n - 1) for f, n in self._lasting if n > 1]
        self._lasting += [
            (dataclasses.replace(fault, first=0), step.further)
            for fault in step.faults
            if step.further and fault.kind != "kill"
        ]
        stays_down = any(fault.code == DOWN for fault in step.faults)
        for host in list(self.world.injector.killed):
            if stays_down:
                self.host_down(Step("down", host))
            else:
                self.world.revive(host)
        self.log.append(f"   servers {', '.join(self._list_states())}")

    def _read_before(self, step: Step) -> endings.Facts | None:
        """Return what there is before an operation that may be undone.

        An undo that meets a fault is ended by a pass.
        """
        is_single = len(step.faults) == 1 and step.faults[0].is_refusal
        if (
            step.name not in endings.OPERATIONS
            or not is_single
            or step.meanwhile is not None
            or self.hanging
        ):
            return None
        is_new = step.name == "boot"
        server = None if is_new else self._find_server(step)
        return endings.read(self.world, server)

    def _compare(
        self, before: endings.Facts, step: Step, error: BaseException | None
    ) -> None:
        """Note what an operation has left that has failed."""
        server = self._find_server(step)
        if endings.has_failed(self.world, step, server, error):
            after = endings.read(self.world, server)
            self.leftovers += endings.list_left(
                self.world, step, before, after
            )

    def _find_server(self, step: Step) -> Any:
        """Return the server of a step, None for one that is gone."""
        number = -1 if step.name == "boot" else int(step.target)
        return self.instance(self.servers[number]) if self.servers else None

    def _list_states(self) -> Iterator[str]:
        for number, uuid in enumerate(self.servers):
            instance = self.instance(uuid)
            if instance is not None:
                words = filter(None, (instance.vm_state, instance.task_state))
                yield f"{number} {' '.join(words)} on {instance.host}"

    def _overlapping(
        self, name: str, step: Step
    ) -> tuple[Step, Callable[[Step], Any]]:
        """Return the step in the middle of another one, and its call."""
        if name == "boot":
            other = Step("boot", worlds.HOSTS[0], "small")
        elif name == "passes":
            other = Step("passes", worlds.HOSTS[0])
            return other, self.host_passes
        elif step.name == "boot":
            other = Step(name, len(self.servers) - 1)
        else:
            other = dataclasses.replace(step, name=name)
        call: Callable[[Step], Any] = getattr(self, f"do_{name}")
        return other, call

    def _try(
        self, name: str, call: Callable[[Step], Any], step: Step
    ) -> BaseException | None:
        """Do something; return why it was refused, or failed."""
        line = f"{name} {step.target} {step.flavor}"
        try:
            self.world.bus.run(lambda: call(step))
            self.log.append(line)
        except client.OpenStackApiException as error:
            self.log.append(f"{line}: refused: {str(error)[:150]}")
            refused: Exception = error
            return refused
        except KilledError as error:
            self.log.append(f"{line}: killed")
            return error
        except Exception as error:
            LOG.exception("%s failed", line)
            self.log.append(f"{line}: {error!r:.300}")
            if isinstance(error, AttributeError | NameError | TypeError):
                *_, last = traceback.extract_tb(error.__traceback__)
                if Path(last.filename).parent == Path(__file__).parent:
                    self.defects.append(f"{line}: {error!r}")
            return error
        return None

    # -- what could be done ------------------------------------------------

    def _draw(self, rng: random.Random) -> Step:
        options = dict(self._options())
        keys = list(options)
        ((name, target),) = rng.choices(keys, [options[k] for k in keys])
        step = Step(name, target)
        if name == "boot":
            (step.flavor,) = rng.choices(("small", "other", "none"), (8, 3, 1))
            step.target = (
                rng.choice(worlds.HOSTS)
                if rng.random() < 0.3
                else (worlds.HOSTS[0])
            )
        elif name == "hang":
            step.flavor = rng.choice(_HANGS)
        elif name.startswith("resize"):
            (step.flavor,) = rng.choices(("other", "small", "none"), (4, 2, 1))
        if has_points(name) and rng.random() < 0.8:
            step.faults = tuple(
                Fault.draw(rng, name)
                for _ in range(rng.choice((1, 1, 1, 2, 2, 3)))
            )
            if rng.random() < 0.1:
                step.further = rng.randint(1, _MOST_FURTHER)
        if name in _OVERLAPPED and rng.random() < 0.25:
            kind = rng.choice(("libvirt", "save", "query"))
            other = rng.choice(_OVERLAPPING)
            step.meanwhile = (kind, rng.randrange(12), other)
        return step

    def _options(self) -> Iterator[tuple[tuple[str, int | str], float]]:
        """Yield what could be done, with its share."""
        alive = 0
        for number, uuid in enumerate(self.servers):
            instance = self.instance(uuid)
            if instance is None:
                continue
            alive += 1
            for name, share in self._known_of(instance).items():
                yield (name, number), share
        if alive < _MOST_SERVERS:
            yield ("boot", ""), 5 if alive else 12
        for host in worlds.HOSTS:
            for name, share in self._known_of_host(host):
                yield (name, host), share

    def _known_of_host(self, host: str) -> Iterator[tuple[str, float]]:
        """Yield what can be done to a host as it is, with its share."""
        if host in self.world.down:
            yield "restart", 3
            return
        for name, share in _HOST.items():
            if name == "unplug" and host in self.unplugged:
                yield "plug", 1.5
            elif name in _LASTING and self.undo:
                yield "restore", 1.5
            elif name != "set_mig" or self.has_mig():
                yield name, share / 2

    def _known_of(self, instance: Any) -> Mapping[str, float]:
        """Return what can be done to a server as it is."""
        if instance.host in self.world.down:
            return _DOWN
        if instance.task_state is not None:
            return {"delete": 3}
        return _SERVER.get(instance.vm_state, {"delete": 3})

    def instance(self, uuid: str) -> Any:
        """Return a server as Nova has it, None for one that is gone."""
        try:
            return objects.Instance.get_by_uuid(self.world.context, uuid)
        except exception.InstanceNotFound:
            return None

    # -- servers -----------------------------------------------------------

    def do_boot(self, step: Step) -> None:
        world = self.world
        world.only = str(step.target)
        body = world._build_server(
            image_uuid=harness.IMAGE,
            flavor_id=world.flavors[step.flavor],
            networks="none",
        )
        server = world.api.post_server({"server": body})
        self.servers.append(server["id"])

    def _act(self, step: Step, word: str, body: Any = None) -> None:
        uuid = self.servers[int(step.target)]
        self.world.api.post_server_action(uuid, {word: body})

    def do_delete(self, step: Step) -> None:
        self.world.api.delete_server(self.servers[int(step.target)])

    def do_stop(self, step: Step) -> None:
        self._act(step, "os-stop")

    def do_start(self, step: Step) -> None:
        self._act(step, "os-start")

    def do_reboot(self, step: Step) -> None:
        self._act(step, "reboot", {"type": "HARD"})

    def do_rebuild(self, step: Step) -> None:
        self._act(step, "rebuild", {"imageRef": harness.IMAGE})

    def do_suspend(self, step: Step) -> None:
        self._act(step, "suspend")

    def do_resume(self, step: Step) -> None:
        self._act(step, "resume")

    def do_pause(self, step: Step) -> None:
        self._act(step, "pause")

    def do_unpause(self, step: Step) -> None:
        self._act(step, "unpause")

    def do_rescue(self, step: Step) -> None:
        self.world.make_directory({"id": self.servers[int(step.target)]})
        self._act(step, "rescue")

    def do_unrescue(self, step: Step) -> None:
        self._act(step, "unrescue")

    def do_offload(self, step: Step) -> None:
        harness.CONF.set_override("shelved_offload_time", 0)
        self._act(step, "shelve")

    def do_unshelve(self, step: Step) -> None:
        self.world.only = ""
        self._act(step, "unshelve")

    def _host_of(self, step: Step) -> str:
        instance = self.instance(self.servers[int(step.target)])
        return str(instance.host) if instance is not None else ""

    def _other(self, host: str) -> str:
        return worlds.HOSTS[host == worlds.HOSTS[0]]

    def do_resize_here(self, step: Step) -> None:
        self.world.only = self._host_of(step)
        flavor = self.world.flavors[step.flavor]
        self._act(step, "resize", {"flavorRef": flavor})

    def do_resize_there(self, step: Step) -> None:
        self.world.only = self._other(self._host_of(step))
        flavor = self.world.flavors[step.flavor]
        self._act(step, "resize", {"flavorRef": flavor})

    def do_confirm(self, step: Step) -> None:
        self._act(step, "confirmResize")

    def do_revert(self, step: Step) -> None:
        self._act(step, "revertResize")

    def do_live_migrate(self, step: Step) -> None:
        self.world.only = self.world.goes_to = self._other(self._host_of(step))
        self._act(
            step, "os-migrateLive", {"host": None, "block_migration": "auto"}
        )

    def do_evacuate(self, step: Step) -> None:
        self.world.only = self._other(self._host_of(step))
        self._act(step, "evacuate", {})

    def do_attach(self, step: Step) -> None:
        world = self.world
        server = {"id": self.servers[int(step.target)]}
        world.attach(server, world.profile())

    def do_detach(self, step: Step) -> None:
        self.world.detach({"id": self.servers[int(step.target)]})

    # -- hosts -------------------------------------------------------------

    def host_restart(self, step: Step) -> None:
        host = str(step.target)
        was_down = host in self.world.down
        self.world.revive(host)
        if was_down:
            self.world.force_down(False, host)

    def host_down(self, step: Step) -> None:
        host = str(step.target)
        self.world.take_down(host)
        self.world.force_down(True, host)

    def host_blackout(self, step: Step) -> None:
        self.host_down(step)
        self.world.lose_power(str(step.target))

    def host_passes(self, step: Step) -> None:
        self.world.periodics(str(step.target))

    def host_drain(self, step: Step) -> None:
        self.mark(str(step.target), "drain", "by the campaign")

    def host_undrain(self, step: Step) -> None:
        self.mark(str(step.target), "undrain")

    def host_heal(self, step: Step) -> None:
        self.mark(str(step.target), "heal")

    def mark(self, host: str, action: str, *arguments: str) -> None:
        """Change the marks of a host's first device, as over RPC."""
        driver = self.world.computes[host].driver
        root = driver._accel.root
        addresses = sorted(
            d.address for d in driver._accel.host.state.devices if d.profiles
        )
        providers = [
            names.provider_uuid(root.uuid, address)
            for address in addresses[:1]
        ]
        with self.world.at(host):
            result = getattr(
                driver._hooks.operations.by_name["hot_attach"].device_endpoint,
                action,
            )(self.world.context, providers, *arguments)
        if rpc_names.REFUSED in result:
            raise RuntimeError(result[rpc_names.REFUSED])

    def host_hang(self, step: Step) -> None:
        """Let the files of a host's first card hang, as in its driver.

        A read or a write does not return before the end of the life, or one
        of them returns late.
        """
        operation, _, once = step.flavor.partition(" ")
        card = self.world.technology.cards[0].address
        for name in _WRITTEN if operation == "write" else ("*",):
            self.world.hosts[str(step.target)].hang(
                f"devices/*/{card[:-1]}*/{name}",
                on=operation,
                seconds=_HANG_S if once else None,
                times=1 if once else None,
            )
        self.hanging.add(str(step.target))
        self.struck.append(f"hang: {step.flavor} of {card}")
