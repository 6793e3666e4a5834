#!/usr/bin/env python3
"""Fails for what nothing uses: check_unused.py. A private function (rp__name) that a header of src/ declares and no other line of
src/, tests/, tools/ or bench/ calls; a row of src/compile/reasons.def that no code gives; a variable of src/core/env.def that no
code reads. Fails, too, for what reads the environment past src/core/env.c.
"""

import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = (".c", ".h", ".def", ".cuh", ".cpp")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
DECLARED = re.compile(r"^(?!static|typedef|#|extern)[A-Za-z][\w \n*]*?\**\b(rp__\w+)\(", re.M)
PASTED = "rp__v_"  # vector functions: macros put their names together
REASON = re.compile(r'^RP_REASON\((\w+), "([^"]+)"', re.M)


def main():
    text = {}
    for folder in ("src", "tests", "tools", "bench"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SOURCES:
                text[path] = COMMENT.sub(" ", path.read_text())
    words = collections.Counter()
    for body in text.values():
        words.update(re.findall(r"\brp__\w+|\bRP__REASON_\w+", body))
    unused = []
    for path, body in text.items():
        if path.suffix == ".h" and path.is_relative_to(ROOT / "src"):
            for name in DECLARED.findall(body):
                if words[name] <= 2 and not name.startswith(PASTED):
                    unused.append(f"{path.relative_to(ROOT)}: nothing calls {name}")
    reasons = ROOT / "src/compile/reasons.def"
    everything = "".join(body for path, body in text.items() if path != reasons)
    rows = REASON.findall(reasons.read_text())
    for suffix, name in rows:
        if not words[f"RP__REASON_{suffix}"] and f'"{name}"' not in everything:
            unused.append(f"src/compile/reasons.def: nothing gives {name}")
    variables = re.findall(r'^RP_VARIABLE\("(\w+)"', (ROOT / "src/core/env.def").read_text(), re.M)
    for name in variables:
        if f'"{name}"' not in "".join(body for path, body in text.items() if path.name != "env.def"):
            unused.append(f"src/core/env.def: nothing reads {name}")
    for path, body in text.items():
        if path.is_relative_to(ROOT / "src") and path.name != "env.c" and re.search(r"\bgetenv\(", body):
            unused.append(f"{path.relative_to(ROOT)}: reads the environment; rp__env does (src/core/env.h)")
    print("\n".join(unused), file=sys.stderr, end="\n" if unused else "")
    print(f"{len(unused)} unused")
    return bool(unused) or not rows or not variables


if __name__ == "__main__":
    sys.exit(main())
