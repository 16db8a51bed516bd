"""Training rows from the files that `hayate eval MODEL --write-set DIR` writes.

DIR, or every folder in it that has a set.json, holds rows-L.ids (uint16 [rows, L], padded) and rows-L.weights (uint8: 1 for
tokens that the model writes, 0 for what it is given, 255 for padding). The files are mapped into memory; folders that
appear while training runs join in. Which rows a step gets depends on the seed, the step and the process alone, and on the
folders that are there.
"""
import os
import queue
import threading
import time

import numpy as np

PADDING = 255


class Rows:
    def __init__(self, folder):
        self.folder, self.parts, self.known = folder, {}, set()     # {length: [(ids, weights), ...]}
        self.refresh()

    def refresh(self):
        for name in ["."] + sorted(os.listdir(self.folder)):
            at = os.path.join(self.folder, name)
            if name in self.known or not os.path.exists(os.path.join(at, "set.json")):
                continue
            self.known.add(name)
            for file in sorted(os.listdir(at)):
                if not (file.startswith("rows-") and file.endswith(".ids")):
                    continue
                length = int(file[5:-4])
                ids = np.memmap(os.path.join(at, file), "<u2", "r") if os.path.getsize(os.path.join(at, file)) else []
                if len(ids) < length:
                    continue
                weights = np.memmap(os.path.join(at, file[:-3] + "weights"), np.uint8, "r")
                self.parts.setdefault(length, []).append((ids.reshape(-1, length), weights.reshape(-1, length)))

    def wait(self, lengths, seconds=120):
        """Returns when there are rows of every length."""
        end = time.time() + seconds
        while not all(n in self.parts for n in lengths):
            if time.time() > end:
                raise SystemExit(f"{self.folder} has no rows of {[n for n in lengths if n not in self.parts]} tokens")
            time.sleep(0.2)
            self.refresh()

    def count(self, length):
        return sum(len(ids) for ids, _ in self.parts.get(length, ()))

    def take(self, length, numbers):
        """Rows by number -> ids [n, L] int64, weights [n, L] uint8"""
        ids, weights = np.empty((len(numbers), length), np.int64), np.empty((len(numbers), length), np.uint8)
        for i, n in enumerate(numbers):
            for a, b in self.parts[length]:
                if n < len(a):
                    ids[i], weights[i] = a[n], b[n]
                    break
                n -= len(a)
        return ids, weights

    def draw(self, length, count, random):
        return self.take(length, random.integers(0, self.count(length), count))


def targets(ids, weights, given):
    """What each position shall predict and how much it counts: written tokens 1, others `given`, padding nothing."""
    after = np.concatenate((weights[:, 1:], np.full_like(weights[:, :1], PADDING)), 1)
    target = np.concatenate((ids[:, 1:], ids[:, :1]), 1)
    return target, np.where(after == PADDING, 0, np.where(after == 1, 1.0, given)).astype(np.float32)


def sample(weights, count, random, beyond=2048):
    """Positions for the index branch's loss: half of them before written tokens where there are enough, the others
    anywhere in the text, all beyond its first blocks if possible. -> int64 [texts, count], ascending"""
    texts, length = weights.shape
    out = np.empty((texts, count), np.int64)
    for i, w in enumerate(weights):
        end = length - int(np.argmax(w[::-1] != PADDING)) if (w != PADDING).any() else 1
        first = beyond if end > beyond + 64 else end // 2
        written = np.nonzero(w[1:end] == 1)[0]
        written = written[written >= first]
        half = random.choice(written, min(count // 2, len(written)), replace=False) if len(written) else written
        out[i] = np.sort(np.concatenate((half, random.integers(first, max(first + 1, end), count - len(half)))))
    return out


class Loader:
    """Batches of successive steps, made ahead in a thread. plan(step) gives the layout [(texts, length), ...]; sampled: rows a
    text for the index branch's loss, in texts longer than `beyond`; anchors {length: a text's}: for the drafter."""

    def __init__(self, rows, plan, seed, step, given, device, sampled=0, anchors=None, beyond=2048):
        self.rows, self.plan, self.seed, self.step, self.given = rows, plan, seed, step, given
        self.device, self.sampled, self.anchors, self.beyond = device, sampled, anchors, beyond
        self.queue, self.failed = queue.Queue(6), None
        threading.Thread(target=self.work, daemon=True).start()

    def work(self):
        import torch
        try:
            while True:
                random = np.random.Generator(np.random.Philox(key=[self.seed, self.step]))
                if self.step % 64 == 0:
                    self.rows.refresh()
                layout = self.plan(self.step)
                parts = [self.rows.draw(length, texts, random) for texts, length in layout]
                batch = {"ids": np.concatenate([ids.ravel() for ids, _ in parts])}
                batch["weights"] = np.concatenate([w.ravel() for _, w in parts])
                both = [targets(ids, w, self.given) for ids, w in parts]
                batch["target"], batch["weight"] = (np.concatenate([b[k].ravel() for b in both]) for k in (0, 1))
                if self.sampled:
                    batch |= {f"rows-{length}": sample(w, self.sampled, random, self.beyond) for (_, length), (_, w)
                              in zip(layout, parts) if length > self.beyond}
                if self.anchors:
                    batch["anchors"] = anchors(parts[0][1], self.anchors[layout[0][1]], random)
                tensors = {k: torch.from_numpy(v) for k, v in batch.items()}
                if self.device.startswith("cuda"):
                    tensors = {k: v.pin_memory() for k, v in tensors.items()}
                self.queue.put((layout, tensors))
                self.step += 1
        except BaseException as e:                          # noqa: the training loop shall see it
            self.failed = e
            self.queue.put(None)

    def next(self):
        got = self.queue.get()
        if got is None:
            raise self.failed
        layout, tensors = got
        return layout, {k: v.to(self.device, non_blocking=True) for k, v in tensors.items()}


def anchors(weights, count, random):
    """Positions i with i and i + 1 written by the model -> int64 [texts, count], -1 where a text has fewer."""
    out = np.full((len(weights), count), -1, np.int64)
    for i, w in enumerate(weights):
        places = np.nonzero((w[:-1] == 1) & (w[1:] == 1))[0]
        if len(places):
            out[i, :min(count, len(places))] = np.sort(random.choice(places, min(count, len(places)), replace=False))
    return out
