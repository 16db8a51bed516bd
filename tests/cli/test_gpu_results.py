#!/usr/bin/env python3
"""tools/gpu_results over programs that pass, fail, hang and write no JSON: it goes on, and writes all of it down.

    test_gpu_results.py BUILD/hayate
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools/gpu_results"
sys.argv = sys.argv[:1]

HAYATE = """\
#!/usr/bin/env python3
import json, sys, time
args = sys.argv[1:]
if "--help" in args:
    print("  --load-format FORMAT  random weights, --gpu-wgmma-rows N"), sys.exit(0)
head = {"commit": "abc", "machine": {"gpu": {"name": "a fake", "driver": "1.2"}}}
if args[:2] == ["bench", "memory"]:
    rows = [{"name": "read", "unit": "bytes", "per_second": 4.4e12}, {"name": "fp32", "unit": "operations", "per_second": 6e13}]
elif args[:2] == ["bench", "kernels"]:
    part = args[args.index("--only") + 1]
    if part == "moe":
        time.sleep(100)
    if part == "qkv":
        print("not JSON"), sys.exit(0)
    if part == "head":
        print("it broke", file=sys.stderr), sys.exit(1)
    rows = [{"name": part + " of it", "batch": 8, "context": 131072, "seconds": 1e-5, "bytes_per_second": 4e12,
             "operations_per_second": 1e14, "bound_fraction": 0.9, "bound": "bytes"}]
elif args[0] == "eval":
    rows = [{"set": "arithmetic", "right": 8}]
else:
    rows = [{"batch": 1, "context": 0, "tokens_per_second": 2000.0, "seconds": 5e-4, "host_seconds": 6e-4, "bound_fraction": 0.5,
             "host_bound_fraction": 0.4, "launches": 70}]
assert "cuda" in args and "--json" in args, args
print(json.dumps({**head, "bench": args[1], "rows": rows}))
"""


def write(path, text):
    path.write_text(textwrap.dedent(text))
    path.chmod(0o755)


class Results(unittest.TestCase):
    def run_tool(self, folder, *args, code=1):
        done = self.start(folder, *args, env={**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"})
        self.assertEqual(done.returncode, code, done.stderr.decode() + done.stdout.decode())
        return done.stdout.decode()

    @staticmethod
    def start(folder, *args, env):
        return subprocess.run([TOOL, "--build", folder, "--out", folder / "out", *args], cwd=folder, capture_output=True,
                              timeout=100, env=env)

    def make(self, folder):
        folder = pathlib.Path(folder)
        (folder / "bin").mkdir()
        write(folder / "bin/nvidia-smi", "#!/bin/sh\nexit 0\n")
        (folder / "tests").mkdir()
        (folder / "models/m3-nano").mkdir(parents=True)
        write(folder / "hayate", HAYATE)
        write(folder / "tests/test_backend_cuda_linear", "#!/bin/sh\n# on %s\n[ \"$1\" = --gpu ] && echo passed\n")
        write(folder / "tests/test_backend_cuda_hopper", "#!/bin/sh\n# on %s\nexit 77\n")
        write(folder / "tests/test_backend_cuda_emulated", "#!/bin/sh\nexit 1\n")  # takes no --gpu
        write(folder / "test_backend_cuda_verify", "#!/bin/sh\n# on %s\necho wrong; exit 3\n")
        return folder

    def test_all(self):
        with tempfile.TemporaryDirectory() as name:
            folder = self.make(name)
            for minutes in ("0.15", "0.4", "1.2"):  # so many that what comes before the step that hangs has ended
                out = self.run_tool(folder, "--minutes", minutes, "--only",
                                    "test,bench memory,bench kernels index,bench kernels qkv,bench kernels head,"
                                    "bench decode nano,eval,bench kernels moe")
                result = json.loads((folder / "out/gpu-results.json").read_text())
                if next(s for s in result["steps"] if s["name"] == "bench kernels moe")["status"] == "cut off":
                    break
            text = (folder / "out/gpu-results.txt").read_text()
        steps = {s["name"]: s for s in result["steps"]}
        self.assertEqual(list(steps)[:3], [f"test test_backend_cuda_{t}" for t in ("hopper", "linear", "verify")])
        self.assertEqual({n: s["status"] for n, s in steps.items()},
                         {"test test_backend_cuda_hopper": "skipped", "test test_backend_cuda_linear": "passed",
                          "test test_backend_cuda_verify": "failed", "bench memory": "passed", "bench kernels index": "passed",
                          "bench kernels moe": "cut off", "bench kernels qkv": "left out", "bench kernels head": "left out",
                          "bench kernels qkv mma": "left out",
                          "bench decode nano": "left out", "eval": "left out"})
        self.assertEqual(steps["test test_backend_cuda_verify"]["code"], 3)
        self.assertEqual((result["commit"], result["machine"]["gpu"]["name"]), ("abc", "a fake"))
        self.assertEqual(steps["bench kernels index"]["json"]["rows"][0]["batch"], 8)
        for part in ("a fake, driver 1.2, commit abc", "index of it", "90.0 % of bytes", "4400 Gbytes/s", "60 Toperations/s"):
            self.assertIn(part, text)
        self.assertIn("bench kernels moe: cut off", out)
        self.assertIn(text, out)

    def test_the_rest_goes_on(self):
        with tempfile.TemporaryDirectory() as name:
            folder = self.make(name)
            self.run_tool(folder, "--only", "bench kernels qkv,bench kernels head,bench kernels draft,bench decode nano,eval")
            result = json.loads((folder / "out/gpu-results.json").read_text())
            self.assertEqual([s["status"] for s in result["steps"]], ["failed", "failed", "passed", "failed", "passed", "passed"])
            self.assertIn("no JSON", result["steps"][0]["err"])
            self.assertIn("it broke", result["steps"][1]["err"])
            self.assertIn("0.600 ms", (folder / "out/gpu-results.txt").read_text())
            self.run_tool(folder, "--only", "bench kernels draft,bench kernels prefill mma,bench prefill slice", code=0)
            self.assertIn("prefill of it [mma.sync]", (folder / "out/gpu-results.txt").read_text())
            self.run_tool(folder, "--only", "eval,bench decode slice", code=0)
            step = json.loads((folder / "out/gpu-results.json").read_text())["steps"][0]
            self.assertEqual((step["name"], step["command"][3:5]), ("bench decode slice", ["m3.1-flash", "--load-format"]))

    def test_no_gpu(self):
        with tempfile.TemporaryDirectory() as name:
            folder = self.make(name)
            (folder / "bin/nvidia-smi").unlink()
            (folder / "bin/python3").symlink_to(sys.executable)
            done = self.start(folder, env={"PATH": f"{folder}/bin"})
            self.assertEqual((done.returncode, done.stdout), (1, b""), done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertIn(b"there is no nvidia-smi", done.stderr)
            self.assertFalse((folder / "out").exists())

    def test_refused(self):
        with tempfile.TemporaryDirectory() as name:
            self.run_tool(pathlib.Path(name), code=2)


if __name__ == "__main__":
    unittest.main()
