#!/usr/bin/env python3
# hayate-test: slow
"""The manual and what lies in deploy/: every command of docs/serving.md that asks a server is run, and every name that alerts and
dashboards ask for is one that the server has.

    test_manual.py BUILD/hayate
"""
import contextlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest
import urllib.request

from test_chat import HAYATE, MODEL, ROOT, Server

DEPLOY = ROOT / "deploy"
MANUAL = ROOT / "docs" / "serving.md"
NAME = re.compile(r"\b(?:vllm|hayate|http|process)[:_][a-zA-Z0-9_:]+\b")
FLAGS = ("--enable-auto-tool-choice", "--tool-call-parser", "minimax_m3", "--enable-return-routed-experts", "--enable-prompt-tokens-details")


def blocks(path):
    """The indented blocks of a text."""
    found, block = [], []
    for line in path.read_text().split("\n") + ["."]:
        if line.startswith("    ") or (block and not line):
            block.append(line[4:])
        elif block:
            found.append("\n".join(block).strip("\n"))
            block = []
    return found


class ManualTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(*FLAGS)
        cls.blocks = [b.replace("localhost:8000", f"127.0.0.1:{cls.server.port}") for b in blocks(MANUAL)]

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, "".join(cls.server.lines)

    @unittest.skipUnless(shutil.which("curl"), "curl is not installed")
    def test_curl(self):
        commands = [c for b in self.blocks for c in b.split("\n\n") if c.startswith("curl ")]
        self.assertGreater(len(commands), 9)
        for command in commands:
            r = subprocess.run(["sh", "-c", command.replace("curl ", "curl -sS --fail-with-body ", 1)], capture_output=True, text=True,
                               timeout=120)
            self.assertEqual(r.returncode, 0, command + r.stdout + r.stderr)
            if '"tools"' in command:
                self.assertIn('"arguments":"{\\"city\\":\\"Paris\\"}"', r.stdout)
            if '"choice"' in command:
                self.assertRegex(r.stdout, '"(yes|no)"')

    def test_python(self):
        programs = [b for b in self.blocks if re.match(r"(import|from) ", b)]
        self.assertGreater(len(programs), 2)
        for program in programs:
            needs = set(re.findall(r"^(?:import|from) (\w+)", program, re.M)) & {"openai", "anthropic", "numpy"}
            try:
                for package in needs:
                    __import__(package)
            except ImportError:
                continue
            with contextlib.redirect_stdout(io.StringIO()) as said:
                exec(compile(program, "serving.md", "exec"), {})
            self.assertTrue(said.getvalue().strip(), program)

    def test_flags_of_the_manual(self):
        """Flags that texts name are flags."""
        known = set(re.findall(r"--[a-z0-9-]+", subprocess.run([HAYATE, "serve", "--help=all"], capture_output=True, text=True).stdout))
        for name in re.findall(r"`(--[a-z0-9-]+)", MANUAL.read_text()):
            self.assertIn(re.sub("^--no-", "--", name), known)

    def names(self):
        self.server.chat(max_tokens=2)
        with urllib.request.urlopen(f"http://127.0.0.1:{self.server.port}/metrics") as r:
            text = r.read().decode()
        return set(re.findall(r"^([a-z][a-zA-Z0-9_:]*)[ {]", text, re.M))

    def test_metrics(self):
        known = self.names()
        dashboard = json.loads((DEPLOY / "grafana.json").read_text())
        asked = [t["expr"] for p in dashboard["panels"] for t in p["targets"]]
        self.assertGreater(len(asked), 30)
        rules = re.sub(r"^ *(summary|#).*", "", (DEPLOY / "alerts.yml").read_text(), flags=re.M)
        for text in (*asked, rules, dashboard["templating"]["list"][1]["query"]):
            for name in NAME.findall(text):
                self.assertIn(name, known, text)
        places = [tuple(p["gridPos"].values()) for p in dashboard["panels"]]
        self.assertEqual(len(places), len(set(places)))
        self.assertEqual(len({p["id"] for p in dashboard["panels"]}), len(places))
        for name in re.findall(r"`((?:vllm|hayate):[a-z0-9_]+)", MANUAL.read_text()):
            self.assertIn(name, known)

    def test_yaml(self):
        try:
            import yaml
        except ImportError:
            self.skipTest("the Python package yaml is not installed")
        config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
        self.assertTrue(all((DEPLOY / f).exists() for f in config["rule_files"]))
        job = config["scrape_configs"][0]["job_name"]
        rules = [r for g in yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"] for r in g["rules"]]
        self.assertEqual(len(rules), len({r["alert"] for r in rules}))
        for r in rules:
            self.assertTrue(r["expr"] and r["annotations"]["summary"] and r["labels"]["severity"], r)
            self.assertEqual(set(re.findall(r'job="(\w+)"', r["expr"])) - {job}, set())

    def test_unit(self):
        """The flags of serve.yaml are taken, and the unit's wait ends when the server answers, or is gone."""
        unit = (DEPLOY / "hayate.service").read_text()
        flags = (DEPLOY / "serve.yaml").read_text().replace("port: 8000", "port: 0").replace("0.0.0.0", "127.0.0.1")
        flags = re.sub(r"^model: .*$", f"model: {MODEL}", flags, flags=re.M)
        path = pathlib.Path(os.environ.get("TMPDIR", "/tmp")) / f"hayate-manual-{os.getpid()}.yaml"
        path.write_text(flags)
        self.addCleanup(path.unlink)
        p = subprocess.Popen([HAYATE, "serve", "--config", str(path)], stderr=subprocess.PIPE, text=True)
        lines = []
        for line in p.stderr:
            lines.append(line)
            if "startup complete" in line:
                break
        text = "".join(lines)
        self.assertIn("startup complete", text)
        port = re.search(r"Starting server on \S+:(\d+)", text)[1]
        seconds = int(re.search(r"^shutdown-timeout: (\d+)", flags, re.M)[1])
        self.assertGreaterEqual(int(re.search(r"^TimeoutStopSec=(\d+)s", unit, re.M)[1]), seconds + 25)
        wait = re.search(r"^ExecStartPost=/bin/sh -c '(.*)'$", unit, re.M)[1].replace(":8000", ":" + port).replace("${MAINPID}", str(p.pid))
        if shutil.which("curl"):
            self.assertEqual(subprocess.run(["sh", "-c", wait], timeout=60).returncode, 0)
        p.terminate()
        p.stderr.read()
        self.assertEqual(p.wait(timeout=60), 0)
        p.stderr.close()
        if shutil.which("curl"):
            self.assertEqual(subprocess.run(["sh", "-c", wait], stderr=subprocess.DEVNULL, timeout=60).returncode, 1)

    @unittest.skipUnless(shutil.which("dpkg-query") and shutil.which("readelf"), "not Debian")
    def test_container(self):
        """What the program is linked with is what the image installs."""
        installed = (DEPLOY / "Containerfile").read_text()
        needed = re.findall(r"NEEDED.*\[(.*)\]", subprocess.run(["readelf", "-d", HAYATE], capture_output=True, text=True).stdout)
        self.assertGreater(len(needed), 5)
        for library in needed:
            owner = subprocess.run(["dpkg-query", "-S", library], capture_output=True, text=True).stdout.split("\n")
            owners = {line.split(":")[0] for line in owner if line.endswith("/" + library)}
            if owners and not owners & {"libc6", "libgcc-s1", "libasan8", "libubsan1", "libtsan2"}:
                self.assertTrue(any(o in installed.split() for o in owners), (library, owners))


if __name__ == "__main__":
    if not MODEL.exists():
        print("skipped: models/m3-nano is not there")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
