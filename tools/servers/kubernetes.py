"""Kubernetes: its API server over etcd, and a stand-in for the kubelet that runs the pods of Spark's executors.

`tools/bootstrap.sh kubernetes` builds both servers from the Go module proxy, where Go is installed.
"""

import contextlib
import csv
import io
import json
import os
import secrets
import signal
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import yaml  # type: ignore[import-untyped]
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tools.servers import processes
from tools.servers.base import Options, Server, installed

NAMESPACE, ACCOUNT = "airflow", "airflow-worker"
MANIFESTS = Path(__file__).resolve().parents[2] / "docs" / "kubernetes"
_EXECUTOR = "spark-role=executor"


class _Etcd(Server):
    """The store of the API server."""

    name = "etcd"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.peer = processes.free_port()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def _initialise(self, data: Path) -> None:
        """It makes what it needs."""

    def _command(self, data: Path) -> Sequence[str]:
        peer = f"http://{self.host}:{self.peer}"
        return [
            str(self._programs() / "etcd"),
            *("--name", "one", "--data-dir", str(data / "etcd")),
            *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"one={peer}"),
            "--unsafe-no-fsync",
        ]

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(json.load(answer)["health"] == "true")
        except (OSError, ValueError):
            return False

    def _programs(self) -> Path:
        return installed("kubernetes", Path("kubernetes"))


class Kubernetes(Server):
    """An API server with the namespace `airflow`, the rights of docs/kubernetes/rbac.yaml, and a stand-in for the rest.

    The stand-in starts the command of each executor's pod on this machine, gives the pod a loopback address, and
    reports how it ended. A deleted pod is killed. A pod whose owner is gone is deleted, as controllers do.
    """

    name = "kubernetes"

    def __init__(self, folder: Path, port: int | None = None, options: Options | None = None) -> None:
        super().__init__(folder, port, options)
        self._etcd = _Etcd(self.folder / "etcd")
        self._kubelet = _Kubelet(self)

    @property
    def master(self) -> str:
        """For Spark."""
        return f"k8s://https://{self.host}:{self.port}"

    @property
    def certificate(self) -> Path:
        """The API server's, which signs itself."""
        return self.folder / "data" / "certificates" / "apiserver.crt"

    def token(self, user: str = ACCOUNT) -> str:
        """The token of the service account, or of "admin"."""
        text = (self.folder / "data" / "tokens.csv").read_text()
        return next(row[0] for row in csv.reader(io.StringIO(text)) if row[1].endswith(user))

    # --- life ---

    def start(self) -> Self:
        self._prepare_folder()
        if not self._etcd.running:
            self._etcd.start()
        try:
            super().start()
            self._create()
        except BaseException:
            self.stop()
            raise
        self._kubelet.start()
        return self

    def stop(self) -> None:
        self._kubelet.stop()
        super().stop()
        self._etcd.stop()

    def _create(self) -> None:
        """The namespace and the manifests for it."""
        self.ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}}, there_is=True)
        rights = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
        for each in yaml.safe_load_all((MANIFESTS / "rbac.yaml").read_text()):
            self.ask("POST", f"{rights}/{each['kind'].lower()}s", each, there_is=True)

    # --- pods ---

    def add_pod(self, name: str) -> None:
        """Add a pod that runs elsewhere: that of a task."""
        template = yaml.safe_load((MANIFESTS / "task-template.yaml").read_text())
        template["metadata"]["name"] = name
        self.ask("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", template)

    def delete_pod(self, name: str) -> None:
        """Delete a pod at once."""
        body = {"gracePeriodSeconds": 0}
        self.ask("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}", body, is_gone=True)

    def pods(self, labels: str = _EXECUTOR) -> list[dict[str, Any]]:
        """Return the pods with these labels: of the executors."""
        found = self.ask("GET", f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={labels}")
        return list(found["items"])

    def executors(self) -> dict[str, int]:
        """Return the process of each executor's pod that runs."""
        return self._kubelet.running()

    def ask(
        self, method: str, path: str, body: object = None, *, there_is: bool = False, is_gone: bool = False
    ) -> dict[str, Any]:
        """Send a request as an administrator.

        `there_is`: the object may exist. `is_gone`: it may be missing.
        """
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        request = urllib.request.Request(
            f"https://{self.host}:{self.port}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {self.token('admin')}", "Content-Type": kind},
            method=method,
        )
        trusted = ssl.create_default_context(cafile=str(self.certificate))
        try:
            with urllib.request.urlopen(request, timeout=30, context=trusted) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            if (there_is and error.code == 409) or (is_gone and error.code == 404):
                return {}
            raise RuntimeError(f"{method} {path}: {error.code} {error.read().decode()}") from error

    # --- for Server ---

    def _programs(self) -> Path:
        return installed("kubernetes", Path("kubernetes"))

    def _initialise(self, data: Path) -> None:
        self._make(data / "certificates")
        groups = f"system:serviceaccounts,system:serviceaccounts:{NAMESPACE}"
        account = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
        tokens = io.StringIO()
        csv.writer(tokens).writerows(
            [[secrets.token_hex(16), "admin", "1", "system:masters"], [secrets.token_hex(16), account, "2", groups]]
        )
        self._write(data / "tokens.csv", tokens.getvalue())
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        text = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        self._write(data / "accounts.key", text.decode())

    def _command(self, data: Path) -> Sequence[str]:
        options: dict[str, str | int] = {
            "etcd-servers": self._etcd.url,
            "bind-address": self.host,
            "advertise-address": self.host,
            "endpoint-reconciler-type": "none",
            "secure-port": self.port,
            "cert-dir": str(data / "certificates"),
            "token-auth-file": str(data / "tokens.csv"),
            "authorization-mode": "RBAC",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": str(data / "accounts.key"),
            "service-account-signing-key-file": str(data / "accounts.key"),
            "service-cluster-ip-range": "10.0.0.0/24",
            "disable-admission-plugins": "ServiceAccount",  # a controller would make the accounts
            **self.options,
        }
        return [str(self._programs() / "kube-apiserver"), *(f"--{name}={value}" for name, value in options.items())]

    def _answers(self) -> bool:
        try:
            self.ask("GET", "/api/v1/namespaces/default")
        except (OSError, RuntimeError, ValueError):
            return False
        return True


