#!/usr/bin/env python3
"""Writes letter_tables.h: what Python's str knows of letters, as ranges.

    python3 datasets/files/letter_tables.py > datasets/files/letter_tables.h

The official scorers are Python, so that upper and lower case, digits and words are those of its Unicode (the version
stands in the file's head).  With --check it prints what tests/unit/test_letters.c compares with.
"""
import re
import sys
import unicodedata
import zlib

POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def ranges(wanted):
    """[first, last] of runs of code points."""
    out = []
    for c in POINTS:
        if not wanted(c):
            continue
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def cases(other):
    """[first, last, step, change] of code points whose other case is one code point."""
    out = []
    for c in POINTS:
        to = other(chr(c))
        if len(to) != 1 or ord(to) == c:
            continue
        change = ord(to) - c
        last = out[-1] if out else None
        if last and last[3] == change and (c - last[1] == last[2] or (last[0] == last[1] and c - last[1] <= 2)):
            last[2] = c - last[1]
            last[1] = c
        else:
            out.append([c, c, 1, change])
    return out


def specials(other):
    """Code points whose other case is several."""
    for c in POINTS:
        to = other(chr(c))
        if len(to) > 1:
            yield [c] + [ord(x) for x in to] + [0] * (3 - len(to))


def is_cased(c):
    """Whether a capital sigma before it is not the last letter of a word."""
    return ("a\u03a3" + chr(c)).lower()[1] == "\u03c3"


def is_ignorable(c):
    """Whether it is looked past there."""
    return not is_cased(c) and ("a\u03a3" + chr(c) + "a").lower()[1] == "\u03c3"


def rows(name, width, items):
    print("static const int32_t letter_%s[][%d] = {" % (name, width))
    line = ""
    for item in items:
        text = "{ %s }," % ", ".join("0x%x" % x if x >= 0 else "-0x%x" % -x for x in item)
        if line and len(line) + 1 + len(text) > 100:
            print(line)
            line = ""
        line += (" " if line else "") + text
    print(line)
    print("};")


def check():
    """What tests/unit/test_letters.c wants of all code points."""
    def crc(name, text):
        print("%s 0x%08x" % (name, zlib.crc32("".join(text(chr(c)) for c in POINTS).encode())))
    crc("lower", lambda c: ("x" + c + " ").lower())
    crc("upper", lambda c: ("x" + c + " ").upper())
    crc("sigma before", lambda c: ("a\u03a3" + c + "b ").lower())
    crc("sigma behind", lambda c: ("a" + c + "\u03a3 ").lower())
    crc("sigma at the end", lambda c: ("a\u03a3" + c).lower() + "\n")
    crc("word", lambda c: "1" if re.match(r"\w", c) else "0")
    crc("digit", lambda c: "1" if re.match(r"\d", c) else "0")
    crc("space", lambda c: "1" if c.isspace() else "0")


def write():
    print("/* Written by letter_tables.py: Python's str, Unicode %s. */" % unicodedata.unidata_version)
    print("/* clang-format off */")
    print("#ifndef KVL_LETTER_TABLES_H\n#define KVL_LETTER_TABLES_H\n\n#include <stdint.h>\n")
    print("/* First, last, step, change. */")
    rows("lower", 4, cases(str.lower))
    rows("upper", 4, cases(str.upper))
    print("/* A code point and what it becomes, 0 behind that. */")
    rows("upper_more", 4, specials(str.upper))
    print("/* First, last. */")
    rows("cased", 2, ranges(is_cased))
    rows("ignorable", 2, ranges(is_ignorable))
    rows("word", 2, ranges(lambda c: re.match(r"\w", chr(c))))
    rows("digit", 2, ranges(lambda c: re.match(r"\d", chr(c))))
    print("\n#endif")


if sys.argv[1:] == ["--check"]:
    check()
else:
    write()
