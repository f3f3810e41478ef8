#!/usr/bin/env python3
"""Write the character classes that uncased BERT tokenisers use as ranges.

    make_unicode_tables.py > ../src/tokenizer/tables.rs

The classes are asked of PyPI's tokenizers, character by character: its tables are those
of an older Unicode than Python's, and a model was trained with what it does.
"""

import unicodedata

from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

normalizer, splitter = BertNormalizer(lowercase=True), BertPreTokenizer()


def dropped(c):
    return unicodedata.normalize("NFD", c) == c and normalizer.normalize_str(f"a{c}b") == "ab"


def punctuation(c):
    return len(splitter.pre_tokenize_str(f"a{c}b")) == 3


print("//! Character classes as PyPI's tokenizers 0.23.3 has them, inclusive ranges in order.")
print("//! Written by make/make_unicode_tables.py.\n")
CLASSES = [
    ("PUNCTUATION", "Outside ASCII: set apart.", punctuation),
    ("DROPPED", "Outside ASCII, after decomposition: accents, controls and formats that vanish.", dropped),
]
for name, doc, test in CLASSES:
    ranges, start = [], None
    for code in range(0x80, 0x110001):
        surrogate = 0xD800 <= code <= 0xDFFF
        inside = code < 0x110000 and not surrogate and test(chr(code))
        if inside and start is None:
            start = code
        if not inside and start is not None:
            ranges.append((start, code - 1))
            start = None
    print(f"/// {doc}\n#[rustfmt::skip]\npub(super) static {name}: [(u32, u32); {len(ranges)}] = [")
    for i in range(0, len(ranges), 6):
        print("    " + " ".join(f"(0x{a:x}, 0x{b:x})," for a, b in ranges[i : i + 6]))
    print("];\n" if name != CLASSES[-1][0] else "];")
