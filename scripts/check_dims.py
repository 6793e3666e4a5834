#!/usr/bin/env python3
"""Fails where a size that may be a symbol is compared as the word that it is: check_dims.py BUILD   (BUILD has compile_commands.json)

An rp_dim is a number or a symbol of a trace (src/core/dim.h). `size[0] == 4` is false for a symbol that is 4, and records no guard. Who
decides something asks rp__dim_is; who has numbers only says rp__dim_number; who wants the words themselves says rp__dim_same_word. clang keeps the
name of the type through expressions, so its matcher sees each comparison and test of an rp_dim. Folders behind the specialisation to numbers
are not looked at. The check looks for what it must find in a source of its own first; without clang-query it says so and fails."""

import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("core", "tensor", "ops", "trace")
DIM = 'ignoringParenImpCasts(expr(hasType(typedefType(hasDeclaration(typedefDecl(hasName("rp_dim")))))))'
QUERY = f"""set output diag
set bind-root false
m binaryOperator(isComparisonOperator(), isExpansionInMainFile(), hasEitherOperand({DIM})).bind("raw")
m expr(isExpansionInMainFile(), hasParent(unaryOperator(hasOperatorName("!"))), {DIM[len("ignoringParenImpCasts("):-1]}).bind("raw")
m binaryOperator(hasAnyOperatorName("&&", "||"), isExpansionInMainFile(), hasEitherOperand({DIM})).bind("raw")
"""
SAMPLE = """#include "core/dim.h"
int compared(const rp_dim *size, rp_dim d) { return size[1] == 4; }
int ordered(const rp_dim *size, rp_dim d) { return 0 < d; }
int tested(const rp_dim *size, rp_dim d) { return !d || size[0]; }
int said(const rp_dim *size, rp_dim d) { return rp__dim_same_word(size[0], d) && rp__dim_number(d) > 3 && rp__dim_is(RP__DIM_EQ, d, 4); }
"""
SAMPLE_LINES = {2, 3, 4}


def compilable(arguments):
    """Without what is another compiler's own."""
    kept = [a for a in arguments if not re.match(r"-[mfW]", a) and not a.endswith("ccache")]
    if "-o" in kept:
        at = kept.index("-o")
        del kept[at:at + 2]
    return ["clang", *kept[1:], "-w"]


def found(folder, files):
    query = pathlib.Path(folder) / "query"
    query.write_text(QUERY)
    run = subprocess.run(["clang-query", "-p", folder, "-f", str(query), *files], capture_output=True, text=True)
    if "error:" in run.stderr:
        sys.exit("clang-query: " + run.stderr[:2000])
    return sorted({(path, int(line)) for path, line in re.findall(r'^(.+?):(\d+):\d+: note: "raw" binds', run.stdout, re.M)})


def main():
    if not shutil.which("clang-query"):
        sys.exit("no clang-query: comparisons of sizes were not looked at")
    build = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build/test").resolve()
    entries, commands = {}, json.loads((build / "compile_commands.json").read_text())
    for e in commands:
        path = pathlib.Path(e["directory"], e["file"]).resolve()
        if path.is_relative_to(ROOT / "src") and path.relative_to(ROOT / "src").parts[0] in FOLDERS:
            arguments = e.get("arguments") or shlex.split(e["command"])
            entries.setdefault(str(path), {"directory": e["directory"], "file": str(path), "arguments": compilable(arguments)})
    if not entries:
        sys.exit(f"{build} compiles nothing of src/")
    with tempfile.TemporaryDirectory() as folder:
        sample = str(pathlib.Path(folder) / "sample.c")
        pathlib.Path(sample).write_text(SAMPLE)
        own = dict(next(iter(entries.values())), file=sample)
        own["arguments"] = [sample if a == str(pathlib.Path(next(iter(entries)))) or a.endswith(".c") else a for a in own["arguments"]]
        (pathlib.Path(folder) / "compile_commands.json").write_text(json.dumps([own, *entries.values()]))
        lines = {line for _, line in found(folder, [sample])}
        if lines != SAMPLE_LINES:
            sys.exit(f"the check itself is wrong: it finds lines {sorted(lines)} of its sample, not {sorted(SAMPLE_LINES)}")
        wrong = found(folder, sorted(entries))
    for path, line in wrong:
        text = pathlib.Path(path).read_text().split("\n")[line - 1].strip()
        print(f"{pathlib.Path(path).relative_to(ROOT)}:{line}: {text}", file=sys.stderr)
    print(f"{len(entries)} sources, {len(wrong)} comparisons of words that may be symbols")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
