"""Long proofs of what the log keeps, with progress and a ledger: `./dev simulate`.

What they do in minutes the tests do in seconds, with the same code.
"""
