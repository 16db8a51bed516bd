#!/usr/bin/env python3
"""chat, from a pipe and on a terminal.

    test_chat.py BUILD/hayate

hayate-test: slow
"""
import json
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import small_text_model  # noqa: E402

HAYATE = os.path.abspath(sys.argv.pop(1) if len(sys.argv) > 1 else "build/hayate")
FIXED = ("--temperature", "0", "--max-tokens", "12", "--ignore-eos", "--thinking-mode", "disabled")


class Base(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.model = str(small_text_model.make(pathlib.Path(cls.folder.name) / "small"))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def generated(self, prompt, *flags, part="content"):
        done = subprocess.run([HAYATE, "generate", self.model, prompt, "--chat", "--json", *flags],
                              capture_output=True, check=True)
        return json.loads(done.stdout)[part]


class Piped(Base):
    def chat(self, text, *flags, code=0):
        done = subprocess.run([HAYATE, "chat", self.model, *flags], input=text.encode(), capture_output=True,
                              timeout=120)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout.decode(), done.stderr.decode()

    def test_first_answer_is_that_of_generate(self):
        out, err = self.chat("Hello\n", *FIXED)
        self.assertEqual(out, self.generated("Hello", *FIXED) + "\n")
        self.assertEqual(err, "")
        self.assertNotIn("\033", out)
        self.assertEqual(self.chat("Hello", *FIXED)[0], out)  # no newline at the end

    def test_conversation_is_sent_and_forgotten(self):
        one = self.generated("Hello", *FIXED) + "\n"
        out, _ = self.chat("Hello\nHello\n/reset\nHello\n", *FIXED)
        self.assertTrue(out.startswith(one) and out.endswith(one), out)
        self.assertNotEqual(out, one * 3)  # the second one saw the first

    def test_system_and_think(self):
        told = self.generated("Hello", *FIXED, "--system", "Be brief.") + "\n"
        self.assertEqual(self.chat("/system Be brief.\nHello\n", *FIXED)[0], told)
        self.assertEqual(self.chat("Hello\n", *FIXED, "--system", "Be brief.")[0], told)
        flags = FIXED[:-2]
        self.assertEqual(self.chat("/think disabled\nHello\n", *flags)[0], self.generated("Hello", *FIXED) + "\n")
        self.assertIn("/think takes", self.chat("/think deep\n", *flags)[1])

    def test_sampling_is_checked_at_the_start(self):
        for flags, words in ((("--top-p", "7"), "top_p must be above 0"), (("--temperature", "-1"), "temperature must be in 0 .. 2"),
                             (("--max-tokens", "-1"), "max_tokens must be at least 1"), (("--stop", ""), "stop has an empty string")):
            for text in ("", "Hello\nHello\n"):
                out, err = self.chat(text, *flags, code=2)
                self.assertEqual(out, "")
                self.assertEqual(len(err.splitlines()), 1, err)
                self.assertIn(words, err)

    def test_reasoning_is_shown_when_asked(self):
        flags = (*FIXED[:-1], "enabled")
        hidden, _ = self.chat("Hello\n", *flags)
        shown, _ = self.chat("Hello\n", *flags, "--reasoning")
        self.assertEqual(hidden, "")  # a random network does not end its reasoning within 12 tokens
        self.assertGreater(len(shown.strip()), 0)

    def test_long_messages(self):
        self.assertEqual(self.chat("Hel\\\nlo\n", *FIXED)[0], self.generated("Hel\nlo", *FIXED) + "\n")
        self.assertEqual(self.chat("//slash\n", *FIXED)[0], self.generated("/slash", *FIXED) + "\n")
        self.assertEqual(self.chat("\n\n", *FIXED)[0], "")

    def test_commands(self):
        out, err = self.chat("/help\n/nothing\n/quit\nHello\n", *FIXED)
        self.assertIn("/reset", out)
        self.assertIn("there is no /nothing", err)
        self.assertNotIn(self.generated("Hello", *FIXED), out)

    def test_too_long(self):
        out, err = self.chat("x" * 9000 + "\nHello\n", *FIXED, code=1)
        self.assertIn("at most 8191", err)
        self.assertEqual(out, self.generated("Hello", *FIXED) + "\n")  # the conversation goes on without it

    def test_anything_the_model_says_can_be_sent_back(self):
        flags = ("--ignore-eos", "--thinking-mode", "disabled", "--max-tokens", "900", "--seed", "1")
        spoken = self.generated("Hello", *flags, part="text")
        self.assertIn("\0", spoken)  # and broken characters, newlines, markers
        self.chat("Hello\nHello\n", *flags)

    def test_ctrl_c_stops_the_answer(self):
        p = subprocess.Popen([HAYATE, "chat", self.model, "--ignore-eos", "--thinking-mode", "disabled"],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        p.stdin.write(b"Hello\nHello again\n")
        p.stdin.close()
        head = p.stdout.read(3)  # the first answer has begun
        reader = threading.Thread(target=lambda: p.stdout.read())
        reader.start()
        while p.poll() is None:  # a signal between the answers does nothing
            p.send_signal(signal.SIGINT)
            time.sleep(0.05)
        reader.join()
        self.assertEqual((p.returncode, p.stderr.read(), len(head)), (0, b"", 3))
        p.stdout.close()
        p.stderr.close()

    def test_bad_usage(self):
        for args, code in ((["chat"], 2), (["chat", self.model, "--thinking-mode", "x"], 2), (["chat", "/nowhere"], 3)):
            done = subprocess.run([HAYATE, *args], stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
            self.assertEqual((done.returncode, done.stdout), (code, b""), args)


class Terminal:
    """The program on a pseudo terminal."""

    def __init__(self, home, *args):
        self.seen = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            env = {"TERM": "xterm", "HOME": str(home), "PATH": os.environ["PATH"]}
            os.execve(HAYATE, [HAYATE, *args], env)

    def wait_for(self, pattern, seconds=60):
        end = time.time() + seconds
        while not re.search(pattern, self.seen, re.S):
            ready, _, _ = select.select([self.fd], [], [], max(0, end - time.time()))
            if not ready:
                raise AssertionError(f"no {pattern!r} in {self.seen!r}")
            try:
                self.seen += os.read(self.fd, 65536).decode(errors="replace")
            except OSError:
                raise AssertionError(f"ended without {pattern!r}: {self.seen!r}") from None

    def type(self, text):
        """At a prompt: the line editor takes over the terminal just after it has shown it."""
        end = time.monotonic() + 60
        time.sleep(0.3)
        while termios.tcgetattr(self.fd)[3] & termios.ICANON:
            assert time.monotonic() < end, self.seen
            time.sleep(0.02)
        self.seen = ""
        os.write(self.fd, text.encode())

    def interrupt(self):
        """While something is said."""
        self.seen = ""
        os.write(self.fd, b"\x03")

    def end(self):
        try:
            while os.read(self.fd, 65536):
                pass
        except OSError:
            pass
        status = os.waitpid(self.pid, 0)[1]
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)


class OnATerminal(Base):
    def setUp(self):
        super().setUp()
        try:
            ends = os.openpty()
        except OSError as e:
            self.skipTest(f"no pseudo terminal can be had here: {e}")
        for end in ends:
            os.close(end)

    def test_session(self):
        with tempfile.TemporaryDirectory() as home:
            t = Terminal(home, "chat", self.model, "--ignore-eos", "--temperature", "0")
            t.wait_for(r"small on cpu, up to 8192 tokens.*> ")
            t.type("forgotten\x03")  # Ctrl-C leaves the line
            t.wait_for(r"> ")
            t.type("/think enabled\n")
            t.wait_for(r"> ")
            t.type("Hello\n")
            t.wait_for(r"\033\[2m.{4}")  # reasoning, dimmed
            t.interrupt()
            t.wait_for(r"\033\[0m.*made, [0-9.]+/s, stopped\].*> ")
            t.type("one\ntwo\n")  # pasted: one message
            t.wait_for(r"two.*\033\[2m.{4}")
            t.interrupt()
            t.wait_for(r"made, [0-9.]+/s, stopped\].*> ")
            t.type("\x1b[A")  # history: the last message
            t.wait_for(r"two|one")
            t.type("\x03")
            t.wait_for(r"> ")
            t.type("\x04")
            self.assertEqual(t.end(), 0)
            history = pathlib.Path(home) / ".hayate_history"
            self.assertIn("Hello", history.read_text())
            self.assertEqual(history.stat().st_mode & 0o077, 0)

    def test_without_home(self):
        t = Terminal("", "chat", self.model, *FIXED)
        t.wait_for(r"> ")
        t.type("h\u00e9llo \U0001f32a\n")
        t.wait_for(r"made, .*> ")
        t.type("/quit\n")
        self.assertEqual(t.end(), 0)


if __name__ == "__main__":
    unittest.main()
