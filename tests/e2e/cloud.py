"""EC2 for tests: moto's server is the API, and each instance that it launches is one of the stand's hosts.

An instance gets a private address on a host's network card and, at that address, an sshd with the host key and the user
that its user data names. What cloud-init and systemd would do with the rest of the user data is done here as well.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from moto.ec2.models import ec2_backends
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from scripts.engine.console import SetupError
from scripts.stand.place import Host, Stand, program
from skyward.providers.cloud.boot import HOST_KEY, MARK, STATE
from tests.e2e.stand import wait_until

REGION, ACCOUNT = "us-east-1", "123456789012"
METADATA = "169.254.169.254"
PRICES = {"m6i.large": 0.096, "m6a.large": 0.0864, "c6i.large": 0.085}  # USD per hour on demand
_IMDS = """
import http.server, pathlib, sys
notice = pathlib.Path(sys.argv[1])
class Metadata(http.server.BaseHTTPRequestHandler):
    def do_PUT(self):
        self.answer("token")
    def do_GET(self):
        if self.headers.get("Metadata-Flavor") == "Google" and self.path == "/computeMetadata/v1/instance/preempted":
            return self.answer("TRUE" if notice.exists() else "FALSE")
        known = self.headers.get("X-aws-ec2-metadata-token") == "token"
        there = known and self.path == "/latest/meta-data/spot/instance-action" and notice.exists()
        self.answer(notice.read_text()) if there else self.send_error(404 if known else 401)
    def answer(self, text):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("", 80), Metadata).serve_forever()
"""
# Several instances may be one host: each sees these directories of its own, as do those that come to it by SSH.
_VIEW = """
for at in etc/ssh run/skyward-host-key run/skyward-metadata; do
    mkdir -p "/$at" "$0/$at" && mount --bind "$0/$at" "/$at" || exit 1
done
exec "$@"
"""
_OPEN_AGAIN = """
ls -d /run/machine-* >/dev/null 2>&1 && exit
iptables -w -D OUTPUT -d 169.254.169.254 -j SKYWARD
iptables -w -D OUTPUT -d 169.254.169.254 -j REJECT
for port in 53 123; do
    for kind in udp tcp; do iptables -w -D OUTPUT -d 169.254.169.254 -p $kind --dport $port -j ACCEPT 2>/dev/null; done
