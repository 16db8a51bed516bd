"""Imported for what it does: a test sees the same whoever runs it. What the shell says of proxies, keys, hubs and settings of
servers is not for the test, its clients or the programs that it starts; what they are to see a test sets itself. A folder for temporary
files with a long name is left for /tmp: of a socket's name the system takes 107 bytes, and messages that name files are cut.

`port_of_its_own` keeps a port for a program whose address has to be known before it listens.
"""
import contextlib
import os
import socket
import tempfile

OTHERS = ("VLLM_", "HF_", "HUGGING", "TRANSFORMERS_", "OPENAI_", "ANTHROPIC_", "CURL_")

for name in list(os.environ):
    if name.startswith(OTHERS) or name.lower().endswith("_proxy"):
        del os.environ[name]
if len(tempfile.gettempdir()) > 60:
    os.environ["TMPDIR"] = tempfile.tempdir = "/tmp"


@contextlib.contextmanager
def port_of_its_own():
    """A port that nobody else gets, and that a client who is too early cannot meet itself on: bound and not listened on, so that a
    program that reuses addresses may listen there."""
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        yield keeper.getsockname()[1]
