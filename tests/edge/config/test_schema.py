"""The configuration file: every mistake it can hold, and what it means without any."""

import tomllib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.config.loader import load, parse
from edge.config.schema import Config, Stream
from edge.config.setting_reader import Problems, read_values, tables_of
from edge.config.toml_positions import Path as KeyPath
from edge.config.toml_positions import key_lines, line_of
from edge.errors import ConfigError, EdgeError
from edge.server.bridge_settings import bridge_settings

# What is written, and what must be said about it: line, key, and the words that help.
MISTAKES = [
    ('edge_idd = "x"', ":1: edge_idd: there is no such setting; did you mean edge_id?"),
    ("[[strem]]", ":1: strem: there is no such setting; did you mean stream?"),
    ('edge_id = "a b"', ":1: edge_id: 'a b' is not allowed; write 1 to 64 of"),
    ("edge_id = 7", ":1: edge_id: 7 is not a string; write it in quotes"),
    ("state_dir = 7", ":1: state_dir: 7 is not a path; write it in quotes"),
    ("[limits]\npacket_max_bytes = 1", ":2: limits.packet_max_bytes: 1 is below the least, 256"),
    (
        '[limits]\nretained_max_bytes = "65 GiB"',
        ":2: limits.retained_max_bytes: 69793218560 is above the limit",
    ),
    ("[limits]\nsessions_max = true", ":2: limits.sessions_max: True is not a number"),
    ("[limits]\nsessions_max = 1.5", ":2: limits.sessions_max: 1.5 is not a whole number"),
    ("[limits]\nsessions_max = '64 MiB'", ":2: limits.sessions_max: '64 MiB' is not a number"),
    ("limits = 3", ":1: limits: 3 is not a table; write [limits] on its own line"),
    ("[zmq]\nenabled = 1", ":2: zmq.enabled: 1 is neither true nor false"),
    ('[stream]\nname = "a"', ":1: stream: {'name': 'a'} is not a list; write [[stream]], in double brackets"),
    ("stream = [3]", ":1: stream[0]: 3 is not a table"),
    ('[[stream]]\nname = "a"', ":1: stream[0].topics: missing; add the line topics = ..."),
    ('[[stream]]\nname = "a"\ntopics = "a/#"', ":3: stream[0].topics: 'a/#' is not a list; write it in [ ]"),
    ('[[stream]]\nname = "a"\ntopics = []', ":3: stream[0].topics: no topics; write at least one filter"),
    (
        '[[stream]]\nname = "a"\ntopics = [\n "ok",\n "a/#/b"]',
        ":5: stream[0].topics[1]: # must be the whole last level",
    ),
    (
        '[[stream]]\nname = "a"\ntopics = ["a"]\nwhen_full = "blok"',
        ":4: stream[0].when_full: 'blok' is not one of block, overwrite, reject; did you mean block?",
    ),
    (
        '[[stream]]\nname = "a"\ntopics = ["a"]\n[[stream]]\nname = "a"\ntopics = ["b"]',
        ":5: stream[1].name: 'a' is taken by stream[0]; give each its own name",
    ),
    ('[[stream]]\nname = "default"\ntopics = ["a"]', ':3: stream[0].topics: the stream "default" takes'),
    (
        '[[stream]]\nname = "a"\ntopics = ["a"]\nring_bytes = 9_000_000',
        ":4: stream[0].ring_bytes: 9000000 is not a power of two; write 8388608 or 16777216",
    ),
    (
        '[sessions]\njournal_bytes = "3 MiB"',
        ":2: sessions.journal_bytes: 3145728 is not a power of two; write 2097152 or 4194304",
    ),
    ('[[listener]]\nredirect_to = "a b"', ":2: listener[0].redirect_to: 'a b' is not allowed; host:port"),
    ('[zmq]\nendpoint = "tcp://127.0.0.1:99999"', ":2: zmq.endpoint: 'tcp://127.0.0.1:99999' is not an"),
    ('[zmq]\nendpoint = "tcp://127.0.0.1"', ":2: zmq.endpoint: 'tcp://127.0.0.1' is not an endpoint"),
    (
        f'[consumers]\nendpoint = "ipc:///{"x" * 107}"',
        f":2: consumers.endpoint: /{'x' * 107} is longer than the 107 bytes that the kernel allows; choose",
    ),
    (
        '[zmq]\nendpoint = "tcp://127.0.0.1:5556"\n[consumers]\nendpoint = "tcp://127.0.0.1:5556"',
        ":4: consumers.endpoint: 127.0.0.1:5556 is taken by zmq.endpoint; give each its own address",
    ),
    (
        '[[listener]]\nport = 9464\n[metrics]\nlisten = "127.0.0.1:9464"',
        ":4: metrics.listen: 127.0.0.1:9464 is taken by listener[0]; give each its own address",
    ),
    (
        '[[listener]]\nhost = "::1"\nport = 9464\n[metrics]\nlisten = "[::1]:9464"',
        ":5: metrics.listen: [::1]:9464 is taken by listener[0]; give each its own address",
    ),
    (
        '[[listener]]\nhost = "localhost"\nport = 9464\n[metrics]\nlisten = "127.0.0.1:9464"',
        ":5: metrics.listen: 127.0.0.1:9464 is taken by listener[0]; give each its own address",
    ),
    (
        '[[listener]]\nhost = "::"\nport = 9464\nallow_anonymous = true\n'
        '[metrics]\nlisten = "127.0.0.1:9464"',
        ":6: metrics.listen: 127.0.0.1:9464 is taken by listener[0]; give each its own address",
    ),
    (
        '[[listener]]\nhost = "0:0:0:0:0:0:0:1"\n[[listener]]\nhost = "::1"',
        ":3: listener[1]: ::1:1883 is taken by listener[0]; give each its own port",
    ),
    (
        '[[listener]]\n[[listener]]\nhost = "0.0.0.0"\nallow_anonymous = true',
        ":2: listener[1]: 0.0.0.0:1883 is taken by listener[0]; give each its own port",
    ),
    (
        '[[listener]]\npath = "/run/brim.sock"\n[zmq]\nendpoint = "ipc:///run/brim.sock"',
        ":4: zmq.endpoint: ipc:///run/brim.sock is taken by listener[0]; give each its own address",
    ),
    (
        '[[stream]]\nname = "a"\ntopics = ["a"]\nring_bytes = "1 MiB"\n[limits]\npacket_max_bytes = "1 MiB"',
        ":4: stream[0].ring_bytes: a ring of 1048576 holds records of at most 262144, and "
        "limits.packet_max_bytes = 1048576 needs 1114175; write 8388608 here, or lower packet_max_bytes",
    ),
    (
        '[[stream]]\nname = "a"\ntopics = ["a"]\ndurability = "disk"\nsync_bytes = "32 MiB"',
        ":5: stream[0].sync_bytes: 33554432 is above a quarter of ring_bytes, 16777216",
    ),
    (
        '[[stream]]\nname = "a"\ntopics = ["a"]\npartitions = 64\n'
        '[[stream]]\nname="b"\ntopics=["b"]\npartitions=64',
        ":4: stream[0].partitions: 129 partitions and producers, and local.producers_max = 16, are above",
    ),
    (
        '[[listener]]\nhost = "0.0.0.0"',
        ":2: listener[0].host: 0.0.0.0 is reached from other machines, and nobody has",
    ),
    ('[[listener]]\nhost = "::"', "add the line allow_anonymous = true to this [[listener]]"),
    ("[[listener]]\n[[listener]]", ":2: listener[1]: 127.0.0.1:1883 is taken by listener[0]"),
    (
        '[[bridge]]\nname = "a"\nto = "mqtt://w:pw@l"\n[[bridge]]\nname = "b"\nto = "mqtt://w:pw@l/"',
        ":6: bridge[1].to: mqtt://l is taken by bridge[0]",
    ),
    (
        "[[listener]]\nport = 65536",
        ":2: listener[0].port: 65536 is above the limit, 65535; 0 takes a free one",
    ),
    (
        '[zmq]\nendpoint = "tcp://*:5556"',
        ":2: zmq.endpoint: tcp://*:5556 is reached from other machines, unencrypted",
    ),
    (
        '[zmq]\nendpoint = "inproc://x"',
        ":2: zmq.endpoint: 'inproc://x' is not an endpoint; write ipc:///PATH or",
    ),
    ('[zmq]\nsecret_key_file = "x"', ":1: zmq: secret_key_file and client_keys_dir belong together"),
    (
        '[[producer]]\nname = "cam"\nstream = "b"',
        ":3: producer[0].stream: there is no stream 'b'; the streams are",
    ),
    (
        '[[producer]]\nname = "c"\nstream = "default"\nuids = [-1]',
        ":4: producer[0].uids[0]: -1 is below the least, 0",
    ),
    ('[[bridge]]\nname = "lake"\nto = "/srv"', ":3: bridge[0].to: '/srv' is not allowed; a URL, such as"),
    (
        '[[bridge]]\nname = "l"\nto = "file:///l"\nstreams = ["x"]',
        ":4: bridge[0].streams[0]: there is no stream 'x'",
    ),
    (
        '[[bridge]]\nname = "l"\nto = "s3://l"\noptions = 3',
        ":4: bridge[0].options: 3 is not a table; write {",
    ),
    (
        '[[bridge]]\nname = "l"\nto = "s3://l"\n[bridge.options]\nr = [1]',
        ":5: bridge[0].options.r: [1] is not a string",
    ),
    ("a = = 1", ":1: file: not TOML: "),
    ("[quota]\nshare_percent = 101", ":2: quota.share_percent: 101 is above the limit, 100"),
    ("[quota.user]\nsessions_max = 0", ":2: quota.user.sessions_max: 0 is below the least, 1"),
    (
        "[metrics]\ninterval_s = 1",
        ":2: metrics.interval_s: there is no such setting; did you mean interval_s in [sys]?",
    ),
    (
        "[log]\nsync_interval_ms = 1",
        ":2: log.sync_interval_ms: there is no such setting; "
        "did you mean scrub_interval_s, or sync_interval_ms in [[stream]]?",
    ),
    (
        '[[listener]]\nlog_level = "debug"',
        ":2: listener[0].log_level: there is no such setting; did you mean log_level above the first table?",
    ),
    ("[local]\nname = 'a'", ":2: local.name: there is no such setting; settings here: "),
    (
        "[quota.users]\nsessions_max = 1",
        ":1: quota.users: there is no such setting; did you mean user, or users in [[tenant]]?",
    ),
]


