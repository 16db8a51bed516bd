#!/usr/bin/env python3
"""Folders with something wrong in place of a file: one line that names it, the right exit code, nothing half written.

    test_bad_folders.py BUILD/hayate
"""
import json
import os
import pathlib
import random
import re
import socket
import struct
import subprocess
import sys
import tempfile

import small_text_model

HAYATE = os.path.abspath(sys.argv[1])
WORK = tempfile.TemporaryDirectory()
BASE = small_text_model.make(pathlib.Path(WORK.name) / "good")
IDS = pathlib.Path(WORK.name) / "ids"
IDS.write_text("1,2,3")


def run(*args, **more):
    return subprocess.run([HAYATE, *map(str, args)], capture_output=True, text=True, timeout=120, **more)


def bad(done, codes, words):
    """A code of `codes`, and one line on stderr that has the words."""
    lines = done.stderr.splitlines()
    assert done.returncode in codes, (done.args, done.returncode, done.stderr)
    assert len(lines) == 1 and lines[0].startswith("hayate: ") and words in lines[0], (done.args, lines)


COUNT = 0


def folder(name, put):
    """A copy of the good model, as links, with `name` replaced by what put(path) makes."""
    global COUNT
    COUNT += 1
    new = pathlib.Path(WORK.name) / f"m{COUNT}"
    new.mkdir()
    for f in BASE.iterdir():
        if f.name != name:
            (new / f.name).symlink_to(f)
    put(new / name)
    return new


def all_commands_refuse(model, codes, words):
    out = model.with_suffix(".out")
    bad(run("generate", model, "--input-ids", IDS, "--max-tokens", 1), codes, words)
    bad(run("trace", model, "--input-ids", IDS, "-o", out), codes, words)
    assert not out.exists() and not pathlib.Path(f"{out}.part").exists()


def odd_files():
    """A pipe, a folder, a device or a link that leads nowhere is never taken for a file that is not there."""
    def sock(path):
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(os.path.relpath(path))

    kinds = {"pipe": os.mkfifo, "folder": os.mkdir, "loop": lambda p: p.symlink_to(p.name), "socket": sock,
             "nowhere": lambda p: p.symlink_to("/nonexistent/blob"), "endless": lambda p: p.symlink_to("/dev/zero")}
    for name in ("config.json", "model.safetensors", "generation_config.json", "tokenizer.json",
                 "tokenizer_config.json", "chat_template.jinja"):
        for put in kinds.values():
            # a folder without a readable config.json is no checkpoint, whatever the reason
            all_commands_refuse(folder(name, put), (1, 3), "config.json" if name == "config.json" else name)
    # A drafter that nobody asks for is left out, with a word; one that is asked for is not.
    for put in (os.mkfifo, lambda p: p.symlink_to("/nonexistent")):
        model = folder("dspark", put)
        done = run("generate", model, "--input-ids", IDS, "--max-tokens", 1)
        assert done.returncode == 0 and done.stdout, (done.returncode, done.stderr)
        assert "WARNING" in done.stderr and "dspark should be the drafter's folder and is none" in done.stderr, done.stderr
        done = run("generate", model, "--input-ids", IDS, "--max-tokens", 1, "--speculative-config",
                   '{"method": "dspark", "num_speculative_tokens": 3}')
        last = done.stderr.splitlines()[-1]
        assert done.returncode in (1, 3) and done.stdout == "", (done.returncode, done.stderr)
        assert last.startswith("hayate: ") and "dspark should be the drafter's folder and is none" in last, done.stderr


def odd_side_files_are_not_copied():
    for put in (os.mkfifo, lambda p: p.symlink_to("/nonexistent")):
        model, out = folder("vocab.txt", put), pathlib.Path(WORK.name) / f"q{COUNT}"
        bad(run("quantize", model, out), (1,), "vocab.txt")
        assert not out.exists()


