#!/usr/bin/env python3
"""Fails when a room includes a room that is not below it, or a file outgrows its subject.

Order, top first; a room may include itself and what is listed for it, transitively.
"""
import pathlib
import re
import sys

BELOW = {
    "base": [], "number": ["base"], "text": ["number"], "checkpoint": ["number"], "parallel": ["checkpoint"],
    "backend": ["parallel"], "cache": ["backend"], "model": ["cache", "text"], "engine": ["model"],
    "tasks": ["model"], "server": ["engine"], "train": ["engine"], "hub": ["base"],
    "cli": ["server", "train", "tasks", "hub"],
}


def reach(room):
    seen, todo = {room}, [room]
    while todo:
        for below in BELOW[todo.pop()]:
            if below not in seen:
                seen.add(below)
                todo.append(below)
    return seen


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    faults = []
    for path in sorted(root.glob("src/**/*.[ch]")):
        room = path.relative_to(root / "src").parts[0]
        text = path.read_text(encoding="utf-8")
        if room not in BELOW:
            faults.append(f"{path}: src/{room} is not a known room")
            continue
        allowed = reach(room)
        for number, line in enumerate(text.splitlines(), 1):
            m = re.match(r'\s*#\s*include\s+"([a-z0-9_]+)/', line)
            if m and m.group(1) not in allowed:
                faults.append(f"{path}:{number}: {room} may not include {m.group(1)}")
            if len(line) > 130:
                faults.append(f"{path}:{number}: {len(line)} columns")
        if text.count("\n") > 1000:
            faults.append(f"{path}: over 1,000 lines, split the subject")
        if path.suffix == ".h" and "#ifndef HAYATE_" not in text and not path.stem.endswith("_body"):
            faults.append(f"{path}: no include guard HAYATE_...")
    print("\n".join(faults) or "layers and sizes: fine")
    return 1 if faults else 0


sys.exit(main())
