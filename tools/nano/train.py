#!/usr/bin/env python3
"""Trains the bundled model from nothing on generated conversations and writes it in the published layout.

    python3 train.py --out DIR [--minutes 9] [--seed 1] [--tiny]

The wall clock rules: learning rate and the switch to quantised training follow the elapsed share of --minutes, which
includes compiling, packing and the evaluation, so a slower machine takes fewer steps and ends at the same time.
"""
import argparse
import dataclasses
import multiprocessing
import os
import sys
import time

import data


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", required=True, help="folder of the finished model")
    p.add_argument("--minutes", type=float, default=9.0, help="wall limit for everything")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--tiny", action="store_true", help="a smaller model and batch, to try the whole way on a CPU")
    p.add_argument("--workers", type=int, default=0, help="processes that generate data; default: the cores less two")
    p.add_argument("--rate", type=float, default=2e-3, help="peak learning rate")
    p.add_argument("--quantise-from", type=float, default=0.75,
                   help="share of the training time after which it runs quantised")
    p.add_argument("--reserve", type=float, default=0,
                   help="seconds kept for packing and evaluation; default: 70, tiny 30")
    p.add_argument("--problems", type=int, default=0,
                   help="held-out problems a cell of the evaluation; default: 128, tiny 2")
    p.add_argument("--no-compile", action="store_true")
    p.add_argument("--keep-state", action="store_true", help="also save the fp32 weights, as DIR.pt")
    return p.parse_args()


def schedule(x, peak):
    """Learning rate at share x of the training: a short rise, a plateau, a linear fall to nothing."""
    return peak * min(1.0, x / 0.02, max(0.0, (1 - x) / 0.6))


def main():
    began = time.time()
    a = arguments()
    here = os.path.dirname(os.path.abspath(__file__))
    cores = len(os.sched_getaffinity(0))
    layout = [(4, 512)] if a.tiny else [(96, 512), (16, 1024)]
    queue, workers = multiprocessing.Queue(32), []
    for i in range(a.workers or max(1, cores - 2)):         # before torch starts its threads
        w = multiprocessing.Process(target=data.worker, daemon=True, args=(os.path.join(here, "tokenizer"), a.seed, i,
                layout, queue))
        w.start()
        workers.append(w)
    import torch
    import torch.nn.functional as F

    import evaluate
    import export
    import m3
    torch.manual_seed(a.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shape = m3.Shape(hidden=64, layers=2, heads=4, experts=8, expert_width=32, shared_width=64,
                     dense_width=128) if a.tiny else m3.Shape()
    model = m3.M3(shape).to(device)
    log = open(a.out.rstrip("/") + ".log", "w")

    def say(*text):
        line = " ".join(map(str, text))
        print(line, flush=True)
        log.write(line + "\n")
        log.flush()

    say(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M trained parameters on {device}, {len(workers)} data "
        f"processes")
    matrices = [p for n, p in model.named_parameters() if p.ndim > 1 and n not in ("embed",
            "head") and not n.endswith("feed.gate")]
    rest = [p for n, p in model.named_parameters() if not (p.ndim > 1 and n not in ("embed",
            "head") and not n.endswith("feed.gate"))]
    optimiser = torch.optim.AdamW([dict(params=matrices, weight_decay=0.05), dict(params=rest, weight_decay=0.0)],
                                  lr=a.rate, betas=(0.9, 0.95), fused=device == "cuda")

    def loss_of(h, head, target, weight):
        logits = F.linear(h, head).float()
        return (F.cross_entropy(logits, target, reduction="none") * weight).sum() / weight.sum().clamp(min=1)

    if device == "cuda" and not a.no_compile:
        import torch._dynamo
        torch._dynamo.config.cache_size_limit = 64
        torch._dynamo.config.automatic_dynamic_shapes = False
        for layer in model.layers:
            layer.compile()
        loss_of = torch.compile(loss_of)

    def batch():
        ids, target, weight = (torch.from_numpy(x) for x in queue.get())
        if device == "cuda":
            ids, target, weight = (x.pin_memory().to(device, non_blocking=True) for x in (ids, target, weight))
        return ids.long(), target.long(), weight.float()

    def step(quantised, update=True):
        ids, target, weight = batch()
        with torch.autocast(device, torch.bfloat16):
            h, loads = model(ids, layout, quantised)
            loss = loss_of(h, model.head, target, weight)
        loss.backward()
        if update:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            with torch.no_grad():
                model.balance(loads, 1e-3 if optimiser.param_groups[0]["lr"] > 0.05 * a.rate else 0.0)
        optimiser.zero_grad(set_to_none=True)
        return loss.detach(), loads.detach()

    # compile both phases before the clock of the schedule starts
    for q in (0, 2):
        step(q, update=False)
    start = time.time()
    end = began + a.minutes * 60 - (a.reserve or (30 if a.tiny else 70))
    say(f"start took {start - began:.0f} s, training has {end - start:.0f} s")
    n, tokens, shown, phase = 0, sum(x * y for x, y in layout), start, 0
    average = None
    while True:
        x = (time.time() - start) / max(1e-9, end - start)
        if x >= 1:
            break
        for group in optimiser.param_groups:
            group["lr"] = schedule(x, a.rate)
        quantised = 2 if x >= a.quantise_from else 0
        if quantised != phase:
            say(f"step {n}: from here quantised")
            phase = quantised
        loss, loads = step(quantised)
        n += 1
        average = loss if average is None else average * 0.95 + loss * 0.05
        if n % 10 == 0 and time.time() - shown > (5 if not a.tiny else 3):
            shown = time.time()
            say(f"step {n}  {100 * x:.0f} %  loss {average.item():.4f}  rate {schedule(x, a.rate):.2e}  "
                f"{n * tokens / (shown - start) / 1e6:.3f} M tokens/s  {(end - shown):.0f} s left  "
                f"expert load {loads.min().item() * shape.experts / shape.top_k:.2f} to "
                f"{loads.max().item() * shape.experts / shape.top_k:.2f}")
    if device == "cuda":
        torch.cuda.synchronize()
    for w in workers:
        w.terminate()
    if n == 0:
        say("no time was left to train: give more --minutes or a smaller --reserve")
        sys.exit(1)
    say(f"{n} steps, {n * tokens / 1e6:.0f} M tokens, loss {average.item():.4f}")
    plain = m3.M3(shape)
    plain.load_state_dict({k.replace("_orig_mod.", ""): v.cpu() for k, v in model.state_dict().items()})
    if a.keep_state:
        torch.save(dict(shape=dataclasses.asdict(shape), model=plain.state_dict()), a.out.rstrip("/") + ".pt")
    say(f"{a.out}: {export.export(plain, a.out)} bytes")
    del model, optimiser
    evaluate.report(a.out, device, a.problems or (2 if a.tiny else 128), say, 24 if a.tiny else 352)
    say(f"all of it took {time.time() - began:.0f} s")


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    main()
