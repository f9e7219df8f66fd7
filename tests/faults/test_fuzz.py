"""A taste of fuzzing: the kept corpus, and a few hundred new inputs.  `./dev fuzz` is the meal."""

import subprocess
from pathlib import Path

import pytest

from edge.mqtt import Properties, ProtocolError, Rule
from edge.mqtt.primitives import Body
from edge.mqtt.properties import In
from tests.support import fuzz_control
from tests.support.c_programs import CORE, FLAGS, compiler_or_skip
from tests.support.fuzz import TARGETS, C, expanded, program

pytestmark = pytest.mark.timeout(600)  # the first test compiles the engine: two minutes on a busy machine
NEW_INPUTS = 500
HANDSHAKES = 100  # new inputs of the target tls, where each is a handshake


def fuzzed(target: Path, corpus: Path, new: int) -> subprocess.CompletedProcess[str]:
    """Result of the whole corpus, and of `new` inputs."""
    runs = len(list(corpus.iterdir())) + new if new else 0
    options = [f"-runs={runs}", "-seed=1", "-max_len=512", f"-artifact_prefix={corpus}/"]
    return subprocess.run(
        [str(target), *options, str(corpus)], capture_output=True, text=True, errors="replace", check=False
    )


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_compiles_also_without_libfuzzer(target: str) -> None:
    file = C / f"fuzz_{target}.c"
    subprocess.run([*compiler_or_skip(), *FLAGS, "-fsyntax-only", f"-I{CORE}", str(file)], check=True)


def test_hostile_control_packets_raise_and_cost_nothing_unexpected() -> None:
    assert fuzz_control.fuzz(1, lambda number: number < 1_500) == 1_500


def copying_decoder(body: Body, place: In) -> Properties:
    """As it once was: each user property makes a copy of all before it."""
    part = body.part(body.variable_integer())
    user: tuple[tuple[str, str], ...] = ()
    while part:
        if part.variable_integer() != 0x26:
            raise ProtocolError(Rule.PROPERTY_IS_KNOWN, "another property")
        user = (*user, (part.string(), part.string()))
    return Properties(user=user)


def forgetful_check(count: int, body: Body) -> None:
    """No limit."""


@pytest.mark.parametrize(
    ("place", "mistake"),
    [
        ("edge.mqtt.decode.decode_properties", copying_decoder),
        ("edge.mqtt.decode._check_count", forgetful_check),
    ],
)
def test_decoders_that_are_slow_or_without_limits_are_found(
    monkeypatch: pytest.MonkeyPatch, place: str, mistake: object
) -> None:
    monkeypatch.setattr(place, mistake)
    with pytest.raises(fuzz_control.Found, match="ms to decode in V"):
        fuzz_control.fuzz(2, lambda number: number < 5_000, handled=False)


def test_work_that_is_not_done_in_slices_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.broker.deferred.TURN_S", 60.0)
    with pytest.raises(fuzz_control.Found, match="between two polls"):
        fuzz_control.fuzz(3, lambda number: number < 5_000)


