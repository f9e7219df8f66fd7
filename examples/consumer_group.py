"""A consumer group: readings are shared out among members, and each is acknowledged when it is dealt with.

Start the broker with `brim run`, this program twice or more, each with a name of its own, and publish:

    python examples/consumer_group.py ann
    python examples/consumer_group.py bob
    brim pub plant/1/temp -m 21.5

Kill one of them: what it had not acknowledged goes to the other.  `brim consumers lag` shows who is where.
"""

import argparse
import asyncio
from pathlib import Path

from edge.consumers.client import consumer


async def main() -> None:
    """Until it is stopped, or has seen --count readings."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", default="ann")
    parser.add_argument("--count", type=int, help="end after so many readings")
    parser.add_argument("--runtime-dir", type=Path, help="of the broker")
    arguments = parser.parse_args()
    group = consumer(
        "readings", "plant/+/temp", start="oldest", name=arguments.name, runtime_dir=arguments.runtime_dir
    )
    seen = 0
    async with group as readings:
        async for batch in readings:
            for record in batch:
                print(f"{arguments.name}: {record.key.decode()} {bytes(record).decode()}", flush=True)
            await readings.ack(batch)  # not before: what is not acknowledged comes again
            seen += len(batch)
            if arguments.count is not None and seen >= arguments.count:
                return


if __name__ == "__main__":
    asyncio.run(main())
