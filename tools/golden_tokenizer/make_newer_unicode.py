#!/usr/bin/env python3
"""Print the ranges of src/tokenizer/newer_unicode.c: characters whose general category is another one in the
reference (the PyPI package `tokenizers`, Unicode 16) than in Unicode 14 (Python 3.11's and PCRE2 10.42's tables).

The reference is asked through its own regular expressions, one category at a time.
Run: python make_newer_unicode.py
"""
import unicodedata

from tokenizers import Regex, pre_tokenizers

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co".split()
BLOCK = 4096


def reference_categories():
    """code point -> category in the reference; unassigned ones are left out."""
    chars = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    found = {}
    for category in CATEGORIES:
        splitter = pre_tokenizers.Split(Regex(r"\p{%s}" % category), "removed")
        for i in range(0, len(chars), BLOCK):
            block = chars[i:i + BLOCK]
            kept = set()
            for _, (start, end) in splitter.pre_tokenize_str("".join(map(chr, block))):
                kept.update(range(start, end))
            found.update((c, category) for n, c in enumerate(block) if n not in kept)
    return found


def ranges():
    out = []
    for c, category in sorted(reference_categories().items()):
        if category == unicodedata.category(chr(c)):
            continue
        if out and out[-1][1] == c - 1 and out[-1][2] == category:
            out[-1][1] = c
        else:
            out.append([c, c, category])
    return out


if __name__ == "__main__":
    assert unicodedata.unidata_version == "14.0.0", "run with Python 3.11"
    cells = [f"{{0x{first:05x}, 0x{last:05x}, {category.upper()}}}," for first, last, category in ranges()]
    for i in range(0, len(cells), 3):
        print("    " + " ".join(cells[i:i + 3]))
