#!/usr/bin/env python3
"""Doxygen's view of a public header: doc_filter.py HEADER.

Comments are plain ones, which Doxygen does not read: what stands before a declaration, behind a member or at the head of the file
becomes a documentation comment, a banner the group of what follows. Of the ops' header the functions without a call site remain,
each with the comment of its op."""
import pathlib
import re
import sys

BANNER = re.compile(r"/\* -{8,} (.*?)\s*\*/", re.S)


def escaped(text):
    """Text that Doxygen leaves as it is."""
    return re.sub(r"([@\\<>#%&])", r"\\\1", text).replace('"', '\\"')


def slug(name, title):
    return re.sub(r"\W+", "_", f"{name}_{title}").strip("_").lower()


def plain(comment):
    return "\n".join(re.sub(r"^\s?\*? ?", "", line) for line in comment[2:-2].split("\n")).strip()


def body(comment):
    return escaped(re.sub(r"\n\s+", "\n", plain(comment)))


def ops(text):
    """The comment of each op before its function; call sites, counts of arguments and what is left out go."""
    text = re.sub(r"^#define (?!RP_)\w.*(?:\\\n.*)*\n", "", text, flags=re.M)
    text = re.sub(r"^RP_API [^;]*?\brp_\w+_at\([^;]*;\n", "", text, flags=re.M)
    return re.sub(r"(/\*(?:(?!\*/).)*\*/\n)(typedef struct (rp_\w+) \{.*?\} \3;\n)(RP_API [^;]*;\n)",
                  lambda m: f"{m[2]}{m[1]}{m[4]}", text, flags=re.S)


def main():
    path = pathlib.Path(sys.argv[1])
    text, name = path.read_text(), path.stem
    if name == "reprise_ops":
        text = ops(text)
    out, at, group, first = [], 0, False, True
    for m in re.finditer(r"/\*.*?\*/", text, re.S):
        out.append(text[at:m.start()])
        at, comment = m.end(), m[0]
        banner = BANNER.match(comment)
        line = text[text.rfind("\n", 0, m.start()) + 1:m.start()]
        if first:
            out.append(f"/** @file\n@verbatim\n{plain(comment)}\n@endverbatim */")
        elif banner:
            title, _, rest = re.sub(r"\s*\n\s*", " ", banner[1]).partition("   ")
            out.append(("/** @} */\n" if group else "") + f"/** @defgroup {slug(name, title)} {escaped(title)}\n@{{ */")
            group = True
        elif line.strip() and not line.strip().startswith("#"):
            out.append(f"/**< {body(comment)} */")
        elif line.strip():
            out.append(comment)
        else:
            out.append(f"/** {body(comment)} */")
        first = False
    out.append(text[at:])
    print("".join(out), end="")
    if group:
        print("/** @} */")


main()
