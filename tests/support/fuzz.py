"""Fuzzing: of the C core by libFuzzer, under AddressSanitizer and UndefinedBehaviorSanitizer, and of Python.

    python -m tests.support.fuzz [TARGET ...] [--minutes 12]     # `./dev fuzz` is the same

The target `control` is Python (tests/support/fuzz_control.py).  The others need clang: tests/c/fuzz_*.c; each
has its corpus in tests/c/corpus, one input a line, in hexadecimal, and besides what SEEDS says.  A run begins
with both, and ends by adding to the corpus what reached something new.  What a target finds is written to
the current directory, and the status is 1.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random

import msgpack

from edge.mqtt import Publish, Version
from edge.mqtt import encode as encode_packet
from persistence.segment.format import pack_extent
from ringbuf.record import encode
from tests.support.c_programs import FAILING, MQTT, SCAN, TABLE, UNPACK, compiled
from tests.support.fuzz_control import campaign
from tests.support.mqtt_vectors import vectors
from tests.support.project import ROOT

C = ROOT / "tests" / "c"
CORPUS = C / "corpus"
CONTROL = "control"
TARGETS = tuple(sorted(it.stem.removeprefix("fuzz_") for it in C.glob("fuzz_*.c")))
FLAGS = ("-O1", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=undefined")
LINK_FLAGS_OF = {"acks": FAILING, "table": FAILING, "topics": FAILING}
INPUT_BYTES_MAX = 4096


FILTERS = (
    "a",
    "a/b",
    "/",
    "#",
    "+",
    "a/#",
    "a/+",
    "+/b",
    "+/+",
    "/+",
    "+/#",
    "a/+/c",
    "$SYS/#",
    "$SYS/+",
    "a//c",
)
NAMES = ("a", "a/", "/", "a/b", "/b", "a/b/c", "$SYS", "$SYS/x", "a//c")


def _seeds_of_topics() -> list[bytes]:
    """Filters with names; and changes of the table and of the tree, where each allocation fails once."""
    random = Random(8)
    pairs = [f"\0{f}\0{name}".encode() for f in FILTERS for name in NAMES]
    failing = [
        bytes((kind,))
        + b"".join(
            bytes((verb << 5 | 9, random.randrange(256), random.randrange(kind + 1)))[:size]
            for verb in range(8)
            for _ in range(9)
        )
        for kind, size in ((1, 2), (3, 3))
        for _ in range(20)
    ]
    return pairs + failing


def _seeds_of_mqtt() -> list[bytes]:
    """Every packet of the golden ones, each whole and byte by byte; delayed messages of a tenant."""
    level = {3: 2, 4: 0, 5: 1}
    heads = ((pieces, it) for it in vectors() for pieces in (0, 1))
    golden = [bytes((level[it.version.value] | 12, pieces)) + it.frame for pieces, it in heads]
    message = Publish("$delayed/9/t", bytes(20), 1, packet_id=1)
    delayed = [bytes((head, 0)) + 5 * encode_packet(message, Version.V5) for head in (0b11101, 0b10011101)]
    return golden + delayed


def _seeds_of_sessions() -> list[bytes]:
    """Operations at random: each is one of few."""
    random = Random(1)
    return [random.randbytes(4 * length) for length in range(1, 200)]


def _seeds_of_acks() -> list[bytes]:
    """Operations at random; two PUBRECs of a log that fails, without memory for them; a client that returns
    while the sinks lack as many of its messages as may wait; and one with a PUBREL of before.
    """
    random = Random(5)
    failing = [
        bytes((15, 1, 1, 10, 15, 1, 2, 10, 8, 0, 1, 1, 10, 0x80 | number << 2, 200, 0))
        for number in range(16)
    ]
    lacking = b"".join(bytes((15, 0, number, 8)) for number in range(4))
    again = lacking + bytes((1, 0, 0, 0, 0, 0, 0, 0, 15, 0, 4, 8, 6, 0, 7, 0))
    earlier = bytes((15, 1, 1, 10, 1, 1, 0, 0, 0, 1, 0, 0, 15, 1, 5, 4, 3, 1, 1, 2))
    return [random.randbytes(4 * length) for length in range(1, 400, 2)] + failing + [again, earlier]


def _seeds_of_scan() -> list[bytes]:
    """Segments cut into pieces, as they are and to be mended; and packed rows."""
    random = Random(2)
    found = [bytes((1, 1, 1, 10 << 2, 25, 1))]  # a row that begins within the file, and ends behind it
    for _ in range(80):
        data = b""
        for ring in random.choices((0, 1, 2), k=random.randrange(1, 5)):
            body = b"".join(
                encode(n, bytes(random.randrange(40)), epoch=9, key=b"k%d" % (n % 3))
                for n in range(random.randrange(1, 4))
            )
            data += pack_extent(7, ring, 9, len(data), random.choice((0, len(data))), body) + body
        found += [bytes((random.choice((0, 2, 4, 6)),)) + data, b"\2" + data[:-40]]
        found.append(bytes((1, random.randrange(1, 9), 255)) + random.randbytes(random.randrange(40)))
    return found


def _seeds_of_unpack() -> list[bytes]:
    """Every type and path, each with payloads that hold it, something else, or nothing."""
    said: tuple[object, ...] = (
        *(None, 1, -1, 2**40, 2**64 - 1, 1.5, True, "word", b"bytes", [1, [2]], {"a": 1}, {1: 2}),
        *({"a": value, "b": {"a": value}, "d": {"a": value, "c": {"a": value}}} for value in (1, "ü", None)),
    )
    packed = [msgpack.packb(it) for it in said]
    rows = b"".join(bytes([len(it)]) + it for it in packed)
    wanted = [msgpack.packb({"a": it}) for it in said]  # each as long as it says, less one byte
    cut = [bytes((0, kind, len(it) - 1)) + it[:-1] for it in wanted for kind in range(5)]
    mixed = [
        bytes((number % 6, *range(number % 6 * 10, number % 6 * 10 + 6))) + rows[number % 7 :]
        for number in range(60)
    ]
    return cut + mixed + [bytes((0, head)) + rows for head in range(0, 255, 3)]


def _seeds_of_websocket() -> list[bytes]:
    """Frames of each opcode, with each form of the length, with and without FIN, reserved bits and a mask."""
    lengths = (b"\x80", b"\x83", b"\xfe\0\x7e", b"\xfe\0\x03", b"\xff" + bytes(7) + b"\x03", b"\x03")
    frames = [bytes((first,)) + it + bytes(4) + b"\3\xe8x" for first in range(256) for it in lengths]
    random = Random(3)
    mixed = [b"".join(random.choices(frames[:: len(lengths)], k=6)) for _ in range(100)]
    good = [b"\x82\x83", b"\x89\x83", b"\x02\x83", b"\x80\x83", b"\x88\x83"]
    valid = [b"".join(it + b"mask\3\xe8x" for it in random.choices(good, k=5)) for _ in range(100)]
    return [bytes((number % 256,)) + it for number, it in enumerate(frames + mixed + valid)]


def _seeds_of_connect() -> list[bytes]:
    """The golden packets that begin as a CONNECT does, and each with some bytes less or one more."""
    whole = [it.frame for it in vectors() if it.frame[:1] == b"\x10" and len(it.frame) < 129]
    ends = [it[:end] for it in whole for end in range(2, len(it))] + [it + b"x" for it in whole]
    return whole + [it[:1] + bytes((len(it) - 2,)) + it[2:] for it in ends]


def _seeds_of_subscribe() -> list[bytes]:
    """Bodies of SUBSCRIBE and UNSUBSCRIBE, half of them plain: whole, cut, and one byte longer."""
    random = Random(6)
    plain = [it for it in NAMES if not it.startswith("$")]
    others = [*NAMES, *FILTERS, "level/" * 9, "x" * 201, "", "ä/日", "\ufffe", "a\0b"]
    found = [b"\3\0\1\1" + b"\0\1a\0", b"\2\0\0" + b"\0\1a\0"]  # properties; identifier 0
    for number in range(160):
        body = bytes((number % 8,)) + (1 + number % 3).to_bytes(2) + bytes(number % 2)
        for name in random.choices(plain if number & 8 else others, k=number % 7):
            body += len(name.encode()).to_bytes(2) + name.encode()
            body += bytes((random.randrange(3 if number & 8 else 5),)) if number & 2 else b""
        found += [body, body[:-1], body + b"\0"]
    return found


def _seeds_of_table() -> list[bytes]:
    """Growth to thousands of items, removals of some of them, and growth without memory."""
    random = Random(7)
    found = []
    for number in range(120):
        steps = bytes((1, 0, 0, 2 * number))
        for _ in range(number % 20):
            verb = random.choice((0, 0, 1, 2, 3, 5, 9, 13, 21))
            steps += bytes((verb, *random.randbytes(2), random.randrange(256)))
        found.append(bytes((number,)) + steps + bytes(number % 4))
    return found


def _seeds_of_tls() -> list[bytes]:
    """Operations in any order, and beginnings of invalid records."""
    random = Random(4)
    heads = [
        bytes((0, 22, 3, 1, 0, length, kind)) + bytes(60) for length in (4, 60, 255) for kind in range(26)
    ]
    operations = [b"\1" + random.randbytes(2 * length) for length in range(1, 60)]
    plain = [
        bytes((1, 0, length, 2, room, 4, 9, 3, 0, 0, length, 2, room))
        for length in range(0, 256, 5)
        for room in range(4)
    ]
    return heads + operations + plain


SEEDS: Mapping[str, Callable[[], list[bytes]]] = {
    "acks": _seeds_of_acks,
    "topics": _seeds_of_topics,
    "connect": _seeds_of_connect,
    "mqtt": _seeds_of_mqtt,
    "sessions": _seeds_of_sessions,
    "subscribe": _seeds_of_subscribe,
    "scan": _seeds_of_scan,
    "unpack": _seeds_of_unpack,
    "websocket": _seeds_of_websocket,
    "table": _seeds_of_table,
    "tls": _seeds_of_tls,
}


def program(
    name: str, directory: Path, planted: Mapping[str, Sequence[tuple[str, str]]] | None = None
) -> Path:
    """The target `name`, compiled; `planted` as tests.support.c_programs.compiled() has it."""
    main = C / f"fuzz_{name}.c"
    sources = {"scan": SCAN, "unpack": UNPACK, "table": TABLE}.get(name, MQTT)
    return compiled(
        directory,
        main,
        *FLAGS,
        link_flags=LINK_FLAGS_OF.get(name, ()),
        compiler=["clang"],
        sources=sources,
        planted=planted,
    )


def expanded(name: str, directory: Path) -> Path:
    """The kept corpus of `name` as libFuzzer reads it: one file an input, in `directory`."""
    folder = directory / f"corpus-{name}"
    folder.mkdir()
    file = CORPUS / f"{name}.hex"
    kept = [bytes.fromhex(line) for line in (file.read_text().split() if file.exists() else ())]
    for number, data in enumerate((*SEEDS[name](), *kept)):
        (folder / f"{number:05d}").write_bytes(data)
    return folder


def _keep(name: str, found: Path, target: Path, directory: Path) -> int:
    """Make the least part of `found` that reaches all of it the corpus; how many inputs that is."""
    least = directory / f"least-{name}"
    least.mkdir()
    subprocess.run([target, "-merge=1", least, found], check=True, capture_output=True)
    lines = sorted({it.read_bytes().hex() for it in least.iterdir()}, key=lambda line: (len(line), line))
    CORPUS.mkdir(exist_ok=True)
    (CORPUS / f"{name}.hex").write_text("".join(f"{line}\n" for line in lines if line))
    return len(lines)


def _campaign(name: str, seconds: int, directory: Path) -> bool:
    """True if `seconds` of fuzzing on one core found no error."""
    target, folder = program(name, directory), expanded(name, directory)
    print(f"{name}: {seconds} s, from {len(list(folder.iterdir()))} inputs ...", flush=True)
    run = subprocess.run(
        [target, f"-max_total_time={seconds}", f"-max_len={INPUT_BYTES_MAX}", "-print_final_stats=1", folder],
        check=False,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if run.returncode:
        print(run.stderr[-6000:])
        print(f"{name}: FOUND SOMETHING, see above; the input is in a file crash-* or timeout-* here")
        return False
    runs = next(it.split()[-1] for it in run.stderr.splitlines() if "number_of_executed_units" in it)
    print(
        f"{name}: {runs} runs, nothing found; {_keep(name, folder, target, directory)} inputs kept",
        flush=True,
    )
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """The command.  0: nothing found."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__.splitlines()[0] if __doc__ else "")
    known = (*TARGETS, CONTROL)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(known)}; all if none")
    parser.add_argument("--minutes", type=float, default=12.0, help="for each target; 12 if not given")
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.targets) - set(known):
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    os.nice(5)
    with tempfile.TemporaryDirectory(prefix="brim-fuzz-") as directory:
        names, seconds = chosen.targets or known, int(chosen.minutes * 60)
        found = [
            it
            for it in names
            if not (campaign(seconds) if it == CONTROL else _campaign(it, seconds, Path(directory)))
        ]
        return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
