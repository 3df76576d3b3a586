"""The control plane as processes of this machine: certificates, etcd, API server, controller manager, scheduler."""

import json
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from scripts.engine import processes
from scripts.engine.console import SetupError, tail
from scripts.engine.daemon import daemon_path
from scripts.stand.place import program

from . import binary
from .place import Cluster

START_LIMIT_S = 120
SERVICES = "10.96.0.0/24"  # addresses of services; the first is the API server's own
_API = "10.96.0.1"
_ORDER = ("etcd", "apiserver", "controllers", "scheduler")
_ENVIRONMENT = {"HOME": "/root", "LANG": "C.UTF-8"}


def make_keys(cluster: Cluster) -> None:
    """The authority, and a certificate with a kubeconfig for each who takes part."""
    cluster.pki.mkdir(mode=0o700)
    _openssl(cluster, "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "ca.key")
    subject = f"/CN=skyward-kube-{cluster.tag}"
    _openssl(cluster, "req", "-x509", "-new", "-key", "ca.key", "-subj", subject, "-days", "3650", "-out", "ca.crt")
    names = f"IP:127.0.0.1,IP:{cluster.gateway},IP:{_API},DNS:localhost,DNS:kubernetes.default"
    _certificate(cluster, "apiserver", "/CN=kube-apiserver", names)
    _certificate(cluster, "to-kubelets", "/O=system:masters/CN=kube-apiserver-kubelet-client")
    _certificate(cluster, "admin", "/O=system:masters/CN=admin")
    _certificate(cluster, "controllers", "/CN=system:kube-controller-manager")
    _certificate(cluster, "scheduler", "/CN=system:kube-scheduler")
    for node in cluster.machines:
        _certificate(cluster, node.name, f"/O=system:nodes/CN=system:node:{node.name}", f"IP:{node.address}")
    _openssl(cluster, "genrsa", "-out", "accounts.key", "2048")
    _openssl(cluster, "rsa", "-in", "accounts.key", "-pubout", "-out", "accounts.pub")
    for name in ("admin", "controllers", "scheduler", *(node.name for node in cluster.machines)):
        write_kubeconfig(cluster, name, cluster.pki / f"{name}.kubeconfig")


def _certificate(cluster: Cluster, name: str, subject: str, names: str = "") -> None:
    _openssl(cluster, "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{name}.key")
    _openssl(cluster, "req", "-new", "-key", f"{name}.key", "-subj", subject, "-out", f"{name}.csr")
    extensions = "extendedKeyUsage=serverAuth,clientAuth\n" + (f"subjectAltName={names}\n" if names else "")
    (cluster.pki / f"{name}.ext").write_text(extensions)
    words = ["x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"]
    _openssl(cluster, *words, "-days", "3650", "-extfile", f"{name}.ext", "-out", f"{name}.crt")


def _openssl(cluster: Cluster, *words: str) -> None:
    done = subprocess.run([program("openssl"), *words], cwd=cluster.pki, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetupError(f"`openssl {' '.join(words)}` failed: {done.stderr.strip()}")


def write_kubeconfig(cluster: Cluster, name: str, path: Path) -> None:
    """How the holder of a certificate reaches the API server; JSON is YAML as well."""
    server = {"server": cluster.url, "certificate-authority": str(cluster.pki / "ca.crt")}
    user = {"client-certificate": str(cluster.pki / f"{name}.crt"), "client-key": str(cluster.pki / f"{name}.key")}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "kube", "cluster": server}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": "kube", "context": {"cluster": "kube", "user": name}}],
        "current-context": "kube",
    }
    path.write_text(json.dumps(document, indent=2) + "\n")
    path.chmod(0o600)


def start(cluster: Cluster) -> None:
    """Start all of it; does not wait."""
    for name in _ORDER:
        start_one(cluster, name)


def start_one(cluster: Cluster, name: str) -> None:
    """Start one of it: "etcd", "apiserver", "controllers" or "scheduler"."""
    pid = processes.start(commands(cluster)[name], log=cluster.log(name), env={**_ENVIRONMENT, "PATH": daemon_path()})
    (cluster.root / f"{name}.pid").write_text(f"{pid}\n")