def damaged_weights():
    """Cut anywhere, or with bits turned: refused or, if only a weight changed, run; never a crash."""
    data = (BASE / "model.safetensors").read_bytes()
    header = struct.unpack("<Q", data[:8])[0]
    for size in (0, 7, 8, 9, 8 + header // 2, 7 + header, 8 + header, len(data) // 2, len(data) - 1):
        cut = data[:size]
        all_commands_refuse(folder("model.safetensors", lambda p: p.write_bytes(cut)), (3,), "model.safetensors")
    for length in (0, 1, header - 1, header + 1, len(data) - 8, len(data), 1 << 32, 1 << 63, (1 << 64) - 1):
        cut = struct.pack("<Q", length) + data[8:]
        all_commands_refuse(folder("model.safetensors", lambda p: p.write_bytes(cut)), (3,), "")
    dice = random.Random(7)
    for _ in range(40):
        copy = bytearray(data)
        for _ in range(dice.choice((1, 2, 8))):
            copy[dice.randrange(8 + header)] ^= 1 << dice.randrange(8)
        model = folder("model.safetensors", lambda p: p.write_bytes(copy))
        done = run("generate", model, "--input-ids", IDS, "--max-tokens", 1)
        if done.returncode:
            bad(done, (3,), "")


def values_that_are_not_finite():
    """One NaN or infinity in a tensor of each kind: refused with its place in the network; in the embedding, of which a
    row is read when its token comes, it is not looked for."""
    data = (BASE / "model.safetensors").read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    kinds = {}
    for name, t in json.loads(data[8:start]).items():
        if name != "__metadata__":
            kinds[re.sub(r"\d+", "*", name)] = name, t
    patterns = {"F32": (struct.pack("<f", float("nan")), struct.pack("<f", float("-inf"))),
                "BF16": (b"\xc0\x7f", b"\x80\xff")}
    for kind, (name, t) in kinds.items():
        begin, end = t["data_offsets"]
        for i, value in enumerate(patterns[t["dtype"]]):
            at = start + (begin if i else end - len(value))
            copy = data[:at] + value + data[at + len(value):]
            model = folder("model.safetensors", lambda p: p.write_bytes(copy))
            done = run("generate", model, "--input-ids", IDS, "--max-tokens", 1)
            if "embed_tokens" in name:
                assert done.returncode == 0, (name, done.stderr)
                continue
            layer = re.search(r"layers\.(\d+)\.", name)
            bad(done, (3,), f"layer {layer[1]}, " if layer else "")
            if "norm" in name or name.endswith(("gate.weight", "bias")):
                bad(run("generate", model, "--input-ids", IDS, "--max-tokens", 1, "--backend", "reference"), (3,),
                    f"of layer {layer[1]}, " if layer else "final_norm")


def damaged_json():
    """Every text file of a folder with pieces turned, taken out and doubled."""
    dice = random.Random(5)
    for name in ("config.json", "tokenizer.json", "generation_config.json"):
        data = (BASE / name).read_bytes()
        for whole in (b"", b"[", b"[" * 100000, b'{"a":' * 50000, b"\0" * 50, b"[]", b'"x"', data[:len(data) // 2],
                      b"\xff\xfe" + data):
            all_commands_refuse(folder(name, lambda p: p.write_bytes(whole)), (3,), "")
        for _ in range(25):
            copy, at = bytearray(data), dice.randrange(len(data))
            kind = dice.randrange(3)
            if kind == 0:
                copy[at] ^= 1 << dice.randrange(8)
            elif kind == 1:
                del copy[at:at + dice.randrange(1, 20)]
            else:
                copy[at:at] = copy[dice.randrange(len(copy)):][:dice.randrange(1, 30)]
            done = run("generate", folder(name, lambda p: p.write_bytes(copy)), "--input-ids", IDS, "--max-tokens", 1)
            assert done.returncode in (0, 2, 3), (done.returncode, done.stderr)
            if done.returncode:
                bad(done, (2, 3), "")


def module_without_an_object():
    config = json.loads((BASE / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "modelopt", "quantized_layers": {"model.layers.0": 3}}
    all_commands_refuse(folder("config.json", lambda p: p.write_text(json.dumps(config))), (3,), "model.layers.0")


def small_disks():
    """A file system that is full or read only; needs the right to mount one."""
    place = pathlib.Path(WORK.name) / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place], capture_output=True).returncode:
        print("skipped: small_disks, no file system can be mounted here")
        return
    try:
        bad(run("quantize", BASE, place / "q"), (4,), " MB, but its file system has only 0.0")
        bad(run("synth", BASE / "config.json", place / "s"), (4,), " MB")
        many = pathlib.Path(WORK.name) / "many"
        many.write_text(",".join(["7"] * 300))  # 600 kB of logits
        bad(run("trace", BASE, "--input-ids", many, "-o", place / "t"), (1,), "No space left")
        assert not list(place.iterdir())
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        for command in (("quantize", BASE, place / "q"), ("synth", BASE / "config.json", place / "s"),
                        ("trace", BASE, "--input-ids", IDS, "-o", place / "t")):
            bad(run(*command), (1,), "Read-only")
    finally:
        subprocess.run(["umount", place], check=True)


def lost_output():
    """What cannot be printed is a failure."""
    made = pathlib.Path(WORK.name) / "made"
    for command in (("--help",), ("--version",), ("serve", "--help"), ("inspect", BASE), ("inspect", BASE, "--json"),
                    ("tokenize", BASE, "hello"),
                    ("generate", BASE, "hello", "--max-tokens", 2),
                    ("generate", BASE, "hello", "--max-tokens", 2, "--json"),
                    ("trace", BASE, "--input-ids", IDS, "-o", made), ("synth", BASE / "config.json", f"{made}-synth")):
        with open("/dev/full", "w") as full:
            done = subprocess.run([HAYATE, *map(str, command)], stdout=full, stderr=subprocess.PIPE, text=True,
                                  timeout=60)
        bad(done, (1,), "cannot write to standard output")


assert run("generate", BASE, "--input-ids", IDS, "--max-tokens", 1).returncode == 0
for test in (odd_files, odd_side_files_are_not_copied, damaged_weights, values_that_are_not_finite, damaged_json, module_without_an_object,
             small_disks, lost_output):
    test()
    print("ok", test.__name__)
