"""Consumer group: members share the readings, and acknowledge each one after they have processed it.

Start the broker with `brim run`, start this program twice or more with different names, and publish:

    python examples/consumer_group.py ann
    python examples/consumer_group.py bob
    brim pub plant/1/temp -m 21.5

Kill a member: the other gets the readings that it had not acknowledged. `brim consumers lag` shows the
progress.
"""

import argparse
import asyncio
from pathlib import Path

import brim.asyncio


async def main() -> None:
    """Run until stopped, or after --count readings."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", default="ann")
    parser.add_argument("--count", type=int, help="end after so many readings")
    parser.add_argument("--runtime-dir", type=Path, help="of the broker")
    arguments = parser.parse_args()
    group = brim.asyncio.consumer(
        "readings", "plant/+/temp", start="oldest", name=arguments.name, runtime_dir=arguments.runtime_dir
    )
    seen = 0
    async with group as readings:
        async for batch in readings:
            for record in batch:
                print(f"{arguments.name}: {record.key.decode()} {bytes(record).decode()}", flush=True)
            await readings.ack(batch)  # not earlier: a batch without acknowledgement is delivered again
            seen += len(batch)
            if arguments.count is not None and seen >= arguments.count:
                return


if __name__ == "__main__":
    asyncio.run(main())