def commands(cluster: Cluster) -> dict[str, list[str]]:
    """The command lines; each names the cluster's folder, by which its process is known."""
    pki, programs, port = cluster.pki, binary.folder(), cluster.port
    etcd = f"http://127.0.0.1:{port + 1}"
    return {
        "etcd": [
            program("etcd"),
            f"--data-dir={cluster.root / 'etcd'}",
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{port + 2}",
            "--logger=zap",
            "--unsafe-no-fsync",
        ],
        "apiserver": [
            str(programs / "kube-apiserver"),
            f"--etcd-servers={etcd}",
            f"--bind-address={cluster.gateway}",
            f"--advertise-address={cluster.gateway}",
            f"--secure-port={port}",
            f"--service-cluster-ip-range={SERVICES}",
            "--service-account-issuer=https://kubernetes.default",
            f"--service-account-signing-key-file={pki / 'accounts.key'}",
            f"--service-account-key-file={pki / 'accounts.pub'}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--client-ca-file={pki / 'ca.crt'}",
            f"--tls-cert-file={pki / 'apiserver.crt'}",
            f"--tls-private-key-file={pki / 'apiserver.key'}",
            f"--kubelet-certificate-authority={pki / 'ca.crt'}",
            f"--kubelet-client-certificate={pki / 'to-kubelets.crt'}",
            f"--kubelet-client-key={pki / 'to-kubelets.key'}",
            "--kubelet-preferred-address-types=InternalIP",
        ],
        "controllers": [
            str(programs / "kube-controller-manager"),
            f"--kubeconfig={pki / 'controllers.kubeconfig'}",
            f"--service-account-private-key-file={pki / 'accounts.key'}",
            f"--root-ca-file={pki / 'ca.crt'}",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
            "--node-monitor-period=1s",
            "--node-monitor-grace-period=10s",
            "--node-startup-grace-period=20s",
            "--node-eviction-rate=5",  # else two nodes of which one is lost are no majority, and nothing is evicted
            *_QUIET,
        ],
        "scheduler": [
            str(programs / "kube-scheduler"),
            f"--kubeconfig={pki / 'scheduler.kubeconfig'}",
            "--leader-elect=false",
            *_QUIET,
        ],
    }


_QUIET = ("--bind-address=127.0.0.1", "--secure-port=0", "--port=0")  # nobody asks these two anything


def stop(cluster: Cluster) -> None:
    """End it."""
    for name in reversed(_ORDER):
        stop_one(cluster, name)


def stop_one(cluster: Cluster, name: str) -> None:
    """End one of it."""
    pid = processes.ours(cluster.root / f"{name}.pid", cluster.root)
    if pid is not None:
        processes.stop(pid, patience_s=0.3)


def wait_up(cluster: Cluster) -> None:
    """Block until the API server answers.

    Raises:
        SetupError: it does not in time, or has ended.
    """
    deadline_s = time.monotonic() + START_LIMIT_S
    while True:
        try:
            if ask(cluster, "/healthz") == b"ok":
                return
        except OSError:
            pass  # not yet
        log = cluster.log("apiserver")
        if time.monotonic() > deadline_s or processes.ours(cluster.root / "apiserver.pid", cluster.root) is None:
            raise SetupError(f"the API server does not answer at {cluster.url}. Its last words:\n{tail(log)}")
        time.sleep(0.05)


def wait_ready(cluster: Cluster) -> None:
    """Block until all nodes are ready, and pods can be made.

    Raises:
        SetupError: they are not in time.
    """
    deadline_s = time.monotonic() + START_LIMIT_S
    while not (len(ready(cluster)) == len(cluster.machines) and _has_account(cluster)):
        if time.monotonic() > deadline_s:
            logs = [cluster.log(node.name) for node in cluster.machines]
            words = "\n".join(f"{log.name}:\n{tail(log)}" for log in logs if log.exists())
            raise SetupError(f"the nodes are not ready after {START_LIMIT_S} s. Their last words:\n{words}")
        time.sleep(0.05)


def ready(cluster: Cluster) -> list[str]:
    """The names of the nodes that are ready."""
    found = json.loads(ask(cluster, "/api/v1/nodes"))["items"]
    return [
        each["metadata"]["name"]
        for each in found
        if any(one["type"] == "Ready" and one["status"] == "True" for one in each["status"].get("conditions", ()))
    ]


def _has_account(cluster: Cluster) -> bool:
    """Whether the default service account has its token: until then the API server refuses pods."""
    try:
        account = json.loads(ask(cluster, "/api/v1/namespaces/default/serviceaccounts/default"))
    except urllib.error.HTTPError:
        return False
    return bool(account.get("secrets"))


def ask(cluster: Cluster, path: str) -> bytes:
    """What the API server answers the administrator."""
    context = ssl.create_default_context(cafile=str(cluster.pki / "ca.crt"))
    context.load_cert_chain(cluster.pki / "admin.crt", cluster.pki / "admin.key")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    with opener.open(cluster.url + path, timeout=10) as answer:
        found: bytes = answer.read()
    return found
