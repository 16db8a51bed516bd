#!/usr/bin/env python3
"""Compares a trace with an oracle, tensor by tensor, with the standard library alone.

    compare_trace.py TRACE ORACLE

As a module: read_safetensors(path) -> (tensors, metadata), compare(trace, oracle) -> Comparison.
"""
import array
import json
import math
import struct
import sys


class Tensor:
    def __init__(self, shape, values):
        self.shape, self.values = tuple(shape), values

    def rows(self):
        """The values cut along all dims but the last."""
        n = self.shape[-1] if self.shape else 1
        return [self.values[i:i + n] for i in range(0, len(self.values), n)]


def read_safetensors(path):
    with open(path, "rb") as f:
        size, = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(size))
        data = f.read()
    tensors = {}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        values = array.array({"F32": "f", "I32": "i"}[t["dtype"]])
        values.frombytes(data[t["data_offsets"][0]:t["data_offsets"][1]])
        if sys.byteorder == "big":
            values.byteswap()
        tensors[name] = Tensor(t["shape"], values)
    return tensors, header.get("__metadata__", {})


def relative_l2(row, wanted):
    """|row - wanted| / |wanted|; not a number where the row has one."""
    error = math.fsum((a - b) ** 2 for a, b in zip(row, wanted))
    norm = math.fsum(b * b for b in wanted)
    return math.sqrt(error / norm) if norm else math.sqrt(error)


def quantile(values, q):
    ordered = sorted(math.inf if math.isnan(v) else v for v in values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


class Comparison:
    def __init__(self):
        self.errors = {}     # tensor name -> relative L2 of each row
        self.sets = {}       # blocks.L, experts.L -> (lists that differ, lists)
        self.greedy = (0, 0)  # ids that differ, ids
        self.shapes = []     # what is missing or has another shape

    def logit_errors(self):
        return self.errors.get("prefill_logits", []) + self.errors.get("decode_logits", [])

    def sets_different(self, kind):
        found = [v for k, v in self.sets.items() if k.startswith(kind + ".")]
        return sum(v[0] for v in found), sum(v[1] for v in found)


def compare(trace, oracle):
    c = Comparison()
    for name, wanted in sorted(oracle.items()):
        got = trace.get(name)
        if got is None or got.shape != wanted.shape:
            c.shapes.append("%s is %s, wanted %s" % (name, got and got.shape, wanted.shape))
            continue
        if name.startswith(("blocks.", "experts.")):
            pairs = list(zip(got.rows(), wanted.rows()))
            c.sets[name] = (sum(a != b for a, b in pairs), len(pairs))
        elif name == "greedy_ids":
            c.greedy = (sum(a != b for a, b in zip(got.values, wanted.values)), len(wanted.values))
        elif wanted.values.typecode == "f":
            c.errors[name] = [relative_l2(a, b) for a, b in zip(got.rows(), wanted.rows())]
        elif got.values != wanted.values:
            c.shapes.append("%s differs" % name)
    return c


def report(c, out=sys.stdout):
    for name, errors in c.errors.items():
        print("%-20s relative L2 of %4d rows: median %.2e, p90 %.2e, largest %.2e" % (
            name, len(errors), quantile(errors, .5), quantile(errors, .9), quantile(errors, 1)), file=out)
    for name, (different, count) in c.sets.items():
        print("%-20s %d of %d lists differ" % (name, different, count), file=out)
    print("%-20s %d of %d ids differ" % ("greedy_ids", *c.greedy), file=out)
    for line in c.shapes:
        print(line, file=out)


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: compare_trace.py TRACE ORACLE")
    c = compare(read_safetensors(sys.argv[1])[0], read_safetensors(sys.argv[2])[0])
    report(c)
    sys.exit(1 if c.shapes else 0)


if __name__ == "__main__":
    main()
