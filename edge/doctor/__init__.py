"""Doctor: checks of the machine, the files and the network that a broker needs, each with a remedy.

    findings.py       Finding: a check with its value, its limit and the fix
    machine.py        kernel, limits, shared memory, clock, packages
    files.py          directories, leftovers, certificates
    connections.py    ports, targets of bridges, the running broker

Reads only, and works with and without a running broker.
"""