@pytest.fixture(scope="module")
def clang(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips where clang or its fuzzer is missing."""
    compiler_or_skip("clang", "clang libclang-rt-14-dev")
    folder = tmp_path_factory.mktemp("clang")
    empty = folder / "empty.c"
    empty.write_text("int LLVMFuzzerTestOneInput(const char *d, long n) { return d && n ? 0 : 0; }\n")
    made = subprocess.run(
        ["clang", "-fsanitize=fuzzer,address", empty, "-o", folder / "empty"],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("clang has no libFuzzer here: apt-get install libclang-rt-14-dev, or that of your clang")


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_bytes_find_nothing(clang: None, tmp_path: Path, name: str) -> None:
    corpus = expanded(name, tmp_path)
    assert len(list(corpus.iterdir())) > 100
    done = fuzzed(program(name, tmp_path), corpus, HANDSHAKES if name == "tls" else NEW_INPUTS)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize(
    ("name", "stem", "right", "wrong"),
    [
        (
            "topics",
            "mqtt/route/filter",
            "return f == f_end || (f_end - f == 2 && f[0] == '/' && f[1] == '#');",
            "return f == f_end;",
        ),
        (
            "topics",
            "mqtt/route/topics",
            "    mq_table_remove(&engine->topic_table, topic->hash, topic);\n",
            "",
        ),
        (
            "topics",
            "mqtt/route/topics",
            "            mq_slab_give(&engine->topics, &topic->item);\n",
            "            engine->matched = 0;\n",
        ),
        (
            "topics",
            "mqtt/route/subscriptions",
            "        mq_slab_give(slab, &subscription->item);\n        return NULL;",
            "        return NULL;",
        ),
        ("topics", "mqtt/route/trie", "        free(node);\n        return NULL;", "        return NULL;"),
        ("table", "mqtt/table", "slots[hole] = slots[at];\n            hole = at;", "break;"),
        ("table", "mqtt/table", "distance >= (at - hole)", "distance > (at - hole)"),
        ("table", "mqtt/table", "(old.slots[i].hash & bit ? other : bucket", "(other"),
        (
            "table",
            "mqtt/table",
            "    direct(table, other, hash | bit);\n",
            "    table->buckets[hash & (bit - 1)] = other;\n",
        ),
        (
            "table",
            "mqtt/table",
            "    memcpy(buckets + count, buckets, count * sizeof *buckets);\n",
            "    memset(buckets + count, 0, count * sizeof *buckets);\n",
        ),
        ("table", "mqtt/table", "            put(bucket, other->slots[i]);\n", "            continue;\n"),
        ("table", "mqtt/table", "other->depth != bucket->depth || ", ""),
        ("table", "mqtt/table", "if (bucket->depth == 0)", "if (bucket->depth <= 1)"),
        (
            "table",
            "mqtt/table",
            "        if (!split(table, bucket, hash))\n            return false;\n",
            "        if (!split(table, bucket, hash))\n            return true;\n",
        ),
        ("table", "mqtt/table", "    direct(table, bucket, hash);\n    free(other);", "    free(other);"),
        (
            "mqtt",
            "mqtt/in/parser",
            "return connection->need <= (size_t)(end - at);",
            "return connection->need <= (size_t)(end - at) + 1;",
        ),
        (
            "scan",
            "scan/verify_extents",
            "if (left < walk->wanted_bytes)\n            return RB_WALK_MORE;\n        if (full",
            "if (full",
        ),
        ("scan", "scan/row_codec", "rows->length[i] > end - rows->place[i]", "rows->length[i] > end"),
        ("unpack", "arrow/msgpack", "(from->end - from->at) < all)", "(from->end - from->at) + 1 < all)"),
        (
            "connect",
            "mqtt/in/connect",
            "(body, 2, &length) || left(body) <",
            "(body, 2, &length) || left(body) + 1 <",
        ),
        ("connect", "mqtt/in/connect", "&& body.at == body.end;", ";"),
        ("subscribe", "mqtt/in/subscribe", "(size_t)length + has_qos)", "(size_t)length)"),
        ("subscribe", "mqtt/in/subscribe", "if (out->count == most ||", "if (out->count > most ||"),
        ("subscribe", "mqtt/in/subscribe", "*body->at++ == 0);", "*body->at++ < 2);"),
        (
            "subscribe",
            "mqtt/route/subscriptions",
            "    mq_slab_give(&engine->subscriptions, &subscription->item);\n",
            "",
        ),
        ("acks", "mqtt/in/acks", "if (connection->stop == MQ_STOP_CLOSING) /* no", "if (false) /* no"),
        ("acks", "mqtt/in/acks", "if (packet->length < 2 ||", "if ("),
        (
            "acks",
            "mqtt/in/acks",
            "        connection->unfinished -= ended &&",
            "        connection->unfinished -= false &&",
        ),
        ("acks", "mqtt/in/acks", "-= ended && connection->unfinished > 0;", "-= ended;"),
        ("acks", "mqtt/durable/receipts", "        mq_acks_retry(engine, session->connection);", "        ;"),
        (
            "acks",
            "mqtt/durable/ack_gate",
            "            engine->refusal_due_ms = due_ms;\n    }\n",
            "            ;\n    }\n",
        ),
        ("acks", "mqtt/engine", "mq_fifo_leave(links[i]);", ";"),
        ("acks", "mqtt/in/publish", "    mq_fifo_add(&engine->blocked, &connection->turn);\n", ""),
        (
            "acks",
            "mqtt/in/acks",
            "    if (connection->acks_count > 0)\n        wait_for_release(engine, connection);\n",
            "",
        ),
        ("sessions", "mqtt/out/inflight", "    mq_fifo_leave(&session->needing_copies);\n", ""),
        ("sessions", "mqtt/route/shared_subscriptions", "if (is_first)", "if (is_first && to == NULL)"),
        ("sessions", "mqtt/out/spill", "engine->counters.retained_bytes -= blob->bytes;", ""),
        ("sessions", "mqtt/out/spill_file", "    spill->live -= span;\n", ""),
        (
            "websocket",
            "mqtt/transport/websocket",
            "if (ws->close_code != 0 || have < 2 ||",
            "if (have < 2 ||",
        ),
        (
            "tls",
            "mqtt/transport/tls_layer",
            "self->layer.pending = mq_ssl.SSL_has_pending(self->ssl) != 0;",
            "",
        ),
        ("tls", "mqtt/transport/tls_layer", "        sent += (size_t)result;\n", "        sent = length;\n"),
        (
            "tls",
            "mqtt/transport/tls_layer",
            "capacity - count));\n        if (result",
            "capacity));\n        if (result",
        ),
    ],
)
def test_planted_mistakes_are_found(
    clang: None, tmp_path: Path, name: str, stem: str, right: str, wrong: str
) -> None:
    """By the corpus alone: what new inputs find depends on how the file system lists it."""
    done = fuzzed(program(name, tmp_path, {stem: [(right, wrong)]}), expanded(name, tmp_path), new=0)
    assert done.returncode != 0, "the mistake was not found"
