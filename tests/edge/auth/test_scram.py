"""SCRAM-SHA-256, step by step, by the vectors of its RFC and by what an attacker would send."""

import base64
import hashlib

import pytest

from edge.auth.acl_file import parse_rules
from edge.auth.interfaces import AuthStep, ClientInfo
from edge.auth.password_file import User
from edge.auth.saslprep import saslprep
from edge.auth.scram import REFUSED, ScramAuthenticator
from edge.auth.scram_keys import METHOD, hashed, keyed, make_keys, parse_keys
from edge.mqtt import Auth, ConnAck, Connect, Properties, Publish, ReasonCode, Version
from tests.support.mqtt_bench import Bench

# RFC 7677, section 3.
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
KEYS = make_keys("pencil", salt=SALT, iterations=4096)
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def exchange(scram, username=None):
    return scram.begin(ClientInfo("c", username, "", 0), METHOD)


@pytest.fixture
def scram():
    return ScramAuthenticator({"user": User(scram=KEYS)}, b"secret", nonce=lambda: SERVER_NONCE)


def final(first: bytes, server: bytes, password: str, header: bytes = b"n,,") -> bytes:
    """Final message of a correct client, computed without the server's code."""
    fields = dict(part.split("=", 1) for part in server.decode().split(","))
    bare = first.split(b",", 2)[2]
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(fields["s"]), int(fields["i"]))
    client_key = keyed(salted, b"Client Key")
    without = b"c=" + base64.b64encode(header) + b",r=" + fields["r"].encode()
    signature = keyed(hashed(client_key), bare + b"," + server + b"," + without)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return without + b",p=" + base64.b64encode(proof)


def test_the_vector_of_rfc_7677(scram):
    talk = exchange(scram)
    assert talk.answer(CLIENT_FIRST) == AuthStep("continue", SERVER_FIRST)
    assert talk.answer(CLIENT_FINAL) == AuthStep("accepted", SERVER_FINAL, "user")
    assert final(CLIENT_FIRST, SERVER_FIRST, "pencil") == CLIENT_FINAL


def test_keys_are_written_as_postgres_writes_them():
    assert str(KEYS).startswith("SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$")
    assert parse_keys(str(KEYS)) == KEYS


def test_a_wrong_password_is_refused_at_the_proof_and_the_exchange_is_over(scram):
    talk = exchange(scram)
    server = talk.answer(CLIENT_FIRST).data
    assert talk.answer(final(CLIENT_FIRST, server, "pen")) == REFUSED
    assert talk.answer(CLIENT_FINAL) == REFUSED


def test_nonces_are_new_each_time_and_long():
    scram = ScramAuthenticator({"user": User(scram=KEYS)}, b"secret")
    nonces = {exchange(scram).answer(CLIENT_FIRST).data for _ in range(10)}
    assert len(nonces) == 10
    talk = exchange(scram)
    assert len(talk.answer(CLIENT_FIRST).data.split(b",")[0]) > len("r=rOprNGfwEbeRWgbNEkqO") + 30
    assert talk.answer(CLIENT_FINAL) == REFUSED  # recorded elsewhere


@pytest.mark.parametrize(
    "first",
    [
        None,
        b"",
        b"p=tls-unique,,n=user,r=abc",
        b"x,,n=user,r=abc",
        b"n,,m=ext,n=user,r=abc",
        b"n,a=admin,n=user,r=abc",
        b"n,,n=us=20er,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=user,r=",
        b"n,,n=user",
        b"n,,n=user,r=a\x7fb",
        b"n,,n=a:b,r=abc",
        b"n,,n=user\xff,r=abc",
        "n,,n=us\u0007er,r=abc".encode(),
        b"n,,n=" + 1_020 * b"x" + b",r=abc",
    ],
)
def test_what_an_honest_client_does_not_begin_with_is_refused(scram, first):
    assert exchange(scram).answer(first) == REFUSED


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"c=biws", b"c=eSws"),  # it had said n,, and now says y,,
        (b"c=biws", b"c=!"),
        (b"k0,p=", b"k1,p="),
        (b"r=rOp", b"r=rOq"),
        (b"p=dHzb", b"p=dHzc"),
        (b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", b"p=eA=="),
        (b"p=dHzb", b"p=!Hzb"),
        (b",p=", b",x=1,p="),
    ],
)
def test_what_does_not_continue_the_exchange_is_refused(scram, old, new):
    talk = exchange(scram)
    talk.answer(CLIENT_FIRST)
    assert old in CLIENT_FINAL
    assert talk.answer(CLIENT_FINAL.replace(old, new)) == REFUSED


