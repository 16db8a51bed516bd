#!/usr/bin/env python3
"""All stages of m3-nano in order within a given time, from data to packed folders.

    python3 pipeline.py --out DIR --engine HAYATE [--minutes 24] [--gpus 2] [--detach]
    python3 pipeline.py --out DIR --wait 500       shows the progress of a detached run until it ends or the time is over
    python3 pipeline.py --out DIR --collect DEST   packs what there is so far into a few files of less than 16 MiB

With --detach it goes on after the shell that started it is gone; started again with the same --out it goes on where it was.
Data are written by HAYATE, a static binary is best, into DIR/data while the first stage compiles. Logs: DIR/pipeline.log, a
log and a curve for each stage; DIR/status says where it is. --smoke runs every stage for seconds to find faults first.
"""
import argparse
import glob
import io
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SHARES = {"pretrain": 7.4, "index": 3.4, "sparse": 4.2, "tune": 3.2, "drafter": 2.1, "end": 0.5}
TUNE_MIX = "tools=0.4,synthaime=0.25,retrieval=0.12,arithmetic=0.12,form=0.06,talk=0.05"
ROWS = "512=0.35,1024=0.35,4096=0.15,16384=0.15"
PART = 15 << 20


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", required=True)
    p.add_argument("--engine", help="the hayate binary")
    p.add_argument("--minutes", type=float, default=24.0)
    p.add_argument("--split", default="", help="parts of the time, such as pretrain=7,tune=4; otherwise "
                   + ",".join(f"{k}={v}" for k, v in SHARES.items()))
    p.add_argument("--gpus", type=int, default=2)
    p.add_argument("--data-tokens", type=float, default=1e9)
    p.add_argument("--shard", type=float, default=64e6, help="tokens of a shard; the first one is a quarter of it")
    p.add_argument("--rows", default="", help=f"shares of the row lengths ({ROWS})")
    p.add_argument("--mix", default="", help="as for hayate eval --write-set")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--flags", default="", help="more flags for the stages that train the target, one text")
    p.add_argument("--cache", default="/tmp/m3-nano-cache", help="folder of compiled kernels; a smoke run fills it")
    p.add_argument("--no-warm", action="store_true", help="do not compile later stages while the first one trains")
    p.add_argument("--smoke", action="store_true", help="seconds for each stage")
    p.add_argument("--tiny", action="store_true", help="a smaller model, for a CPU")
    p.add_argument("--cpu", action="store_true")
    p.add_argument("--detach", action="store_true")
    p.add_argument("--wait", type=float, default=0)
    p.add_argument("--collect")
    return p.parse_args()


