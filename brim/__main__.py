"""`python -m brim` is `brim`."""

import sys

from brim._command import main

sys.exit(main())
