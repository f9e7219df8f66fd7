"""Number of examples that Hypothesis makes: small in the default run, large in a campaign."""

import os

FACTOR = int(os.environ.get("BRIM_EXAMPLES", "1"))


def examples(count: int) -> int:
    """`count`, times BRIM_EXAMPLES: `BRIM_EXAMPLES=50 ./dev test tests/models` is a campaign."""
    return count * FACTOR
