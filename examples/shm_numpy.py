"""Subscriber that computes on payloads in the memory of the broker.

    brim run                                # in another shell
    python -m examples.shm_numpy 'plant/#'
    python -c "import struct, sys; sys.stdout.buffer.write(struct.pack('<4d', 1, 2, 3, 4))" |
        mosquitto_pub -t plant/press/7/vibration -s

Payloads are arrays of little-endian doubles. A record's payload begins at a multiple of 8, so NumPy views it
without a copy. The broker may overwrite the memory: record.valid() returns True if it still held the record
after use.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import brim


def main() -> None:
    """Print the mean and the maximum of each array."""
    parser = argparse.ArgumentParser(description="view payloads as NumPy arrays, without a copy")
    parser.add_argument("filter", nargs="?", default="#", help="topic filter (%(default)s)")
    parser.add_argument("--count", type=int, default=0, help="end after so many records; 0: never")
    parser.add_argument("--oldest", action="store_true", help="begin with the oldest record in memory")
    parser.add_argument("--runtime-dir", type=Path, help="of the broker, if it is not the default")
    options = parser.parse_args()
    left = options.count or -1
    start: brim.Start = "oldest" if options.oldest else "latest"
    with brim.subscribe(options.filter, runtime_dir=options.runtime_dir, start=start) as subscription:
        print("subscribed", flush=True)
        for batch in subscription:
            for record in batch:
                topic, payload = record.key.decode(), memoryview(record)  # the broker's memory
                if not payload.nbytes or payload.nbytes % 8:
                    print(f"{topic} offset={record.offset}: {payload.nbytes} bytes are no doubles")
                    continue
                values = np.frombuffer(payload, np.dtype("<f8"))
                mean, greatest = values.mean(), values.max()
                if not record.valid():
                    print("overwritten while it was used: read faster, or use blocks_writer=True")
                    continue
                print(
                    f"{topic} offset={record.offset} n={len(values)} mean={mean:.3f} greatest={greatest:.3f}"
                )
                left -= 1
                if left == 0:
                    return


if __name__ == "__main__":
    main()