@pytest.mark.parametrize(("text", "said"), MISTAKES, ids=lambda value: value if value[0] != ":" else "")
def test_each_mistake_is_told_with_its_line_and_its_remedy(text, said):
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert len(caught.value.problems) == 1, caught.value
    assert f"brim.toml{said}" in caught.value.problems[0] or said in caught.value.problems[0]


MANY = """\
edge_idd = "x"
[limits]
sessions_max = -1
[zmq]
enabled = 1
[[bridge]]
name = "Lake"
to = "file:///lake"
streams = ["cam"]
[nonsense]
[[listener]]
host = "::"
"""


@pytest.mark.parametrize(
    ("table", "setting"),
    [(table, field) for _, table in tables_of(Config) for field in msgspec.structs.fields(table)],
    ids=lambda it: getattr(it, "__name__", getattr(it, "name", "")),
)
def test_each_setting_takes_or_refuses_values_of_each_type(table, setting):
    for value in ("a", "host:1", 7, 1.5, True, [], ["a"], {}, {"a": "b"}):
        problems = Problems("brim.toml")
        values = read_values(table, {setting.encode_name: value}, problems, Path())
        assert (setting.name in values) or problems.messages()


def test_all_mistakes_are_told_at_once_and_in_the_order_of_the_file():
    with pytest.raises(ConfigError) as caught:
        parse(MANY)
    assert [int(problem.split(":")[1]) for problem in caught.value.problems] == [1, 3, 5, 7, 9, 10, 12]
    assert str(caught.value) == "\n".join(caught.value.problems)


