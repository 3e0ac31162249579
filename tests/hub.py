"""A small server that speaks as much of the hub's API as a download needs, on this machine only."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """Serves ``root/org/name`` as repositories of one revision; ``refuse`` maps a repository to a status."""

    def __init__(self, root: Path):
        self.root, self.refuse, self.requests = root, {}, []
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
        if status:
            code = {401: "RepoNotFound", 403: "GatedRepo"}.get(status)
            return self.send(request, status, b"{}", {"X-Error-Code": code} if code else {}, body)
        if not folder.is_dir():
            return self.send(request, 404, b"{}", {"X-Error-Code": "RepoNotFound"}, body)
        if len(rest) > 1 and rest[1] not in ("main", COMMIT, "v1"):
            return self.send(request, 404, b"{}", {"X-Error-Code": "RevisionNotFound"}, body)
        files = sorted(p for p in folder.rglob("*") if p.is_file())
        if api and rest[0] == "revision":
            siblings = [{"rfilename": str(p.relative_to(folder))} for p in files]
            info = {"id": f"{org}/{name}", "modelId": f"{org}/{name}", "sha": COMMIT, "siblings": siblings}
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
            headers = {"ETag": f'"{self.etag(file)}"', "X-Repo-Commit": COMMIT}
            return self.send(request, 200, file.read_bytes(), headers, body)
        return self.send(request, 404, b"{}", {}, body)

    @staticmethod
    def etag(file):
        return hashlib.sha1(file.read_bytes()).hexdigest()

    @staticmethod
    def send(request, status, content, headers, body):
        request.send_response(status)
        for key, value in {"Content-Length": len(content), **headers}.items():
            request.send_header(key, str(value))
        request.end_headers()
        if body:
            request.wfile.write(content)
