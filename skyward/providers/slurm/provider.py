"""`sky.Slurm`: nodes as jobs of a Slurm cluster, a pool's allocation there, and access to its nodes."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar, Literal

from skyward.builder.events import note
from skyward.errors import ConfigError, PoolClosedError, ProviderError, SkywardError
from skyward.model.parameters import suggesting
from skyward.model.resource import Resource
from skyward.model.ssh import existing_file
from skyward.nodes.access import NodeAccess
from skyward.nodes.claimed import ClaimedHost, ClaimedProcess
from skyward.nodes.node import Host, Launch, RunnerNode
from skyward.nodes.run_directory import PoolDirectory, private_directory, runtime_base, sweep_orphans
from skyward.providers.base import Allocation, Capabilities, PoolRequest, PreemptionNotice, Provider
from skyward.providers.reaper import Reaper
from skyward.providers.slurm.environment import Environment, check_image, sif_environment, virtual_environment
from skyward.providers.slurm.jobs import LIST, Job, Jobs, SlurmProcess
from skyward.providers.slurm.login import ClusterFacts, Login, LoginAddress, ask
from skyward.providers.slurm.queue import gres_for, job_name, queued_jobs
from skyward.system import threading

_FOLDER = re.compile(r"(~|/)[\w./@+-]*")
_FRESH_MIN = 10  # minutes; the jobs of a younger folder may not have been submitted yet
_CLEAR_S = 60.0  # until cancelled jobs have left the queue
_SESSION = "session"  # file in a pool's folder with the command that enters its nodes

# Folders of pools without jobs are left behind by clients that were killed together with their reaper.
_MAKE_FOLDER = """
umask 077
mkdir -p {pools} && cd {pools} || exit 1
for old in $(find . -mindepth 1 -maxdepth 1 -type d -mmin +{minutes} 2>/dev/null); do
    [ -n "$(squeue -h -n "skyward-${{old#./}}" -o %i 2>&1)" ] || rm -rf "$old"
done
mkdir {pool} || exit 1
"""


@suggesting("sky.Slurm")
@dataclass(frozen=True)
class Slurm(Provider):
    """Jobs of a Slurm cluster: `sky.Slurm("user@login", partition="gpu", time="4:00:00")`.

    Each node is one job. All are submitted together and start independently.

    Attributes:
        login: the cluster's login node, as "user@host:port", or an alias of the SSH configuration; None, the default,
            is this machine.
        partition, account, qos: partition, account and quality of service of the jobs, by the cluster's names; None for
            its defaults. With several partitions, as "short,long", each job runs in the one where it can start first.
        time: time limit of each job, in a format of sbatch ("4:00:00", "2-12"); None for the partition's default.
        folder: folder on a disk that all machines of the cluster share; "~" is the home directory there.
        image_mode: how the image runs. "apptainer": as a file in that folder, run by Apptainer; "venv": its packages
            are installed into a virtual environment there. None: the first of these that the cluster supports.
        key: file of the private key for SSH; None for the keys of the SSH agent and configuration.
        known_hosts: file of the only host keys to trust, also for jump hosts; None for those that the SSH configuration
            trusts.
        address: address of the login node.

    Raises:
        ConfigError: a value is invalid.
    """

    name: ClassVar[str] = "slurm"
    capabilities: ClassVar[Capabilities] = Capabilities(default_lease_s=60.0)
    login: str | None = None
    _: KW_ONLY
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: str | None = None
    folder: str = "~/.cache/skyward"
    image_mode: Literal["apptainer", "venv"] | None = None
    key: str | os.PathLike[str] | None = None
    known_hosts: str | os.PathLike[str] | None = None
    address: LoginAddress = field(init=False, repr=False)

    def __post_init__(self) -> None:
        files = {name: existing_file("sky.Slurm", name, getattr(self, name)) for name in ("key", "known_hosts")}
        if not _FOLDER.fullmatch(self.folder):
            raise ConfigError(f"sky.Slurm: folder is an absolute path, or starts with ~; found {self.folder!r}.")
        if self.image_mode not in (None, "apptainer", "venv"):
            raise ConfigError(f"sky.Slurm: image_mode must be 'apptainer' or 'venv'; found {self.image_mode!r}.")
        address = LoginAddress.of(self.login, **files)
        for name, value in {**files, "address": address}.items():
            object.__setattr__(self, name, value)

    def check(self, request: PoolRequest) -> None:
        """Reject requests that the provider can never fulfil.

        Raises:
            ConfigError: the request contains something that the provider does not support.
        """
        super().check(request)
        if self.image_mode == "venv":
            check_image(request.image)

    def open(self, request: PoolRequest) -> SlurmAllocation:
        """Return the allocation for a pool, which submits its jobs."""
        return SlurmAllocation(self, request)

    def find(self) -> Sequence[Resource]:
        """Return every job of every pool that has not ended: pool, node, name, state, user, owner, image, id, host.

        Raises:
            ProviderError: the login node cannot be reached, or its controller does not answer.
        """
        with self.connected() as login:
            return [
                Resource(
                    pool=job.labels["pool"],
                    node=int(job.labels.get("node", "-1")),
                    name=f"job {job.id}",
                    state=job.state.lower(),
                    user=job.labels.get("user", job.user),
                    owner=job.labels.get("owner", ""),
                    image=job.labels.get("image", ""),
                    id=job.id,
                    host=job.machine,
                )
                for job in queued_jobs(login.run(LIST))
                if "pool" in job.labels and not job.has_ended
            ]

    def destroy(self, pool_id: str) -> None:
        """Cancel a pool's jobs, and remove its folder, whichever client created them.

        Raises:
            ProviderError: the login node cannot be reached; the leases of running jobs end them.
        """
        with self.connected() as login:
            clear(login, f"{self._shared(login)}/pools/{pool_id}", pool_id)

    def enter(self, node: Resource) -> NodeAccess:
        """Return access to a node by a step of its job, started by `srun --overlap`.

        Raises:
            ProviderError: the login node cannot be reached, or the pool has ended.
        """
        with ExitStack() as last:
            login = last.enter_context(self.connected())
            file = f"{self._shared(login)}/pools/{node['pool']}/{_SESSION}"
            session = login.run(f"cat {shlex.quote(file)} 2>/dev/null; exit 0").strip()
            if not session:
                raise ProviderError(f"Pool {node['pool']} has ended, or its folder {file} is another user's.")
            return SlurmAccess(node, login, session, last.pop_all().close)

    @contextmanager
    def connected(self) -> Iterator[Login]:
        """Yield a connection to the login node."""
        with private_directory() as folder, closing(Login(self.address, folder)) as login:
            yield login

    def _shared(self, login: Login) -> str:
        """Return the absolute path of the folder there."""
        quoted = re.sub(r"^~", '"$HOME"', self.folder)
        return login.run(f"cd {quoted} 2>/dev/null && pwd -P; exit 0").strip() or self.folder


class SlurmAllocation(Allocation):
    """One pool's part of a cluster: the connection to its login node, its folder there, and its jobs."""

    def __init__(self, provider: Slurm, request: PoolRequest) -> None:
        super().__init__(request)
        self._provider = provider
        self._hosts: list[ClaimedHost[Job]] = []  # including those that have been replaced
        self._lock = threading.Lock()
        self._directory: PoolDirectory | None = None
        self._login: Login | None = None
        self._cluster: ClusterFacts | None = None
        self._environment: Environment | None = None
        self._jobs: Jobs | None = None
        self._reaper: Reaper | None = None

    def acquire(self) -> Sequence[Host]:
        """Check that the cluster can run such jobs. `prepare` determines their machines.

        Raises:
            ProviderError: the login node cannot be reached, no controller answers, or the image is for another
                platform.
        """
        request, provider = self.request, self._provider
        sweep_orphans()
        self._directory = directory = PoolDirectory.create(request.pool_id, runtime_base())
        self._login = login = Login(provider.address, directory.path)
        self._cluster = cluster = ask(login, provider.folder, request.cluster.spec.python)
        wanted = request.image.platform or request.platform
        if wanted != cluster.platform:
            raise ProviderError(f"The nodes of {cluster.login} are {cluster.platform}, and the image is for {wanted}.")
        self._hosts = [ClaimedHost(self.start) for _ in range(request.fewest)]
        return list(self._hosts)

    def prepare(self, hosts: Sequence[Host]) -> str | None:
        """Copy the image there unless it exists, submit all jobs, and wait until enough of them run.

        Raises:
            ConfigError: the image contains something that the cluster cannot run.
            ImageError: packages cannot be found or downloaded.
            ProviderError: Slurm rejected the jobs, or too many of them can never run.
            NodeStartError: jobs end instead of waiting.
        """
        if self._environment is not None:  # otherwise a host has been replaced
            return self._environment.reference
        environment = self._made_environment()
        jobs = self._submit(environment)
        for host in hosts:
            job = jobs.take()
            with self._lock:
                self.check_open()
                assert isinstance(host, ClaimedHost)
                host.claimed = job
        self._environment = environment
        return environment.reference

    def _made_environment(self) -> Environment:
        """Return the jobs' environment on the shared disk, created if necessary."""
        assert self._login and self._cluster
        request, facts = self.request, self._cluster
        mode = self._provider.image_mode or ("apptainer" if facts.apptainer else "venv")
        if missing := facts.modes[mode]:
            raise ProviderError(
                f"sky.Slurm(image_mode={mode!r}): {missing}. It must be in the PATH of commands there (a module loaded "
                "in ~/.profile is not), or choose another image_mode; `skyward doctor --at slurm://LOGIN` lists them."
            )
        if mode == "venv":
            python = request.cluster.spec.python
            return virtual_environment(self._login, facts, request.image, python, request.report)
        return sif_environment(self._login, facts, request.image, request.cluster, request.report)

    def _submit(self, environment: Environment) -> Jobs:
        """Create the pool's folder, and submit a job for each node."""
        assert self._login and self._cluster
        request, provider, login = self.request, self._provider, self._login
        pools = f"{self._cluster.shared}/pools"
        folder = f"{pools}/{request.pool_id}"
        partitions = (provider.partition or "").split(",")
        offered = "\n".join(self._cluster.partitions.get(name, "") for name in partitions)
        options = {
            "partition": provider.partition,
            "account": provider.account,
            "qos": provider.qos,
            "time": provider.time,
            "cpus-per-task": None if request.cpus is None else str(math.ceil(request.cpus)),
            "mem": None if request.memory_gb is None else f"{int(request.memory_gb * 1024)}M",
            "gres": gres_for(request.accelerator, offered) if request.accelerator else None,
        }
        with self._lock:
            self.check_open()
            self._reaper = Reaper(provider, request.pool_id)
            controllers = self._cluster.controllers
            jobs = Jobs(login, request, options, environment, folder, controllers, self._on_time, self.ended)
            self._jobs = jobs
            script = _MAKE_FOLDER.format(pools=shlex.quote(pools), pool=request.pool_id, minutes=_FRESH_MIN)
            login.run(f"{script}cat >{shlex.quote(folder)}/{_SESSION}", environment.session.encode())
            jobs.submit(request.nodes)
            return jobs

    def replace(self, lost: Host | None) -> Host:
        """Wait for a new job in place of a lost one, on another machine if the machine was lost.

        For a node that has never had a job it is the next job of the pool that starts.

        Raises:
            ProviderError: the job can never run.
            NodeStartError: the job ended before it was ready.
            PoolClosedError: the pool has ended, or another client has ended it.
        """
        with self._lock:
            self.check_open()
            jobs = self._jobs
        if jobs is None:
            raise PoolClosedError(f"Pool {self.request.pool_id} has not begun, and cannot replace a node.")
        if not jobs.exists():
            raise PoolClosedError(f"Pool {self.request.pool_id} was ended by another client: its folder is gone.")
        if isinstance(lost, ClaimedHost) and lost.claimed is not None:
            self._give_up(jobs, lost.claimed, lost.process)
        job = jobs.take()
        host = ClaimedHost(self.start, job)
        with self._lock:
            if self.ended.is_set() and job.claim:
                job.claim.session.close()
            self.check_open()
            self._hosts.append(host)
        return host

    def _give_up(self, jobs: Jobs, job: Job, process: ClaimedProcess | None) -> None:
        """End a lost job, unless it may finish its calls, and avoid its machine if that was lost."""
        if job.noticed:
            return
        found = jobs.state(job)
        is_lost = process is None or process.is_lost
        if found is not None and (found.state == "NODE_FAIL" or not found.has_ended) and is_lost:
            jobs.avoid(job.machine)
            self.request.report(note(f"{job.machine} is avoided: job {job.id} was lost with it"))
        jobs.cancel(job)

    def _on_time(self, job: Job, left_s: float) -> None:
        """Notify the pool that a job's time limit is near: its node is drained and replaced."""
        host = next((host for host in self._hosts if host.claimed is job), None)
        if host is not None:
            text = f"has {left_s:.0f} s left of its time limit (job {job.id})"
            self.request.on_preemption(PreemptionNotice(host=host, text=text, left_s=left_s))

    def start(self, host: ClaimedHost[Job], launch: Launch) -> RunnerNode:
        """Turn the job into the node."""
        with self._lock:
            self.check_open()
            assert self._login and self._jobs and host.claimed
            host.process = SlurmProcess(self._login, self._jobs, host.claimed, launch)
            return RunnerNode(launch, host.process)

    def release(self) -> None:
        """Cancel the jobs and remove the pool's folder; the reaper continues with what could not be removed.

        Raises:
            ProviderError: the login node cannot be queried; the leases of running jobs end them.
        """
        with self._lock:  # waits for a thread that is submitting jobs
            jobs, reaper = self._jobs, self._reaper
        with ExitStack() as last:
            if self._directory is not None:
                last.callback(self._directory.remove)
            if self._login is not None:
                last.callback(self._login.close)
            if jobs is not None:
                jobs.close()
            if reaper is not None:
                reaper.relieve(self._clear)

    def _clear(self) -> None:
        assert self._login and self._cluster
        clear(self._login, f"{self._cluster.shared}/pools/{self.request.pool_id}", self.request.pool_id)


def clear(login: Login, folder: str, pool: str) -> None:
    """Cancel a pool's jobs, wait until they have left the queue, and remove its folder. Idempotent.

    The folder is removed first: its absence shows the pool's client that nothing may be started any more.

    Raises:
        ProviderError: the login node cannot be queried, or jobs are still there after a minute.
    """
    if not pool.isalnum():
        return
    name = job_name(pool)
    script = f"""
rm -rf {shlex.quote(folder)}
tries=0 until=$(($(date +%s) + {int(_CLEAR_S)}))
until left=$(squeue -h -n {name} -o %i 2>/dev/null) && [ -z "$left" ]; do
    [ -n "$left" ] && [ $((tries % 20)) -eq 0 ] && scancel $left 2>/dev/null
    if [ "$(date +%s)" -ge $until ]; then echo "jobs do not end:"; squeue -n {name} -o "%i %T %r"; exit 1; fi >&2
    tries=$((tries + 1)); sleep 0.2
done
rm -rf {shlex.quote(folder)}
"""
    login.run(script, timeout_s=2 * _CLEAR_S)


class SlurmAccess(NodeAccess):
    """Access to a node, by a step of its job.

    Args:
        node: the node as `Provider.find` lists it.
        login: connection to the cluster.
        session: the shell command that starts a session's program there.
        close: closes the connection.
    """

    def __init__(self, node: Resource, login: Login, session: str, close: Callable[[], None]) -> None:
        super().__init__(node, f"job {node['id']}", close)
        self._login, self._job, self._session = login, node["id"], session
        self.cwd = "/tmp"  # a job's processes see their machine's file system

    def command(self, arguments: Sequence[str], *, terminal: bool = False) -> list[str]:
        """Return the `srun --overlap`, through `ssh` if the login node is another machine."""
        options = "--quiet --overlap --nodes=1 --ntasks=1" + (" --pty" if terminal else "")
        session = shlex.join(["sh", "-c", f"exec {self._session} {shlex.join(arguments)}"])
        return self._login.shell(f"exec srun --jobid={self._job} {options} {session}", terminal=terminal)

    def loss_reason(self) -> str:
        """Return whether the job has ended or the login node is lost, to complete "Node 1 ..."; "" if neither."""
        if gone := self._login.why_gone():
            return gone
        try:
            state = self._login.run(f"squeue -h -j {self._job} -o %T 2>/dev/null; exit 0").strip()
        except SkywardError as error:
            return f"is gone: {str(error).rstrip('.')}"
        return "" if state in ("RUNNING", "SUSPENDED") else "has ended"
