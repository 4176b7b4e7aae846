"""Keep of the CUDA libraries in TREE only what an H100 or H200 (sm_90) runs; link faiss-gpu to CUDA 13's cuBLAS.

    for_hopper.py TREE

A container keeps its entries for sm_90, else its PTX; one with neither stays as it is. What is left is what nvprune
would leave: `cuobjdump --list-elf` reads it, and every cubin is the released one to the byte.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

SM, PTX, CUBIN = 90, 1, 2
MAGIC = struct.pack("<IHH", 0xBA55ED50, 1, 16)
FAISS = "faiss/libfaiss.so"
LIBRARIES = (
    FAISS,
    "torch/lib/libtorch_cuda.so",
    "torch/lib/libtorch_cuda_linalg.so",
    "nvidia/nccl/lib/libnccl.so.2",
    "vllm/_C_stable_libtorch.abi3.so",
    "vllm/_moe_C_stable_libtorch.abi3.so",
    "vllm/_flashmla_C.abi3.so",
)


def read_entries(data: bytes | bytearray, first: int, end: int) -> list[tuple[int, int, bytes]]:
    """Read kind, architecture and bytes of a container's entries."""
    entries = []
    while first < end:
        kind, _, header, payload = struct.unpack_from("<HHIQ", data, first)
        [architecture] = struct.unpack_from("<I", data, first + 28)
        entries.append((kind, architecture, bytes(data[first : first + header + payload])))
        first += header + payload
    return entries


def thin(data: bytearray) -> tuple[int, int]:
    """Blank in place what runs on other GPUs; returns the containers, and the bytes blanked."""
    first, n_containers, n_bytes = 0, 0, 0
    while (first := data.find(MAGIC, first)) >= 0:
        [size] = struct.unpack_from("<Q", data, first + 8)
        begin, end = first + 16, first + 16 + size
        if end > len(data):
            first += 4
            continue
        entries = read_entries(data, begin, end)
        kept = [entry for kind, architecture, entry in entries if (kind, architecture) == (CUBIN, SM)]
        kept = kept or [entry for kind, architecture, entry in entries if kind == PTX and architecture <= SM]
        if kept:
            left = sum(map(len, kept))
            data[begin:end] = b"".join(kept).ljust(size, b"\0")
            struct.pack_into("<Q", data, first + 8, left)
            n_bytes += size - left
        n_containers, first = n_containers + 1, end
    return n_containers, n_bytes


def elf_hash(name: bytes) -> bytes:
    """Hash a name as an ELF file's version table does."""
    value = 0
    for byte in name:
        value = (value << 4) + byte
        value = (value ^ (value & 0xF0000000) >> 24) & 0x0FFFFFFF
    return struct.pack("<I", value)


def link_to_cuda_13(data: bytes) -> bytes:
    """Let libfaiss.so ask for libcublas.so.13: it calls eight functions that both have, and 550 MiB need not travel."""
    old, new = b"libcublas.so.12", b"libcublas.so.13"
    for before, after in (
        (old + b"\0", new + b"\0"),
        (b"libcublasLt.so.12\0", b"libcublasLt.so.13\0"),
        (elf_hash(old), elf_hash(new)),
    ):
        if data.count(before) != 1:
            raise SystemExit(f"{before!r} stands {data.count(before)} times, not once: is it another faiss-gpu?")
        data = data.replace(before, after)
    return data


def main() -> None:
    """Rewrite the libraries of a tree."""
    tree = Path(sys.argv[1])
    for name in LIBRARIES:
        path = tree / name
        if not path.exists():
            continue
        data = bytearray(path.read_bytes())
        n_containers, n_bytes = thin(data)
        path.unlink()  # it may be a hard link
        path.write_bytes(link_to_cuda_13(bytes(data)) if name == FAISS else data)
        path.chmod(0o755)
        print(f"{path.name}: {n_containers} containers, {n_bytes / 2**20:.0f} MiB of code for other GPUs blanked")


if __name__ == "__main__":
    main()
