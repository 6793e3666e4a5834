#!/usr/bin/env python3
"""Fails for a path of this repository, or a name of the library, that a page of the top folder or of docs/ names and that does not
exist, and for a row of "not here yet" (docs/from-pytorch.md) whose op is here by now.

A path is what stands in `backticks` and begins with one of the tree's folders, or the target of a link. DEVICE, FAMILY, NAME and
<words> stand for something else; * and [ab] are patterns that must match. A name is what begins with rp_ in `backticks`.
"""

import glob
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PATH = re.compile(r"`((?:\.ci|bench|cmake|docs|examples|include|scripts|src|tests|tools)/[^`\s]*)`")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
PLACEHOLDER = re.compile(r"DEVICE|FAMILY|NAME|<\w+>")
QUOTED = re.compile(r"`([^`]+)`")
NAME = re.compile(r"\brp_[a-z0-9_]+(?!\w)")
EXAMPLE = re.compile(r"rp__?(?:\w+_)?softplus(?:_at)?$")  # the op that docs/developers/ops.md adds


def names():
    found = set()
    for folder, pattern in [("include", "*.h"), ("src", "*.[ch]"), ("src", "*.cuh"), ("examples", "*.c"), ("tests", "*.[ch]")]:
        for path in (ROOT / folder).rglob(pattern):
            found.update(NAME.findall(path.read_text()))
    ops = set(re.findall(r"^RP_OP\((\w+)", "".join(f.read_text() for f in sorted((ROOT / "src/ops").glob("*.def"))), re.M))
    for op in ops:
        found.update({f"rp_{op}{form}{at}" for form in ("", "_", "_scalar", "_scalar_", "_scatter") for at in ("", "_at")})
    return found, ops


def main():
    missing = 0
    count = 0
    known, ops = names()
    for page in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]:
        for number, line in enumerate(page.read_text().splitlines(), 1):
            found = [(ROOT, name) for name in PATH.findall(line)] + [(page.parent, name) for name in LINK.findall(line)]
            for base, name in found:
                if PLACEHOLDER.search(name):
                    continue
                count += 1
                if not glob.glob(str(base / re.sub(r":\d+$", "", name).rstrip("/"))):
                    print(f"{page.relative_to(ROOT)}:{number}: there is no {name}", file=sys.stderr)
                    missing += 1
            for name in [name for text in QUOTED.findall(line) for name in NAME.findall(text)]:
                if EXAMPLE.match(name):
                    continue
                count += 1
                if not (any(n.startswith(name) for n in known) if name.endswith("_") and name not in known else name in known):
                    print(f"{page.relative_to(ROOT)}:{number}: there is no {name}", file=sys.stderr)
                    missing += 1
    absent = (ROOT / "docs/from-pytorch.md").read_text().split("## Not here yet", 1)[1].split("\n## ")[0]
    for row in [line.split("|")[1] for line in absent.splitlines() if line.startswith("| ")]:
        for name in re.findall(r"`(?:torch|F)\.(\w+)(?:\([^`]*)?`", row):
            count += 1
            if name in ops:
                print(f"docs/from-pytorch.md: {name} is not here yet, says a table, and there is rp_{name}", file=sys.stderr)
                missing += 1
    print(f"{count} paths and names, {missing} missing")
    return missing > 0 or count == 0


if __name__ == "__main__":
    sys.exit(main())
