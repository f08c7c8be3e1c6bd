#!/usr/bin/env python3
"""kv_vectors.h: rows of keys and values as every type of kvl/kvtypes.def stores them, by numpy.

    python3 kv_vectors.py > kv_vectors.h

Written from the definitions in the papers and in ggml, not from kvlab's code.  Rows of q8_0 and q4_0 are compared with those
that gguf-py makes of the same numbers.  The numbers themselves are not in the table: number() makes them, here and in
test_kv_rows.c.  Wants numpy and gguf (pip install numpy gguf).
"""
import sys
import zlib

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import quantize

F = np.float32


def numbers(seed, n, shape):
    """n floats: whole numbers over 2^15, times what the shape says of their place."""
    x, out = seed, []
    for i in range(n):
        x = (x * 1103515245 + 12345) & 0x7FFFFFFF
        v = ((x >> 8 & 0xFFFF) - 0x8000) / 0x8000
        if shape == "even":
            pass
        elif shape == "small":  # scales that are subnormal halves
            v *= 2.0**-20
        elif shape == "large":
            v *= 2.0**11
        elif shape == "outlier":  # a channel of a key that stands out
            v *= 64.0 if i % 37 == 5 else 1.0
        elif shape == "one":
            v = 1.0 if i == 3 else 0.0
        elif shape == "zero":
            v = 0.0
        elif shape == "tie":  # half integers, and the largest size twice
            v = np.floor(v * 16) / 2 if i % 32 > 1 else (8.0 if i % 2 else -8.0)
        out.append(v)
    return np.array(out, F)


def half(x):
    return np.array([x], F).astype("<f2")


def q8_0(x):
    rows = b""
    for b in x.reshape(-1, 32):
        top = np.abs(b).max()
        d = F(top / F(127))
        scale = half(d)
        times = F(0) if scale[0] == 0 else F(F(1) / d)
        q = np.rint(F(b * times)).astype(np.int8)
        rows += scale.tobytes() + q.tobytes()
    return rows


def q4_0(x):
    rows = b""
    for b in x.reshape(-1, 32):
        far = b[np.argmax(np.abs(b))]
        d = F(far / F(-8))
        scale = half(d)
        times = F(0) if scale[0] == 0 else F(F(1) / d)
        q = np.minimum(15, np.trunc(F(F(b * times) + F(8.5)))).astype(np.uint8)
        rows += scale.tobytes() + (q[:16] | q[16:] << 4).tobytes()
    return rows


def bf16(x):
    bits = np.array([x], F).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")


E4M3 = np.array([(m / 8 * 2.0**-6) if e == 0 else (1 + m / 8) * 2.0 ** (e - 7) for e in range(16) for m in range(8)][:127])


def fp8_e4m3(x):
    scale = bf16(F(np.abs(x).max() / F(448)))
    d = (scale.astype(np.uint32) << 16).view(F)[0]
    codes = []
    for v in x:
        if d == 0:
            codes.append(0)
            continue
        y = F(v / d)
        far = np.abs(E4M3 - abs(float(y)))
        near = np.flatnonzero(far == far.min())
        code = near[0] if len(near) == 1 else near[near % 2 == 0][0]
        codes.append(int(code) | (0x80 if np.signbit(y) else 0))
    return scale.tobytes() + bytes(codes) + b"\0" * (len(x) % 2)


LEVELS = {
    4: [0.1283950, 0.3880483, 0.6567591, 0.9423405, 1.2562312, 1.6180464, 2.0690172, 2.7325896],
    3: [0.2450942, 0.7560053, 1.3439093, 2.1519457],
}


