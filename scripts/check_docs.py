#!/usr/bin/env python3
"""Fails for a path of this repository that README.md or a page of docs/ names and that does not exist.

A path is what stands in `backticks` and begins with one of the tree's folders, or the target of a link. DEVICE, FAMILY, NAME and
<words> stand for something else; * and [ab] are patterns that must match.
"""

import glob
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PATH = re.compile(r"`((?:\.ci|bench|cmake|docs|examples|include|scripts|src|tests|tools)/[^`\s]*)`")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
PLACEHOLDER = re.compile(r"DEVICE|FAMILY|NAME|<\w+>")


def main():
    missing = 0
    count = 0
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for number, line in enumerate(page.read_text().splitlines(), 1):
            found = [(ROOT, name) for name in PATH.findall(line)] + [(page.parent, name) for name in LINK.findall(line)]
            for base, name in found:
                if PLACEHOLDER.search(name):
                    continue
                count += 1
                if not glob.glob(str(base / re.sub(r":\d+$", "", name).rstrip("/"))):
                    print(f"{page.relative_to(ROOT)}:{number}: there is no {name}", file=sys.stderr)
                    missing += 1
    print(f"{count} paths, {missing} missing")
    return missing > 0 or count == 0


if __name__ == "__main__":
    sys.exit(main())
