#!/usr/bin/env python3
"""Compares tokenizers with Hugging Face's on random texts of Unicode: tokens.py TOKEN_RUN [TEXTS [SEED]].

Vocabularies are small ones that are trained here on such texts, from a seed. Characters are those of Unicode 8: that is
what the other side's tables know of marks and punctuation. Needs tokenizers, and utf8proc for the program."""

import json
import os
import random
import subprocess
import sys
import tempfile
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
RANGES = [(0x20, 0x7E), (0x20, 0x7E), (0x20, 0x7E), (0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x45F),
          (0x5D0, 0x5EA), (0x621, 0x652), (0x904, 0x939), (0x93E, 0x94D), (0xE01, 0xE4E), (0x1E00, 0x1EFF),
          (0x2000, 0x206F), (0x2070, 0x20BF), (0x2100, 0x218B), (0x2200, 0x22FF), (0x2600, 0x26FF), (0x3000, 0x303F),
          (0x3041, 0x30FF), (0x4E00, 0x4E80), (0xAC00, 0xAC80), (0xF900, 0xF920), (0xFB00, 0xFB06), (0xFF01, 0xFF5E),
          (0x1D400, 0x1D454), (0x1F300, 0x1F5FF), (0x20000, 0x20020), (0xE000, 0xE010)]
ODD = ["\t", "\n", "\r\n", "\r", "\x0b", "\x0c", "\x01", "\x7f", "\x85", "\u200b", "\u200d", "\ufeff", "\ufffd", "\u2028",
       "\u0130", "\u03a3", "\u017f", "'s", "'LL", "'re", "n't", "do not", "don't", " ", "  ", "   \n  ", "1234567", "\u00bd",
       "\u0660", "\u2163", "[MASK]", "[SEP]", "[sep]", "<|endoftext|>", "new token", "NEW TOKEN", "\u1100\u1161\u11a8"]
WORDS = ("the model replays recorded graphs faster than before unwanted running Naive cafe resume uber test 42 3.14 "
         "hello, world! don't can't it's they've I'll we're Replace me by any text you'd like.").split(" ")


def known(c):
    """Assigned, no surrogate."""
    return unicodedata.category(chr(c)) not in ("Cn", "Cs")


def random_text(r):
    parts = []
    for _ in range(r.randint(0, 25)):
        kind = r.random()
        if kind < 0.4:
            parts.append(r.choice(WORDS))
        elif kind < 0.55:
            parts.append(r.choice(ODD))
        else:
            low, high = r.choice(RANGES)
            word = [c for c in (r.randint(low, high) for _ in range(r.randint(1, 8))) if known(c)]
            parts.append("".join(map(chr, word)))
        if r.random() < 0.6:
            parts.append(" ")
    if r.random() < 0.02:
        parts.append("x" * r.randint(90, 110))
    return "".join(parts)


def wordpiece(texts, folder, lower):
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(lowercase=lower)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    t.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=600, special_tokens=SPECIAL, show_progress=False))
    cls, sep = t.token_to_id("[CLS]"), t.token_to_id("[SEP]")
    t.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
                                                     special_tokens=[("[CLS]", cls), ("[SEP]", sep)])
    names = [n for n, _ in sorted(t.get_vocab().items(), key=lambda item: item[1])]
    path = os.path.join(folder, "vocab.txt")
    with open(path, "w", encoding="utf-8", newline="") as f:
        f.write("".join(n + "\n" for n in names))
    return t, path


def byte_level(texts, folder, llama3, space):
    t = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=not llama3)
    t.pre_tokenizer = (pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated", invert=False), level])
                       if llama3 else level)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=700, special_tokens=["<|endoftext|>"], show_progress=False,
                                                     initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.model.save(folder)
    return t, [os.path.join(folder, "vocab.json"), os.path.join(folder, "merges.txt")]


def cases(r, count):
    for _ in range(count):
        pair = random_text(r) if r.random() < 0.3 else None
        most = r.choice([0, 0, 0, r.randint(4, 30)])
        yield random_text(r), pair, most, r.choice([0, 0, 1, 2] if pair is not None else [0]), r.random() < 0.8


