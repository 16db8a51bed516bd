#!/usr/bin/env python3
"""Makes m3-small.json, m3-tiny.json and vectors.json: small vocabularies of M3's kind and the ids that the `tokenizers`
package gives for many texts. Needs `pip install tokenizers`. The vocabularies depend on the installed Python's library,
which is the training text; `--vectors` keeps them and remakes the ids alone."""
import glob
import json
import os
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
WORD = r"[^\r\n\p{L}\p{N}]?"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = (WORD + UPPER + "*" + LOWER + "+" + SHORT + "|" + WORD + UPPER + "+" + LOWER + "*" + SHORT +
           r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LANGUAGES = ("Hello 👋 World 🌍 emoji test 😀🎉 👨‍👩‍👧‍👦 🇯🇵 你好世界，这是一个中文测试。今日はいい天気ですね。"
             "カタカナ、ひらがな、漢字。안녕하세요 세계. Привет мир, как дела? Γειά σου Κόσμε. مرحبا بالعالم שלום עולם "
             "नमस्ते दुनिया สวัสดีชาวโลก café naïve résumé Ünïcödé ẞ straße I'm don't WE'LL they've you'd he's we're 12345 "
             "3.14 1,000,000 http://a/b//c https://example.com/path?x=1&y=2\r\n\t\tfoo  bar\r\n")


def train(size):
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated", False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    library = sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "[a-m]*.py")))[:120]
    texts = [open(path, errors="replace").read() for path in library] + [LANGUAGES] * 60
    tok.train_from_iterator(texts, trainer)
    return tok


def vocabularies():
    small = train(3000)
    small.add_special_tokens([AddedToken(x, normalized=False, special=True) for x in (
        "]!p~[", "]~b]", "[e~[", "]!d~[", "]<]image[>[", "]<]start of image[>[", "]~!b[")])
    small.add_tokens([AddedToken(x, normalized=False, special=False) for x in (
        "<think>", "</think>", "<tool_call>", "</tool_call>", "]<]minimax[>[", "<mm:think>", "</mm:think>")])
    small.save(os.path.join(HERE, "m3-small.json"), pretty=False)
    tiny = train(600)
    tiny.add_tokens([AddedToken(x, normalized=True, special=False) for x in ("<mm:think>", "<é>", "<a>", "<a><b>", "ab")])
    tiny.add_special_tokens([AddedToken("<s>", normalized=False, special=True)])
    tiny.save(os.path.join(HERE, "m3-tiny.json"), pretty=False)


SMALL = [
    '', 'a', ' ', '  ', '\n', '\r\n', '\t', 'The quick brown fox jumps over the lazy dog.',
    'function add(a, b) { return a + b; }', '{"name":"test","value":42,"active":true}', '你好世界，这是一个中文测试。',
    'Hello 👋 World 🌍 emoji test 😀🎉', 'system\n', 'developer\n', 'user\n', 'ai\n', 'café', 'cafe\u0301',
    'http://a/b//c\n\nx', '12345 3.14', '\t\tfoo  bar\r\n', "I'm don'T WE'LL",
    "I'M she'S they'RE we'Ve he'd 'tis 'S", "it'ſ it'ſ", "x's's", "'s", "a'", "a' b", 'don’t',
    'iPhone OSes XMLHttp ABCdef aBC', 'ǅungla ǅ ʰa aʰ Aʰ ʰ',
    '\u0627\u0644\u0652\u0639\u064e\u0631\u064e\u0628\u0650\u064a\u064e\u0651\u0629',
    '\u0939\u093f\u0928\u094d\u0926\u0940 \u092e\u0947\u0902', 'ภาษาไทย',
    '\ud55c\uad6d\uc5b4 \u1112\u1161\u11ab\u1100\u116e\u11a8', '\u304b\u3099\u304d\u3099',
    '\u212b \u2126 \u0958 \ufb1d', 'q\u0307\u0323 q\u0323\u0307', '\u0301abc', 'a\u0301\u0301\u0301', '\u0308',
    'A\u0308O\u0308', '1⃣', '½ ² Ⅷ ٣٤٥٦', '1234567890', '1 22 333 4444 55555', 'a1b2c3', '  leading', 'trailing  ',
    '   \n   x', '\n\n\n', 'x\n\n\ny', 'x\n \n y', '\r\r\n\n\r', '\xa0x \u2003y\u3000z\u2028w\x85v', ' \xa0 a',
    '//', 'a//b///c', '!!!\n\n/\r\n/x', '...\n///', '()\r\n', '<mm:think>x</mm:think>y', '<mm:think',
    '<mm:think></mm:think>', ']~b]user\nHi[e~[\n]~b]ai\n', ']<]image[>[]<]start of image[>[x]<]',
    ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="f">', '<think></think>', '<mm:think>\u0338',
    'a<mm:think>\u0301b', '\u200d\u200b\ufeff',
    '\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466\U0001f3f3\ufe0f\u200d\U0001f308\U0001f1ef\U0001f1f5\U0001f1ef',
    '\ue000\U000f0000\U0010ffff', '\u0378', '\x00\x01\x7f', 'if x:\n    return  y\n\n\tz',
    'def f(self, *args, **kwargs):\n        return None\n', ' ' * 500, 'a' * 500, 'ab' * 400, '\n' * 300,
    'é' * 120, '😀' * 60, '!' * 257, '=' * 80 + '\n', '0' * 100, 'A' * 70 + 'a', "'" * 50, 'the' * 100,
    '\u0301' * 60, '<' * 40 + 'mm:think>', '\xe9\u0323', '\u1e0b\u0323', '\u0b47\u0b57 \u09c7\u09be',
    '\u0344 \u0390',
]
TINY = ["naïve <é> cafe\u0301", "<e\u0301>x", "<mm:think>\u0338", "<a><b> <a> <b><a><b>", "abab cab", "<s>ab</s>",
        "x<s>\u0338", "<mm:think><s><é>"]


def random_texts(count):
    rng = random.Random(3)
    letters = [chr(c) for c in range(32, 127)]
    letters += list("éüñßÅçøÆŒ中文日本かなカナ한국абвΓδλ😀👍🏽\n\r\t  '\u0301\u0308/\u00a0")
    letters += ["<mm:think>", "'s", "'LL", "def ", "  ", "12"]
    return ["".join(rng.choice(letters) for _ in range(rng.randint(1, 40))) for _ in range(count)]


def vectors():
    parts = []
    for name, texts in (("m3-small.json", SMALL + random_texts(160)), ("m3-tiny.json", TINY)):
        tok = Tokenizer.from_file(os.path.join(HERE, name))
        lines = [json.dumps([s, tok.encode(s, add_special_tokens=False).ids], separators=(",", ":")) for s in texts]
        parts.append(json.dumps(name) + ": [\n" + ",\n".join(lines) + "\n]")
    with open(os.path.join(HERE, "vectors.json"), "w") as out:
        out.write("{\n" + ",\n".join(parts) + "\n}\n")


if __name__ == "__main__":
    if "--vectors" not in sys.argv:
        vocabularies()
    vectors()