class Pipeline:
    def __init__(self, a):
        self.a, self.began, self.failed = a, time.time(), []
        self.parts = dict(SHARES)
        self.parts |= {k: float(v) for k, v in (x.split("=") for x in a.split.split(",") if x)}
        whole = sum(self.parts.values())
        self.parts = {k: v / whole * a.minutes for k, v in self.parts.items()}
        if a.smoke:
            self.parts = dict.fromkeys(SHARES, 0.8)
            a.data_tokens, a.shard, a.minutes = min(a.data_tokens, 8e6), 8e6, 0
        self.data, self.held = os.path.join(a.out, "data"), os.path.join(a.out, "held-out")
        self.tune = os.path.join(a.out, "tune")
        self.model, self.plain = os.path.join(a.out, "m3-nano"), os.path.join(a.out, "m3-nano-plain")
        cache = os.path.abspath(a.cache)
        self.environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": cache, "PYTHONUNBUFFERED": "1",
                                         "TRITON_CACHE_DIR": os.path.join(cache, "triton"),
                                         "TORCHINDUCTOR_COMPILE_THREADS": str(max(2, (os.cpu_count() or 2) // 5)),
                                         "NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
                                         "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}

    def say(self, text):
        line = f"{time.strftime('%H:%M:%S')} pipeline, {time.time() - self.began:.0f} s: {text}"
        print(line, flush=True)
        with open(os.path.join(self.a.out, "status"), "w") as f:
            f.write(line + "\n")

    # ---- Data ----

    def write_set(self, folder, tokens, seed, split, rows=None, mix=None):
        if os.path.exists(folder):
            return
        shutil.rmtree(folder + ".new", ignore_errors=True)
        a = self.a
        rows, mix = rows or a.rows or ("512=0.4,1024=0.4,2048=0.2" if a.tiny else ROWS), mix or a.mix
        command = [a.engine, "eval", os.path.join(HERE, "tokenizer"), "--write-set", folder + ".new", "--tokens",
                   str(int(tokens)), "--rows", rows, "--seed", str(seed), "--split", split]
        command += ["--mix", mix] if mix else []
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        os.rename(folder + ".new", folder)
        self.say(f"{folder}: {done.stdout.strip().splitlines()[-1]}")
        if seed % 1000 == 0:
            print(done.stdout, flush=True)

    def write_data(self):
        a, made, i = self.a, 0, 0
        try:
            while made < a.data_tokens:
                size = min(a.data_tokens - made, a.shard / 4 if i == 0 else a.shard)
                self.write_set(os.path.join(self.data, f"shard-{i:03d}"), size, a.seed * 1000 + i, "train")
                if i == 0:
                    self.write_set(os.path.join(self.held, "set"), min(4e6, a.data_tokens), a.seed, "held-out")
                    self.write_set(os.path.join(self.tune, "set"), a.data_tokens / 4, a.seed * 1000 + 500, "train",
                                   "512=0.5,1024=0.5" if a.tiny else "1024=0.5,2048=0.5", TUNE_MIX)
                made, i = made + size, i + 1
        except Exception as e:                               # the stages notice that rows are missing
            self.say(f"data: {e}")
            self.failed.append("data")

    # ---- Stages ----

    def start(self, stage, minutes, gpus, only=None, *more, warm=False):
        a = self.a
        data = self.tune if stage.startswith("tune") else self.data
        command = [sys.executable, os.path.join(HERE, "nano.py"), stage, "--out", a.out, "--data", data, "--held-out",
                   self.held, "--minutes", f"{minutes:.3f}", "--gpus", str(gpus), "--seed", str(a.seed), *more]
        command += ["--tiny"] if a.tiny else []
        command += ["--cpu"] if a.cpu else []
        command += ["--warm"] if warm else []
        command += a.flags.split() if stage in ("pretrain", "index", "sparse", "plain") else []
        environment = dict(self.environment)
        if only is not None:                                 # of the GPUs that the caller names, if it does
            named = os.environ.get("CUDA_VISIBLE_DEVICES")
            environment["CUDA_VISIBLE_DEVICES"] = named.split(",")[only] if named else str(only)
        return subprocess.Popen(command, env=environment)

    def finish(self, stage, process):
        if process.wait():
            self.failed.append(stage)
            self.say(f"{stage} FAILED with status {process.returncode}")
        return process.returncode == 0

    def stage(self, stage, minutes, gpus, only=None, *more):
        """Runs a stage; one that dies is started once more for what is left of its time, and goes on from its state."""
        self.say(f"{stage} for {minutes:.1f} minutes on {gpus} of {self.a.gpus} GPUs")
        began = time.time()
        if self.start(stage, minutes, gpus, only, *more).wait() == 0:
            return True
        left = minutes - (time.time() - began) / 60
        self.say(f"{stage} broke off, {left:.1f} minutes are left of its time; once more, on one GPU")
        return left > 0.2 and self.finish(stage, self.start(stage, left, 1, only, *more))

    def both(self, stage, folder, minutes):
        """Tunes both packed models, at the same time where there are two GPUs."""
        a = self.a
        runs = [(stage, 0, folder), (stage + "-plain", 1, self.plain)]
        if a.gpus > 1:
            twin = threading.Thread(target=self.stage, args=(runs[1][0], minutes, 1, 1, "--model", self.plain))
            twin.start()
            self.stage(stage, minutes, 1, 0, "--model", folder)
            twin.join()
        else:
            for name, _, at in runs:
                self.stage(name, minutes / 2, 1, None, "--model", at)
        for name, _, at in runs:
            self.export(name, at)

    def export(self, stage, folder):
        if not os.path.exists(os.path.join(self.a.out, stage + ".pt")):
            return False
        return self.finish(f"export of {stage}", subprocess.Popen(
            [sys.executable, os.path.join(HERE, "nano.py"), "export", "--out", self.a.out, "--from-stage", stage, "--model",
             folder], env=self.environment))

    def warm(self):
        """Compiles the later stages beside the first one, on the last GPU."""
        if self.a.no_warm or self.a.cpu:
            return
        began = time.time()
        running = [(stage, self.start(stage, 1, 1, self.a.gpus - 1, "--model", self.model, warm=True))
                   for stage in ("index", "sparse", "plain", "drafter")
                   if not os.path.exists(os.path.join(self.a.out, stage + ".pt"))]
        for stage, process in running:
            status = process.wait()
            self.say(f"warmed {stage} after {time.time() - began:.0f} s" + (f", FAILED with {status}" if status else ""))

    def run(self):
        a, p = self.a, self.parts
        os.makedirs(a.out, exist_ok=True)
        self.say("plan in minutes: " + ", ".join(f"{k} {v:.1f}" for k, v in p.items()))
        for folder in (self.data, self.held, self.tune):
            os.makedirs(folder, exist_ok=True)
        threading.Thread(target=self.write_data, daemon=True).start()
        warm = threading.Thread(target=self.warm, daemon=True)
        warm.start()
        ok = self.stage("pretrain", p["pretrain"], a.gpus) and self.stage("index", p["index"], a.gpus)
        if ok and a.gpus > 1:
            plain = threading.Thread(target=self.stage, args=("plain", p["sparse"], 1, 1))
            plain.start()
            self.stage("sparse", p["sparse"], 1, 0)
            plain.join()
        elif ok:                                             # the twin gets as much as the other
            self.stage("sparse", p["sparse"] / 2, 1)
            self.stage("plain", p["sparse"] / 2, 1)
        if self.export("sparse", self.model) and self.export("plain", self.plain):
            self.both("tune", self.model, p["tune"])
            left = a.minutes - (time.time() - self.began) / 60 - p["end"] if not a.smoke else 0
            self.stage("drafter", max(left, p["drafter"]), a.gpus, None, "--model", self.model)   # late rather than never
            if not self.export("drafter", self.model) and "drafter" not in self.failed:
                self.failed.append("drafter")
        self.say("FINISHED" + (", FAILED: " + ", ".join(self.failed) if self.failed else ", all stages passed"))
        return bool(self.failed)


# ---- Bringing it back ----

def pack(path, members):
    with tarfile.open(path, "w:gz" if path.endswith("gz") else "w") as tar:
        for name, at in members:
            tar.add(at, name)


def collect(out, dest):
    """m3-nano.tar, dspark.tar, plain.tar and logs.tar.gz; before there is a packed model, the weights of the last stage in
    bf16 as state.pt.0, .1, ... (joined, they are STAGE.pt)."""
    os.makedirs(dest, exist_ok=True)
    logs = [x for k in ("log", "jsonl", "svg") for x in glob.glob(os.path.join(out, "*." + k))]
    pack(os.path.join(dest, "logs.tar.gz"), [(os.path.basename(x), x) for x in logs])
    for name, folder in (("m3-nano", "m3-nano"), ("plain", "m3-nano-plain"), ("dspark", "m3-nano/dspark")):
        at = os.path.join(out, folder)
        if os.path.exists(os.path.join(at, "model.safetensors")):
            pack(os.path.join(dest, name + ".tar"), [(os.path.join(folder, n), os.path.join(at, n)) for n in
                                                     sorted(os.listdir(at)) if n != "dspark"])
    if not os.path.exists(os.path.join(out, "m3-nano")):
        import torch
        for stage in ("sparse", "index", "pretrain"):
            path = os.path.join(out, stage + ".pt")
            if os.path.exists(path):
                state = torch.load(path, map_location="cpu", weights_only=True)
                state = {k: v for k, v in state.items() if k != "optimisers"} | {"done": True}
                state["model"] = {k: v.bfloat16() for k, v in state["model"].items()}
                data = io.BytesIO()
                torch.save(state, data)
                data = data.getvalue()
                for i in range(0, len(data), PART):
                    with open(os.path.join(dest, f"{stage}.pt.{i // PART}"), "wb") as f:
                        f.write(data[i:i + PART])
                break
    for name in sorted(os.listdir(dest)):
        print(f"{name}: {os.path.getsize(os.path.join(dest, name))} bytes")


def wait(out, seconds):
    end, shown = time.time() + seconds, ""
    while time.time() < end:
        try:
            with open(os.path.join(out, "status")) as f:
                status = f.read().strip()
            with open(os.path.join(out, "pipeline.log"), "rb") as f:
                f.seek(max(0, os.path.getsize(f.name) - 4000))
                lines = [x for x in f.read().decode(errors="replace").splitlines() if " % step " in x or "held out" in x]
        except FileNotFoundError:
            status, lines = "not started", []
        now = status + "\n" + "\n".join(lines[-3:])
        if now != shown:
            print(now, flush=True)
            shown = now
        if "FINISHED" in status:
            return print(status) or 0
        time.sleep(min(15, max(0.1, end - time.time())))
    return 0


def main():
    a = arguments()
    a.out = os.path.abspath(a.out)
    if a.collect:
        return collect(a.out, a.collect)
    if a.wait and not a.detach:
        return wait(a.out, a.wait)
    a.engine = os.path.abspath(a.engine)
    if a.detach:
        os.makedirs(a.out, exist_ok=True)
        flags = [x for x in sys.argv[1:] if x != "--detach"]
        if a.wait:
            at = flags.index("--wait")
            del flags[at:at + 2]
        with open(os.path.join(a.out, "status"), "w") as f:
            f.write("starting\n")
        log = open(os.path.join(a.out, "pipeline.log"), "a")
        child = subprocess.Popen([sys.executable, os.path.abspath(__file__), *flags], stdout=log, stderr=log,
                                 stdin=subprocess.DEVNULL, start_new_session=True)
        print(f"process {child.pid}, {log.name}")
        return wait(a.out, a.wait) if a.wait else 0
    return Pipeline(a).run()


if __name__ == "__main__":
    sys.exit(main())