done
ip6tables -w -D OUTPUT -d fd00:ec2::254 -j REJECT
ip6tables -w -D OUTPUT -d fd20:ce::254 -j REJECT
iptables -w -F SKYWARD
iptables -w -X SKYWARD
"""
_SSHD = """
ListenAddress {address}
HostKey {key}
PidFile {folder}/sshd.pid
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
"""

_ONE_AT_A_TIME = threading.Lock()  # two instances on one host boot and end at any time


@dataclass
class Instance:
    """One launched instance, as a host of the stand.

    Attributes:
        id: its name at the API.
        host: the host that it is.
        address: its private address.
        user_data: what it was told.
        pool: of its tags.
    """

    id: str
    host: Host
    address: str
    user_data: Mapping[str, Any] = field(repr=False)
    pool: str
    stopped: Callable[[str], None] = field(repr=False)
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list, repr=False)
    _power: threading.Lock = field(default_factory=threading.Lock, repr=False)  # held while it boots and while it ends
    _is_off: bool = field(default=False, repr=False)
    _serves_metadata: bool = field(default=False, repr=False)

    @property
    def folder(self) -> str:
        return f"/run/machine-{self.id}"

    @property
    def _pools(self) -> str:
        return f"{self.folder}/pools"

    @property
    def _notice(self) -> Path:
        return self.host.folder / f"{self.id}.notice"

    def boot(self) -> None:
        """Do what cloud-init and systemd do at a first start."""
        with self._power:
            if not self._is_off:
                self._boot()

    def _boot(self) -> None:
        run, config = self.host.run, self.user_data
        run("ip", "addr", "add", f"{self.address}/24", "dev", "eth0")
        run("mkdir", "-p", f"{self.folder}/bin", f"{self.folder}/etc/ssh")
        self.take_key(config["ssh_keys"]["ed25519_private"])
        sshd = _SSHD.format(address=self.address, folder=self.folder, key=HOST_KEY)
        self._write(f"{self.folder}/sshd_config", sshd, "644")
        for user in config["users"]:
            self._add_user(user)
        for file in config["write_files"]:
            self._write(file["path"], file["content"], file["permissions"])
        self._write(f"{self.folder}/bin/shutdown", "#!/bin/sh\nkill $PPID\n", "755")  # ends the guard that calls it
        self._write(f"{self.folder}/bin/systemctl", f"#!/bin/sh\nkill -HUP $(cat {self.folder}/sshd.pid)\n", "755")
        self.start_sshd()
        self._serve_metadata()
        enabled = [words[-1] for words in config["runcmd"] if words[:3] == ["systemctl", "enable", "--now"]]
        for unit in enabled:
            self._start_unit(f"/etc/systemd/system/{unit}")

    def start_sshd(self) -> None:
        """Start its sshd, as a machine does when it starts or restarts."""
        self.host.run(*self._view, "/usr/sbin/sshd", "-f", f"{self.folder}/sshd_config")

    def stop_listening(self) -> None:
        """End its sshd, but not the open connections."""
        self.host.run("sh", "-c", 'kill $(cat "$1/sshd.pid")', "sh", self.folder)
        wait_until(lambda: not self.host.run("ss", "-Hltn", f"src {self.address}:22").strip(), 120)

    def take_key(self, private: str) -> None:
        """Give its sshd another host key from the next start on."""
        self._write(f"{self.folder}{HOST_KEY}", private, "600")

    @property
    def _view(self) -> list[str]:
        """The beginning of a command on the host that sees the directories of this instance."""
        return ["unshare", "--mount", "sh", "-c", _VIEW, self.folder]

    def _write(self, path: str, text: str, mode: str) -> None:
        self.host.run("sh", "-c", 'printf %s "$2" >"$1" && chmod "$3" "$1"', "sh", path, text, mode)

    def _add_user(self, user: Mapping[str, Any]) -> None:
        name, home = user["name"], f"/home/{user['name']}"
        with _ONE_AT_A_TIME:
            exists = self.host.run("id", "-u", name, check=False).strip()
            if not exists:
                groups = ",".join(user["groups"])
                self.host.run("useradd", "-m", "-d", home, "-s", user["shell"], "-G", groups, "-p", "*", name)
        self.host.run("install", "-d", "-o", name, "-m", "700", f"{home}/.ssh")
        keys = "\n".join(user["ssh_authorized_keys"])
        add = 'printf "%s\\n" "$1" >>"$2" && chown "$3" "$2"'  # one host may be several instances
        self.host.run("sh", "-c", add, "sh", keys, f"{home}/.ssh/authorized_keys", name)

    def _start_unit(self, path: str) -> None:
        """Run a service. When the guard ends, the machine has been shut down."""
        unit = self.host.run("cat", path)
        for before in re.findall("^ExecStartPre=(.*)$", unit, re.MULTILINE):
            self.host.run(*shlex.split(before))
        (command,) = re.findall("^ExecStart=(.*)$", unit, re.MULTILINE)
        is_guard = "guard" in path
        words = self._guarding(command) if is_guard else shlex.split(command)
        inside = [program("nsenter"), "--all", f"--target={self.host.init}", "--", *self._view, *words]
        env = {"PATH": f"{self.folder}/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        process = subprocess.Popen(inside, env=env, stdin=subprocess.DEVNULL, start_new_session=True)
        self._processes.append(process)
        if is_guard:
            threading.Thread(target=self._wait_shutdown, args=[process], daemon=True).start()

    def _guarding(self, command: str) -> list[str]:
        # one host may be several machines: each sees its own pool's directories alone, whichever it is of the pool's
        link = 'mkdir "$1" && for n in 0.0 1.0 2.0 3.0 4.0 5.0 6.0 7.0 run; do ln -s "$2.$n" "$1/p.$n"; done'
        self.host.run("sh", "-c", link, "sh", self._pools, f"{STATE}/pools/{self.pool}")
        return [self._pools if word == f"{STATE}/pools" else word for word in shlex.split(command)]

    def _wait_shutdown(self, guard: subprocess.Popen[bytes]) -> None:
        guard.wait()
        self.stopped(self.id)

    def _serve_metadata(self) -> None:
        """Serve metadata from a network namespace of its own, since at EC2 the service is not on the machine."""
        with _ONE_AT_A_TIME:
            if "skyimds" not in self.host.run("ip", "-br", "link"):  # otherwise another instance on this host has it
                self._start_metadata()

    def _start_metadata(self) -> None:
        beside = [program("nsenter"), "--net", f"--target={self.host.init}", "--"]
        server = subprocess.Popen(
            [*beside, "unshare", "--net", "python3", "-c", _IMDS, str(self._notice)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._processes.append(server)
        outside, inside = (Path(f"/proc/{pid}/ns/net") for pid in (self.host.init, server.pid))
        host_network, ours = outside.readlink(), Path("/proc/self/ns/net").readlink()
        wait_until(lambda: inside.readlink() not in (host_network, ours), 120)
        within = [program("nsenter"), "--net", f"--target={server.pid}", "--"]
        for words in (
            [*beside, *f"ip link add skyimds type veth peer name imds netns {server.pid}".split()],
            [*beside, *["ip", "addr", "add", "169.254.169.1/24", "dev", "skyimds"]],
            [*beside, *["ip", "link", "set", "skyimds", "up"]],
            [*within, *f"ip addr add {METADATA}/24 dev imds".split()],
            [*within, *["ip", "link", "set", "imds", "up"]],
        ):
            subprocess.run(words, check=True, capture_output=True)
        self._serves_metadata = True

    def interrupt(self, at: str) -> None:
        """Publish the notice that a spot instance gets before it is taken away."""
        self._notice.write_text(json.dumps({"action": "terminate", "time": at}))

    def power_off(self) -> None:
        """End everything that it runs, as at the termination of an instance, and restore the host."""
        with self._power:  # what a boot starts afterwards would run on
            self._is_off = True
            self._power_off()

    def _power_off(self) -> None:
        run = self.host.run
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if self._serves_metadata:  # the kernel removes the link of a dead namespace some time later
            with _ONE_AT_A_TIME:
                run("ip", "link", "del", "skyimds", check=False)
        each = 'for one in $(pgrep -P "$pid"); do pkill -KILL -P "$one"; kill -9 "$one"; done'
        stop = f'pid=$(cat "$1/sshd.pid") && {{ {each}; kill -9 "$pid"; }}'
        run("sh", "-c", stop, "sh", self.folder, check=False)
        run("ip", "addr", "del", f"{self.address}/24", "dev", "eth0", check=False)
        ids = run("docker", "ps", "-aq", "--filter", f"label=skyward.pool={self.pool}").split()
        ids += run("docker", "ps", "-aq", "--filter", "label=skyward.run").split()  # drivers are on these machines only
        if ids:
            run("docker", "rm", "-f", "-v", *ids, check=False)
        run("sh", "-c", f"rm -rf {self.folder} {STATE}/pools/{self.pool}.* {MARK}.until.*")
        run("sh", "-c", _OPEN_AGAIN, check=False)
        self._notice.unlink(missing_ok=True)


class Machines:
    """The machines that a cloud has launched, each on one of the stand's hosts.

    Attributes:
        running: those that have not ended, by name.
        boots: whether machines get any further than being there.
    """

    def __init__(self, stand: Stand) -> None:
        self.stand = stand
        self.running: dict[str, Instance] = {}
        self.boots = True
        self._lock = threading.Lock()
        self._numbers = iter(range(100, 250))

    def add(self, name: str, pool: str, user_data: str, stopped: Callable[[str], None]) -> Instance:
        """Start a machine with the next address on a host that the pool has no other machine on."""
        with self._lock:
            taken = [each.host for each in self.running.values() if each.pool == pool]
            host = next(each for each in self.stand.hosts if each not in taken)
            address = f"{self.stand.subnet}.{next(self._numbers)}"
            config = json.loads(user_data.removeprefix("#cloud-config\n"))
            made = Instance(name, host, address, config, pool, stopped)
            self.running[name] = made
        if self.boots:
            threading.Thread(target=self._boot, args=[made], daemon=True).start()
        return made

    def end(self, name: str) -> None:
        """End a machine's host, as when the cloud takes it back; nothing if it has ended."""
        with self._lock:
            machine = self.running.pop(name, None)
        if machine is not None:
            machine.power_off()

    def close(self) -> None:
        """End all."""
        for name in list(self.running):
            self.end(name)
        for host in self.stand.hosts:
            host.run("userdel", "-r", "skyward", check=False)

    def _boot(self, machine: Instance) -> None:
        try:
            machine.boot()
        except (OSError, SetupError, subprocess.CalledProcessError):
            if machine.id in self.running:
                raise  # otherwise it was ended meanwhile