def test_a_wrong_value_is_blamed_once_and_hides_no_other_mistake():
    with pytest.raises(ConfigError) as caught:
        parse(
            '[[listener]]\nhost = "0.0.0.0"\nport = "x"\n'
            '[[stream]]\nname = 3\ntopics = ["+a"]\nring_bytes = 3'
        )
    assert [problem.split(":")[1] for problem in caught.value.problems] == ["2", "3", "5", "6", "7"]


def test_a_value_from_a_hostile_file_cannot_write_to_the_terminal_or_flood_it():
    with pytest.raises(ConfigError) as caught:
        parse(f'edge_id = "\\u001b[2J{"x" * 1000}"')
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_no_configuration_is_a_safe_broker():
    config = parse("")
    assert [(listener.host, listener.port) for listener in config.listener] == [("127.0.0.1", 1883)]
    assert [(stream.name, stream.topics, stream.durability) for stream in config.stream] == [
        ("default", ("#",), "process")
    ]
    assert config.zmq_endpoint == f"ipc://{config.runtime_dir}/zmq.sock"
    assert config.bridge == ()
    assert config == Config()


def test_what_no_stream_takes_goes_to_the_default_stream():
    config = parse('[[stream]]\nname = "cam"\ntopics = ["cam/#"]')
    assert [stream.name for stream in config.stream] == ["cam", "default"]
    assert config.stream[-1] == Stream(name="default", topics=("#",))


