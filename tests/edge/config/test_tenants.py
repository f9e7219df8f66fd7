"""[[tenant]]: names, users and certificates, and the listeners that name a tenant."""

import pytest

from edge.config.listener import Listener
from edge.config.loader import parse
from edge.config.quota import TenantQuota
from edge.config.tenant import TENANTS_MAX, Tenant
from edge.errors import ConfigError

TWO = '[[tenant]]\nname = "a"\nusers = {}\n[[tenant]]\nname = "b"\nusers = {}\n'


def problems(text: str) -> str:
    with pytest.raises(ConfigError) as error:
        parse(text)
    return "\n".join(error.value.problems)


def test_a_tenant_has_users_certificates_a_rate_and_a_quota() -> None:
    config = parse(
        '[[tenant]]\nname = "acme"\nusers = ["ann", "press-*"]\ncertificates = ["*"]\npublish_rate_max = 9\n'
        '[tenant.quota]\nretained_max_bytes = "1 KiB"\n[[listener]]\ntenant = "acme"\n'
    )
    quota = TenantQuota(retained_max_bytes=1024)
    assert config.tenant == (Tenant("acme", ("ann", "press-*"), ("*",), 9, quota),)
    assert config.listener == (Listener(tenant="acme"),)


@pytest.mark.parametrize("name", ["", "a/b", "a+", "#", "$a", "A", "a b", "x" * 25, "\\u0000"])
def test_a_name_has_only_characters_that_no_topic_splits(name: str) -> None:
    assert "1 to 24 of a-z" in problems(f'[[tenant]]\nname = "{name}"\n')


@pytest.mark.parametrize("pattern", ["", "a*b", "**", "*a"])
def test_a_pattern_has_one_star_at_its_end(pattern: str) -> None:
    assert "users[0]" in problems(f'[[tenant]]\nname = "a"\nusers = ["{pattern}"]\n')


@pytest.mark.parametrize(
    ("one", "other", "refused"),
    [
        (["ann"], ["ann"], True),
        (["ann*"], ["anna"], True),
        (["anna"], ["ann*"], True),
        (["a*"], ["an*"], True),
        (["*"], ["ann"], True),
        (["ann"], ["anna"], False),
        (["ann*", "bob"], ["bo", "bobby", "an"], False),
        (["ann*", "anna"], ["x"], False),
    ],
)
def test_a_user_belongs_to_one_tenant(one: list[str], other: list[str], refused: bool) -> None:
    text = TWO.format(one, other)
    if refused:
        assert "give each name one tenant" in problems(text)
    else:
        assert len(parse(text).tenant) == 2


def test_tenants_have_different_names() -> None:
    assert "'a' is taken by tenant[0]" in problems('[[tenant]]\nname = "a"\n' * 2)


def test_a_listener_names_a_known_tenant() -> None:
    text = problems('[[tenant]]\nname = "a"\n[[listener]]\ntenant = "b"\n')
    assert "there is no tenant 'b'; the tenants are a" in text


def test_the_number_of_tenants_has_a_limit() -> None:
    text = "".join(f'[[tenant]]\nname = "t{n}"\n' for n in range(TENANTS_MAX + 1))
    assert f"above the limit, {TENANTS_MAX}" in problems(text)
