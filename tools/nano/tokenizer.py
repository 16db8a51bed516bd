#!/usr/bin/env python3
"""The bundled model's tokenizer: a byte-level BPE in the shape of MiniMax-M3's.

    hayate eval MODEL --write-set TEXTS.jsonl --tokens 8m
    python3 tokenizer.py TEXTS.jsonl [...] [--merges N] [--out DIR]     (needs the `tokenizers` package)

Ids 0 to 255 are the bytes in numeric order, then one id per merge, then the 61 added tokens of M3 in their order.
Digits never merge, so every digit is one token and columns of a sum line up.
"""
import argparse
import json
import os

import template as t

PATTERN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
           r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
           r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tokenizer")


def byte_alphabet():
    """GPT-2's printable stand-ins for the 256 bytes, in numeric order."""
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    out, n = [], 0
    for b in range(256):
        if b in keep:
            out.append(chr(b))
        else:
            out.append(chr(256 + n))
            n += 1
    return out


def strings(x):
    """Every text in a JSON value, names of fields too."""
    if isinstance(x, str):
        yield x
    elif isinstance(x, list):
        for e in x:
            yield from strings(e)
    elif isinstance(x, dict):
        for k, v in x.items():
            yield k
            yield from strings(v)


def corpus(paths):
    """What the model reads and writes: the texts of the conversations, tools as the template spells them, the heads."""
    for path in paths:
        with open(path, encoding="utf-8") as f:
            for i, line in enumerate(f):
                c = json.loads(line)
                for m in c["messages"]:
                    yield from strings([v for k, v in m.items() if k not in ("role", "tool_calls")])
                    for call in m.get("tool_calls") or []:
                        yield from strings(call["function"])
                if i % 8 == 0 or c.get("tools"):
                    yield t.head(c.get("thinking_mode"), tools=c.get("tools"))


def train(merges, out, paths):
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated"), pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.train_from_iterator(corpus(paths), trainers.BpeTrainer(
        vocab_size=256 + merges, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    learnt = [tuple(m) if isinstance(m,
                                     list) else tuple(m.split(" "))
              for m in json.loads(tok.to_str())["model"]["merges"]]
    assert len(learnt) == merges and not any(c.isdigit() for m in learnt for c in "".join(m))
    vocab = {c: i for i, c in enumerate(byte_alphabet())}
    for a, b in learnt:
        assert a + b not in vocab
        vocab[a + b] = len(vocab)
    added = [dict(id=len(vocab) + i, content=s, single_word=False, lstrip=False, rstrip=False, normalized=False,
                  special=i < t.SPECIAL)
             for i, s in enumerate(t.ADDED)]
    file = dict(version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=dict(type="NFC"),
                pre_tokenizer=dict(type="Sequence", pretokenizers=[
                    dict(type="Split", pattern=dict(Regex=PATTERN), behavior="Isolated", invert=False),
                    dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=False)]),
                post_processor=None,
                decoder=dict(type="ByteLevel", add_prefix_space=True, trim_offsets=True, use_regex=True),
                model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None,
                           end_of_word_suffix=None,
                           fuse_unk=False, byte_fallback=False, ignore_merges=False, vocab=vocab,
                           merges=[list(m) for m in learnt]))
    config = dict(added_tokens_decoder={str(a["id"]): {k: v for k, v in a.items() if k != "id"} for a in added},
                  bos_token=t.BOS, eos_token=t.EOS, pad_token=t.PAD, unk_token=t.UNK, add_prefix_space=False,
                  clean_up_tokenization_spaces=False,
                  model_max_length=32768, tokenizer_class="PreTrainedTokenizerFast")
    os.makedirs(out, exist_ok=True)
    for name, content in (("tokenizer.json", file), ("tokenizer_config.json", config)):
        with open(os.path.join(out, name), "w", encoding="utf-8") as f:
            json.dump(content, f, ensure_ascii=False, indent=1)
            f.write("\n")
    print(f"{out}: {len(vocab)} base tokens and {len(added)} added tokens")


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("texts", nargs="+")
    p.add_argument("--merges", type=int, default=1728)
    p.add_argument("--out", default=HERE)
    a = p.parse_args()
    train(a.merges, a.out, a.texts)
