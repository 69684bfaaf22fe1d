"""The parts of a deployment on loopback: certificates and keys, processes that leave nothing behind, the meter."""

import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from scripts.deploy.certificates import Tls, make_node_key, make_tls
from scripts.deploy.deployment import free_port
from scripts.deploy.following import Log, Round
from scripts.deploy.meter import Count, Meter
from scripts.deploy.processes import Processes
from tests.doc_pages import ROOT
from tests.flower.left_behind import left_behind

# A process that starts another one in a session of its own, as SuperLink does, and both outlast any test.
FAMILY = (
    "import subprocess, sys, time;"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True);"
    "print('started', flush=True); time.sleep(600)"
)


def _handshake(server: Tls, authority: Path, name: str) -> None:
    """A TLS handshake in memory, as a node does it that trusts ``authority`` and calls the server ``name``."""
    node_context = ssl.create_default_context(cafile=authority)
    server_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_context.load_cert_chain(server.certificate, server.key)
    to_node, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    node = node_context.wrap_bio(to_node, to_server, server_hostname=name)
    link = server_context.wrap_bio(to_server, to_node, server_side=True)
    ends = [node, link]
    while ends:
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                pass


def test_a_node_trusts_the_certificate_only_through_its_own_authority_and_name(tmp_path: Path) -> None:
    ours, other = make_tls(tmp_path / "ours"), make_tls(tmp_path / "other")
    _handshake(ours, ours.authority, "127.0.0.1")
    _handshake(ours, ours.authority, "localhost")
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(ours, other.authority, "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        _handshake(ours, ours.authority, "192.0.2.1")


def test_keys_are_ecdsa_384_in_openssh_form_and_nobody_else_may_read_them(tmp_path: Path) -> None:
    path, tls = make_node_key(tmp_path / "keys" / "node0"), make_tls(tmp_path)
    private = load_ssh_private_key(path.read_bytes(), password=None)
    public = load_ssh_public_key(path.with_suffix(".pub").read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(private.curve, ec.SECP384R1)
    assert private.public_key() == public
    for secret in (path, tls.key):
        assert secret.stat().st_mode & 0o777 == 0o600


def test_stopping_ends_also_what_was_started_by_what_we_started(tmp_path: Path) -> None:
    processes = Processes(tmp_path, os.environ)
    processes.start([sys.executable, "-c", FAMILY], tmp_path / "log")
    while "started" not in (tmp_path / "log").read_text():
        time.sleep(0.02)
    assert len(left_behind(tmp_path)) >= 2
    processes.stop()
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_when_the_starter_itself_is_killed(tmp_path: Path, how: signal.Signals) -> None:
    code = (
        "import os, sys, time, pathlib; from scripts.deploy.processes import Processes;"
        f"Processes(pathlib.Path({str(tmp_path)!r}), os.environ)"
        f".start([sys.executable, '-c', {FAMILY!r}], pathlib.Path({str(tmp_path / 'log')!r})); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as starter:
        deadline = time.monotonic() + 600
        while not ((tmp_path / "log").exists() and "started" in (tmp_path / "log").read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        starter.send_signal(how)
    while left_behind(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_meter_passes_everything_on_and_counts_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as link, Meter(link.getsockname()[1]) as meter:
        answer = threading.Thread(target=_answer, args=(link,))
        answer.start()
        with socket.create_connection(("127.0.0.1", meter.port)) as node:
            node.sendall(b"a" * 100_000)
            node.shutdown(socket.SHUT_WR)
            got = b"".join(iter(lambda: node.recv(1 << 16), b""))
        answer.join()
        assert got == b"b" * 300_000
        assert meter.read() == Count(up=100_000, down=300_000)


def _answer(link: socket.socket) -> None:
    end, _ = link.accept()
    with end:
        while end.recv(1 << 16):
            pass
        end.sendall(b"b" * 300_000)


def test_a_meter_without_a_superlink_closes_the_connection() -> None:
    with Meter(free_port()) as meter, socket.create_connection(("127.0.0.1", meter.port)) as node:
        assert node.recv(1) == b""


def test_the_log_of_a_run_is_understood_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(
        "Successfully started run 13\n"
        "\x1b[92mINFO \x1b[0m:      \t├── gradsift: fab-top-k of 76810 weights\n"
        "Initial global evaluation results: {'accuracy': 0.1}\n"
        "\t└──> Aggregated MetricRecord: {'train-loss': 2.3, 'gradsift-round': 1, 'gradsift-used-k': 7}\n"
        "\x1b[93mWARNING \x1b[0m:   gradsift: round 1: refused client 3, node 5: it is behind\n"
        "\t└──> MetricRecord: {'accur"
    )
    log = Log(path)
    assert list(log.new()) == ["gradsift: round 1: refused client 3, node 5: it is behind"]
    assert (log.run_id, log.dim) == ("13", 76810)
    with path.open("a") as file:
        file.write("acy': 0.5}\n")
    assert list(log.new()) == [Round({"train-loss": 2.3, "round": 1, "used-k": 7}, {"accuracy": 0.5})]
    assert list(log.new()) == []
    assert log.tail().endswith("MetricRecord: {'accuracy': 0.5}")
