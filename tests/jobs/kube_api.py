"""A small stand-in for the API server of Kubernetes: it has nodes, and `kubectl` reads, labels and taints them.

`KUBECONFIG=... kubectl get nodes` works with it. It keeps what it is told and checks nothing that `kubectl` does not.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

NODES = {"name": "nodes", "singularName": "node", "kind": "Node", "namespaced": False}
RESOURCES = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [NODES | {"verbs": ["get", "list", "patch"]}],
    },
}


def node(name: str, labels: dict[str, str] | None = None, taints: list[dict[str, str]] | None = None) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"taints": taints or []},
    }


@contextlib.contextmanager
def serving(nodes: dict[str, dict[str, Any]], folder: Path) -> Iterator[Path]:
    """Serve the nodes, which change as `kubectl` tells; the kubeconfig to use."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

        def answer(self, document: object, status: int = 200) -> None:
            text = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            name = path.removeprefix("/api/v1/nodes/")
            if path in RESOURCES:
                self.answer(RESOURCES[path])
            elif path == "/api/v1/nodes":
                self.answer({"kind": "NodeList", "apiVersion": "v1", "items": list(nodes.values())})
            elif name in nodes:
                self.answer(nodes[name])
            else:
                self.answer({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound"}, 404)

        def do_PATCH(self) -> None:
            name = self.path.partition("?")[0].removeprefix("/api/v1/nodes/")
            patch = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            merge(nodes[name], patch)
            self.answer(nodes[name])

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    config = folder / "kubeconfig"
    address = f"http://127.0.0.1:{server.server_port}"
    config.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": address}}],
                "users": [{"name": "u", "user": {}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            }
        )
    )
    try:
        yield config
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def merge(into: dict[str, Any], patch: dict[str, Any]) -> None:
    """A merge patch: null removes, a list replaces."""
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict):
            merge(into.setdefault(key, {}), value)
        else:
            into[key] = value
