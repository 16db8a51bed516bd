# hayate-test: slow
"""hayate eval as people run it: flags that are wrong, sets of few tasks on the bundled model, tables, JSON, several ways."""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import small_text_model

HAYATE = sys.argv[1]
NANO = small_text_model.ROOT / "models/m3-nano"


def run(*args):
    return subprocess.run([HAYATE, "eval", *map(str, args)], capture_output=True, text=True, timeout=240)


def scores(*args):
    """The JSON of a run, without the times."""
    r = run(*args, "--json")
    assert r.returncode == 0, (args, r)
    ways = json.loads(r.stdout)
    for sets in ways.values():
        for one in sets.values():
            assert one.pop("seconds") >= 0
    return ways


def check_usage(model):
    r = run("--help")
    assert r.returncode == 0 and not r.stderr, r
    for word in ("eval MODEL [SET ...]", "--selection", "--kv-cache-dtype", "--write-set", "perplexity"):
        assert word in r.stdout, word
    for flags, word in [((), "folder"), ((model, "sums"), "'sums'"), ((model, "talk", ""), "perplexity"),
                        ((model, "--show", "right"), "'right'"), ((model, "--show", "all", "--json"), "--json"),
                        ((model, "--selection", "best"), "'best'"), ((model, "--selection", "trained,"), "--selection"),
                        ((model, "--count", -1), "--count"), ((model, "--count", "few"), "--count"),
                        ((model, "--threads", -1), "--threads"), ((model, "--kv-cache-dtype", "int4"), "int4"),
                        ((model, "--readback", "e5m2", "--kv-cache-dtype", "nvfp4"), "e5m2"),
                        ((model, "--nonsense"), "--nonsense"),
                        ((model, "perplexity", "--count", 1, "--kv-cache-dtype", "auto,bf16"), "twice"),
                        ((model, "--kv-cache-dtype", "bf16,fp8,nvfp4", "--selection", "trained,random,dense"), "8 ways")]:
        r = run(*flags)
        assert r.returncode == 2 and not r.stdout, (flags, r)
        assert word in r.stderr and r.stderr.startswith("hayate"), (flags, r.stderr)
    r = run(model.parent)                                               # a folder, but not of a model
    assert r.returncode not in (0, 2) and r.stderr.count("\n") == 1, r
    r = run(small_text_model.ORACLE, "arithmetic")                      # a model without words
    assert r.returncode == 2 and "tokenizer" in r.stderr, r


def check_random_model(model):
    """What knows nothing: no answer is right, and text is about as likely as any other bytes."""
    sets = scores(model, "arithmetic", "perplexity", "--count", 2, "--threads", 1)["bf16"]
    assert list(sets) == ["arithmetic", "perplexity"]
    assert sets["arithmetic"]["score"] == 0 and sets["arithmetic"]["n"] >= 2
    assert 100 < sets["perplexity"]["score"] < 10000, sets
    # The backend that defines the answers gives the same text the same probability, but for its rounding.
    exact = scores(model, "perplexity", "--count", 1, "--backend", "reference")["bf16"]["perplexity"]["score"]
    close = scores(model, "perplexity", "--count", 1)["bf16"]["perplexity"]["score"]
    assert abs(exact - close) < 0.02 * exact, (exact, close)


