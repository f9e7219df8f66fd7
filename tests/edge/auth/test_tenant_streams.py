"""Streams of tenants: which files hold records of several of them, and what to write instead."""

from pathlib import Path

import pytest

from edge.auth.tenant_streams import shared_stores, streams_of_tenants
from edge.cli import main
from edge.config.loader import load
from edge.config.schema import Config

TENANTS = '[[tenant]]\nname = "a"\n[[tenant]]\nname = "b"\n'
OF_TENANTS = "".join(f'[[listener]]\nport = {1883 + n}\ntenant = "{name}"\n' for n, name in enumerate("ab"))


def stream(name: str, *topics: str, durability: str = "interval", isolated: bool = False) -> str:
    return (
        f'[[stream]]\nname = "{name}"\ntopics = {list(topics)}\ndurability = "{durability}"\n'
        f"isolated = {str(isolated).lower()}\n"
    )


def bridge(*streams: str, to: str = "file:///srv/lake") -> str:
    return f'[[bridge]]\nname = "lake"\nto = "{to}"\nstreams = {list(streams)}\n'


def config_of(directory: Path, *parts: str) -> Config:
    file = directory / "brim.toml"
    file.write_text("".join(parts))
    return load(file)


def own(name: str, *, isolated: bool = False) -> str:
    return stream(name, f"$tenant/{name}/#", isolated=isolated)


A_FILTER = 'give each tenant a [[stream]] with its topics, such as ["$tenant/a/#"]'
WITH_LOG = f"{A_FILTER} and isolated = true"
ISOLATE = "set isolated = true in the streams "
DELAYED = "[delayed]\nenabled = true\n"
SET_DELAYED = "set delayed_max in [tenant.quota], so that none of them can use all of its room"
AB, OTHERS = "tenants a, b", " and clients without a tenant"


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        ([stream("default", "#")], ("stream default (log)", AB + OTHERS, WITH_LOG)),
        ([OF_TENANTS, stream("default", "#")], ("stream default (log)", AB, WITH_LOG)),
        ([OF_TENANTS, own("b"), stream("default", "#")], ("log", AB, ISOLATE + "b, default")),
        ([own("a", isolated=True), own("b", isolated=True)], None),
        ([own("a"), own("b", isolated=True)], None),
        ([own("a"), own("b")], ("log", AB, ISOLATE + "a, b")),
        ([OF_TENANTS, stream("ax", "$tenant/a/x"), stream("default", "#")], (
            "stream default (log)", AB, WITH_LOG)),
        ([own("a"), stream("x", "x/#")], ("log", "tenant a" + OTHERS, ISOLATE + "a")),
        ([own("a", isolated=True), stream("both", "$tenant/+/x", "$tenant/c/#", isolated=True)], None),
        ([stream("both", "$tenant/+/x"), own("a"), own("b")], ("stream both (log)", AB, WITH_LOG)),
        ([stream("all", "$tenant/#"), own("a")], ("stream all (log)", AB, WITH_LOG)),
        ([bridge()], ("stream default (bridge lake)", AB + OTHERS, A_FILTER)),
        ([bridge("default", to="mqtt://cloud")], None),
        ([stream("x", "x/#", durability="process"), bridge("x")], None),
        ([own("a", isolated=True), own("b", isolated=True), DELAYED], (
            "store of delayed messages", AB, SET_DELAYED)),
        ([], None),
    ],
)  # fmt: skip
def test_stores_with_records_of_several_tenants_are_found(
    tmp_path: Path, parts: list[str], found: tuple[str, str, str] | None
) -> None:
    assert list(shared_stores(config_of(tmp_path, TENANTS, *parts))) == [found] * (found is not None)
    without = [part for part in parts if "tenant =" not in part]
    assert list(shared_stores(config_of(tmp_path, *without))) == []


def test_the_log_has_an_entry_of_its_own_only_if_no_shared_stream_is_in_it(tmp_path: Path) -> None:
    both = stream("both", "$tenant/+/x", durability="process")
    found = ("stream both (bridge lake)", AB, A_FILTER)
    apart = config_of(tmp_path, TENANTS, both, own("a"), own("b"), bridge("both"))
    assert list(shared_stores(apart)) == [found, ("log", AB, ISOLATE + "a, b")]
    shared = config_of(
        tmp_path, TENANTS, stream("y", "$tenant/+/y"), both, own("a"), own("b"), bridge("both")
    )
    assert list(shared_stores(shared)) == [("stream y (log)", AB, WITH_LOG), found]


def test_a_tenant_with_a_quota_of_delayed_messages_cannot_use_all_of_their_store(tmp_path: Path) -> None:
    quotas = "[tenant.quota]\ndelayed_max = 9\n", "[tenant.quota]\ndelayed_max_bytes = 9\n"
    both = "".join(f'[[tenant]]\nname = "{name}"\n{quota}' for name, quota in zip("ab", quotas, strict=True))
    assert list(shared_stores(config_of(tmp_path, both, DELAYED))) == []
    third = '[[tenant]]\nname = "c"\n'
    (shared,) = shared_stores(config_of(tmp_path, both, third, DELAYED))
    assert shared.owners == "tenant c"


def test_five_of_many_tenants_are_named(tmp_path: Path) -> None:
    tenants = "".join(f'[[tenant]]\nname = "{name}"\n' for name in "abcdef")
    (shared,) = shared_stores(config_of(tmp_path, tenants, stream("all", "$tenant/#")))
    assert shared.owners == "tenants a, b, c, d, e and 1 more"


def test_stored_bytes_are_known_for_tenants_that_share_no_stream(tmp_path: Path) -> None:
    third = TENANTS + '[[tenant]]\nname = "c"\n'
    apart = own("a"), stream("a2", "$tenant/a/x"), stream("both", "$tenant/+/y"), own("b"), own("c")
    assert streams_of_tenants(config_of(tmp_path, third, *apart)) == {"a": ["a"]}
    assert streams_of_tenants(config_of(tmp_path, third, *apart[3:])) == {"b": ["b"], "c": ["c"]}
    memory = stream("memory", "$tenant/+/z", durability="process")
    assert streams_of_tenants(config_of(tmp_path, third, memory, own("a"), stream("x", "x/#"))) == {
        "a": ["a"]
    }
    every = stream("every", "$tenant/#", durability="process")
    assert streams_of_tenants(config_of(tmp_path, third, every, own("a"))) == {}


def test_check_and_doctor_name_a_shared_stream(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config_of(
        tmp_path,
        f'runtime_dir = "{tmp_path}/run"\nstate_dir = "{tmp_path}"\n',
        TENANTS,
        stream("default", "#"),
    )
    assert main(["check", str(tmp_path / "brim.toml")]) == 0
    line = (
        "WARNING: stream default (log) holds records of tenants a, b and clients without a tenant; "
        + WITH_LOG
    )
    assert line in capsys.readouterr().out
    main(["doctor", "--config", str(tmp_path / "brim.toml")])
    assert f"stream default (log) holds records of {AB}{OTHERS}" in capsys.readouterr().out
