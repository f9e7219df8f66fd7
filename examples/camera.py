"""A camera: a process with a ring of its own, whose frames are drawn where they will be read.

    brim run                                # in another shell
    python -m examples.camera --frames 300
    brim sub --shm 'frames/#'               # in a third

claim() gives room in shared memory; the frame is made in it, by NumPy here, by a driver's DMA or readinto()
in real life; leaving the block publishes it.  No byte of a frame is copied, however many processes look at
it.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge.local_client import producer

HEIGHT, WIDTH = 480, 640


def draw(picture: NDArray[np.uint8], number: int) -> None:
    """A bright column that wanders to the right, on grey."""
    picture[:] = 64
    left = number * 8 % (WIDTH - 32)
    picture[:, left : left + 32] = 255


def main() -> None:
    """Publish frames."""
    parser = argparse.ArgumentParser(description="publish camera frames without copying them")
    parser.add_argument("--frames", type=int, default=300, help="how many (%(default)s)")
    parser.add_argument("--per-second", type=float, default=30.0, help="how fast (%(default)s)")
    parser.add_argument("--runtime-dir", type=Path, help="of the broker, if it is not the default")
    options = parser.parse_args()
    published = 0
    with producer("camera", runtime_dir=options.runtime_dir) as ring:
        for number in range(options.frames):
            claim = ring.claim(HEIGHT * WIDTH, key="frames/camera")
            if not claim:
                print("the ring is full: a reader that was promised every frame has stopped")
                break
            with claim:
                draw(np.frombuffer(memoryview(claim), np.uint8).reshape(HEIGHT, WIDTH), number)
            published += 1
            time.sleep(1 / options.per_second)
    print(f"published {published} frames of {WIDTH} x {HEIGHT}")


if __name__ == "__main__":
    main()
