#!/usr/bin/env python3
"""The bundled model from `hayate serve --device cuda` under load: tokens are those of the same request alone, and those of the CPU.

    test_cuda_serve.py BUILD/hayate [ROUNDS]     skips without a GPU

Every request is asked alone, then all of them from many clients at once, in another order each round, while other clients come and leave
in the middle. Greedy answers are also asked of a server on the CPU: where the two first differ, the GPU must have had the CPU's
token as close to its own as rounding is; those places are printed.
"""
import concurrent.futures
import http.client
import json
import random
import sys
import time

from test_chat import HAYATE, MODEL, Server

CLIENTS, TOKENS = 32, 48
NEAR = 0.02  # between log-probabilities of two tokens: more is no rounding (those of the two backends are 1e-4 apart)


def requests():
    draw = random.Random(8)
    asked = []
    for i in range(64):
        a, b = draw.randrange(10000), draw.randrange(10000)
        text = draw.choice((f"What is {a} + {b}?", f"What is {a} - {b}?", f"Say {a} and then {b}.",
                            "Remember: " + ", ".join(str(draw.randrange(1000)) for _ in range(draw.randrange(200))) + ". What came first?"))
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": TOKENS, "temperature": 0, "return_token_ids": True,
                "logprobs": True, "top_logprobs": 4}
        if i % 3 == 2:
            body.update(temperature=0.9, top_p=0.95, seed=i)
        if i % 2:
            body["chat_template_kwargs"] = {"thinking_mode": "disabled"}
        asked.append(body)
    return asked


def ask(server, body):
    """Ids and log-probabilities, and those of the alternatives."""
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        c.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        answer = json.loads(r.read())
    except OSError as e:
        raise AssertionError(f"{e!r} after\n" + "".join(server.lines[-20:])) from e
    finally:
        c.close()
    assert r.status == 200, answer
    choice = answer["choices"][0]
    return choice["token_ids"], choice["logprobs"]["content"]


def leave(server, body):
    """A client that goes away after the first bytes."""
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    c.request("POST", "/v1/chat/completions", json.dumps({**body, "stream": True, "max_tokens": 400, "ignore_eos": True}),
              {"Content-Type": "application/json"})
    c.getresponse().read(64)
    c.close()


def compare(number, ours, theirs):
    """Of a greedy answer on the GPU and on the CPU: None, or a line about a near tie."""
    for at, (a, b) in enumerate(zip(ours[0], theirs[0])):
        if a == b:
            continue
        here = {x["token"]: x["logprob"] for x in ours[1][at]["top_logprobs"]}
        gap = ours[1][at]["logprob"] - here.get(theirs[1][at]["token"], float("-inf"))
        assert gap <= NEAR, f"request {number}, token {at}: {a} and not the CPU's {b}, {gap:g} apart"
        return f"request {number}, token {at}: {ours[1][at]['token']!r}, on the CPU {theirs[1][at]['token']!r}, {gap:.2g} apart"
    assert len(ours[0]) == len(theirs[0]), f"request {number} has {len(ours[0])} tokens, on the CPU {len(theirs[0])}"
    return None


def main():
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    try:
        gpu = Server("--device", "cuda", "--max-num-seqs", "16", "--kv-cache-memory-bytes", "512MiB")
    except AssertionError as e:
        if "no GPU" in str(e) or "driver" in str(e) or "libcuda" in str(e) or "nvcc" in str(e):
            print(f"skipped: {str(e).strip().splitlines()[-1]}")
            return 77
        raise
    asked = requests()
    start = time.monotonic()
    alone = [ask(gpu, body) for body in asked]
    tokens = sum(len(ids) for ids, _ in alone)
    print(f"{len(asked)} requests one after the other: {tokens} tokens, {tokens / (time.monotonic() - start):.0f} a second", flush=True)
    tokens, start = 0, time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(CLIENTS + 8) as clients:
        for n in range(rounds):
            order = list(range(len(asked)))
            random.Random(n).shuffle(order)
            leaving = [clients.submit(leave, gpu, asked[i]) for i in order[:8]]
            for i, (ids, logprobs) in zip(order, clients.map(lambda i: ask(gpu, asked[i]), order)):
                assert (ids, logprobs) == alone[i], f"round {n}, request {i}: not what it was alone"
                tokens += len(ids)
            for one in leaving:
                one.result()
    seconds = time.monotonic() - start
    assert gpu.stop() == 0, "".join(gpu.lines)
    print(f"{rounds} rounds of {len(asked)} requests: {tokens} tokens as alone, {tokens / seconds:.0f} a second", flush=True)
    cpu = Server("--device", "cpu", "--kv-cache-memory-bytes", "512MiB")
    greedy = [i for i, body in enumerate(asked) if body["temperature"] == 0]
    lines = [compare(i, alone[i], ask(cpu, asked[i])) for i in greedy]
    assert cpu.stop() == 0
    for line in filter(None, lines):
        print("near tie: " + line)
    print(f"{len(greedy)} greedy answers: {lines.count(None)} as on the CPU, the rest from a near tie on")
    return 0


if __name__ == "__main__":
    if not MODEL.exists():
        print("skipped: models/m3-nano is not there")
        sys.exit(77)
    sys.exit(main())
