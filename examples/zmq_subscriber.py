"""Subscriber by ZeroMQ, from any process or, with a TCP endpoint, any machine.

    brim run                                # in another shell
    python -m examples.zmq_subscriber 'plant/+/temp'
    brim pub plant/press/temp 21.5

Each message carries the address of its record, (ring, epoch, offset), and the offset of the previous record
on its topic. So messages that ZeroMQ has dropped are detected; here they are counted as `gaps`.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import brim.asyncio


async def follow(topic_filter: str, count: int, runtime_dir: Path | None) -> None:
    """Print `count` messages as they arrive; 0: without end."""
    left = count or -1
    async with brim.asyncio.subscribe_zmq(topic_filter, runtime_dir=runtime_dir) as subscription:
        print("subscribed", flush=True)
        async for topic, header, payload in subscription:
            print(f"{topic} {header.ring} {header.offset} {payload.decode(errors='replace')}", flush=True)
            left -= 1
            if left == 0:
                break
        print(f"gaps: {subscription.gaps}")


def main() -> None:
    """Run until `--count` messages have arrived, or Ctrl-C."""
    parser = argparse.ArgumentParser(description="subscribe by ZeroMQ")
    parser.add_argument("filter", nargs="?", default="#", help="topic filter (%(default)s)")
    parser.add_argument("--count", type=int, default=0, help="end after so many messages; 0: never")
    parser.add_argument("--runtime-dir", type=Path, help="of the broker, if it is not the default")
    options = parser.parse_args()
    asyncio.run(follow(options.filter, options.count, options.runtime_dir))


if __name__ == "__main__":
    main()
