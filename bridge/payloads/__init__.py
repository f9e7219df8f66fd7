"""Payloads as typed columns, by a payload schema.

    schema.py           the file that declares formats by topic, and the columns of their fields
    decode.py           Arrow columns of a batch of payloads
    msgpack_columns.py  msgpack, by the compiled core
    formats.py          CBOR and Sparkplug B, by libraries
    rows.py             payloads one by one
    undecoded_text.py   values that do not fit, as text

Reads payloads and changes none. Shared by the Spark source and by SQL on the records of a broker.
"""
