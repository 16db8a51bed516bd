#!/usr/bin/env python3
"""The server as the official openai package sees it. Skipped, exit status 77, where that is not installed.

    test_openai_client.py BUILD/hayate
"""
import sys
import unittest

from test_chat import MODEL, Server

try:
    import openai
except ImportError:
    openai = None


class ClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.client = openai.OpenAI(base_url=f"http://127.0.0.1:{cls.server.port}/v1", api_key="none")

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.stop()

    def test_models(self):
        self.assertEqual([m.id for m in self.client.models.list()], [MODEL.name])

    def test_answers(self):
        ask = dict(model=MODEL.name, messages=[{"role": "user", "content": "What is 12 + 34?"}], temperature=0,
                   max_tokens=200)
        answer = self.client.chat.completions.create(**ask)
        self.assertIn("46", answer.choices[0].message.content)
        chunks = list(self.client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **ask))
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        self.assertEqual(text, answer.choices[0].message.content)
        self.assertEqual(chunks[-1].usage, answer.usage)

    def test_errors(self):
        ask = dict(model=MODEL.name, messages=[{"role": "user", "content": "Hello!"}])
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(**{**ask, "model": "nobody"})
        with self.assertRaises(openai.BadRequestError):
            self.client.chat.completions.create(**ask, temperature=-1)


if __name__ == "__main__":
    if openai is None:
        print("skipped: the openai package is not installed")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