def turboquant(x, bits):
    up = np.array(LEVELS[bits], F)
    values = np.concatenate([-up[::-1], up])
    edges = F((up[:-1] + up[1:]) * F(0.5))
    norm = 0.0
    for v in x:
        norm += float(v) * float(v)
    times = F(1 / np.sqrt(norm / len(x))) if norm > 0 else F(0)
    total, stream = 0.0, 0
    for i, v in enumerate(x):
        y = F(v * times)
        level = int((np.abs(y) > edges).sum())
        code = len(up) - 1 - level if y < 0 else len(up) + level
        total += float(values[code]) ** 2
        stream |= code << (i * bits)
    return half(F(np.sqrt(norm / total))).tobytes() + stream.to_bytes(len(x) * bits // 8, "little")


def kivi_codes(x, bits):
    """Min, scale and codes of the last axis (KIVI, section 3.2; quant/new_pack.py of its code), all shapes but the last."""
    low = x.min(-1, keepdims=True)
    most = F(2**bits - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = F((x.max(-1, keepdims=True) - low) / most).astype("<f2")
        low = low.astype("<f2")
        q = F(F(x - low.astype(F)) / scale.astype(F))
    codes = np.where(scale > 0, np.rint(np.clip(np.nan_to_num(q), 0, most)), 0).astype(int)
    return low[..., 0], scale[..., 0], codes


def kivi_pack(codes, bits):
    stream = sum(int(c) << (i * bits) for i, c in enumerate(codes))
    return stream.to_bytes(len(codes) * bits // 8, "little")


def kivi(x, bits):
    """A value: channels of one token, 32 at a time."""
    low, scale, codes = kivi_codes(x.reshape(-1, 32), bits)
    return b"".join(low[u].tobytes() + scale[u].tobytes() + kivi_pack(codes[u], bits) for u in range(len(low)))


def kivi_group(x, bits):
    """Keys of 32 tokens, [32][n]: scales along the tokens, one for each channel."""
    low, scale, codes = kivi_codes(np.ascontiguousarray(x.T), bits)
    return low.tobytes() + scale.tobytes() + b"".join(kivi_pack(c, bits) for c in codes.T)


def read_kivi_group(row, n, bits):
    low, scale = (np.frombuffer(row[i * 2 * n:(i + 1) * 2 * n], "<f2").astype(F) for i in (0, 1))
    stream = int.from_bytes(row[4 * n:], "little")
    codes = np.array([stream >> (i * bits) & (1 << bits) - 1 for i in range(32 * n)], F).reshape(32, n)
    return F(low + F(scale * codes))


def signs(n):
    out = []
    for i in range(n):
        h = i + 1
        h = ((h ^ h >> 16) * 0x7FEB352D) & 0xFFFFFFFF
        h = ((h ^ h >> 15) * 0x846CA68B) & 0xFFFFFFFF
        out.append(-1 if h >> 16 & 1 else 1)
    return np.array(out, F)


def hadamard(x):
    piece = len(x) & -len(x)
    y = x.copy()
    step = 1
    while step < piece:
        z = y.reshape(-1, 2, step)
        y = F(np.stack([z[:, 0] + z[:, 1], z[:, 0] - z[:, 1]], 1)).reshape(-1)
        step *= 2
    power = piece.bit_length() - 1
    scale = F(2.0 ** -(power // 2)) * (F(0.70710678) if power % 2 else F(1))
    return F(y * scale)


def halves(row, at=0):
    return np.frombuffer(row[at:at + 2], "<f2").astype(F)[0]


def read_blocks(row, n, size, ints):
    out = [F(halves(row, b) * F(q)) for b in range(0, len(row), size) for q in ints(row[b + 2:b + size])]
    return np.array(out[:n], F)


def read(name, row, n):
    if name == "q8_0":
        return read_blocks(row, n, 34, lambda q: np.frombuffer(q, np.int8))
    if name == "q4_0":
        return read_blocks(row, n, 18, lambda q: [b % 16 - 8 for b in q] + [b // 16 - 8 for b in q])
    if name == "fp8_e4m3":
        d = (np.frombuffer(row[:2], "<u2").astype(np.uint32) << 16).view(F)[0]
        return np.array([d * F(-E4M3[q & 127] if q & 128 else E4M3[q & 127]) for q in row[2:2 + n]], F)
    bits = int(name[-1])
    if name.startswith("kivi"):
        size, out = 4 + 4 * bits, []
        for u in range(0, len(row), size):
            stream = int.from_bytes(row[u + 4:u + size], "little")
            out += [F(halves(row, u) + F(halves(row, u + 2) * F(stream >> (i * bits) & (1 << bits) - 1))) for i in range(32)]
        return np.array(out, F)
    up = np.array(LEVELS[bits], F)
    values = np.concatenate([-up[::-1], up])
    stream = int.from_bytes(row[2:], "little")
    return np.array([halves(row) * values[stream >> (i * bits) & (1 << bits) - 1] for i in range(n)], F)


TYPES = {
    "Q8_0": ("q8_0", q8_0, None),
    "Q4_0": ("q4_0", q4_0, None),
    "Q8_0_TURNED": ("q8_0", q8_0, "plain"),
    "Q4_0_TURNED": ("q4_0", q4_0, "plain"),
    "FP8_E4M3": ("fp8_e4m3", fp8_e4m3, None),
    "TURBOQUANT4": ("turboquant4", lambda x: turboquant(x, 4), "signed"),
    "TURBOQUANT3": ("turboquant3", lambda x: turboquant(x, 3), "signed"),
    "KIVI4": ("kivi4", lambda x: kivi(x, 4), None),
    "KIVI2": ("kivi2", lambda x: kivi(x, 2), None),
}
SHAPES = ["even", "small", "large", "outlier", "one", "zero", "tie"]


def ggml_agrees(name, x, row, shape):
    """gguf-py rounds halves away from zero, and keeps integers where the scale is zero as a half."""
    if name not in ("Q8_0", "Q4_0") or shape in ("tie", "zero", "small"):
        return
    theirs = quantize(x, GGMLQuantizationType[name]).tobytes()
    assert theirs == row, (name, shape)


def show(row):
    text = row.hex()
    for i in range(0, len(text), 90):
        print(f'      "{text[i:i + 90]}"' + (" }," if i + 90 >= len(text) else ""))


def groups():
    print("/* Keys of 32 tokens in groups; n numbers are 32 rows. */")
    print("static const struct kv_vector kv_groups[] = {")
    for bits in (4, 2):
        for n in (32, 64):
            for s, shape in enumerate(SHAPES):
                if n == 64 and shape not in ("even", "outlier"):
                    continue
                seed = n * 16 + s + 7
                x = numbers(seed, 32 * n, shape)
                row = kivi_group(x.reshape(32, n), bits)
                crc = zlib.crc32((read_kivi_group(row, n, bits) + F(0)).astype("<f4").tobytes())
                print(f"    {{ KVL_KV_KIVI{bits}, {32 * n}, {seed}, {s}, 0x{crc:08x}u,")
                show(row)
    print("};")


def main():
    print("/* Rows by numpy: kv_vectors.py prints this file. */")
    print("/* clang-format off */")
    print("static const struct kv_vector kv_vectors[] = {")
    for kind, (name, put, turn) in TYPES.items():
        for n in [32, 64, 96, 128] + ([33, 80] if name == "fp8_e4m3" else []):
            for s, shape in enumerate(SHAPES):
                seed = n * 16 + s
                x = numbers(seed, n, shape)
                y = x * signs(n) if turn == "signed" else x
                y = hadamard(y) if turn else y
                row = put(y)
                ggml_agrees(kind, x, row, shape)
                z = read(name, row, n)
                z = hadamard(z) if turn else z
                z = z * signs(n) if turn == "signed" else z
                crc = zlib.crc32((z + F(0)).astype("<f4").tobytes())
                print(f'    {{ KVL_KV_{kind}, {n}, {seed}, {s}, 0x{crc:08x}u,')
                show(row)
    print("};")
    groups()


if __name__ == "__main__":
    sys.exit(main())
