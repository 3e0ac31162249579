"""A small server that speaks as much of the hub's API as a download needs, on this machine only."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """Serves ``root/org/name`` as repositories of one commit.

    ``refuse`` maps a repository to a status; ``revisions`` are the names that the commit has; ``breaks`` counts down
    the downloads of weights that stop in the middle, ``busy`` the requests answered with 429 and retry-after.
    """

    def __init__(self, root: Path):
        self.root, self.refuse, self.requests = root, {}, []
        self.revisions = {"main", COMMIT, "v1"}
        self.breaks = self.busy = 0
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_HEAD(self):
                hub.answer(self, body=False)

            def do_GET(self):
                hub.answer(self, body=True)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, request, body):
        path = request.path.split("?")[0].strip("/").split("/")
        self.requests.append((request.command, request.path))
        api = path[:2] == ["api", "models"]
        org, name, *rest = path[2:] if api else path
        status = self.refuse.get(f"{org}/{name}")
        folder = self.root / org / name
        if self.busy:
            self.busy -= 1
            return self.send(request, 429, b"{}", {"Retry-After": 1}, body)
        if status:
            code = {401: "RepoNotFound", 403: "GatedRepo"}.get(status)
            return self.send(request, status, b"{}", {"X-Error-Code": code} if code else {}, body)
        if not folder.is_dir():
            return self.send(request, 404, b"{}", {"X-Error-Code": "RepoNotFound"}, body)
        if len(rest) > 1 and rest[1] not in self.revisions:
            return self.send(request, 404, b"{}", {"X-Error-Code": "RevisionNotFound"}, body)
        # Whoever asks for a commit is answered with that commit.
        commit = rest[1] if len(rest) > 1 and len(rest[1]) == len(COMMIT) else COMMIT
        files = sorted(p for p in folder.rglob("*") if p.is_file())
        if api and rest[0] == "revision":
            siblings = [{"rfilename": str(p.relative_to(folder))} for p in files]
            info = {"id": f"{org}/{name}", "modelId": f"{org}/{name}", "sha": commit, "siblings": siblings}
            return self.send(request, 200, json.dumps(info).encode(), {}, body)
        if api and rest[0] == "tree":
            tree = [
                {"type": "file", "path": str(p.relative_to(folder)), "size": p.stat().st_size, "oid": self.etag(p)}
                for p in files
            ]
            return self.send(request, 200, json.dumps(tree).encode(), {}, body)
        if rest[0] == "resolve":
            file = folder / "/".join(rest[2:])
            if not file.is_file():
                return self.send(request, 404, b"{}", {"X-Error-Code": "EntryNotFound"}, body)
            headers = {"ETag": f'"{self.etag(file)}"', "X-Repo-Commit": commit}
            content = file.read_bytes()
            if body and self.breaks and file.suffix == ".safetensors":
                self.breaks -= 1
                return self.send(request, 200, content, headers, body, sent=len(content) // 2)
            if body and (start := request.headers.get("Range", "").partition("bytes=")[2].rstrip("-")):
                part = content[int(start) :]
                headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
                return self.send(request, 206, part, headers, body)
            return self.send(request, 200, content, headers, body)
        return self.send(request, 404, b"{}", {}, body)

    @staticmethod
    def etag(file):
        return hashlib.sha1(file.read_bytes()).hexdigest()

    @staticmethod
    def send(request, status, content, headers, body, sent=None):
        request.send_response(status)
        for key, value in {"Content-Length": len(content), **headers}.items():
            request.send_header(key, str(value))
        request.end_headers()
        if body:
            request.wfile.write(content[:sent])
        if sent is not None:
            request.close_connection = True
