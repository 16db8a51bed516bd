#!/usr/bin/env python3
# hayate-test: slow
"""Models by a name of the hub, against a stand-in of it: layout, resuming, checks, tokens, errors, several processes at once.

    test_hub.py BUILD/hayate
"""
import hashlib
import http.client
import http.server
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import surroundings  # noqa: E402, F401

ROOT = pathlib.Path(__file__).resolve().parents[2]
HAYATE = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "hayate")
NANO = ROOT / "models" / "m3-nano"
COMMIT, OLDER = "0123456789abcdef0123456789abcdef01234567", "fedcba9876543210fedcba9876543210fedcba98"


def sharded(folder, parts=3):
    """A model as {path: bytes}, its weights in several files with an index."""
    files = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    data = files.pop("model.safetensors")
    n = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8:8 + n]), data[8 + n:]
    meta = header.pop("__metadata__", None)
    names, weight_map = sorted(header), {}
    for k in range(parts):
        out, chunk = ({"__metadata__": meta} if meta else {}), b""
        shard = f"model-{k + 1:05}-of-{parts:05}.safetensors"
        for name in names[k::parts]:
            a, b = header[name]["data_offsets"]
            out[name] = {**header[name], "data_offsets": [len(chunk), len(chunk) + b - a]}
            chunk += body[a:b]
            weight_map[name] = shard
        text = json.dumps(out).encode()
        text += b" " * (-len(text) % 8)
        files[shard] = struct.pack("<Q", len(text)) + text + chunk
    files["model.safetensors.index.json"] = json.dumps({"metadata": {"total_size": len(body)}, "weight_map": weight_map}).encode()
    return files


MODEL = sharded(NANO)
EXTRA = {"README.md": b"no", ".gitattributes": b"no", "original/x.safetensors": b"no", "consolidated.safetensors": b"no", "run.py": b"no"}


def is_large(path):
    return path.endswith(".safetensors") or path == "tokenizer.json"


