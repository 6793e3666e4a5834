#!/usr/bin/env python3
"""Keeps README.md true: readme.py --update | --check | --run [--done COMMAND]...

A fence behind `<!-- file: PATH -->` shows that file: --update writes it there, --check fails where they differ.
A fence marked ```sh run holds commands: --run runs all such blocks in order in one shell, from the top folder, and
stops at the first failure. --check also fails for a command of a plain ```sh block that no --done names,
so that nothing in the page goes unrun.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "README.md"
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.M | re.S)
SHOWN = re.compile(r"(^<!-- file: ([^ ]+) -->\n```[a-z]*\n)(.*?)(^```$)", re.M | re.S)


def updated(text):
    return SHOWN.sub(lambda m: m[1] + (ROOT / m[2]).read_text() + m[4], text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--update", action="store_true")
    action.add_argument("--check", action="store_true")
    action.add_argument("--run", action="store_true")
    parser.add_argument("--done", action="append", default=[], metavar="COMMAND", help="a command that was run already")
    args = parser.parse_args()

    text = PAGE.read_text()
    blocks = [(info.split(), body) for info, body in FENCE.findall(text)]
    if args.update:
        PAGE.write_text(updated(text))
        return 0
    if args.check:
        bad = 0
        if updated(text) != text:
            print("README.md: a shown file differs; run scripts/readme.py --update", file=sys.stderr)
            bad = 1
        for info, body in blocks:
            if info[:1] != ["sh"] or "run" in info[1:]:
                continue
            for line in filter(None, map(str.strip, body.splitlines())):
                if line not in args.done:
                    print(f"README.md: `{line}` is never run; mark its fence ```sh run", file=sys.stderr)
                    bad = 1
        return bad
    script = "".join(body for info, body in blocks if info[:1] == ["sh"] and "run" in info[1:])
    if not script:
        print("README.md: no block is marked ```sh run", file=sys.stderr)
        return 1
    # $(pkg-config ...) in a shell splits at spaces, so a tree at such a path is entered by another name, which has none.
    with tempfile.TemporaryDirectory(dir="/tmp" if " " in tempfile.gettempdir() else None) as folder:
        top = ROOT
        if " " in str(ROOT):
            top = pathlib.Path(folder) / "reprise"
            top.symlink_to(ROOT)
        command = ["bash", "-euxo", "pipefail", "-c", script]
        return subprocess.run(command, cwd=top, env={**os.environ, "PWD": str(top)}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
