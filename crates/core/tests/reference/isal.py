"""The same code by ISA-L: reads `k m bytes` and the data in hex, prints the matrix of the parities and the parities.

Exit code 77 when there is no libisal."""

import ctypes
import sys

try:
    isal = ctypes.CDLL("libisal.so.2")
except OSError as error:
    print(error)
    sys.exit(77)
isal.gf_mul.restype = isal.gf_inv.restype = ctypes.c_ubyte

for line in sys.stdin:
    k, m, size, text = line.split()
    k, m, size = int(k), int(m), int(size)
    cauchy = (ctypes.c_ubyte * (k * (k + m)))()
    isal.gf_gen_cauchy1_matrix(cauchy, k + m, k)
    rows = cauchy[k * k :]
    scale = [isal.gf_inv(rows[j]) for j in range(k)]
    matrix = (ctypes.c_ubyte * (k * m))(*[isal.gf_mul(rows[p * k + j], scale[j]) for p in range(m) for j in range(k)])
    tables = (ctypes.c_ubyte * (32 * k * m))()
    isal.ec_init_tables(k, m, matrix, tables)
    raw = bytes.fromhex(text)
    data = [ctypes.create_string_buffer(raw[j * size : (j + 1) * size], size) for j in range(k)]
    parity = [ctypes.create_string_buffer(size) for _ in range(m)]
    pointers = lambda blocks: (ctypes.c_void_p * len(blocks))(*map(ctypes.addressof, blocks))
    isal.ec_encode_data(size, k, m, tables, pointers(data), pointers(parity))
    print(bytes(matrix).hex(), b"".join(block.raw for block in parity).hex())