def test_the_default_stream_is_tried_last_wherever_the_file_has_it():
    default = '[[stream]]\nname = "default"\ntopics = ["#"]\nring_bytes = "1 MiB"\n'
    config = parse(
        f'limits.packet_max_bytes = "64 KiB"\n{default}[[stream]]\nname = "cam"\ntopics = ["camera/#"]'
    )
    assert [stream.name for stream in config.stream] == ["cam", "default"]
    assert config.stream[-1].ring_bytes == 1 << 20


def test_the_default_stream_may_be_tuned_under_its_own_name():
    config = parse('[[stream]]\nname = "default"\ntopics = ["#"]\npartitions = 4')
    assert [(stream.name, stream.partitions) for stream in config.stream] == [("default", 4)]


def test_options_of_a_bridge_may_be_written_as_toml_has_them_and_are_checked():
    pytest.importorskip("obstore", reason="needs obstore: pip install 'brim[objects]'")
    head = '[[bridge]]\nname = "l"\nto = "s3://l"\n[bridge.options]\nregion = "x"\n'
    config = parse(f'{head}allow_http = true\npool_max_idle_per_host = 4\ntimeout = "1min"')
    settings = bridge_settings(config.bridge[0], config)
    wanted = {"region": "x", "allow_http": "true", "pool_max_idle_per_host": "4", "timeout": "1min"}
    assert settings.options == wanted
    config = parse(f'{head}timeout = "soon"')
    with pytest.raises(EdgeError, match=r"bridge l: .*soon"):
        bridge_settings(config.bridge[0], config)


def test_sizes_may_be_written_with_units():
    config = parse(
        '[[stream]]\nname = "a"\ntopics = ["a"]\nring_bytes = "128 MiB"\n[log]\nsegment_bytes = "8mib"'
    )
    assert config.stream[0].ring_bytes == 128 << 20
    assert config.log.segment_bytes == 8 << 20


def test_the_size_of_a_journal_matters_only_if_sessions_are_kept():
    assert parse('[sessions]\nkeep = false\njournal_bytes = "3 MiB"').sessions.journal_bytes == 3 << 20


@pytest.mark.parametrize(
    ("said", "after_bytes"),
    [('ring_bytes = "2 MiB"', 1 << 19), ('ring_bytes = "8 MiB"', 1 << 20), ('sync_bytes = "2 MiB"', 1 << 21)],
)
def test_syncs_come_before_a_small_ring_is_full_without_a_word_about_it(said, after_bytes):
    stream = parse(f'[[stream]]\nname = "a"\ntopics = ["a"]\ndurability = "disk"\n{said}').stream[0]
    assert stream.synced_after_bytes == after_bytes


def test_paths_are_relative_to_the_file_and_not_to_the_caller(tmp_path):
    file = tmp_path / "site" / "brim.toml"
    file.parent.mkdir()
    file.write_text('runtime_dir = "run"\nstate_dir = "/var/x"\n[log]\ndirectory = "../log"')
    config = load(file)
    assert config.runtime_dir == file.parent / "run"
    assert str(config.state_dir) == "/var/x"
    assert config.log_directory == file.parent / "../log"


def test_listeners_off_loopback_start_once_it_is_written_that_nobody_logs_in():
    config = parse('[[listener]]\nhost = "0.0.0.0"\nallow_anonymous = true')
    assert config.listener[0].host == "0.0.0.0"


def test_zmq_off_loopback_is_allowed_with_keys(tmp_path):
    text = '[zmq]\nendpoint = "tcp://*:5556"\nsecret_key_file = "k"\nclient_keys_dir = "c"'
    config = parse(text, base=tmp_path)
    assert config.zmq.secret_key_file == tmp_path / "k"


@pytest.mark.parametrize(
    ("data", "said"), [(None, "cannot be read: No such file"), (b"\xff\xfe", "byte 0 is not UTF-8")]
)
def test_a_file_that_cannot_be_read_is_a_configuration_error_too(tmp_path, data, said):
    file = tmp_path / "brim.toml"
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(ConfigError, match=said):
        load(file)


def test_the_host_name_becomes_an_edge_id_that_fits_in_a_path(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "Press Line/7.Plant..")
    assert Config().edge_id == "press-line-7.plant"
    monkeypatch.setattr("socket.gethostname", lambda: "!!!")
    assert Config().edge_id == "edge"


