# SPDX-License-Identifier: Apache-2.0
"""Just enough of the GGUF container to turn a good model file into a bad one.

Source of the layout: the GGUF specification (ggml's docs/gguf.md), version 3.
"""
import copy
import struct

FIXED = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY, U32 = 8, 9, 4
BLOCKS = {0: (1, 4), 1: (1, 2), 8: (32, 34), 20: (32, 18)}  # dtype: elements, bytes a block
ALIGNMENT = 32


class Tensor:
    def __init__(self, name, ne, dtype, data):
        self.name, self.ne, self.dtype, self.data = name, ne, dtype, data

    def n_bytes(self):
        n = 1
        for x in self.ne:
            n *= x
        n_block, n_bytes = BLOCKS[self.dtype]
        return n // n_block * n_bytes


class Gguf:
    def __init__(self):
        self.kv = []       # [key, type, bytes of the value]
        self.tensors = []

    @classmethod
    def read(cls, path):
        with open(path, "rb") as f:
            data = f.read()
        self = cls()
        at = 24

        def take(form):
            nonlocal at
            value, = struct.unpack_from("<" + form, data, at)
            at += struct.calcsize(form)
            return value

        def take_string():
            nonlocal at
            n = take("Q")
            at += n
            return data[at - n:at].decode()

        def skip(kind):
            nonlocal at
            if kind == STRING:
                take_string()
            elif kind == ARRAY:
                element, n = take("I"), take("Q")
                for _ in range(n):
                    skip(element)
            else:
                at += FIXED[kind]

        n_tensors, n_kv = struct.unpack_from("<QQ", data, 8)
        for _ in range(n_kv):
            key, kind = take_string(), take("I")
            start = at
            skip(kind)
            self.kv.append([key, kind, data[start:at]])
        rows = []
        for _ in range(n_tensors):
            name = take_string()
            ne = [take("Q") for _ in range(take("I"))]
            rows.append((name, ne, take("I"), take("Q")))
        base = -(-at // ALIGNMENT) * ALIGNMENT
        for name, ne, dtype, offset in rows:
            tensor = Tensor(name, ne, dtype, None)
            tensor.data = data[base + offset:base + offset + tensor.n_bytes()]
            self.tensors.append(tensor)
        return self

    def row(self, key):
        return next(row for row in self.kv if row[0] == key)

    def set_string(self, key, text):
        self.row(key)[1:] = [STRING, struct.pack("<Q", len(text)) + text.encode()]

    def set_u32(self, key, value):
        self.row(key)[1:] = [U32, struct.pack("<I", value)]

    def tensor(self, name):
        return next(t for t in self.tensors if t.name == name)

    def repeat_layers(self, n_layers):
        """Layers 1.. become copies of layer 0."""
        first = [t for t in self.tensors if t.name.startswith("blk.0.")]
        self.tensors = [t for t in self.tensors
                        if not t.name.startswith("blk.") or t.name.startswith("blk.0.")]
        for layer in range(1, n_layers):
            for tensor in first:
                twin = copy.copy(tensor)
                twin.ne = list(tensor.ne)
                twin.name = tensor.name.replace("blk.0.", f"blk.{layer}.", 1)
                self.tensors.append(twin)

    def write(self, path, sparse=False):
        """sparse: the tensors' bytes are a hole in the file."""
        def string(text):
            return struct.pack("<Q", len(text.encode())) + text.encode()

        out = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.kv))
        for key, kind, value in self.kv:
            out += string(key) + struct.pack("<I", kind) + value
        infos = []
        offset = 0
        for t in self.tensors:
            infos.append(string(t.name) + struct.pack("<I", len(t.ne))
                         + struct.pack(f"<{len(t.ne)}Q", *t.ne)
                         + struct.pack("<IQ", t.dtype, offset))
            offset += -(-t.n_bytes() // ALIGNMENT) * ALIGNMENT
        out += b"".join(infos)
        out += bytes(-len(out) % ALIGNMENT)
        with open(path, "wb") as f:
            f.write(out)
            if sparse:
                f.truncate(len(out) + offset)
                return
            for t in self.tensors:
                data = t.data[:t.n_bytes()]
                f.write(data + bytes(-len(data) % ALIGNMENT))
