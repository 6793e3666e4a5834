#!/usr/bin/env python3
"""Fails where a file of src/ knows what it must not: check_layers.py.

  floors   A file includes from the folder of a floor above its own. The floors are those of the table in docs/developers/design.md.
  headers  Headers that include each other in a circle.
  files    Files of FOLDERS that include each other in a circle, where a file is NAME.c with NAME.h and NAME_parts.h, or whose
           functions and tables (rp__name) use each other in a circle, whatever header declares them.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
FOLDERS = ("compile", "graphs", "nn")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.M)
FLOOR = re.compile(r"^\| (\d+) \| (.*?) \|", re.M)
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
FUNCTION = re.compile(r"^(?!static|typedef|extern|#)[a-zA-Z_][\w \t*]*?\b(rp_\w+)\([^;{}]*\)\s*\{", re.M)
TABLE = re.compile(r"^const [\w \t*]*?\b(rp__\w+)(?:\[[^\]]*\])? = ", re.M)


def floors():
    found = {}
    for number, folders in FLOOR.findall((ROOT / "docs/developers/design.md").read_text()):
        for folder in re.findall(r"`src/(\w+)/`", folders):
            found[folder] = int(number)
    return found


def circles(graph):
    """The strongly connected parts of more than one node."""
    index, low, stack, found = {}, {}, [], []

    def visit(v):
        index[v] = low[v] = len(index)
        stack.append(v)
        for w in sorted(graph.get(v, ())):
            if w not in index:
                visit(w)
            if w in stack:
                low[v] = min(low[v], low[w])
        if low[v] == index[v]:
            part = stack[stack.index(v):]
            del stack[stack.index(v):]
            if len(part) > 1:
                found.append(sorted(part))

    for v in sorted(graph):
        if v not in index:
            visit(v)
    return found


def includes(texts):
    """Per file: the files of src/ that it includes."""
    found = {}
    for path, text in texts.items():
        near = path.rsplit("/", 1)[0]
        found[path] = {f"{near}/{name}" if f"{near}/{name}" in texts else name for name in INCLUDE.findall(text)}
        found[path] &= texts.keys()
    return found


def module(path):
    return re.sub(r"(_parts)?\.[ch]$", "", path)


def uses(texts):
    """Per .c file: those that define what it names."""
    bare = {path: COMMENT.sub(" ", text) for path, text in texts.items() if path.endswith(".c")}
    home = {name: path for path, text in bare.items() for name in FUNCTION.findall(text) + TABLE.findall(text)}
    graph = {}
    for path, text in bare.items():
        graph[module(path)] = {module(home[name]) for name in re.findall(r"\brp_\w+", text) if name in home}
    return graph, len(home)


def main():
    sys.setrecursionlimit(10000)
    floor = floors()
    texts = {str(path.relative_to(SRC)): path.read_text() for path in sorted(SRC.rglob("*"))
             if path.suffix in (".c", ".h", ".def", ".cuh", ".cpp")}
    included = includes(texts)
    wrong = []
    for path, names in included.items():
        for name in sorted(names):
            if floor[name.split("/")[0]] > floor[path.split("/")[0]]:
                wrong.append(f"src/{path} includes {name}, of a floor above")
    headers = {path: names for path, names in included.items() if path.endswith(".h")}
    wrong += ["headers in a circle: " + ", ".join(part) for part in circles(headers)]
    total = 0
    for folder in FOLDERS:
        own = {path: text for path, text in texts.items() if path.startswith(folder + "/")}
        files = {}
        for path in own:
            if path.endswith((".c", ".h")):
                others = {module(name) for name in included[path] if name in own and name.endswith(".h")}
                files.setdefault(module(path), set()).update(others - {module(path)})
        used, n = uses(own)
        total += n
        wrong += ["files that include each other in a circle: " + ", ".join(part) for part in circles(files)]
        wrong += ["files that use each other in a circle: " + ", ".join(part) for part in circles(used)]
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    edges = sum(len(names) for names in included.values())
    print(f"{len(texts)} files, {edges} includes, {total} functions, {len(wrong)} wrong")
    return bool(wrong) or not edges or not total or len(floor) < 9


if __name__ == "__main__":
    sys.exit(main())