def digest(path, data):
    return hashlib.sha256(data).hexdigest() if is_large(path) else hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Hub:
    """Two servers, the hub and the one that large files come from, on two hosts."""

    def __init__(self, files=None, name="acme/nano", token=None):
        self.files, self.name, self.token = dict({**MODEL, **EXTRA} if files is None else files), name, token
        self.sent, self.todo, self.lock, self.absolute = [], {}, threading.Lock(), True
        self.front, self.back = self.start("127.0.0.1", self.answer), self.start("127.0.0.2", self.blob)
        self.url = "http://127.0.0.1:%d" % self.front.server_port

    def start(self, host, answer):
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                answer(self)

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer((host, 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return server

    def close(self):
        for s in (self.front, self.back):
            s.shutdown()
            s.server_close()

    def then(self, path, *actions):
        """What happens to the next requests for a path, one each: ("cut", n), ("status", code, headers), ("wrong",), ..."""
        self.todo.setdefault(path, []).extend(actions)

    def next(self, path):
        with self.lock:
            return self.todo[path].pop(0) if self.todo.get(path) else ("fine",)

    def reply(self, h, status, body=b"", **headers):
        h.send_response(status)
        for k, v in {"Content-Length": str(len(body)), **headers}.items():
            h.send_header(k.replace("_", "-"), v)
        h.end_headers()
        h.wfile.write(body)

    def record(self, h, host):
        with self.lock:
            self.sent.append((host, urllib.parse.urlsplit(h.path).path, h.headers.get("Authorization"), h.headers.get("Range")))

    def refused(self, h, path):
        kind, *more = action = self.next(path)
        if kind == "status":
            self.reply(h, more[0], b"<html>sorry</html>", **(more[1] if len(more) > 1 else {}))
            return None
        return action

    def answer(self, h):
        self.record(h, "hub")
        path = urllib.parse.unquote(urllib.parse.urlsplit(h.path).path)
        if self.token and h.headers.get("Authorization") != "Bearer " + self.token:
            return self.reply(h, 401, b"{}", X_Error_Code="RepoNotFound")
        api = f"/api/models/{self.name}/revision/"
        if path.startswith(api):
            action = self.refused(h, "api")
            if not action:
                return None
            if path[len(api):] not in ("main", "v1", "feature/x", COMMIT):
                return self.reply(h, 404, b"{}", X_Error_Code="RevisionNotFound")
            if action[0] == "body":
                return self.reply(h, 200, action[1])
            entries = []
            for p, d in self.files.items():
                e = {"rfilename": p, "size": len(d), "blobId": digest("small", d)}
                if is_large(p):
                    e["lfs"] = {"sha256": digest(p, d), "size": len(d), "pointerSize": 130}
                entries.append(e)
            return self.reply(h, 200, json.dumps({"id": self.name, "sha": COMMIT, "siblings": entries}).encode())
        start = f"/{self.name}/resolve/{COMMIT}/"
        name = path[len(start):]
        if not path.startswith(start) or name not in self.files:
            return self.reply(h, 404, b"{}", X_Error_Code="RepoNotFound")
        data = self.files[name]
        if not is_large(name):
            action = self.refused(h, name)
            return action and self.send(h, name, data, action)
        where = "http://127.0.0.2:%d/%s?signature=secret" % (self.back.server_port, urllib.parse.quote(name))
        return self.reply(h, 302, b"moved", Location=where, X_Linked_ETag='"%s"' % digest(name, data), X_Linked_Size=str(len(data)))

    def blob(self, h):
        self.record(h, "store")
        name = urllib.parse.unquote(urllib.parse.urlsplit(h.path).path)[1:]
        action = self.refused(h, name)
        if action:
            self.send(h, name, self.files[name], action)

    def send(self, h, name, data, action):
        start = 0
        wanted = h.headers.get("Range")
        if wanted and action[0] != "no range":
            start = int(wanted.split("=")[1].split("-")[0])
        if start >= len(data) and start:
            return self.reply(h, 416)
        total = len(data) + (1 if action[0] == "grown" else 0)
        body = data[start:]
        if action[0] == "wrong":
            body = bytes([body[0] ^ 1]) + body[1:]
        h.send_response(206 if start else 200)
        h.send_header("Content-Length", str(len(body) + total - len(data)))
        h.send_header("ETag", '"%s"' % hashlib.md5(data).hexdigest())
        if start:
            h.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        h.end_headers()
        try:
            if action[0] == "cut":
                h.wfile.write(body[:action[1]])
                h.wfile.flush()
                h.close_connection = True
                h.connection.shutdown(2)
                return
            if action[0] == "wait":  # the first bytes, then nothing until told
                h.wfile.write(body[:action[1]])
                h.wfile.flush()
                action[2].wait(120)
                body = body[action[1]:]
            h.wfile.write(body)
        except OSError:
            h.close_connection = True

    def asked(self, host=None, path=None):
        return [s for s in self.sent if (not host or s[0] == host) and (not path or s[1].endswith(path))]


def environment(home, hub=None, **more):
    e = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING", "VLLM_", "TRANSFORMERS_", "XDG_")) and "proxy" not in k.lower()}
    return {**e, "HF_HOME": str(home), **({"HF_ENDPOINT": hub.url} if hub else {}), **more}


class HubTest(unittest.TestCase):
    def setUp(self):
        self.home = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.home)
        self.cache = self.home / "hub" / "models--acme--nano"

    def hub(self, *a, **k):
        hub = Hub(*a, **k)
        self.addCleanup(hub.close)
        return hub

    def run_(self, hub, *args, model="acme/nano", command="inspect", code=0, **env):
        p = subprocess.run([HAYATE, command, model, *args], capture_output=True, text=True, timeout=120, env=environment(self.home, hub, **env))
        self.assertEqual(p.returncode, code, p.stderr)
        return p

    def refused(self, words, hub, *args, code=1, **more):
        lines = self.run_(hub, *args, code=code, **more).stderr.splitlines()
        said = [l for l in lines if l.startswith("hayate: ")]
        self.assertEqual(len(said), 1, lines)
        self.assertIn(words, said[0])
        return said[0]

    def check(self, files=MODEL):
        """The cache is as the hub's own tools would have it."""
        snapshot = self.cache / "snapshots" / COMMIT
        got = {str(p.relative_to(snapshot)) for p in snapshot.rglob("*") if not p.is_dir()}
        self.assertEqual(got, set(files))
        for path, data in files.items():
            link = snapshot / path
            self.assertTrue(link.is_symlink() and not os.path.isabs(os.readlink(link)))
            self.assertEqual(link.resolve(), (self.cache / "blobs" / digest(path, data)).resolve())
            self.assertEqual(link.read_bytes(), data)
        self.assertEqual(len(list((self.cache / "blobs").iterdir())), len({digest(p, d) for p, d in files.items()}))

    def test_download_and_generate(self):
        hub = self.hub()
        p = self.run_(hub, "--chat", "--prompt", "What is 2 + 3?", "--max-tokens", "4", "--temperature", "0", command="generate")
        self.assertTrue(p.stdout.strip())
        self.check()
        self.assertEqual((self.cache / "refs" / "main").read_text(), COMMIT)
        names = {s[1].rsplit("/", 1)[1] for s in hub.sent}
        self.assertFalse({"README.md", "run.py", "consolidated.safetensors", "x.safetensors"} & names)
        # It is there: nothing is asked, also with the network away, and every command that opens a model finds it.
        before = len(hub.sent)
        for command, more in (("inspect", ()), ("tokenize", ("hello",)), ("generate", ("--prompt", "2 + 3", "--max-tokens", "1"))):
            self.run_(hub, *more, command=command)
            self.run_(None, *more, command=command, HF_HUB_OFFLINE="1", HF_ENDPOINT="http://127.0.0.1:9")
        self.assertEqual(len(hub.sent), before)
        self.run_(None, model=f"acme/nano@{COMMIT}", HF_HUB_OFFLINE="1")

    def test_serve(self):
        hub = self.hub(token="hf_secret")
        p = subprocess.Popen([HAYATE, "serve", "acme/nano@v1", "--host", "127.0.0.1", "--port", "0", "--hf-token", "hf_secret", "--download-dir",
                              str(self.home / "else")], stderr=subprocess.PIPE, text=True, env=environment(self.home, hub))
        try:
            lines = []
            for line in p.stderr:
                lines.append(line)
                if "Starting server on" in line:
                    port = int(line.rsplit(":", 1)[1])
                if "startup complete" in line:
                    break
            self.assertIn("startup complete", lines[-1], "".join(lines))
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=120) as r:
                self.assertEqual(json.load(r)["data"][0]["id"], "acme/nano")
            body = {"messages": [{"role": "user", "content": "What is 2 + 3?"}], "max_tokens": 1}
            request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(),
                                             {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as r:
                self.assertEqual(json.load(r)["usage"]["completion_tokens"], 1)
        finally:
            p.send_signal(signal.SIGTERM)
            self.assertEqual(p.wait(120), 0)
            p.stderr.close()
        self.assertEqual((self.home / "else" / "models--acme--nano" / "refs" / "v1").read_text(), COMMIT)
        self.assertNotIn("hf_secret", "".join(lines))

    def test_the_address_comes_first(self):
        """A port in use is told before the hub is asked; while a model comes, requests are told to come again."""
        hub = self.hub()
        slow = threading.Event()
        self.addCleanup(slow.set)
        hub.then("model-00002-of-00003.safetensors", ("wait", 100, slow))
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            p = subprocess.run([HAYATE, "serve", "acme/nano", "--host", "127.0.0.1", "--port", str(s.getsockname()[1])], capture_output=True,
                               text=True, timeout=60, env=environment(self.home, hub))
        self.assertEqual((p.returncode, hub.sent), (1, []), p.stderr)
        self.assertIn("Address already in use; choose another --port", p.stderr.splitlines()[-1])
        p = subprocess.Popen([HAYATE, "serve", "acme/nano", "--host", "127.0.0.1", "--port", "0"], stderr=subprocess.PIPE, text=True,
                             env=environment(self.home, hub))
        try:
            port = next(int(re.search(r":(\d+), which answers 503", l)[1]) for l in p.stderr if "Listening on" in l)
            for path, body in (("/health", None), ("/v1/chat/completions", b"{}"), ("/nowhere", None)):
                with self.assertRaises(urllib.error.HTTPError) as e:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", body, timeout=120)
                self.assertEqual((e.exception.code, e.exception.headers["Retry-After"]), (503, "1"))
                self.assertIn("being loaded", json.load(e.exception)["error"]["message"])
            kept = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            kept.request("GET", "/health")
            first = kept.getresponse()
            self.assertEqual((first.status, bool(first.read())), (503, True))
            slow.set()
            for line in p.stderr:
                if "startup complete" in line:
                    break
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=120) as r:
                self.assertEqual(r.status, 200)
            kept.request("GET", "/health")  # a connection from before is served too
            self.assertEqual(kept.getresponse().status, 200)
            kept.close()
        finally:
            p.send_signal(signal.SIGTERM)
            self.assertEqual(p.wait(120), 0)
            p.stderr.close()

    def test_plan(self):
        """Configuration alone is downloaded; once weights are there they are measured."""
        hub = self.hub()
        p = self.run_(hub, "--memory", "4GB", command="plan")
        self.assertIn("are not in the cache here", p.stdout)
        self.assertFalse([s for s in hub.sent if s[1].endswith(".safetensors")])
        self.run_(hub)
        p = self.run_(hub, "--memory", "4GB", "--json", command="plan")
        self.assertNotIn("are not in the cache here", p.stdout)
        here = subprocess.run([HAYATE, "plan", str(NANO), "--memory", "4GB", "--json"], capture_output=True, text=True)
        self.assertEqual(json.loads(p.stdout)["weight_bytes"], json.loads(here.stdout)["weight_bytes"])

    def test_tokens_stay_with_their_host(self):
        hub = self.hub(token="hf_one")
        (self.home / "token").write_text("hf_one\n")
        self.run_(hub)
        self.assertEqual({s[2] for s in hub.asked("hub")}, {"Bearer hf_one"})
        self.assertEqual({s[2] for s in hub.asked("store")}, {None})
        self.assertGreater(len(hub.asked("store")), 3)
        self.check()

    def test_cut_connections_are_taken_up(self):
        hub = self.hub()
        hub.then("model-00001-of-00003.safetensors", ("cut", 1000000), ("cut", 0), ("cut", 2000000))
        hub.then("model-00002-of-00003.safetensors", ("status", 503), ("status", 429, {"Retry-After": "1"}), ("cut", 5), ("status", 500))
        hub.then("config.json", ("cut", 100))
        hub.then("api", ("status", 502), ("status", 503))
        self.run_(hub)
        self.check()
        ranges = [s[3] for s in hub.asked("store", "model-00001-of-00003.safetensors")]
        self.assertEqual(ranges, [None, "bytes=1000000-", "bytes=1000000-", "bytes=3000000-"])

    def test_a_second_run_takes_up_the_first(self):
        hub = self.hub()
        name = "model-00002-of-00003.safetensors"
        hub.then(name, ("cut", 1500000), ("status", 418))
        self.refused("answers 418", hub)
        part = self.cache / "blobs" / (digest(name, MODEL[name]) + ".incomplete")
        self.assertEqual(part.stat().st_size, 1500000)
        self.assertFalse((self.cache / "snapshots" / COMMIT).exists())
        before = len(hub.asked("store", name))
        self.run_(hub)
        self.assertEqual([s[3] for s in hub.asked("store", name)[before:]], ["bytes=1500000-"])
        self.check()

    def test_a_part_that_is_wrong_or_too_long(self):
        hub = self.hub()
        one, two, three = (f"model-0000{k}-of-00003.safetensors" for k in (1, 2, 3))
        blobs = self.cache / "blobs"
        blobs.mkdir(parents=True)
        (blobs / (digest(one, MODEL[one]) + ".incomplete")).write_bytes(b"x" * 5000)
        (blobs / (digest(two, MODEL[two]) + ".incomplete")).write_bytes(MODEL[two] + b"x")
        (blobs / (digest(three, MODEL[three]) + ".incomplete")).write_bytes(MODEL[three])
        self.run_(hub)
        self.check()
        self.assertEqual([s[3] for s in hub.asked("store", one)], ["bytes=5000-", None])
        self.assertEqual([s[3] for s in hub.asked("store", two)], [None])
        self.assertEqual(hub.asked("store", three), [])

    def test_a_server_without_ranges(self):
        hub = self.hub()
        name = "model-00003-of-00003.safetensors"
        hub.then(name, ("cut", 300000), ("no range",))
        self.run_(hub)
        self.check()

    def test_wrong_hashes(self):
        name = "model-00001-of-00003.safetensors"
        hub = self.hub()
        hub.then(name, ("wrong",))
        hub.then("generation_config.json", ("wrong",))
        self.run_(hub)
        self.check()
        shutil.rmtree(self.home / "hub")
        hub.then(name, ("wrong",), ("wrong",))
        self.refused("wrong hash, twice", hub)
        self.assertFalse((self.cache / "snapshots" / COMMIT).exists())
        self.run_(hub)
        self.check()

    def test_what_changes_on_the_way(self):
        hub = self.hub()
        name = "model-00001-of-00003.safetensors"
        hub.then(name, ("cut", 1000), ("grown",))
        self.refused("no longer what it was listed as", hub)
        hub.then("config.json", ("grown",))
        shutil.rmtree(self.home / "hub")
        self.refused("no longer what it was listed as", hub)

    def test_errors(self):
        hub = self.hub(token="hf_t")
        self.refused("HF_TOKEN", hub)
        self.refused("does not accept this token", hub, HF_TOKEN="hf_wrong")
        self.refused("no revision", hub, model="acme/nano@nowhere", code=3, HF_TOKEN="hf_t")
        self.refused("there is no model acme/other", hub, model="acme/other", code=3, HF_TOKEN="hf_t")
        hub.then("api", ("status", 403, {"X-Error-Code": "GatedRepo"}))
        self.refused("ask for access at " + hub.url + "/acme/nano", hub, HF_TOKEN="hf_t")
        hub.then("api", *[("status", 429)] * 4)
        self.refused("too many requests", hub, HF_TOKEN="hf_t")
        hub.then("api", ("body", b"<html>"))
        self.refused("not understood", hub, HF_TOKEN="hf_t")
        for bad in ({"siblings": []}, {"sha": "../x", "siblings": []}, {"sha": COMMIT, "siblings": 3}, {"sha": COMMIT, "siblings": [{"x": 1}]},
                    {"sha": COMMIT, "siblings": [{"rfilename": "config.json"}]},
                    {"sha": COMMIT, "siblings": [{"rfilename": "config.json", "size": 1, "blobId": "../../x"}]},
                    {"sha": COMMIT, "siblings": [{"rfilename": "config.json", "size": -1, "blobId": COMMIT}]}):
            hub.then("api", ("body", json.dumps(bad).encode()))
            self.refused("the hub", hub, HF_TOKEN="hf_t")
        hub.then("api", ("body", json.dumps({"sha": COMMIT, "siblings": []}).encode()))
        self.refused("has no config.json", hub, code=3, HF_TOKEN="hf_t")
        self.refused("HF_HUB_OFFLINE", hub, code=3, HF_HUB_OFFLINE="1")
        self.refused("is not a folder here", None, HF_ENDPOINT="http://127.0.0.1:9")
        self.refused("is not a folder", hub, model="acme/../x", code=3)
        self.refused("is not a folder", hub, model="/acme/nano", code=3)

    def test_paths_stay_inside(self):
        bad = [("../config.json", b"x"), ("dspark/../../x.json", b"x"), ("/etc/x.json", b"x"), (".hidden.json", b"x"), ("a\\b.json", b"x")]
        hub = self.hub({**MODEL, **dict(bad)})
        p = subprocess.run([HAYATE, "inspect", "acme/nano"], capture_output=True, text=True, env=environment(self.home, hub))
        self.assertIn(p.returncode, (0, 1))
        for top, _, names in os.walk(self.home):
            self.assertFalse({"x.json", ".hidden.json", "a\\b.json"} & set(names), top)

    def test_an_index_that_names_more(self):
        index = json.loads(MODEL["model.safetensors.index.json"])
        index["weight_map"]["x"] = "model-00009-of-00003.safetensors"
        self.refused("names model-00009-of-00003.safetensors", self.hub({**MODEL, "model.safetensors.index.json": json.dumps(index).encode()}), code=3)

    def test_no_room_on_the_disk(self):
        hub = self.hub()
        listing = [{"rfilename": p, "size": len(d), "blobId": digest("small", d), **({"lfs": {"sha256": digest(p, d), "size": 1 << 60}} if
                    p.endswith("-00003.safetensors") else {"lfs": {"sha256": digest(p, d), "size": len(d)}} if is_large(p) else {})}
                   for p, d in MODEL.items()]
        hub.then("api", ("body", json.dumps({"sha": COMMIT, "siblings": listing}).encode()))
        self.refused("more on the disk", hub, code=4)
        self.assertEqual(hub.asked("store", "-00003.safetensors"), [])

    def test_ctrl_c_keeps_what_came(self):
        hub = self.hub()
        name, go = "model-00001-of-00003.safetensors", threading.Event()
        hub.then(name, ("wait", 1000000, go))
        p = subprocess.Popen([HAYATE, "inspect", "acme/nano"], stderr=subprocess.PIPE, text=True, env=environment(self.home, hub))
        part = self.cache / "blobs" / (digest(name, MODEL[name]) + ".incomplete")
        deadline = time.monotonic() + 60
        while not (part.exists() and part.stat().st_size == 1000000):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)
        p.send_signal(signal.SIGINT)
        _, said = p.communicate(timeout=120)
        go.set()
        self.assertEqual(p.returncode, 1, said)
        self.assertIn("stays for the next time", said)
        self.assertEqual(part.stat().st_size, 1000000)
        self.run_(hub)
        self.assertEqual(hub.asked("store", name)[-1][3], "bytes=1000000-")
        self.check()

    def test_two_at_once(self):
        hub = self.hub()
        name, go = "model-00001-of-00003.safetensors", threading.Event()
        hub.then(name, ("wait", 1000, go))
        start = lambda: subprocess.Popen([HAYATE, "inspect", "acme/nano"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                         env=environment(self.home, hub))
        first = start()
        deadline = time.monotonic() + 60
        while not hub.asked("store", name):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)
        second = start()
        while len(hub.asked("hub", "/revision/main")) < 2:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)
        go.set()
        for p in (first, second):
            self.assertEqual((p.communicate(timeout=60)[1], p.returncode), ("", 0))
        self.check()
        for path in MODEL:
            exact = ("store", "/" + path) if is_large(path) else ("hub", f"/acme/nano/resolve/{COMMIT}/{path}")
            self.assertEqual(len([s for s in hub.sent if s[:2] == exact]), 1, path)

    def test_what_the_hubs_own_tools_left(self):
        """A snapshot of which a shard is missing, with its blobs, is completed; one of another commit is left alone."""
        hub = self.hub()
        self.run_(hub)
        name = "model-00002-of-00003.safetensors"
        (self.cache / "snapshots" / COMMIT / name).unlink()
        (self.cache / "blobs" / digest(name, MODEL[name])).unlink()
        (self.cache / "snapshots" / OLDER).mkdir()
        self.run_(hub)
        self.check()
        self.assertEqual(len(hub.asked("store", name)), 2)
        self.assertEqual(len(hub.asked("store", "model-00001-of-00003.safetensors")), 1)

    def test_text_alone(self):
        hub = self.hub()
        self.assertTrue(self.run_(hub, "hello", command="tokenize").stdout)
        self.assertEqual(hub.asked("store", ".safetensors"), [])
        self.run_(hub)
        self.check()

    def test_branches_with_slashes(self):
        hub = self.hub()
        self.run_(hub, model="acme/nano@feature/x")
        self.assertEqual((self.cache / "refs" / "feature" / "x").read_text(), COMMIT)
        self.run_(None, model="acme/nano@feature/x", HF_HUB_OFFLINE="yes")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
