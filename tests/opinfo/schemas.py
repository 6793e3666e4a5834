#!/usr/bin/env python3
"""Arguments of rows against PyTorch's, by name, and public functions of torch.nn.functional, linalg, special and signal.windows against rows.

usage: python tests/opinfo/schemas.py LIBRARY [--ops a,b]   (needs a Python with torch; opinfo.sh runs it before the others)

A row has every argument of the overload of ATen, or of the function of torch, that is most like it: what PyTorch takes can be said. A
function has a row, a C function of its name, or stands in docs/from-pytorch.md. What differs on purpose is in DIFFERENT and WITHOUT; anything
else makes the exit status 1."""
import argparse
import fnmatch
import inspect
import os
import re
import sys

import torch

from bridge import Library

HERE = os.path.dirname(os.path.abspath(__file__))
F = torch.nn.functional
PLACES = (F, torch, torch.linalg, torch.special, torch.signal.windows)
# Every row has or needs none of these: dispatch reads them, or there is one way of saying them.
EVERYWHERE = {"layout", "device", "pin_memory", "dtype", "generator", "memory_format", "out", "non_blocking", "self", "input"}
# Overloads bear names of their own.
OVERLOAD = re.compile(r"_(scalar|tensor|dim|dims|str|x|mode|other|padding|data|with_indices|bins|p|tensors|copy|qparams|self)(?=_?$)")
# row: what PyTorch takes and it does not (-), or it takes and PyTorch does not (+), and the reason
DIFFERENT = {
    "cross_entropy": ("-reduce -size_average", "deprecated for reduction"),
    "multilabel_soft_margin_loss": ("-reduce -size_average", "deprecated for reduction"),
    "dropout1d": ("-inplace", "forms in place have names"),
    "dropout2d": ("-inplace", "forms in place have names"),
    "dropout3d": ("-inplace", "forms in place have names"),
    "histogramdd_bins": ("-range", "edges are given"),
    "linear_cross_entropy": ("-options", "of how much memory is used on the way"),
    "max_unpool1d": ("-kernel_size -stride -padding", "places of the result, as the rows of two and three dims"),
    "softmin": ("-_stacklevel", "of a warning"),
    "unique": ("+return_counts", "torch.unique has it"),
}
# Functions that are not here, and why.
WITHOUT = {
    r".*_with_indices": "the functions without that ending give indices, too",
    r"(handle|has)_torch_function.*|boolean_dispatch|assert_int_or_pair|Optional": "of Python",
    r"conv_tbc|native_channel_shuffle": "convolutions of other dims; channel_shuffle",
    r"scaled_.*mm_?": "8-bit floats, but scaled_dot_product_attention",
    r"(bartlett|blackman|cosine|general_cosine|general_hamming|hamming|hann|kaiser|nuttall)": "rows whose names end in _window",
}


def arguments_of(name):
    """Of each overload or function of a row's name: where it is, and its arguments."""
    base = OVERLOAD.sub("", name)
    for n in {name, base, "_" + name, "_" + base}:
        packet = getattr(torch.ops.aten, n, None)
        for overload in packet.overloads() if packet else ():
            if "out" not in overload.split("_"):
                yield f"aten.{n}.{overload}", {a.name for a in getattr(packet, overload)._schema.arguments}
    plain = re.sub("^(linalg|special)_", "", base)
    for place in PLACES:
        try:
            yield f"{place.__name__}.{plain}", set(inspect.signature(getattr(place, plain)).parameters)
        except (AttributeError, TypeError, ValueError):
            pass


def said(name, own):
    """What the likest of PyTorch's takes otherwise, in words."""
    best = None
    for _, theirs in arguments_of(name):
        lacks, more = theirs - EVERYWHERE - own, own - EVERYWHERE - theirs
        words = " ".join([f"-{n}" for n in sorted(lacks)] + [f"+{n}" for n in sorted(more)])
        if best is None or len(lacks) + len(more) < len(best.split()):
            best = words
    return best


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--ops", default="")
    options, _ = parser.parse_known_args()
    rows = Library(options.library).rows()
    patterns = options.ops.split(",") if options.ops else ["*"]
    wanted = sorted(n for n in rows if any(fnmatch.fnmatch(n, p) for p in patterns))
    wrong, alone = 0, []
    for name in wanted:
        words = said(name, {p.name for p in rows[name].params})
        if words is None:
            alone.append(name)
        elif set(words.split()) != set(DIFFERENT.get(name, ("", ""))[0].split()):
            wrong += 1
            print(f"{name}: {words or 'as PyTorch, and DIFFERENT says otherwise'}")
    with open(os.path.join(HERE, "../../docs/from-pytorch.md"), encoding="utf-8") as file:
        document = file.read()
    functions = 0
    for place in () if options.ops else (F, torch.linalg, torch.special, torch.signal.windows):
        prefix = {torch.linalg: "linalg_", torch.special: "special_"}.get(place, "")
        for name in dir(place):
            f = getattr(place, name)
            if name.startswith("_") or not callable(f) or inspect.isclass(f):
                continue
            functions += 1
            if prefix + name in rows or name in rows or re.search(rf"(?<!\w){re.escape(name)}(?!\w)", document):
                continue
            if not any(re.fullmatch(pattern, name) for pattern in WITHOUT):
                wrong += 1
                print(f"{place.__name__}.{name}: no row, and not in docs/from-pytorch.md")
    print(f"{len(wanted)} rows, {len(alone)} without a function of their name in PyTorch ({' '.join(alone)}); "
          f"{functions} public functions; {wrong} unsaid differences")
    return wrong != 0


if __name__ == "__main__":
    sys.exit(main())
