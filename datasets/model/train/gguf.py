"""GGUF version 3 files, little-endian: a writer, a reader of what it writes, and their order of rows."""
import struct

import numpy as np

U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
SCALARS = {U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}
TENSOR_F32, TENSOR_F16 = 0, 1
TENSOR_TYPES = {TENSOR_F32: np.float32, TENSOR_F16: np.float16}
ALIGNMENT = 32


def string(text):
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def scalar(kind, value):
    return string(value) if kind == STRING else struct.pack(SCALARS[kind], value)


def neighbouring_pairs(weight, n_heads):
    """Rows of q or k from rotary pairs (i, i + head_dim / 2) to (2 i, 2 i + 1)."""
    rows, columns = weight.shape
    half = rows // n_heads // 2
    return weight.reshape(n_heads, 2, half, columns).swapaxes(1, 2).reshape(rows, columns)


def halves(weight, n_heads):
    """The reverse of neighbouring_pairs."""
    rows, columns = weight.shape
    half = rows // n_heads // 2
    return weight.reshape(n_heads, half, 2, columns).swapaxes(1, 2).reshape(rows, columns)


class Writer:
    """Metadata and tensors of a file."""

    def __init__(self):
        self.metadata, self.tensors = [], []

    def set(self, key, kind, value):
        self.metadata.append(string(key) + struct.pack("<I", kind) + scalar(kind, value))

    def set_array(self, key, kind, values):
        self.metadata.append(string(key) + struct.pack("<IIQ", ARRAY, kind, len(values))
                             + b"".join(scalar(kind, value) for value in values))

    def add(self, name, array, kind):
        self.tensors.append((name, np.ascontiguousarray(array, TENSOR_TYPES[kind]), kind))

    def write(self, path):
        infos, data, offset = [], [], 0
        for name, array, kind in self.tensors:
            dims = array.shape[::-1]  # the fastest dimension comes first
            infos.append(string(name) + struct.pack("<I%dQIQ" % len(dims), len(dims), *dims,
                                                    kind, offset))
            raw = array.tobytes()
            raw += b"\0" * (-len(raw) % ALIGNMENT)
            data.append(raw)
            offset += len(raw)
        header = (b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.metadata))
                  + b"".join(self.metadata) + b"".join(infos))
        header += b"\0" * (-len(header) % ALIGNMENT)
        with open(path, "wb") as file:
            file.write(header + b"".join(data))


class Reader:
    """`metadata` {key: value} and `tensors` {name: float array} of a file with the kinds above."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.data, self.at = file.read(), 0
        magic, version, n_tensors, n_metadata = self._unpack("<4sIQQ")
        if magic != b"GGUF" or version != 3:
            raise SystemExit("%s is no GGUF file of version 3" % path)
        self.metadata = dict(self._entry() for _ in range(n_metadata))
        infos = [(self._string(), self._unpack("<%dQ" % self._unpack("<I")[0]),
                  *self._unpack("<IQ")) for _ in range(n_tensors)]
        start = self.at + -self.at % ALIGNMENT
        self.tensors = {}
        for name, dims, kind, offset in infos:
            if kind not in TENSOR_TYPES:
                raise SystemExit("%s: tensor %s is of type %d, want F32 or F16" % (path, name, kind))
            flat = np.frombuffer(self.data, TENSOR_TYPES[kind], int(np.prod(dims)), start + offset)
            self.tensors[name] = flat.reshape(dims[::-1]).astype(np.float32)

    def _unpack(self, layout):
        values = struct.unpack_from(layout, self.data, self.at)
        self.at += struct.calcsize(layout)
        return values

    def _string(self):
        size = self._unpack("<Q")[0]
        return self._unpack("%ds" % size)[0].decode("utf-8")

    def _entry(self):
        key, kind = self._string(), self._unpack("<I")[0]
        if kind != ARRAY:
            return key, self._value(kind)
        kind, n = self._unpack("<IQ")
        return key, [self._value(kind) for _ in range(n)]

    def _value(self, kind):
        return self._string() if kind == STRING else self._unpack(SCALARS[kind])[0]
