"""Camera: a process with its own ring that draws frames directly in shared memory.

    brim run                                # in another shell
    python -m examples.camera --frames 300
    brim sub --shm 'frames/#'               # in a third

claim() returns a region of shared memory. The frame is drawn in it, here by NumPy; in a real camera by a
driver's DMA or readinto(). The end of the block publishes it. No byte of a frame is copied, for any number of
readers.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import brim

HEIGHT, WIDTH = 480, 640


def draw(picture: NDArray[np.uint8], number: int) -> None:
    """Draw a bright column on grey that moves to the right."""
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
    with brim.producer("camera", runtime_dir=options.runtime_dir) as ring:
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
