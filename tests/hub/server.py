# Copyright 2026 The hf_vg maintainers. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""
A local Hub: the part of the Hub's HTTP API that huggingface_hub uses to upload and load a model.

Tests use the real `huggingface_hub` with `HF_ENDPOINT` set to this server. Files are kept in memory. A commit succeeds
completely or changes nothing, and a large file is only committed when it is complete and has the right hash.
"""

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import yaml


LFS_ENDINGS = (".safetensors", ".png", ".pt", ".pth", ".bin", ".arrow")
PART_SIZE = 8 * 1024  # larger files are uploaded in parts of at least this size


class File(NamedTuple):
    content: bytes
    is_lfs: bool

    @property
    def etag(self) -> str:
        if self.is_lfs:
            return hashlib.sha256(self.content).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(self.content) + self.content).hexdigest()


@dataclass
class Repo:
    commits: dict[str, dict[str, File]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)  # titles of the commits

    def add(self, files: dict[str, File], ref: str, title: str) -> str:
        sha = hashlib.sha1(f"{title}{len(self.commits)}{sorted(files)}".encode()).hexdigest()
        self.commits[sha], self.refs[ref] = files, sha
        self.log.append(title)
        return sha


class Refusal(Exception):
    def __init__(self, status: int, message: str, code: str | None = None):
        super().__init__(message)
        self.status, self.code = status, code


class Hub(ThreadingHTTPServer):
    """`with Hub({"token": "user"}) as hub:` serves at `hub.endpoint`."""

    daemon_threads = True

    def __init__(self, users: dict[str, str]):
        super().__init__(("127.0.0.1", 0), Handler)
        self.users = users
        self.repos: dict[str, Repo] = {}
        self.objects: dict[str, bytes] = {}  # large files that were uploaded
        self.parts: dict[str, dict[int, bytes]] = {}
        self.requests: list[str] = []
        # Simulated failures: (pattern of "METHOD /path", action, number of times). An integer is the returned status,
        # "cut" closes the connection after half of the data, "hang" reads half and waits for the client to leave.
        self.faults: list[tuple[str, int | str, int]] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def files(self, repo_id: str, revision: str = "main") -> dict[str, File]:
        repo = self.repos[repo_id]
        return repo.commits[repo.refs.get(revision, revision)]

    def handle_error(self, request, client_address):
        pass  # the client closed the connection

    def fault(self, request: str) -> int | str | None:
        for index, (pattern, action, times) in enumerate(self.faults):
            if times and re.search(pattern, request):
                self.faults[index] = (pattern, action, times - 1)
                return action
        return None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_):
        pass

    def answer(self, method: str):
        address = urlsplit(self.path)
        self.path, self.query = address.path, parse_qs(address.query)
        request = f"{method} {self.path}"
        self.server.requests.append(request)
        fault = self.server.fault(request)
        if fault in ("cut", "hang"):
            self.rfile.read(int(self.headers.get("Content-Length") or 0) // 2)
            if fault == "hang":
                while self.rfile.read(1):
                    pass
            self.close_connection = True
            self.connection.shutdown(2)
            return
        self.body = self.read_body()
        try:
            if fault is not None:
                raise Refusal(fault, "the server is not well")
            for route_method, pattern, function in ROUTES:
                match = re.fullmatch(pattern, self.path)
                if match and method in route_method:
                    function(self, *(unquote(group or "") for group in match.groups()))
                    return
            raise Refusal(404, f"there is nothing at {request}")
        except Refusal as refusal:
            headers = {"X-Error-Message": str(refusal)} | ({"X-Error-Code": refusal.code} if refusal.code else {})
            self.send(json.dumps({"error": str(refusal)}).encode(), refusal.status, headers)

    do_GET = lambda self: self.answer("GET")  # noqa: E731
    do_HEAD = lambda self: self.answer("HEAD")  # noqa: E731
    do_POST = lambda self: self.answer("POST")  # noqa: E731
    do_PUT = lambda self: self.answer("PUT")  # noqa: E731

    def read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def send(self, content: bytes, status: int = 200, headers: dict[str, str] | None = None):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def send_json(self, value):
        self.send(json.dumps(value).encode(), headers={"Content-Type": "application/json"})

    def user(self) -> str:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in self.server.users:
            raise Refusal(401, "Invalid username or password.")
        return self.server.users[token]

    def repo(self, repo_id: str, write: bool = False) -> Repo:
        if write and self.user() != repo_id.partition("/")[0]:
            raise Refusal(403, f"You have no right to write to {repo_id}.")
        if repo_id not in self.server.repos:
            raise Refusal(404, f"There is no repository {repo_id}.", "RepoNotFound")
        return self.server.repos[repo_id]

    def revision(self, repo: Repo, revision: str) -> str:
        sha = repo.refs.get(revision or "main", revision)
        if sha not in repo.commits:
            raise Refusal(404, f"There is no revision {revision}.", "RevisionNotFound")
        return sha

    def set_faults(self):
        self.server.faults = [tuple(fault) for fault in json.loads(self.body)]
        self.send(b"")

    # The account, and repositories

    def who_am_i(self):
        self.send_json({"type": "user", "name": self.user(), "orgs": [], "auth": {"accessToken": {"role": "write"}}})

    def create(self):
        wanted, user = json.loads(self.body), self.user()
        owner = wanted.get("organization") or user
        repo_id = f"{owner}/{wanted['name']}"
        address = f"{self.server.endpoint}/{repo_id}"
        if owner != user:
            raise Refusal(403, f"You have no right to make a model under the namespace {owner}.")
        if repo_id in self.server.repos:
            content = json.dumps({"error": "You already created this model repo", "url": address}).encode()
            self.send(content, 409)
            return
        self.server.repos[repo_id] = repo = Repo()
        repo.add({".gitattributes": File(b"*.safetensors filter=lfs\n", False)}, "main", "initial commit")
        self.send_json({"url": address, "name": repo_id, "id": repo_id})

    def branch(self, repo_id: str, name: str):
        repo = self.repo(repo_id, write=True)
        if name in repo.refs:
            raise Refusal(409, f"Reference already exists: {name}")
        repo.refs[name] = self.revision(repo, json.loads(self.body or b"{}").get("startingPoint") or "main")
        self.send_json({})

    def tag(self, repo_id: str, revision: str):
        repo = self.repo(repo_id, write=True)
        repo.refs[json.loads(self.body)["tag"]] = self.revision(repo, revision)
        self.send_json({})

    def validate_yaml(self):
        content = json.loads(self.body)["content"]
        match = re.match(r"---\n(.*?)\n---\n", content, flags=re.DOTALL)
        errors, warnings = [], []
        try:
            metadata = yaml.safe_load(match[1]) if match else {}
        except yaml.YAMLError as error:
            metadata, errors = {}, [{"message": f"not YAML: {error}"}]
        if not metadata:
            warnings.append({"message": "empty or missing yaml metadata in repo card"})
        for name in ("library_name", "pipeline_tag", "license"):
            if not isinstance(metadata.get(name, ""), str):
                errors.append({"message": f'"{name}" must be a string'})
        for entry in metadata.get("model-index", []):
            for result in entry.get("results", []):
                if not result.get("task", {}).get("type") or not result.get("dataset", {}).get("name"):
                    errors.append({"message": '"model-index" needs the type of a task and the name of a dataset'})
                if not all(isinstance(metric.get("value"), int | float) for metric in result.get("metrics", [{}])):
                    errors.append({"message": '"model-index" needs numbers as values'})
        answer = json.dumps({"errors": errors, "warnings": warnings}).encode()
        self.send(answer, 400 if errors else 200)

    # Uploads and commits

    def preupload(self, repo_id: str, revision: str):
        repo = self.repo(repo_id, write=True)
        files = repo.commits[self.revision(repo, revision)]
        answers = []
        for asked in json.loads(self.body)["files"]:
            path = asked["path"]
            mode = "lfs" if path.endswith(LFS_ENDINGS) else "regular"
            oid = files[path].etag if path in files else None
            answers.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        self.send_json({"files": answers})

    def lfs_batch(self, repo_id: str):
        self.repo(repo_id, write=True)
        objects = []
        for wanted in json.loads(self.body)["objects"]:
            oid, size = wanted["oid"], wanted["size"]
            objects.append({"oid": oid, "size": size})
            if oid in self.server.objects:
                continue
            address = f"{self.server.endpoint}/lfs/{oid}"
            upload = {"href": address}
            if size > PART_SIZE:
                part_size = max(PART_SIZE, -(-size // 5))
                header = {str(part + 1): f"{address}/part/{part + 1}" for part in range(-(-size // part_size))}
                upload = {"href": f"{address}/complete", "header": {"chunk_size": str(part_size), **header}}
            objects[-1]["actions"] = {"upload": upload, "verify": {"href": f"{address}/verify"}}
        self.send_json({"transfer": "basic", "objects": objects})

    def lfs_put(self, oid: str):
        self.keep(oid, self.body)

    def lfs_part(self, oid: str, part: str):
        self.server.parts.setdefault(oid, {})[int(part)] = self.body
        self.send(b"", headers={"ETag": f'"{hashlib.md5(self.body).hexdigest()}"'})

    def lfs_complete(self, oid: str):
        parts = self.server.parts.get(oid, {})
        self.keep(oid, b"".join(parts[part["partNumber"]] for part in json.loads(self.body)["parts"]))

    def keep(self, oid: str, content: bytes):
        if hashlib.sha256(content).hexdigest() != oid:
            raise Refusal(400, "the object that arrived is not the one that was announced")
        self.server.objects[oid] = content
        self.send(b"")

    def lfs_verify(self, oid: str):
        if len(self.server.objects.get(oid, b"")) != json.loads(self.body)["size"]:
            raise Refusal(404, f"the object {oid} has not arrived")
        self.send(b"")

    def commit(self, repo_id: str, revision: str):
        repo = self.repo(repo_id, write=True)
        files, title = dict(repo.commits[self.revision(repo, revision)]), ""
        for line in self.body.splitlines():
            key, value = (item := json.loads(line))["key"], item["value"]
            if key == "header":
                title = value["summary"]
            elif key == "file":
                files[value["path"]] = File(base64.b64decode(value["content"]), False)
            elif key == "lfsFile":
                if value["oid"] not in self.server.objects:
                    raise Refusal(400, f"{value['path']} has not arrived")
                files[value["path"]] = File(self.server.objects[value["oid"]], True)
            elif key == "deletedFile":
                files.pop(value["path"], None)
            else:
                raise Refusal(400, f"this hub does not know {key}")
        sha = repo.add(files, revision, title)
        self.send_json(
            {"success": True, "commitOid": sha, "commitUrl": f"{self.server.endpoint}/{repo_id}/commit/{sha}"}
        )

    # Reading

    def model_info(self, repo_id: str, revision: str):
        repo = self.repo(repo_id)
        sha = self.revision(repo, revision)
        files = repo.commits[sha]
        info = {"id": repo_id, "modelId": repo_id, "sha": sha, "private": False, "tags": []}
        card = (
            re.match(rb"---\n(.*?)\n---\n", files["README.md"].content, flags=re.DOTALL)
            if "README.md" in files
            else None
        )
        if card:
            metadata = yaml.safe_load(card[1])
            info |= {
                "cardData": metadata,
                "tags": metadata.get("tags", []),
                "model-index": metadata.get("model-index"),
            }
            info |= {name: metadata.get(name) for name in ("pipeline_tag", "library_name")}
        self.send_json({**info, "siblings": [{"rfilename": path} for path in files]})

    def tree(self, repo_id: str, revision: str, folder: str):
        repo = self.repo(repo_id)
        entries = []
        for path, file in repo.commits[self.revision(repo, revision)].items():
            if folder and not path.startswith(f"{folder}/"):
                continue
            entry = {"type": "file", "oid": file.etag, "size": len(file.content), "path": path}
            if file.is_lfs:
                entry["lfs"] = {"oid": file.etag, "size": len(file.content), "pointerSize": 130}
            entries.append(entry)
        self.send_json(entries)

    def refs(self, repo_id: str):
        repo = self.repo(repo_id)
        branches = [
            {"name": name, "ref": f"refs/heads/{name}", "targetCommit": sha} for name, sha in repo.refs.items()
        ]
        self.send_json({"branches": branches, "tags": [], "converts": []})

    def resolve(self, repo_id: str, revision: str, path: str):
        repo = self.repo(repo_id)
        sha = self.revision(repo, revision)
        headers = {"X-Repo-Commit": sha}
        file = repo.commits[sha].get(path)
        if file is None:
            self.send(b"Entry not found", 404, {**headers, "X-Error-Code": "EntryNotFound"})
            return
        headers["ETag"] = f'"{file.etag}"'
        if file.is_lfs:
            headers |= {"X-Linked-Etag": f'"{file.etag}"', "X-Linked-Size": str(len(file.content))}
        content, status = file.content, 200
        if span := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(span[1]), int(span[2] or len(content) - 1)
            headers["Content-Range"], status = f"bytes {first}-{last}/{len(content)}", 206
            content = content[first : last + 1]
        self.send(content, status, headers)


REPO, NAME = r"([\w.-]+/[\w.-]+?)", r"([^/]+)"
ROUTES = [
    (("PUT",), "/faults", Handler.set_faults),  # not part of the Hub's API: for tests in other processes
    (("GET",), "/api/whoami-v2", Handler.who_am_i),
    (("POST",), "/api/repos/create", Handler.create),
    (("POST",), "/api/validate-yaml", Handler.validate_yaml),
    (("POST",), f"/api/models/{REPO}/branch/{NAME}", Handler.branch),
    (("POST",), f"/api/models/{REPO}/tag/{NAME}", Handler.tag),
    (("POST",), f"/api/models/{REPO}/preupload/{NAME}", Handler.preupload),
    (("POST",), f"/api/models/{REPO}/commit/{NAME}", Handler.commit),
    (("POST",), rf"/{REPO}\.git/info/lfs/objects/batch", Handler.lfs_batch),
    (("PUT",), r"/lfs/(\w+)", Handler.lfs_put),
    (("PUT",), r"/lfs/(\w+)/part/(\d+)", Handler.lfs_part),
    (("POST",), r"/lfs/(\w+)/complete", Handler.lfs_complete),
    (("POST",), r"/lfs/(\w+)/verify", Handler.lfs_verify),
    (("GET",), f"/api/models/{REPO}/refs", Handler.refs),
    (("GET",), f"/api/models/{REPO}/tree/{NAME}(?:/(.+))?", Handler.tree),
    (("GET",), f"/api/models/{REPO}(?:/revision/{NAME})?", Handler.model_info),
    (("GET", "HEAD"), f"/{REPO}/resolve/{NAME}/(.+)", Handler.resolve),
]
