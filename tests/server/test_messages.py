#!/usr/bin/env python3
"""POST /v1/messages on the wire: order and keys of events, what streams add up to, errors, counting.

    test_messages.py BUILD/hayate

hayate-test: slow
"""
import http.client
import json
import re
import socket
import threading
import unittest

from test_chat import MODEL, Server

TOOL_FLAGS = ("--enable-auto-tool-choice", "--tool-call-parser", "minimax_m3")
WEATHER = {"name": "get_weather", "description": "Current weather in a city",
           "input_schema": {"type": "object", "properties": {"city": {"type": "string", "description": "city"}},
                            "required": ["city"]}}
HEX = re.compile("[0-9a-f]{32}")


def ask(text="What is 12 + 34?", **more):
    return {"model": MODEL.name, "max_tokens": 200, "temperature": 0, "messages": [{"role": "user", "content": text}],
            **more}


def post(server, path, body, headers=None):
    return server.call("POST", path, body, headers)


def events_of(server, path, body, headers=None):
    """The events of a stream as (name, data); the body has to be nothing but well-formed events."""
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    c.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json", **(headers or {})})
    r = c.getresponse()
    text = r.read().decode()
    c.close()
    assert r.status == 200, text
    assert r.getheader("Content-Type").startswith("text/event-stream"), r.getheader("Content-Type")
    assert text.endswith("\n\n"), text
    out = []
    for event in text[:-2].split("\n\n"):
        name, data = re.fullmatch(r"event: ([a-z_.]+)\ndata: (.*)", event).groups()
        out.append((name, json.loads(data)))
        assert out[-1][1]["type"] == name
    return out


def add_up(events):
    """What a stream of messages adds up to, checking its grammar on the way."""
    names = [n for n, _ in events]
    assert names[0] == "message_start" and names[-2:] == ["message_delta", "message_stop"], names
    message, open_block, json_text = events[0][1]["message"], None, ""
    assert message["content"] == [] and message["usage"]["output_tokens"] == 0
    for name, e in events[1:-2]:
        if name == "content_block_start":
            assert open_block is None and e["index"] == len(message["content"])
            message["content"].append(e["content_block"])
            open_block, json_text = e["index"], ""
        elif name == "content_block_delta":
            assert e["index"] == open_block
            block, d = message["content"][-1], e["delta"]
            assert block.get("signature", "") == "", "nothing comes behind a signature"
            field = {"text_delta": ("text", "text"), "thinking_delta": ("thinking", "thinking"),
                     "signature_delta": ("thinking", "signature"), "input_json_delta": ("tool_use", "partial_json")}
            kind, key = field[d["type"]]
            assert block["type"] == kind and set(d) == {"type", key} and d[key]
            if kind == "tool_use":
                json_text += d[key]
            else:
                block[key] += d[key]
        else:
            assert name == "content_block_stop" and e["index"] == open_block
            if message["content"][-1]["type"] == "tool_use":
                message["content"][-1]["input"] = json.loads(json_text)
            open_block = None
    assert open_block is None
    message.update(events[-2][1]["delta"])
    message["usage"] = events[-2][1]["usage"]
    return message


def without_ids(message):
    """A message with what differs from call to call taken out."""
    text = HEX.sub("ID", json.dumps({**message, "usage": {**message["usage"], "cache_read_input_tokens": 0, "input_tokens": 0}}))
    return json.loads(text)


class MessagesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(*TOOL_FLAGS, "--enable-log-requests")

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, "".join(cls.server.lines)

    def message(self, body, **headers):
        status, a = post(self.server, "/v1/messages", body, headers)
        self.assertEqual(status, 200, a)
        return a

    def both(self, body):
        """The whole answer, which its stream must add up to."""
        whole = self.message(body)
        streamed = add_up(events_of(self.server, "/v1/messages", body))
        self.assertEqual(without_ids(streamed), without_ids(whole))
        return whole

    def test_keys_and_order(self):
        a = self.message(ask())
        self.assertEqual(list(a), ["id", "type", "role", "model", "content", "stop_reason", "usage"])
        self.assertEqual((a["type"], a["role"], a["model"], a["stop_reason"]),
                         ("message", "assistant", MODEL.name, "end_turn"))
        self.assertRegex(a["id"], "^msg_[0-9a-f]{32}$")
        self.assertEqual([list(b) for b in a["content"]], [["type", "thinking", "signature"], ["type", "text"]])
        self.assertRegex(a["content"][0]["signature"], "^[0-9a-f]{32}$")
        self.assertIn("46", a["content"][1]["text"])
        self.assertEqual(list(a["usage"]), ["input_tokens", "output_tokens", "cache_read_input_tokens", "output_tokens_details"])
        self.assertTrue(0 < a["usage"]["output_tokens_details"]["thinking_tokens"] < a["usage"]["output_tokens"])

    def test_stream_adds_up(self):
        self.both(ask())
        self.both(ask("What is 2 + 3?"))
        for mode in ("enabled", "disabled"):
            a = self.both(ask(chat_template_kwargs={"thinking_mode": mode}))
            self.assertEqual([b["type"] for b in a["content"]][0], "thinking" if mode == "enabled" else "text")

    def test_thinking_sets_the_mode(self):
        kinds = lambda **more: [b["type"] for b in self.message(ask(**more))["content"]]
        self.assertEqual(kinds(thinking={"type": "disabled"}), ["text"])
        self.assertEqual(kinds(thinking={"type": "enabled", "budget_tokens": 1024}), ["thinking", "text"])
        self.assertEqual(kinds(thinking={"type": "disabled"}, chat_template_kwargs={"thinking_mode": "enabled"}),
                         ["thinking", "text"])

    def test_budget(self):
        """Thinking is ended after so many tokens, and the answer still comes."""
        a = self.both(ask(thinking={"type": "enabled", "budget_tokens": 8}))
        self.assertEqual(a["usage"]["output_tokens_details"]["thinking_tokens"], 8)
        self.assertEqual([b["type"] for b in a["content"]], ["thinking", "text"])

    def test_hidden_thinking(self):
        a = self.both(ask(thinking={"type": "enabled", "budget_tokens": 1024, "display": "omitted"}))
        self.assertEqual(a["content"][0], {"type": "thinking", "thinking": "", "signature": a["content"][0]["signature"]})
        self.assertIn("46", a["content"][1]["text"])

    def test_cut_off(self):
        whole = self.message(ask())
        a = self.both(ask(max_tokens=5))
        self.assertEqual((a["stop_reason"], a["usage"]["output_tokens"]), ("max_tokens", 5))
        self.assertEqual([b["type"] for b in a["content"]], ["thinking"])
        self.assertTrue(whole["content"][0]["thinking"].startswith(a["content"][0]["thinking"]))

    def test_stop_sequence(self):
        a = self.both(ask("What is 2 + 3?", thinking={"type": "disabled"}, stop_sequences=["never", " ="]))
        self.assertEqual((a["stop_reason"], a["stop_sequence"], a["content"][0]["text"]), ("stop_sequence", " =", "2 + 3"))
        self.assertNotIn("stop_sequence", self.message(ask("What is 2 + 3?", stop_sequences=["never"])))
        long = "long" * 200
        self.assertEqual(self.message(ask("What is 2 + 3?", stop_sequences=[long]))["stop_reason"], "end_turn")

    def test_usage(self):
        _, count = post(self.server, "/v1/messages/count_tokens", {"messages": ask()["messages"]})
        self.message(ask())
        u = self.message(ask())["usage"]
        self.assertEqual(count, {"input_tokens": count["input_tokens"],
                                 "context_management": {"original_input_tokens": count["input_tokens"]}})
        self.assertEqual(u["cache_read_input_tokens"], count["input_tokens"] - 1)
        self.assertEqual(u["input_tokens"], 1)

    def test_count_sees_everything(self):
        count = lambda **body: post(self.server, "/v1/messages/count_tokens", body)[1]["input_tokens"]
        base = count(messages=[{"role": "user", "content": "hi"}])
        self.assertGreater(count(messages=[{"role": "user", "content": "hi"}], tools=[WEATHER]), base + 50)
        self.assertGreater(count(messages=[{"role": "user", "content": "hi"}], system="Answer in French. Be brief."), base)
        self.assertGreater(count(messages=[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello there!"},
                                           {"role": "user", "content": "hi"}]), base + 5)

    def test_system_text_is_the_prompt_of_chats(self):
        """The same conversation in both dialects has the same prompt."""
        system = [{"type": "text", "text": "x-anthropic-billing-header: cch=12345;"}, {"type": "text", "text": "Be brief."}]
        count = post(self.server, "/v1/messages/count_tokens", {"system": system, "messages": [
            {"role": "user", "content": "hi"}]})[1]["input_tokens"]
        _, chat = self.server.call("POST", "/v1/chat/completions", {"max_tokens": 1, "messages": [
            {"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]})
        self.assertEqual(count, chat["usage"]["prompt_tokens"])

    def test_call_and_result(self):
        body = ask("What is the weather in Nepaxvak?", tools=[WEATHER])
        a = self.both(body)
        self.assertEqual(a["stop_reason"], "tool_use")
        call = a["content"][-1]
        self.assertEqual(list(call), ["type", "id", "name", "input"])
        self.assertRegex(call["id"], "^toolu_[0-9a-f]{32}$")
        self.assertEqual((call["name"], call["input"]), ("get_weather", {"city": "Nepaxvak"}))
        body["messages"] += [{"role": "assistant", "content": a["content"]},
                             {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"],
                                                           "content": [{"type": "text", "text": '{"temp": 13, "sky": "dry"}'}]}]}]
        b = self.both(body)
        self.assertEqual(b["stop_reason"], "end_turn")
        self.assertIn("13 degrees and dry", b["content"][-1]["text"])
        # What was said is found again: the turn came back as it was sampled.
        self.assertGreater(b["usage"]["cache_read_input_tokens"], a["usage"]["input_tokens"] + a["usage"]["cache_read_input_tokens"])
        body["messages"][-1]["content"][0].update(content="access denied", is_error=True)
        self.assertIn("failed", self.message(body)["content"][-1]["text"])

    def test_two_calls_and_one(self):
        body = ask("What is the weather in Nepaxvak? Also: Tell me the weather in Turin.", tools=[WEATHER])
        calls = [b["input"] for b in self.both(body)["content"] if b["type"] == "tool_use"]
        self.assertEqual(calls, [{"city": "Nepaxvak"}, {"city": "Turin"}])
        body["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": True}
        calls = [b["input"] for b in self.both(body)["content"] if b["type"] == "tool_use"]
        self.assertEqual(calls, [{"city": "Nepaxvak"}])
        body["tool_choice"] = {"type": "none"}
        self.assertNotIn("tool_use", [b["type"] for b in self.message(body)["content"]])

    def test_prefill(self):
        a = self.both(ask(messages=[{"role": "user", "content": "What is 2 + 3?"}, {"role": "assistant", "content": "2 + 3 ="}]))
        self.assertEqual(a["content"], [{"type": "text", "text": " 5."}])

    def refused(self, status, kind, message, path="/v1/messages", **body):
        body = {k: v for k, v in {**ask(), **body}.items() if v is not None}
        got, a = post(self.server, path, body)
        self.assertEqual((got, list(a), a["type"], list(a["error"]), a["error"]["type"]),
                         (status, ["type", "error"], "error", ["type", "message"], kind), a)
        self.assertIn(message, a["error"]["message"])

    def test_refusals(self):
        bad = "invalid_request_error"
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            self.refused(404, "not_found_error", "`nobody`", path, model="nobody")
            self.refused(400, bad, "messages: Field required", path, messages=None)
            picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
            self.refused(400, bad, "image blocks are not supported", path, messages=[{"role": "user", "content": [picture]}])
            self.refused(400, bad, "no previous assistant message", path, messages=[{"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "x", "content": "y"}]}])
        self.refused(400, bad, "max_tokens: Field required", max_tokens=None)
        self.refused(400, bad, "temperature", temperature=3)
        self.refused(400, bad, "temperature", temperature="hot")
        self.refused(400, bad, "stream", stream="perhaps")
        self.refused(400, bad, "context length", max_tokens=10 ** 8)
        for body in (b"", b"{", b"[]", b"null", b"\xff", b"[" * 100000):
            got, a = post(self.server, "/v1/messages", body)
            self.assertEqual((got, a["type"], a["error"]["type"]), (400, "error", bad), body[:10])
        got, a = post(self.server, "/v1/messages", json.dumps(ask()), {"Content-Type": "text/plain"})
        self.assertEqual((got, a["type"]), (400, "error"))

    def test_headers(self):
        a = self.message(ask(), **{"anthropic-version": "2023-06-01", "anthropic-beta": "x", "X-Request-Id": "mine"})
        self.assertEqual(a["id"], "msg_mine")

    def test_effort_in_every_dialect(self):
        """All three spellings are taken everywhere, any word is one, and nothing else is."""
        bodies = {"/v1/messages": ask(max_tokens=1), "/v1/responses": {"input": "hi", "max_output_tokens": 16},
                  "/v1/chat/completions": {"messages": ask()["messages"], "max_tokens": 1}}
        for path, body in bodies.items():
            for field in ({"reasoning_effort": "low"}, {"output_config": {"effort": "brand new"}}, {"reasoning": {"effort": "max"}}):
                self.assertEqual(post(self.server, path, {**body, **field})[0], 200, (path, field))
            for field in ({"reasoning_effort": 5}, {"output_config": {"effort": []}}, {"reasoning": {"effort": {}}}):
                self.assertEqual(post(self.server, path, {**body, **field})[0], 400, (path, field))

    def test_late(self):
        self.refused(504, "timeout_error", "deadline", hayate_deadline_s=1e-9)

    def test_client_that_leaves_is_cancelled(self):
        """A stream whose client has gone ends: the engine says so in its line."""
        body = json.dumps(ask("Say something.", stream=True, ignore_eos=True, max_tokens=20000, temperature=1))
        s = socket.create_connection(("127.0.0.1", self.server.port))
        s.sendall((f"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nX-Request-Id: gone\r\n"
                   f"Content-Length: {len(body)}\r\n\r\n{body}").encode())
        self.assertIn(b"200 OK", s.recv(4096))
        s.close()
        self.server.wait_for(lambda: any("msg_gone:" in line and "abort" in line for line in list(self.server.lines)))

    def test_many_at_once(self):
        sums = [(a, b) for a in range(11, 16) for b in range(21, 25)]
        said = {}

        def one(a, b):
            said[a, b] = add_up(events_of(self.server, "/v1/messages", ask(f"What is {a} + {b}?")))

        threads = [threading.Thread(target=one, args=s) for s in sums]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for a, b in sums:
            self.assertIn(str(a + b), said[a, b]["content"][-1]["text"])
        self.assertEqual(len({m["id"] for m in said.values()}), len(sums))


class OtherServersTest(unittest.TestCase):
    def test_keys(self):
        s = Server("--api-key", "secret")
        try:
            self.assertEqual(post(s, "/v1/messages", ask())[0], 401)
            self.assertEqual(post(s, "/v1/messages", ask(), {"Authorization": "Bearer secret"})[0], 200)
            self.assertEqual(post(s, "/v1/messages", ask(), {"x-api-key": "secret"})[0], 200)
            self.assertEqual(post(s, "/v1/messages", ask(), {"x-api-key": "secre"})[0], 401)
            # Tools need a server that reads calls.
            status, a = post(s, "/v1/messages", ask(tools=[WEATHER]), {"Authorization": "Bearer secret"})
            self.assertEqual((status, a["error"]["type"]), (400, "invalid_request_error"))
            self.assertIn("--enable-auto-tool-choice", a["error"]["message"])
        finally:
            self.assertEqual(s.stop(), 0)

    def test_stop_while_busy(self):
        """A stream that the server's end cuts off ends with an error event, and no message_stop."""
        s = Server()
        c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=120)
        c.request("POST", "/v1/messages", json.dumps(ask(stream=True, ignore_eos=True, max_tokens=30000)),
                  {"Content-Type": "application/json"})
        r = c.getresponse()
        first = r.read(200).decode()
        self.assertEqual(s.stop(), 0)
        text = first + r.read().decode()
        self.assertIn("event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"", text)
        self.assertNotIn("message_stop", text)


if __name__ == "__main__":
    import sys
    unittest.main(argv=sys.argv[:1])
