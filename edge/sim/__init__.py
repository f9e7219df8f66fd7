"""Simulated devices for `brim sim`: a plan in TOML, values that drift, faults, and one client per device.

    plan.py      the file: devices, messages, values, faults; every mistake with its line
    device.py    one device: its values, its messages, its connection
    fleet.py     all devices of a plan, and what they have done

Python clients: for the rates of devices, not for those of a benchmark (edge/load has a generator in C).
"""
