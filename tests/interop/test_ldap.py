"""amqtt's LDAP plug-ins, unchanged, before a directory server of our own."""

import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.auth.amqtt_compat.adapter import PluginAdapter
from edge.auth.interfaces import ClientInfo
from tests.support.amqtt_plugins import access, client, login, plugins, said
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S, wait_until

SLAPD = shutil.which("slapd", path="/usr/sbin:/usr/local/sbin:/usr/libexec") or ""
MISSING = [
    remedy
    for there, remedy in (
        (SLAPD, "apt install slapd"),
        (importlib.util.find_spec("ldap"), "apt install libldap2-dev libsasl2-dev; pip install python-ldap"),
    )
    if not there
]
pytestmark = [pytest.mark.ldap, pytest.mark.skipif(bool(MISSING), reason="; ".join(MISSING))]

LOGIN = "amqtt.contrib.ldap.UserAuthLdapPlugin"
TOPICS = "amqtt.contrib.ldap.TopicAuthLdapPlugin"
BASE = "dc=brim,dc=test"

SERVER = """\
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
pidfile {directory}/pid
modulepath /usr/lib/ldap
moduleload back_mdb
{bind}
database mdb
maxsize 16777216
suffix "{base}"
rootdn "cn=admin,{base}"
rootpw admin
directory {directory}/data
"""

ENTRIES = f"""\
dn: {BASE}
objectClass: dcObject
objectClass: organization
o: Brim
dc: brim

dn: uid=ann,{BASE}
objectClass: inetOrgPerson
uid: ann
cn: Ann
sn: Ann
userPassword: secret
description: ann/#
ou: all/+
ou: ann/#
title: all/1

dn: uid=bob,{BASE}
objectClass: inetOrgPerson
uid: bob
cn: Bob
sn: Bob
userPassword: other
"""


class Directory:
    """A slapd on a loopback port."""

    def __init__(self, directory: Path, *, bind: str = "") -> None:
        (directory / "data").mkdir()
        config = directory / "slapd.conf"
        config.write_text(SERVER.format(directory=directory, base=BASE, bind=bind))
        add = [SLAPD, "-T", "add", "-f", str(config)]
        subprocess.run(add, input=ENTRIES, text=True, check=True, capture_output=True, timeout=PATIENCE_S)
        self.url = f"ldap://127.0.0.1:{free_port()}"
        command = [SLAPD, "-d", "0", "-f", str(config), "-h", self.url]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self._answers)

    def _answers(self) -> bool:
        import ldap

        assert self._process.poll() is None, "slapd has ended"
        try:
            ldap.initialize(self.url).simple_bind_s(f"cn=admin,{BASE}", "admin")
        except ldap.SERVER_DOWN:
            return False
        return True

    @property
    def options(self) -> dict[str, str]:
        return {
            "server": self.url,
            "base_dn": BASE,
            "user_attribute": "uid",
            "bind_dn": f"cn=admin,{BASE}",
            "bind_password": "admin",
        }

    @property
    def topics(self) -> dict[str, str]:
        """Attributes that have filters; any that may have several values do."""
        attributes = {"publish": "description", "subscribe": "ou", "receive": "title"}
        return self.options | {f"{action}_attribute": name for action, name in attributes.items()}

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(20)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    made = Directory(tmp_path)
    yield made
    made.close()


def test_users_of_a_directory_log_in_and_have_its_topics(directory):
    with plugins((LOGIN, directory.options), (TOPICS, directory.topics)) as made:
        assert login(made, client(), b"secret")
        assert not login(made, client(), b"wrong")
        assert not login(made, client("eve"), b"secret")
        assert not login(made, ClientInfo("c", None, "", 0), None)
        rules = access(made)
        assert said(rules.may_publish(client(), "ann/x"))
        assert not said(rules.may_publish(client(), "bob/x"))
        assert said(rules.may_subscribe(client(), "all/+"))
        assert not said(rules.may_subscribe(client(), "#"))
        assert rules.may_receive(client(), "all/1")
        assert not rules.may_receive(client(), "all/2")
        assert not said(rules.may_publish(client("bob"), "ann/x"))


def test_a_name_that_would_be_a_search_and_an_empty_password_open_nothing(tmp_path):
    """Such a directory takes a name with an empty password for somebody anonymous, and says yes."""
    directory = Directory(tmp_path, bind="allow bind_anon_cred bind_anon_dn")
    try:
        with plugins((LOGIN, directory.options), (TOPICS, directory.topics)) as made:
            assert login(made, client("ann"), b"secret")
            assert not login(made, client("ann"), b"")
            assert not login(made, client("ann"), None)
            for name in ("a*", "ann)(uid=ann", "*", "\\61nn"):
                assert not login(made, client(name), b"secret")
                assert not said(access(made).may_publish(client(name), "ann/x"))
    finally:
        directory.close()


def test_a_wrong_password_of_our_own_is_told_at_the_start(directory):
    from edge.auth.errors import PluginError

    with pytest.raises(PluginError, match="cannot be created"):
        PluginAdapter([(LOGIN, directory.options | {"bind_password": "x"})])
