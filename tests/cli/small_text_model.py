"""A model that can speak, for tests of commands: an oracle's random network with a byte-level tokenizer beside it.

256 byte tokens, M3's markers as added tokens at the end of the vocabulary, padding in between.
"""
import json
import pathlib
import shutil

ROOT = pathlib.Path(__file__).resolve().parents[2]
ORACLE = ROOT / "tests" / "data" / "oracle" / "m3-short"
MARKERS = [("]~!b[", True), ("]~b]", True), ("[e~[", True), ("<mm:think>", False), ("</mm:think>", False),
           ("<tool_call>", False), ("</tool_call>", False)]
FIRST_MARKER = 500


def byte_alphabet():
    """GPT-2's: printable bytes stand for themselves, the others for characters from 256 on."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [b for b in range(256) if b not in keep]
    return {**{b: chr(b) for b in keep}, **{b: chr(256 + i) for i, b in enumerate(other)}}


def make(folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(ORACLE / name, folder / name)
    known = json.loads((ROOT / "tests" / "data" / "text" / "m3-tiny.json").read_text())
    known["model"].update(vocab={c: b for b, c in byte_alphabet().items()}, merges=[])
    known["added_tokens"] = [
        dict(id=FIRST_MARKER + i, content=text, single_word=False, lstrip=False, rstrip=False, normalized=False,
             special=special)
        for i, (text, special) in enumerate(MARKERS)]
    (folder / "tokenizer.json").write_text(json.dumps(known))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": FIRST_MARKER + 2, "temperature": 0.9}))
    return folder