def shorter(folder):
    """The bundled model with one length of retrieval texts."""
    shutil.copytree(NANO, folder)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = 2048
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def check_ways(model):
    few = (model, "arithmetic", "retrieval", "perplexity", "--count", 1, "--threads", 1)
    ways = scores(*few, "--kv-cache-dtype", "bf16", "--selection", "trained,random,dense")
    assert list(ways) == ["bf16", "bf16 random", "bf16 dense"], list(ways)
    trained, shuffled, dense = ways.values()
    assert list(trained) == list(dense) == ["arithmetic", "retrieval", "perplexity"]
    assert list(shuffled) == ["retrieval"]                              # the only set whose texts are long enough
    for name, one in trained.items():
        assert "difference" not in one and one["n"] >= 1 and one["stderr"] >= 0, (name, one)
        assert name == "perplexity" or 0 <= one["score"] <= 1 and 0 <= one["valid"] <= 1, (name, one)
    for way in (shuffled, dense):
        for name, one in way.items():
            assert one["n"] == trained[name]["n"] and one["difference_stderr"] >= 0, (name, one)
            if name != "perplexity":
                assert abs(one["score"] - trained[name]["score"] - one["difference"]) < 1e-5, (name, one)
    kinds = trained["arithmetic"]["families"]
    assert sum(kind["n"] for kind in kinds.values()) == trained["arithmetic"]["n"], kinds

    # Below 2,048 tokens the 16 blocks of a sparse layer are all blocks.
    assert dense["arithmetic"]["difference"] == dense["perplexity"]["difference"] == 0, dense
    assert dense["perplexity"]["score"] == trained["perplexity"]["score"]
    by_depth = {way: {(cell["tokens"], cell["depth"]): cell for cell in sets["retrieval"]["by_depth"]}
                for way, sets in ways.items()}
    assert {tokens for tokens, _ in by_depth["bf16"]} == {1024}
    for cell, one in by_depth["bf16"].items():
        assert 0 <= one["score"] <= 1 and 0 <= cell[1] <= 100
        assert by_depth["bf16 random"][cell] == by_depth["bf16 dense"][cell] == one


def check_seeds():
    """The same tasks and answers with the same seed, whatever the threads; other tasks with another."""
    few = (NANO, "talk", "perplexity", "--count", 2, "--threads")
    first = scores(*few, 1)
    assert first == scores(*few, 2)
    assert first != scores(*few, 1, "--seed", 1)


def asked(model, seed):
    """What the sets that print their answers ask with a seed, by set."""
    sets = ("arithmetic", "synthaime", "retrieval", "tools", "form", "talk")
    r = run(model, *sets, "--count", 1, "--threads", 1, "--seed", seed, "--show", "all")
    assert r.returncode == 0, r
    lines = [line[1:].split("] ", 1) for line in r.stdout.splitlines() if line.startswith("[")]
    return {s: {text for head, text in lines if head.startswith(s + ", ")} for s in sets}


def check_tasks_of_seeds(model):
    """A seed changes the tasks of every set, and 0 has the ones that a score of SynthAIME-30 is about."""
    first, second = asked(model, 0), asked(model, 1)
    for name, questions in first.items():
        assert questions and second[name] and questions != second[name], (name, questions)
    known = "x = 30. j = x + 2. q = j * 3. w = q + 57. g = q - 53. t = g - 24. Compute t. (mod 1000)"
    assert known in first["synthaime"] and known not in second["synthaime"], (first, second)


def check_tables():
    few = (NANO, "arithmetic", "perplexity", "--count", 1, "--threads", 1)
    r = run(*few, "--kv-cache-dtype", "fp8,nvfp4", "--readback", "exact,e4m3", "--show", "all")
    assert r.returncode == 0, r
    lines = r.stdout.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("set "))
    assert "difference to the first" in lines[head]
    ways = [line[13:29].strip() for line in lines[head + 1:head + 7]]
    assert ways == 2 * ["fp8", "nvfp4", "nvfp4 e4m3"], ways             # fp8 has one way of being read
    assert "arithmetic by kind:" in lines
    assert r.stdout.count("\n  wrote: ") == r.stdout.count("\n  right: ") >= 3
    wrong = run(NANO, "arithmetic", "--count", 2, "--threads", 1, "--show", "wrong").stdout
    assert ", right]" not in wrong


def main():
    with tempfile.TemporaryDirectory() as folder:
        model = small_text_model.make(pathlib.Path(folder) / "model")
        check_usage(model)
        check_random_model(model)
        sanitized = b"__asan_init" in pathlib.Path(HAYATE).read_bytes() # minutes, and hardly another line of the program
        if NANO.exists() and not sanitized:
            short = shorter(pathlib.Path(folder) / "nano")
            check_ways(short)
            check_tasks_of_seeds(short)
            check_seeds()
            check_tables()
    print("fine")


main()
