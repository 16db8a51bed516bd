"""hayate eval --write-set as people run it: flags that are wrong get one line, Ctrl-C leaves nothing, JSON lines read."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

HAYATE = sys.argv[1]
TOKENIZER = pathlib.Path(__file__).resolve().parents[2] / "tools/nano/tokenizer"


def run(*flags, model=TOKENIZER):
    return subprocess.run([HAYATE, "eval", str(model), *map(str, flags)], capture_output=True, text=True, timeout=120)


def main():
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "set"
        for flags, word in [(["--rows", "12"], "12"), (["--rows", "a"], "--rows"), (["--rows", "512,512"], "twice"),
                            (["--rows", "512=0"], "--rows"), (["--mix", "sums=1"], "sums"), (["--mix", "talk=-1"], "--mix"),
                            (["--mix", "talk=0"], "--mix"), (["--split", "test"], "--split"), (["--threads", "-1"], "--threads")]:
            r = run("--write-set", out, *flags)
            assert r.returncode == 2, (flags, r)
            assert word in r.stderr and not out.exists(), (flags, r.stderr)
        r = run("--write-set", out, model=folder)
        assert r.returncode == 1 and "tokenizer" in r.stderr, r
        r = run("--write-set", out / "no" / "such")
        assert r.returncode == 1 and r.stderr.count("\n") == 1, r

        r = run("--write-set", out, "--tokens", "60k", "--rows", "512=2,1024=1", "--mix", "arithmetic=1,form=1", "--seed", 3)
        assert r.returncode == 0 and "arithmetic" in r.stdout, r
        about = json.loads((out / "set.json").read_text())
        assert about["seed"] == 3 and about["split"] == "train" and len(about["tokenizer_sha256"]) == 64
        for rows in about["rows"]:
            size = rows["rows"] * rows["length"]
            assert (out / rows["ids"]).stat().st_size == 2 * size and (out / rows["weights"]).stat().st_size == size
            assert set(rows["sets"]) <= {"arithmetic", "form"}
        assert run("--write-set", out).returncode == 2                  # there is one already

        lines = pathlib.Path(folder) / "look.jsonl"
        r = run("--write-set", lines, "--tokens", "20k", "--split", "held-out", "--mix", "talk=1")
        assert r.returncode == 0, r
        for line in lines.read_text().splitlines():
            c = json.loads(line)
            assert c["set"] == "talk" and c["messages"][-1]["role"] == "assistant" and c["text"].startswith("]~!b[")

        p = subprocess.Popen([HAYATE, "eval", str(TOKENIZER), "--write-set", str(out) + "2", "--tokens", "100g"],
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while not os.path.exists(str(out) + "2/rows-512.weights"):
            time.sleep(0.05)
            assert p.poll() is None
        time.sleep(0.3)
        p.send_signal(signal.SIGINT)
        message = p.communicate(timeout=60)[1]
        assert p.returncode == 1 and "interrupted" in message, (p.returncode, message)
        assert not os.path.exists(str(out) + "2")
    print("fine")


main()