def test_a_client_that_could_bind_the_channel_is_answered_too(scram):
    talk = exchange(scram)
    first = CLIENT_FIRST.replace(b"n,,", b"y,,")
    server = talk.answer(first).data
    assert talk.answer(final(first, server, "pencil", b"y,,")).verdict == "accepted"


def test_who_is_unknown_is_answered_like_who_is_known_and_refused_at_the_end(scram):
    def asked(name: bytes) -> tuple[bytes, AuthStep]:
        talk = exchange(scram)
        first = b"n,,n=" + name + b",r=abc"
        server = talk.answer(first).data
        return server, talk.answer(final(first, server, "pencil"))

    (known, _), (one, refused), (again, _), (other, _) = map(asked, (b"user", b"eve", b"eve", b"mallory"))
    assert refused == REFUSED
    assert one == again != other  # who asks twice gets the same salt
    assert len(one) == len(known)
    assert one.rpartition(b",")[2] == b"i=4096"
    later = ScramAuthenticator(
        {"user": User(scram=KEYS), "more": User(scram=KEYS)}, b"secret", nonce=lambda: SERVER_NONCE
    )
    assert exchange(later).answer(b"n,,n=eve,r=abc").data == one  # and after a reload


def test_a_user_removed_during_the_exchange_is_refused(scram):
    talk = exchange(scram)
    talk.answer(CLIENT_FIRST)
    scram.replace({})
    assert talk.answer(CLIENT_FINAL) == REFUSED


def test_a_client_is_who_it_said_in_connect(scram):
    assert exchange(scram, "other").answer(CLIENT_FIRST) == REFUSED
    assert exchange(scram, "user").answer(CLIENT_FIRST).verdict == "continue"


def test_a_name_with_a_comma_is_unescaped():
    scram = ScramAuthenticator({"a,b=c": User(scram=KEYS)}, b"secret")
    talk = exchange(scram)
    first = b"n,a=a=2Cb=3Dc,n=a=2Cb=3Dc,r=abc"
    server = talk.answer(first).data
    done = talk.answer(final(first, server, "pencil", b"n,a=a=2Cb=3Dc,"))
    assert (done.verdict, done.identity) == ("accepted", "a,b=c")


def test_the_method_is_offered_only_if_somebody_can_use_it(scram):
    assert scram.methods == {METHOD}
    scram.replace({"user": User()})
    assert not scram.methods


@pytest.mark.parametrize(
    ("text", "prepared"),
    [  # RFC 4013, section 3
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),
        ("", ""),
    ],
)
def test_saslprep_has_one_form_for_what_looks_the_same(text, prepared):
    assert saslprep(text) == prepared


@pytest.mark.parametrize("text", ["\u0007", "\u0627\u0031", "\ud800", "\u200e", "\u0221"])
def test_saslprep_refuses_what_must_not_be_in_a_name(text):
    with pytest.raises(ValueError, match=r"not allowed|right to left"):
        saslprep(text)


def test_a_client_of_mqtt_5_logs_in_by_scram_and_may_do_what_its_user_may(scram):
    rules = parse_rules("user user\ntopic mine\n", "acl")
    with Bench(enhanced=scram, access=rules) as bench:
        wire = bench.wire(Version.V5, listener=1)  # which accepts no client without a name
        said = Properties(authentication_method=METHOD, authentication_data=CLIENT_FIRST)
        wire.send(Connect("c", version=Version.V5, properties=said))
        (challenge,) = wire.received()
        assert isinstance(challenge, Auth)
        assert challenge.properties.authentication_data == SERVER_FIRST
        answer = Properties(authentication_method=METHOD, authentication_data=CLIENT_FINAL)
        wire.send(Auth(ReasonCode.CONTINUE_AUTHENTICATION, answer))
        (accepted,) = wire.received()
        assert isinstance(accepted, ConnAck)
        assert accepted.reason_code is ReasonCode.SUCCESS
        assert accepted.properties.authentication_data == SERVER_FINAL
        wire.send(Publish("mine", b"x"), Publish("others", b"x"))
        assert bench.records() == [("mine", b"x")]


def test_no_client_costs_a_search_of_all_users():
    class Users(dict[str, User]):
        searches = 0

        def values(self):
            Users.searches += 1
            return super().values()

    scram = ScramAuthenticator(Users(user=User(scram=KEYS)), b"secret")
    for _ in range(10):
        assert scram.methods
        assert exchange(scram).answer(b"n,,n=unknown,r=abc").verdict == "continue"
    assert Users.searches == 1


def test_saslprep_examines_each_character_once(monkeypatch):
    examined: list[str] = []
    monkeypatch.setattr("edge.auth.saslprep._PROHIBITED", (examined.append,))
    assert saslprep("\ufdfa" * 300) == "صلى الله عليه وسلم" * 300
    assert len(examined) == len(set(examined))