class Cloud:
    """The API on loopback, and what it has launched.

    Attributes:
        machines: the machines that run.
        calls: all calls so far, each by its name and with its parameters.
        refuse: answers a launch (its parameters) with an error code of EC2, or lets it be.
        gives_keys: whether machines take the host key of their user data; without cloud-init they have another.
    """

    def __init__(self, stand: Stand) -> None:
        self.machines = Machines(stand)
        self.calls: list[tuple[str, Mapping[str, str]]] = []
        self.refuse: Callable[[Mapping[str, str]], str | None] = lambda _: None
        self.gives_keys = True
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=_Silent)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def env(self) -> dict[str, str]:
        """The variables with which boto3 uses it."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._server.server_port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @property
    def backend(self) -> Any:
        """Moto's model of EC2."""
        return ec2_backends[ACCOUNT][REGION]

    def running(self) -> list[Instance]:
        """The instances that have not ended, in the order of their hosts."""
        return sorted(self.machines.running.values(), key=lambda each: each.host.number)

    def left(self) -> list[str]:
        """Everything that belongs to pools: machines that have not ended, disks, groups."""
        backend = self.backend
        machines = [each.id for each in backend.all_instances() if each.state not in ("terminated", "shutting-down")]
        rest = [each.id for each in backend.volumes.values()]
        rest += [each.id for groups in backend.groups.values() for each in groups.values() if each.name != "default"]
        return machines + rest

    def reapers(self) -> list[int]:
        """The reapers of this process and of other clients."""
        return reapers_of("aws", self.env["AWS_ENDPOINT_URL"])

    def close(self) -> None:
        """End everything."""
        self._server.shutdown()
        self.machines.close()

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        with self._lock:
            body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            environ["wsgi.input"] = io.BytesIO(body)
            name, parameters = _call(environ, body)
            self.calls.append((name, parameters))
            if name == "GetProducts":
                return _prices(json.loads(body), start)
            if name == "RunInstances" and (code := self.refuse(parameters)):
                return _error(code, start)
            answer = b"".join(self._moto(environ, start))
            ids = re.findall(r"<instanceId>(i-\w+)</instanceId>", answer.decode())
            if name == "RunInstances":
                self._launched(ids)
        if name == "TerminateInstances":
            for ident in ids:
                self.machines.end(ident)
        return [answer]

    def _launched(self, ids: Iterable[str]) -> None:
        for ident in dict.fromkeys(ids):
            if ident in self.machines.running:
                continue
            known = self.backend.get_instance(ident)
            pool = next(tag["value"] for tag in known.get_tags() if tag["key"] == "skyward.pool")
            text = bytes(known.user_data).decode() if isinstance(known.user_data, bytes) else str(known.user_data)
            text = text if text.startswith("#") else base64.b64decode(text).decode()
            if not self.gives_keys:
                config = json.loads(text.removeprefix("#cloud-config\n"))
                config["ssh_keys"]["ed25519_private"] = self.machines.stand.key.read_text()
                text = json.dumps(config)
            address = self.machines.add(ident, pool, text, self._stopped).address
            known.nics[0].private_ip_address = address
            known.nics[0].private_ip_addresses = [{"Primary": True, "PrivateIpAddress": address}]

    def _stopped(self, ident: str) -> None:
        """An instance has shut itself down."""
        if ident not in self.machines.running:
            return  # it was ended, and its guard with it
        known = self.backend.get_instance(ident)
        if known.state == "running" and known.instance_initiated_shutdown_behavior == "terminate":
            self.backend.terminate_instances([ident])
        self.machines.end(ident)


