"""`brim run` with listeners of every kind: what it says, and new certificates on SIGHUP."""

import os
import signal
import socket
import ssl
from contextlib import closing
from pathlib import Path

from edge.mqtt import ConnAck, Connect, encode
from tests.support.children import ModuleChild
from tests.support.mqtt_transports import Authority
from tests.support.ports import free_port
from tests.support.waiting import wait_until


def shown(authority: Authority, port: int) -> bytes | None:
    """The certificate at a port, after a CONNECT was answered there."""
    with authority.context().wrap_socket(
        socket.create_connection(("127.0.0.1", port), 20.0), server_hostname="127.0.0.1"
    ) as client:
        client.sendall(encode(Connect("c")))
        assert client.recv(100) == encode(ConnAck())
        return client.getpeercert(binary_form=True)


def test_brim_run_serves_every_kind_and_reads_certificates_again(
    tmp_path: Path, runtime_directory: Path
) -> None:
    authority, port, path = Authority(tmp_path), free_port(), tmp_path / "mqtt.sock"
    config = tmp_path / "brim.toml"
    config.write_text(
        f'runtime_dir = "{runtime_directory}"\nstate_dir = "{tmp_path / "state"}"\n'
        f'[[listener]]\nport = {port}\ntls = {{ certificate_file = "{authority.certificate_file}", '
        f'key_file = "{authority.key_file}" }}\n'
        f'[[listener]]\nport = 0\ntransport = "websocket"\n[[listener]]\npath = "{path}"\n'
    )
    with ModuleChild("edge", "run", "--config", config) as child:
        (ready,) = (line for line in child.lines_until("ready") if "ready" in line)
        assert f"mqtt tls://127.0.0.1:{port}, ws://127.0.0.1:" in ready
        assert f"unix://{path}" in ready
        with closing(socket.socket(socket.AF_UNIX)) as client:
            client.connect(str(path))
            client.sendall(encode(Connect("u")))
            assert client.recv(100) == encode(ConnAck())
        before = shown(authority, port)
        new, key = authority.issue("new", "127.0.0.1")
        authority.certificate_file.write_bytes(new.read_bytes())
        authority.key_file.write_bytes(key.read_bytes())
        os.kill(child.pid, signal.SIGHUP)
        wait_until(lambda: shown(authority, port) == ssl.PEM_cert_to_DER_cert(new.read_text()))
        assert before != ssl.PEM_cert_to_DER_cert(new.read_text())
        assert child.stop()[0] == 0
    assert not path.exists()
