"""What a public model of RTX Blackwell's mma.sync computes for drawn tiles: a hash of D for each.

    python3 device/golden/record_block_scale.py > device/golden/data/block_scale.golden

mmasim 2.1.1 (PyPI, MIT; it needs torch) agrees bit for bit with cards, its authors say (arXiv
2511.10909). device/golden/block_scale_test.cpp draws the same tiles.
"""

import struct

import torch
from mmasim import nv_ptx

BITS = 0xFFFFFFFFFFFFFFFF
ELEMENTS = ("e2m1", "e2m3", "e3m2", "e4m3", "e5m2")
WIDTH = {"e2m1": 4, "e2m3": 6, "e3m2": 6, "e4m3": 8, "e5m2": 8}
MODES = 6


def special(element, code):
    """Whether a code is a NaN or infinite."""
    if element == "e4m3":
        return code & 0x7F == 0x7F
    return element == "e5m2" and code & 0x7C == 0x7C


class Draws:
    """splitmix64."""

    def __init__(self, seed):
        self.state = seed

    def __call__(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & BITS
        z = self.state
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & BITS
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & BITS
        return z ^ z >> 31


def draw_element(draws, element, mode):
    draw = draws()
    code = draw & ((1 << WIDTH[element]) - 1)
    if mode in (1, 5) and (draw >> 32) % 4 != 0:
        code = 0
    if special(element, code) and not (mode == 2 and (draw >> 32) % 64 == 0):
        code = 1
    return code


def draw_ue8m0(draws, mode, of_b):
    draw = draws()
    if mode == 2 and (draw >> 32) % 64 == 0:
        return 0xFF
    first, count = (
        (120, 16),
        (100, 60),
        (123, 8),
        (40, 70) if of_b else (0, 41),
        (195, 20) if of_b else (180, 20),
        (96, 24) if of_b else (0, 16),
    )[mode]
    return first + draw % count


def draw_ue4m3(draws, mode):
    draw = draws()
    code = draw & 0xFF
    if mode == 1 and (draw >> 32) % 2 == 0:
        code &= 0x80
    if mode in (3, 5):
        code &= 0x87
    if mode == 4:
        code |= 0x70
    if code & 0x7F == 0x7F and not (mode == 2 and (draw >> 32) % 4 == 0):
        code ^= 1
    return code


def draw_old(draws, d_type, mode):
    """The bits of a value of D before the product."""
    draw = draws()
    if mode == 5 or mode == 1 and (draw >> 40) % 2 == 0:
        return 0
    if d_type == "f16":
        first, count = ((11, 8), (6, 16), (0, 32), (0, 4), (26, 5))[mode]
        return draw & 0x83FF | (first + (draw >> 32) % count) << 10
    first, count = ((118, 24), (100, 50), (0, 256), (0, 20), (240, 15))[mode]
    return draw & 0x807FFFFF | (first + (draw >> 32) % count) << 23


def tensor_of(rows, element, packed):
    """Codes as the model takes them: e2m1 in bits 2 to 5, or two in a byte."""
    if packed:
        rows = [[row[i] << 4 | row[i + 1] for i in range(0, len(row), 2)] for row in rows]
    elif element == "e2m1":
        rows = [[code << 2 for code in row] for row in rows]
    bytes_ = torch.tensor(rows, dtype=torch.uint8)
    types = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
    return bytes_.view(types[element]) if element in types else bytes_


def hash_of(values):
    """FNV-1a of the words."""
    result = 0xCBF29CE484222325
    for word in values:
        result = ((result ^ word) * 0x100000001B3) & BITS
    return result


def product(kind, scales, a_type, b_type, d_type, mode, seed):
    """The hash of one tile. `scales` of a row of A and of B; 0: kind f8f6f4."""
    draws = Draws(seed)
    k = 64 if scales > 1 else 32
    a = [[draw_element(draws, a_type, mode) for _ in range(k)] for _ in range(16)]
    b = [[draw_element(draws, b_type, mode) for _ in range(k)] for _ in range(8)]

    def draw_scales(rows, of_b):
        return [
            [
                draw_ue4m3(draws, mode) if scales == 4 else draw_ue8m0(draws, mode, of_b)
                for _ in range(scales)
            ]
            for _ in range(rows)
        ]

    scales_a, scales_b = draw_scales(16, False), draw_scales(8, True)
    old = [draw_old(draws, d_type, mode) for _ in range(128)]
    letter, integers, floats = {
        "f32": ("i", torch.int32, torch.float32),
        "f16": ("h", torch.int16, torch.float16),
    }[d_type]
    words = struct.unpack(f"128{letter}", struct.pack(f"128{letter.upper()}", *old))
    c = torch.tensor(words, dtype=integers)
    operands = [
        tensor_of(a, a_type, k == 64),
        tensor_of(b, b_type, k == 64).T,
        c.view(floats).view(16, 8),
    ]
    shape = f"m16n8k{k}.kind::{kind}"
    if scales == 0:
        model = nv_ptx.MMA("RTX Blackwell", f"{shape}.{d_type}.{a_type}.{b_type}.{d_type}")
    else:
        scale_type = "ue4m3" if scales == 4 else "ue8m0"
        model = nv_ptx.MMABlockScale(
            "RTX Blackwell",
            f"{shape}.block{k // scales}.f32.{a_type}.{b_type}.f32.{scale_type}",
        )
        as_type = torch.float8_e4m3fn if scales == 4 else torch.float8_e8m0fnu
        operands += [
            torch.tensor(scales_a, dtype=torch.uint8).view(as_type),
            torch.tensor(scales_b, dtype=torch.uint8).view(as_type).T,
        ]
    d = model(*operands).reshape(-1).view(integers)
    mask = 0xFFFF if d_type == "f16" else 0xFFFFFFFF
    return hash_of(word & mask for word in d.tolist())


def main():
    """Prints a line a tile."""
    pairs = [(a, b) for a in ELEMENTS for b in ELEMENTS]
    forms = [
        (kind, scales, a, b, "f32")
        for kind, scales in (("f8f6f4", 0), ("mxf8f6f4", 1))
        for a, b in pairs
    ]
    forms += [("mxf4nvf4", scales, "e2m1", "e2m1", "f32") for scales in (2, 4) for _ in range(6)]
    forms += [("f8f6f4", 0, a, b, "f16") for a, b in pairs]
    seed = 0
    for kind, scales, a, b, d in forms:
        for mode in range(MODES):
            seed += 1
            print(scales, a, b, d, mode, seed, f"{product(kind, scales, a, b, d, mode, seed):016x}")


if __name__ == "__main__":
    main()
