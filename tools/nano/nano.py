#!/usr/bin/env python3
"""Trains m3-nano stage by stage; README.md says what each stage does.

    python3 nano.py STAGE --out DIR --data SETS [--minutes M] [--gpus N]

STAGE: pretrain, index, sparse, plain, tune, tune-plain, drafter, export, compare, accepted. A stage goes on from the state
that the one before it left in --out (sparse and plain both from index), and from its own state if it was cut off.
"""
import argparse
import os
import sys

TRAINED = ("pretrain", "index", "sparse", "plain", "tune", "tune-plain", "drafter")
STAGES = TRAINED + ("export", "compare", "accepted")


def arguments(argv=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("stage", choices=STAGES)
    p.add_argument("--out", required=True, help="folder of states, logs and curves")
    p.add_argument("--data", help="training sets: a folder of `hayate eval --write-set`, or one with several of these")
    p.add_argument("--held-out", help="the same of the held-out split")
    p.add_argument("--minutes", type=float, default=8.0, help="wall time of the stage, everything counted")
    p.add_argument("--gpus", type=int, default=1, help="processes, one a GPU")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--rate", type=float, default=2e-3, help="peak learning rate; the stages take their parts of it")
    p.add_argument("--tokens", type=int, default=0, help="tokens of a step in each process (65536; tiny: 4096)")
    p.add_argument("--given", type=float, default=0.05, help="weight of tokens that the model does not write")
    p.add_argument("--sampled", type=int, default=256, help="rows of a text that the index branch's loss looks at")
    p.add_argument("--kl", choices=("all", "selected"), default="all",
                   help="sparse stages: the blocks that the index branch's loss covers")
    p.add_argument("--kernel", choices=("flex", "chunked"), default="flex", help="attention over selected blocks")
    p.add_argument("--from-stage", default="sparse", help="drafter and export: the target's stage (plain: the twin)")
    p.add_argument("--model", help="tune, drafter, compare, accepted: the target's folder; export: the folder to write")
    p.add_argument("--go-on", action="store_true", help="drafter: from the one that the target's folder has, at a lower rate")
    p.add_argument("--engine", help="compare, accepted: the hayate binary")
    p.add_argument("--prompts", type=int, default=50, help="compare: greedy answers; accepted: continuations")
    p.add_argument("--reserve", type=float, default=3, help="seconds of --minutes kept for the end")
    p.add_argument("--show", type=float, default=5, help="seconds between lines of progress")
    p.add_argument("--check-every", type=float, default=60, help="seconds between looks at held-out rows")
    p.add_argument("--tiny", action="store_true", help="a smaller model, to try the whole way on a CPU")
    p.add_argument("--cpu", action="store_true")
    p.add_argument("--no-compile", action="store_true")
    p.add_argument("--warm", action="store_true", help="only compile, so that the real run finds it done")
    a = p.parse_args(argv)
    a.tokens = a.tokens or (4096 if a.tiny else 65536)
    os.makedirs(a.out, exist_ok=True)
    return a


def process(rank, a, stage, share):
    # one GPU each, under the same name, so that all processes share what is compiled
    if a.gpus > 1:
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(a.gpus)))).split(",")
        os.environ["CUDA_VISIBLE_DEVICES"] = seen[rank]
    import trainer
    run = trainer.Run(a, stage, rank, share)
    if stage == "drafter":
        import draft_train
        draft_train.main(run)
    else:
        import stages
        stages.main(run)


def spawn(a, stage):
    """Runs a training stage in --gpus processes."""
    import torch
    import torch.multiprocessing as mp
    if not a.warm and os.path.exists(os.path.join(a.out, stage + ".pt")):
        if torch.load(os.path.join(a.out, stage + ".pt"), map_location="cpu", weights_only=True)["done"]:
            print(f"{stage} is done already")
            return
    meet = os.path.join(a.out, stage + ".meet")
    if os.path.exists(meet):
        os.remove(meet)
    share = mp.get_context("spawn").Array("d", 65, lock=False)
    share[0] = -1
    if a.gpus == 1:
        process(0, a, stage, share)
    else:
        mp.spawn(process, (a, stage, share), nprocs=a.gpus)


def main():
    a = arguments()
    if a.stage in TRAINED:
        spawn(a, a.stage)
    elif a.stage == "export":
        import export
        export.main(a)
    else:
        import accepted
        import compare
        sys.exit((compare if a.stage == "compare" else accepted).main(a))


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    main()