LINES_EXAMPLE = '''\
title = "a # no comment"        # 1
dates = [1979-05-27, 07:32:00]  # 2
"quoted.key"."b c" = 1          # 3
[table]                         # 4
list = [                        # 5
  "x", # [ not a list           # 6
  { inline = 1, deep = { k = [  # 7
     true ] } },                # 8
]
text = """                      # 10
[not.a.table]
key = 1
ends with a quote\\""""""
after = 1                       # 14
[[array]]                       # 15
[[array]]                       # 16
[array.sub]                     # 17
raw = \'\'\'
[no]\'\'\'
last.one = 'x'                  # 20
[[array.sub.more]]              # 21
'''

LINES_EXPECTED: dict[KeyPath, int] = {
    ("title",): 1, ("dates",): 2, ("dates", 1): 2, ("quoted.key", "b c"): 3, ("table",): 4,
    ("table", "list"): 5, ("table", "list", 0): 6, ("table", "list", 1): 7, ("table", "list", 1, "inline"): 7,
    ("table", "list", 1, "deep", "k", 0): 8, ("table", "text"): 10, ("table", "after"): 14, ("array", 0): 15,
    ("array", 1): 16, ("array", 1, "sub"): 17, ("array", 1, "sub", "last", "one"): 20,
    ("array", 1, "sub", "more", 0): 21,
}  # fmt: skip


def test_the_lines_of_keys_are_found_in_every_way_to_write_them():
    lines = key_lines(LINES_EXAMPLE)
    assert {path: lines.get(path) for path in LINES_EXPECTED} == LINES_EXPECTED
    assert set(_paths(tomllib.loads(LINES_EXAMPLE))) <= set(lines)


def test_a_missing_key_is_looked_for_in_the_table_around_it():
    assert line_of({("a",): 3}, ("a", 1, "b")) == 3
    assert line_of({}, ("a",)) == 1


values = st.recursive(
    st.one_of(st.integers(-9, 9), st.booleans(), st.text(st.sampled_from("a#[]{}=,'\"\n\\"), max_size=6)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["a", "b.c", 'd"', "#"]), inner, max_size=3),
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["a", "b-b", "c c", "]"]), values, max_size=4), st.integers(0, 3))
def test_every_key_of_a_generated_file_is_found_on_its_line(tables, blank_lines):
    text, expected = "", {}
    for key, value in tables.items():
        text += "# [[comment]]\n" * blank_lines
        expected[key,] = text.count("\n") + 1
        text += f"{_toml(key)} = {_toml(value)}\n"
    lines = key_lines(text)
    assert {path: line for path, line in lines.items() if len(path) == 1} == expected
    assert set(_paths(tomllib.loads(text))) == set(lines)


def _toml(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case str() if "'" not in value and "\n" not in value:
            return f"'{value}'"
        case str():
            return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
        case list():
            return "[" + "".join(f"\n{_toml(item)}," for item in value) + "]"
        case dict():
            return "{" + ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    raise AssertionError(value)


def _paths(value: object, path: KeyPath = ()) -> list[KeyPath]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [] if not path else [path]
    for key, item in items:
        found += _paths(item, (*path, key))
    return found


@pytest.mark.parametrize(
    ("text", "longest"),
    [
        ("", (16 << 20) - 65_535 - 64),
        ("[limits]\npacket_max_bytes = 300", 300),
        ("[limits]\ntopic_max_bytes = 1_000", (16 << 20) - 1_000 - 64),
        ('[[stream]]\nname = "a"\ntopics = ["a"]\nring_bytes = "64 KiB"', (16_384 - 64) // 2),
        ('[[stream]]\nname = "default"\ntopics = ["#"]\nring_bytes = "1 GiB"', 16 << 20),
    ],
)
def test_packets_are_as_long_as_every_ring_has_room_for(text: str, longest: int) -> None:
    assert parse(text).packet_max_bytes == longest


@pytest.mark.parametrize(
    ("endpoint", "needs"),
    [("", False), ("ipc:///run/c.sock", False), ("ipc://@c", True), ("tcp://127.0.0.1:5557", True)],
)
def test_consumers_need_keys_unless_permissions_of_a_file_guard_them(endpoint: str, needs: bool) -> None:
    consumers = f'[consumers]\nendpoint = "{endpoint}"\n'
    keys = '[zmq]\nsecret_key_file = "/k"\nclient_keys_dir = "/c"\n'
    assert parse(consumers + keys).consumers_need_keys is needs
    assert not parse(consumers).consumers_need_keys
