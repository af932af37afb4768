#!/usr/bin/env python3
"""What a checkpoint by PyTorch costs, of a state like the one that bench/disk.cc makes.

  torch_checkpoint.py torch|dcp|dcp_async PATH BYTES

torch      torch.save, then fsync of the file          torch.load, into new memory
dcp        torch.distributed.checkpoint.save           its load, into tensors that are there
dcp_async  torch.distributed.checkpoint.async_save     its load, into tensors that are there

Saves twice, because the first time pays for what is made once, and loads from the disk what was
saved last. Prints for the second save: seconds that the calling thread stood still, seconds until it
was on the disk (no directory is synced, by none of them); seconds of the load, which checks nothing;
bytes of tensors; and torch's version. Exit 3: there is no torch here.
"""
import os
import shutil
import sys
import time

try:
    import torch
    import torch.distributed.checkpoint as dcp
except ImportError as error:
    print(f"no torch in {sys.executable}: {error}", file=sys.stderr)
    sys.exit(3)

SMALL_COUNT, SMALL_BYTES, LARGE_BYTES = 1000, 3076, (64 << 20) + 1732


def state(about_bytes):
    sizes = [SMALL_BYTES] * SMALL_COUNT
    while sum(sizes) < about_bytes:
        sizes.append(LARGE_BYTES)
    return {f"tensor.{i}": torch.randint(0, 256, (n,), dtype=torch.uint8) for i, n in enumerate(sizes)}


def forget_cached(path):
    os.sync()
    files = [os.path.join(path, name) for name in os.listdir(path)] if os.path.isdir(path) else [path]
    for name in files:
        with open(name, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def remove(path):
    shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)


def save(kind, tensors, path):
    """Seconds that the call took, and until it was done."""
    begin = time.monotonic()
    if kind == "torch":
        with open(path, "wb") as file:
            torch.save(tensors, file)
            file.flush()
            os.fsync(file.fileno())
    elif kind == "dcp":
        dcp.save(tensors, checkpoint_id=path, no_dist=True)
    else:
        saving = dcp.async_save(tensors, checkpoint_id=path, no_dist=True)
        called = time.monotonic()
        saving.result()
        return called - begin, time.monotonic() - begin
    took = time.monotonic() - begin
    return took, took


def load(kind, tensors, path):
    for tensor in tensors.values():
        tensor.fill_(0)
    forget_cached(path)
    begin = time.monotonic()
    if kind == "torch":
        found = torch.load(path)
    else:
        dcp.load(tensors, checkpoint_id=path, no_dist=True)
        found = tensors
    return time.monotonic() - begin, found


def main():
    if len(sys.argv) != 4 or sys.argv[1] not in ("torch", "dcp", "dcp_async"):
        sys.exit(__doc__)
    kind, path, about_bytes = sys.argv[1], sys.argv[2], int(sys.argv[3])
    tensors = state(about_bytes)
    sums = {name: int(tensor.sum()) for name, tensor in tensors.items()}
    save(kind, tensors, path)
    remove(path)
    stall, durable = save(kind, tensors, path)
    seconds, found = load(kind, tensors, path)
    if {name: int(tensor.sum()) for name, tensor in found.items()} != sums:
        sys.exit(f"{kind}: what was loaded is not what was saved")
    print(stall, durable, seconds, sum(t.numel() for t in tensors.values()), torch.__version__)


main()