def expected(t, case):
    text, pair, most, how, special = case
    t.no_truncation()
    if most:
        t.enable_truncation(most, strategy=("longest_first", "only_first", "only_second")[how])
    try:
        e = t.encode(text, pair, add_special_tokens=special)
    except Exception as fault:  # a text that is too short for what has to go
        return str(fault)
    return e.ids, e.type_ids, t.decode(e.ids, skip_special_tokens=False), t.decode(e.ids, skip_special_tokens=True)


def compare(program, name, arguments, t, r, count):
    wanted, lines = [], []
    for case in cases(r, count):
        want = expected(t, case)
        if isinstance(want, str):
            continue
        wanted.append((case, want))
        text, pair, most, how, special = case
        lines.append(f"{most} {how} {int(special)} {text.encode().hex() or '-'} "
                     f"{'-' if pair is None else pair.encode().hex() or '20'}")
        if pair == "":
            wanted.pop(), lines.pop()
    run = subprocess.run([program, *arguments], input="\n".join(lines) + "\n", capture_output=True, text=True)
    got = run.stdout.splitlines()
    failures = abs(len(got) - len(wanted))
    if run.returncode or failures:
        print(f"{name}: exit code {run.returncode}, {len(got)} of {len(wanted)} lines: {run.stderr[:300]}")
    for line, (case, want) in zip(got, wanted):
        ids, types, decoded, skipped = line.split("|")
        have = (list(map(int, ids.split())), list(map(int, types.split())),
                bytes.fromhex(decoded).decode(errors="replace"), bytes.fromhex(skipped).decode(errors="replace"))
        if have != want:
            failures += 1
            if failures <= 5:
                print(f"{name}: {ascii(case)}")
                for h, w in zip(have, want):
                    if h != w:
                        print(f"    ours   {ascii(h)}\n    theirs {ascii(w)}")
    print(f"{name}: {len(wanted)} texts and pairs, {failures} differ", flush=True)
    return failures


def main():
    program, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 4000
    r = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
    texts = [random_text(r) for _ in range(1500)]
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        whole = os.path.join(folder, "tokenizer.json")
        for lower in (True, False):
            t, path = wordpiece(texts, folder, lower)
            t.add_special_tokens(SPECIAL)
            failures += compare(program, f"vocab.txt, {'small' if lower else 'cased'}", ["wordpiece", path] + [] * lower +
                                ["cased"] * (not lower), t, r, count)
            t.add_tokens([AddedToken("new token", single_word=True), AddedToken("don't", normalized=True)])
            t.add_special_tokens([AddedToken("[MASK2]", lstrip=True), AddedToken("hello", rstrip=True)])
            t.no_truncation()
            t.save(whole)
            failures += compare(program, f"tokenizer.json, WordPiece, {'small' if lower else 'cased'}", ["open", whole], t, r,
                                count)
        for llama3 in (False, True):
            for space in (False,) if llama3 else (False, True):
                t, paths = byte_level(texts, folder, llama3, space)
                t.add_special_tokens(["<|endoftext|>"])
                if not llama3:
                    failures += compare(program, f"vocab.json and merges.txt{', blank in front' * space}",
                                        ["bpe", *paths] + ["space"] * space, t, r, count)
                t.no_truncation()
                t.save(whole)
                failures += compare(program, f"tokenizer.json, byte-level BPE{' of Llama 3' * llama3}", ["open", whole], t, r,
                                    count)
                with open(whole, encoding="utf-8") as f:
                    document = json.load(f)
                document["model"]["merges"] = [" ".join(m) if isinstance(m, list) else m.split(" ")
                                               for m in document["model"]["merges"]]
                document["model"]["ignore_merges"] = True
                with open(whole, "w", encoding="utf-8") as f:
                    json.dump(document, f)
                failures += compare(program, "the same, other merges, whole words first", ["open", whole],
                                    Tokenizer.from_file(whole), r, count)
    print(f"{failures} failures")
    return failures != 0


if __name__ == "__main__":
    sys.exit(main())
