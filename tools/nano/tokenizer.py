#!/usr/bin/env python3
"""The bundled model's tokenizer: a byte-level BPE in the shape of MiniMax-M3's.

    python3 tokenizer.py [--merges N] [--out DIR]     trains it on generated text (needs the `tokenizers` package)

Ids 0 to 255 are the bytes in numeric order, then one id per merge, then the 61 added tokens of M3 in their order.
Digits never merge, so every digit is one token and columns of a sum line up. `Encoder` is a small pure-Python reader of
the file, so that training needs no tokenizer package; `python3 tokenizer.py --check` holds it against `tokenizers`.
"""
import argparse
import json
import os
import re
import unicodedata

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


def train(merges, out):
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    import data
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated"), pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.train_from_iterator(data.corpus(1, 40000), trainers.BpeTrainer(
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
                  model_max_length=16384, tokenizer_class="PreTrainedTokenizerFast")
    os.makedirs(out, exist_ok=True)
    for name, content in (("tokenizer.json", file), ("tokenizer_config.json", config)):
        with open(os.path.join(out, name), "w", encoding="utf-8") as f:
            json.dump(content, f, ensure_ascii=False, indent=1)
            f.write("\n")
    print(f"{out}: {len(vocab)} base tokens and {len(added)} added tokens")


# A character's class as one ASCII letter, so that the pattern needs no Unicode tables: U upper, l lower, x in both, m
# mark, 0 number.
SHADOW = re.compile(r"[^\r\nUlx0]?[Uxm]*[lxm]+|[^\r\nUlx0]?[Uxm]+[lxm]*|0{1,3}| "
                    r"?[^\sUlx0]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
ASCII = re.compile(r"[^\r\nA-Za-z0-9]?[A-Z]*[a-z]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\nA-Za-z0-9]?[A-Z]+[a-z]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
                   r"|[0-9]{1,3}| ?[^\sA-Za-z0-9]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+", re.ASCII)


def shadow(c):
    if c in " \r\n/":
        return c
    k = unicodedata.category(c)
    if c.isspace():
        return "\t"
    if k in ("Lu", "Lt"):
        return "U"
    if k == "Ll":
        return "l"
    if k in ("Lm", "Lo"):
        return "x"
    return "m" if k[0] == "M" else "0" if k[0] == "N" else "."


class Encoder:
    """Text to ids. Contractions after a letter outside ASCII are the one thing that it leaves out."""

    def __init__(self, path=HERE):
        with open(os.path.join(path, "tokenizer.json"), encoding="utf-8") as f:
            file = json.load(f)
        alphabet = byte_alphabet()
        back = {c: b for b, c in enumerate(alphabet)}
        self.rank = {bytes(back[c] for c in s): i for s, i in file["model"]["vocab"].items()}
        self.added = {a["content"]: a["id"] for a in file["added_tokens"]}
        self.marks = re.compile("(" + "|".join(re.escape(s) for s in sorted(self.added, key=len, reverse=True)) + ")")
        self.pad, self.eos, self.size = self.added[t.PAD], self.added[t.EOS], len(self.rank) + len(self.added)
        self.bytes = {i: b for b, i in self.rank.items()} | {i: s.encode() for s, i in self.added.items()}
        self.words, self.texts = {}, {}

    def word(self, s):
        ids = self.words.get(s)
        if ids is None:
            p = [bytes([b]) for b in s.encode()]
            while len(p) > 1:
                rank, i = min((self.rank.get(p[i] + p[i + 1], 1 << 30), i) for i in range(len(p) - 1))
                if rank == 1 << 30:
                    break
                p[i:i + 2] = [p[i] + p[i + 1]]
            ids = [self.rank[x] for x in p]
            if len(self.words) < 200000:
                self.words[s] = ids
        return ids

    def encode(self, text):
        out = []
        for part in self.marks.split(text):
            if not part:
                continue
            if part in self.added:
                out.append(self.added[part])
            elif part.isascii():
                for s in ASCII.findall(part):
                    out += self.word(s)
            else:
                part = unicodedata.normalize("NFC", part)
                for m in SHADOW.finditer("".join(map(shadow, part))):
                    out += self.word(part[m.start():m.end()])
        return out

    def encode_cached(self, text):
        ids = self.texts.get(text)
        if ids is None:
            ids = self.encode(text)
            if len(self.texts) < 10000:
                self.texts[text] = ids
        return ids

    def decode(self, ids):
        return b"".join(self.bytes.get(int(i), b"") for i in ids).decode("utf-8", "replace")


def check():
    import random

    from tokenizers import Tokenizer

    import data
    slow, fast, r, n = Encoder(), Tokenizer.from_file(os.path.join(HERE, "tokenizer.json")), random.Random(5), 0
    for i in range(3000):
        c = data.Conversation(r, with_tools=i % 10 == 0)
        text = c.head + "".join(p for _ in range(3) for p, _ in c.pieces(c.next_turn()))
        a, b = slow.encode(text), fast.encode(text, add_special_tokens=False).ids
        assert a == b, (text, a, b)
        assert slow.decode(a) == unicodedata.normalize("NFC", text)
        n += len(a)
    print(f"{n} tokens of 3000 conversations agree with the tokenizers package")


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--merges", type=int, default=1728)
    p.add_argument("--out", default=HERE)
    p.add_argument("--check", action="store_true")
    a = p.parse_args()
    check() if a.check else train(a.merges, a.out)