class _Silent(WSGIRequestHandler):
    """Writes no line for each request."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Say nothing."""


def _call(environ: Mapping[str, Any], body: bytes) -> tuple[str, Mapping[str, str]]:
    if target := environ.get("HTTP_X_AMZ_TARGET"):
        return str(target).rpartition(".")[2], {}
    found = {name: values[0] for name, values in parse_qs(body.decode()).items()}
    return found.get("Action", ""), found


def _prices(asked: Mapping[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    filters = {each["Field"]: each["Value"] for each in asked["Filters"]}
    price = PRICES.get(filters["instanceType"])
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": str(price)}}
    product = {"terms": {"OnDemand": {"term": {"priceDimensions": {"dimension": dimension}}}}}
    start("200 OK", [("Content-Type", "application/x-amz-json-1.1")])
    return [json.dumps({"PriceList": [json.dumps(product)] if price else []}).encode()]


def _error(code: str, start: Callable[..., Any]) -> Iterable[bytes]:
    start("400 Bad Request", [("Content-Type", "text/xml")])
    error = f"<Error><Code>{code}</Code><Message>no</Message></Error>"
    return [f"<Response><Errors>{error}</Errors><RequestID>1</RequestID></Response>".encode()]


def reapers_of(provider: str, endpoint: str) -> list[int]:
    """The reapers of clients that use this endpoint of a provider."""
    words = ["pgrep", "-f", f"skyward.providers.reaper {provider}"]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split() if endpoint in _environment(int(pid))]


def _environment(pid: int) -> str:
    """The environment of a process; "" if it has just ended."""
    try:
        return Path(f"/proc/{pid}/environ").read_text(errors="replace")
    except OSError:
        return ""