class _Kubelet:
    """Runs the pods of executors as processes of this machine."""

    pause: ClassVar[float] = 0.2

    def __init__(self, cluster: Kubernetes) -> None:
        self._cluster = cluster
        self._processes: dict[str, subprocess.Popen[bytes]] = {}  # by the uid of the pod
        self._names: dict[str, str] = {}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._ended.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        for uid in list(self._processes):
            self._end(uid)

    def running(self) -> dict[str, int]:
        alive = {uid: each.pid for uid, each in list(self._processes.items()) if each.poll() is None}
        return {self._names[uid]: pid for uid, pid in alive.items()}

    def _run(self) -> None:
        while not self._ended.wait(self.pause):
            with contextlib.suppress(OSError, RuntimeError):  # the API server is away
                self._look()

    def _look(self) -> None:
        everything = self._cluster.ask("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
        known = {pod["metadata"]["uid"] for pod in everything}
        for uid in set(self._processes) - known:
            self._end(uid)
        for pod in everything:
            if pod["metadata"].get("labels", {}).get("spark-role") != "executor":
                continue
            uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
            owners = {owner["uid"] for owner in pod["metadata"].get("ownerReferences", ())}
            if pod["metadata"].get("deletionTimestamp") or (owners and not owners & known):
                self._end(uid)
                self._cluster.delete_pod(name)
            elif uid not in self._processes and pod["status"]["phase"] == "Pending":
                self._begin(pod)
            elif uid in self._processes and pod["status"]["phase"] == "Running":
                status = self._processes[uid].poll()
                if status is not None:
                    self._report(pod, "Failed" if status else "Succeeded", status)

    def _begin(self, pod: Mapping[str, Any]) -> None:
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        [container] = pod["spec"]["containers"]
        address = f"127.0.1.{len(self._names) % 250 + 1}"
        folder = self._cluster.folder / "pods" / name
        folder.mkdir(parents=True)
        fields = {"status.podIP": address, "metadata.name": name}
        variables = {
            each["name"]: each["value"] if "value" in each else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            for each in container["env"]
            if "value" in each or "fieldRef" in each.get("valueFrom", {})
        }
        # What Kubernetes mounts there is this machine's, and the image has pyspark where the tests have it.
        variables |= {"SPARK_LOCAL_DIRS": str(folder), "PATH": os.environ["PATH"], "SPARK_HOME": _spark_home()}
        command = [str(MANIFESTS / Path(part).name) if part.startswith("/") else part for part in container["command"]]
        self._names[uid] = name
        self._processes[uid] = processes.spawn([*_with(variables), *command], folder / "log", folder)
        self._report(pod, "Running", None, address)

    def _report(self, pod: Mapping[str, Any], phase: str, status: int | None, address: str = "") -> None:
        [container] = pod["spec"]["containers"]
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        state: dict[str, Any] = {"running": {"startedAt": now}}
        if status is not None:
            code = 128 - status if status < 0 else status
            state = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": now}}
        ready = status is None
        found: dict[str, Any] = {
            "phase": phase,
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [
                {
                    "name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0,
                    "ready": ready, "state": state,
                }
            ],
        }  # fmt: skip
        if address:
            found |= {"podIP": address, "podIPs": [{"ip": address}], "hostIP": "127.0.0.1", "startTime": now}
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}/status"
        self._cluster.ask("PATCH", path, {"status": found}, is_gone=True)

    def _end(self, uid: str) -> None:
        process = self._processes.pop(uid)
        if process.poll() is None:
            processes.send(processes.tree(process.pid), signal.SIGKILL)
        process.wait()


def _with(variables: Mapping[str, str]) -> list[str]:
    """Run a command with these variables alone, no longer than this process."""
    return ["setpriv", "--pdeathsig=KILL", "env", "-i", *(f"{name}={value}" for name, value in variables.items())]


def _spark_home() -> str:
    import pyspark

    return str(Path(pyspark.__file__).parent)
