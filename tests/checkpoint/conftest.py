"""What the checkpoint tests share: files, a small model, and a hub on the loopback."""

from __future__ import annotations

import hashlib
import json
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub.constants as hub_constants
import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"
COMMIT = "c0ffee0123456789c0ffee0123456789c0ffee01"


@pytest.fixture
def qwen3_dir() -> Path:
    return CHECKPOINTS / "qwen3"


@pytest.fixture
def write_safetensors() -> Callable[..., Path]:
    """Write a file from a header, given as an object or as raw bytes, and its data."""

    def write(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
        raw = header if isinstance(header, bytes) else json.dumps(header).encode()
        size = len(raw) if length is None else length
        path.write_bytes(struct.pack("<Q", size) + raw + data)
        return path

    return write


class TinyMLP(nn.Module):
    def __init__(self, dims: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(dims, 2 * dims, bias=False)
        self.down_proj = nn.Linear(2 * dims, dims, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj(nn.silu(self.gate_proj(x)))


class TinyBlock(nn.Module):
    def __init__(self, dims: int) -> None:
        super().__init__()
        self.q_proj = nn.Linear(dims, dims, bias=True)
        self.mlp = TinyMLP(dims)
        self.norm = nn.RMSNorm(dims)
        self.A_log = mx.zeros((4,))

    def __call__(self, x: mx.array) -> mx.array:
        return x + self.mlp(self.q_proj(self.norm(x))) * mx.exp(self.A_log[0])


class TinyModel(nn.Module):
    """Tied embeddings and two blocks, with the names that a checkpoint would have."""

    def __init__(self, vocab: int = 48, dims: int = 64, num_layers: int = 2) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, dims)
        self.layers = [TinyBlock(dims) for _ in range(num_layers)]
        self.norm = nn.RMSNorm(dims)

    def __call__(self, ids: mx.array) -> mx.array:
        h = self.embed_tokens(ids)
        for layer in self.layers:
            h = layer(h)
        return self.embed_tokens.as_linear(self.norm(h))


@pytest.fixture
def make_model() -> Callable[..., TinyModel]:
    def make(seed: int = 0, **sizes: int) -> TinyModel:
        mx.random.seed(seed)
        model = TinyModel(**sizes)
        mx.eval(model.parameters())
        return model

    return make


@pytest.fixture
def write_checkpoint(tmp_path: Path) -> Callable[..., Path]:
    """Write a directory with config.json and one model.safetensors."""

    def write(arrays: Mapping[str, mx.array], config: Mapping[str, Any] | None = None) -> Path:
        directory = tmp_path / "checkpoint"
        directory.mkdir(exist_ok=True)
        (directory / "config.json").write_text(json.dumps(config or {"model_type": "tiny"}))
        mx.save_safetensors(str(directory / "model.safetensors"), dict(arrays))
        return directory

    return write


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


class FakeHub:
    """The few routes that huggingface_hub asks for, over real HTTP.

    Attributes:
        repos: Repository -> file -> content.
        refused: Repository -> (status, error code) that every request is answered with.
        cut: Files of which only half is sent before the connection is closed.
        requests: Paths that were asked for.
    """

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.refused: dict[str, tuple[int, str]] = {}
        self.cut: set[str] = set()
        self.requests: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def stop(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
                pass

            def do_GET(self) -> None:
                hub.answer(self, with_body=True)

            def do_HEAD(self) -> None:
                hub.answer(self, with_body=False)

        return Handler

    def answer(self, request: BaseHTTPRequestHandler, *, with_body: bool) -> None:
        path = request.path.partition("?")[0].strip("/")
        self.requests.append(path)
        parts = path.split("/")
        is_api = parts[:2] == ["api", "models"]
        parts = parts[2:] if is_api else parts
        repo, route, rest = "/".join(parts[:2]), parts[2:3], parts[3:]
        if repo in self.refused:
            status, code = self.refused[repo]
            return self._send(request, status, b"{}", {"X-Error-Code": code} if code else {})
        files = self.repos.get(repo)
        if files is None:
            return self._send(request, 404, b"{}", {"X-Error-Code": "RepoNotFound"})
        if rest[0] not in {"main", COMMIT}:
            return self._send(request, 404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        if is_api:
            return self._send(request, 200, self._listing(repo, files, route[0]), {})
        return self._send_file(request, files, "/".join(rest[1:]), with_body=with_body)

    def _listing(self, repo: str, files: Mapping[str, bytes], route: str) -> bytes:
        if route == "revision":
            siblings = [{"rfilename": name} for name in files]
            return json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings}).encode()
        tree = [
            {"type": "file", "path": name, "size": len(data), "oid": self._etag(data)}
            for name, data in files.items()
        ]
        return json.dumps(tree).encode()

    @staticmethod
    def _etag(data: bytes) -> str:
        return hashlib.sha1(data).hexdigest()

    def _send_file(
        self,
        request: BaseHTTPRequestHandler,
        files: Mapping[str, bytes],
        name: str,
        *,
        with_body: bool,
    ) -> None:
        headers = {"X-Repo-Commit": COMMIT}
        if name not in files:
            headers["X-Error-Code"] = "EntryNotFound"
            return self._send(request, 404, b"", headers)
        data = files[name]
        headers["ETag"] = f'"{self._etag(data)}"'
        if name in self.cut and with_body:
            return self._send_half(request, data, headers)
        return self._send(request, 200, data, headers, with_body=with_body)

    def _send_half(
        self, request: BaseHTTPRequestHandler, data: bytes, headers: Mapping[str, str]
    ) -> None:
        self._send(request, 200, data, headers, with_body=False)
        request.wfile.write(data[: len(data) // 2])

    def _send(
        self,
        request: BaseHTTPRequestHandler,
        status: int,
        body: bytes,
        headers: Mapping[str, str],
        *,
        with_body: bool = True,
    ) -> None:
        request.send_response(status)
        request.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            request.send_header(name, value)
        # A kept connection would go on answering after `stop`.
        request.send_header("Connection", "close")
        request.end_headers()
        if with_body and request.command != "HEAD":
            request.wfile.write(body)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """Serve a hub, and point huggingface_hub and an empty cache at it."""
    server = FakeHub()
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(hub_constants, "ENDPOINT", server.url)
    monkeypatch.setattr(hub_constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(hub_constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(time, "sleep", lambda _: None)  # the library waits between its tries
    yield server
    server.stop()
