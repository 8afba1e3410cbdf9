#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checksums of weights (weightd/sum.h), written a second time from their definition alone.

usage: sums.py > tests/data/ref/sums.txt
       sums.py --check FILE

A line is: secret's seed, data's seed, bytes, sum. A seed stands for the bytes that lcg() gives.
"""
import hashlib
import struct
import sys

UNITS = 65536
M64 = (1 << 64) - 1
M32 = (1 << 32) - 1

LENGTHS = list(range(0, 34)) + [47, 48, 49, 255, 256, 4079, 4080, 4095, 4096, 4097, 4112, 8191,
                                8192, 8193, 65535, 65536, 300001, (1 << 20) - 17, (1 << 20) - 1,
                                1 << 20]


def lcg(seed, n):
    out = bytearray(n)
    for i in range(n):
        seed = (seed * 1664525 + 1013904223) & M32
        out[i] = seed >> 24
    return bytes(out)


class Key:
    def __init__(self, secret):
        label = b"weightd sum v1\0\0"
        stream = b"".join(hashlib.sha256(label + secret + struct.pack("<I", i)).digest()
                          for i in range(UNITS // 2 + 1))
        self.q = struct.unpack_from("<Q", stream)[0] | 1
        self.units = list(struct.iter_unpack("<4I", stream[16:16 * (UNITS + 1)]))


def piece_sum(key, data):
    total = len(data) * key.q
    padded = data + bytes(-len(data) % 16)
    for w, k in zip(struct.iter_unpack("<4I", padded), key.units):
        v = [(a + b) & M32 for a, b in zip(w, k)]
        total += v[0] * v[1] + v[2] * v[3]
    return total & M64


def lines():
    for secret in (1, 2):
        key = Key(lcg(secret, 32))
        for n in LENGTHS if secret == 1 else LENGTHS[:40]:
            yield f"{secret} {n + 7} {n} {piece_sum(key, lcg(n + 7, n)):016x}\n"


def main():
    text = "".join(lines())
    if sys.argv[1:2] == ["--check"]:
        with open(sys.argv[2], encoding="ascii") as f:
            sys.exit(0 if f.read() == text else "the file is not what this program writes")
    sys.stdout.write(text)


main()
