#!/usr/bin/env python3
"""Rows of wtype_vectors.h: blocks of a type of weights and the floats that gguf-py makes of them.

    python3 wtype_vectors.py TYPE ...     prints rows of these types, to be put at the end of the table
    python3 wtype_vectors.py              compares every row of wtype_vectors.h with gguf-py

Of a type come three blocks of random bytes, and one of 0.1 + 2 cos(i) where gguf-py can quantise.  The bytes are the
same at every run.  Wants gguf (pip install gguf).
"""
import os
import random
import re
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize

HEADER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "wtype_vectors.h")


def floats(name, block):
    """The elements of one block."""
    with np.errstate(all="ignore"):
        return dequantize(np.frombuffer(block, np.uint8), GGMLQuantizationType[name]).ravel()


def bits(values):
    return "".join(f"{u:08x}" for u in values.astype(np.float32).view(np.uint32))


def random_block(name, rng):
    """Bytes whose scales are finite and of a usual size; a scale may be of either sign."""
    n_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[name]][1]
    while True:
        block = bytes(rng.randrange(256) for _ in range(n_bytes))
        largest = np.abs(floats(name, block)).max()
        if 1e-3 < largest < 1e3:
            return block


def blocks(name):
    rng = random.Random(name)
    found = [random_block(name, rng) for _ in range(3)]
    n = GGML_QUANT_SIZES[GGMLQuantizationType[name]][0]
    try:
        wave = (0.1 + 2 * np.cos(np.arange(n))).astype(np.float32)
        found.append(quantize(wave, GGMLQuantizationType[name]).tobytes())
    except NotImplementedError:
        pass
    return found


def literal(text, first):
    """A C string in pieces of at most 90 digits, the first of which follows a name."""
    pieces = [text[i:i + 90] for i in range(0, len(text), 90)]
    if len(pieces) == 1 and len(text) < first:
        return f' "{text}",\n'
    return "\n" + "\n".join(f'      "{p}"' for p in pieces) + ",\n"


def write(name):
    for block in blocks(name):
        text = literal(bits(floats(name, block)), 0)
        sys.stdout.write(f'    {{ "{name}",' + literal(block.hex(), 70) + text[1:-2] + " },\n")


def check():
    text = re.sub(r'"\s*\n\s*"', "", open(HEADER).read())
    rows = re.findall(r'{ "(\w+)",\s*"([0-9a-f]+)",\s*"([0-9a-f]+)" }', text)
    if not rows:
        sys.exit(f"{HEADER} has no rows")
    for name, block, want in rows:
        if bits(floats(name, bytes.fromhex(block))) != want:
            sys.exit(f"{name}: gguf-py makes other floats of {block}")
    print(f"{len(rows)} rows are as gguf-py has them")


if len(sys.argv) == 1:
    check()
for arg in sys.argv[1:]:
    write(arg)
