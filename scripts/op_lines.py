#!/usr/bin/env python3
"""Lines that ops cost: op_lines.py [NAME ...]. Of each named op the lines of its rows, of the rules found by its name and of the functions
that only these call, of its derivative, and of its samples; what its row asks for by the name of a rule that others have as well is told beside, and how many
rows ask for it; without names, how many ops of each kind cost how many lines. An op is its row with what is private to it: rows whose name
begins with its own, which the public interface lacks, count as its rules."""
import collections
import pathlib
import re
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
KINDS = "POINTWISE ROWS INDEXED VIEW LIBRARY HOST PRODUCT COMPOSITE".split()
ITEM = re.compile(r"^(?:static |const |inline )*[A-Za-z_][\w ]*[ *]+(\w+)\(|^(RP__\w+)\((\w+)")


def balanced(lines, at):
    """The line behind the item that begins at `at`: its brackets are closed."""
    depth = 0
    for end in range(at, len(lines)):
        bare = re.sub(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\'|/\*.*?\*/', "", lines[end])
        depth += sum(bare.count(c) for c in "({[") - sum(bare.count(c) for c in ")}]")
        if depth == 0 and not bare.rstrip().endswith((",", "\\")) and (bare.strip() or end > at):
            return end + 1
    return len(lines)


class Item:
    def __init__(self, path, text, name, own):
        self.text, self.name, self.own = text, name, own  # own: of static functions; else found by the name
        self.n = sum(1 for line in text if line.strip())
        self.grad = path.stem.endswith("_grad") or (name or "").startswith("rp__vjp_")
        self.words = collections.Counter(re.findall(r"\w+", "\n".join(text)))
        self.file = path


def items_of(path):
    lines, at, found = path.read_text().splitlines(), 0, []
    while at < len(lines):
        m = ITEM.match(lines[at])
        if not m or lines[at].startswith(("#", "typedef", "struct", "enum", "return")):
            at += 1
            continue
        end = balanced(lines, at)
        found.append(Item(path, lines[at:end], m.group(1) or m.group(3), lines[at].startswith("static")))
        at = end
    return found


def rows_of(text, word):
    lines, at, found = text.splitlines(), 0, {}
    while at < len(lines):
        m = re.match(word + r"\((\w+)", lines[at])
        if not m:
            at += 1
            continue
        end = balanced(lines, at)
        found.setdefault(m.group(1), []).extend(lines[at:end])
        at = end
    return found


def main():
    rows, samples, items = {}, {}, []
    for path in sorted((ROOT / "src/ops").glob("*.def")):
        rows.update(rows_of(path.read_text(), "RP_OP"))
    for path in sorted((ROOT / "tests/samples").glob("*.def")):
        samples.update(rows_of(path.read_text(), "SAMPLES"))
    for path in sorted((ROOT / "src/ops").glob("*.c")):
        items += items_of(path)
    by_rule = collections.defaultdict(list)
    for item in items:
        if not item.own:
            by_rule[re.sub(r"^rp__[a-z]+_", "", item.name)].append(item)
    uses = collections.defaultdict(collections.Counter)
    for item in items:
        for word, n in item.words.items():
            uses[item.file][word] += n
    statics = [item for item in items if item.own]

    def private(name):
        """Rows that only this one's are for."""
        return [r for r in rows if r.startswith(name + "_") and "PRIVATE" in " ".join(rows[r])]

    def closed(taken, theirs_alone):
        """With the static functions that these call, and only these."""
        grew = True
        while grew:
            grew = False
            inside = collections.Counter()
            for item in taken:
                for word, n in item.words.items():
                    inside[item.file, word] += n
            for item in statics:
                used = uses[item.file][item.name] - item.words[item.name]
                mine = inside[item.file, item.name]
                if item not in taken and mine > 0 and (mine == used or not theirs_alone):
                    taken.append(item)
                    grew = True
        return taken

    def shared(name):
        """Rules of others that the row names: their lines, and the rows that name one of them."""
        asked = {rule for rule in re.findall(r"\.(?:infer|rule|vjp) = (\w+)", " ".join(rows[name])) if rule not in rows}
        lines = sum(i.n for i in closed([i for rule in asked for i in by_rule[rule]], False))
        return "%d / %d" % (lines, sum(any(re.search(r"= %s\b" % rule, " ".join(row)) for rule in asked) for row in rows.values()))

    def cost(name):
        taken = closed([i for r in [name] + private(name) for i in by_rule[r]], True)
        row = sum(len(rows[r]) for r in [name] + private(name))
        tests = sum(len(samples.get(r, [])) for r in [name] + private(name))
        rules = sum(i.n for i in taken if not i.grad)
        slopes = sum(i.n for i in taken if i.grad)
        return row, rules, slopes, tests, row + rules + slopes + tests

    def kind(name):
        return next((k for k in KINDS if re.search(r"\b%s\b" % k, " ".join(rows[name]))), "?")

    names = sys.argv[1:]
    wrong = [n for n in names if n not in rows]
    if wrong:
        print("op_lines.py: no row is called " + ", ".join(wrong), file=sys.stderr)
        return 2
    if names:
        print("| op | kind | rows | rules | derivative | samples | lines | shared rules / rows |\n|---|---|---|---|---|---|---|---|")
        for name in names:
            print("| %s | %s | %s | %s |" % (name, kind(name).lower(), " | ".join(map(str, cost(name))), shared(name)))
        return 0
    print("| kind | ops | median | nine of ten at most | most |\n|---|---|---|---|---|")
    public = [n for n in rows if "PRIVATE" not in " ".join(rows[n])]
    for k in KINDS:
        mine = sorted((cost(n)[-1], n) for n in public if kind(n) == k)
        if mine:
            lines = [c for c, _ in mine]
            print("| %s | %d | %g | %d | %d (%s) |" % (k.lower(), len(mine), statistics.median(lines),
                                                    lines[(len(lines) * 9 + 9) // 10 - 1], *mine[-1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
