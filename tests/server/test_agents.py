#!/usr/bin/env python3
"""Requests as coding agents make them, with everything that they bring along; what docs/serving.md promises to those.

    test_agents.py BUILD/hayate
"""
import http.client
import json
import sys
import unittest

from test_chat import MODEL, Server

MARK = {"cache_control": {"type": "ephemeral"}}
COMMAND = {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "required": ["command"], "additionalProperties": False,
           "properties": {"command": {"type": "string", "description": "The command"}, "timeout": {"type": "number"}}}


class AgentsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--enable-auto-tool-choice", "--tool-call-parser", "minimax_m3", "--served-model-name", "m3", "claude-x")

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, "".join(cls.server.lines)

    def stream(self, path, body, **headers):
        c = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
        c.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json", **headers})
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        self.assertEqual(r.status, 200, text)
        return [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: ")]

    def messages(self, *turns, **more):
        """A request of Messages, with a billing line that no other one has."""
        self.version = getattr(self, "version", 0) + 1
        body = {"model": "claude-x", "max_tokens": 200, "temperature": 0, "metadata": {"user_id": "u"}, "context_management": {"edits": []},
                "system": [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=1.{self.version}; cch={self.version:05x};"},
                           {"type": "text", "text": "You are brief. " * 20, **MARK}],
                "tools": [{"name": "Bash", "description": "Runs a command", "input_schema": COMMAND, **MARK}],
                "thinking": {"type": "enabled", "budget_tokens": 31999}, "output_config": {"effort": "high"}, "messages": list(turns), **more}
        return self.stream("/v1/messages?beta=true", body, **{"anthropic-version": "2023-06-01", "Authorization": "Bearer none",
                                                            "anthropic-beta": "interleaved-thinking-2025-05-14,context-management-2025-06-27"})

    def test_messages(self):
        """An agent's loop; the next request finds what the last one had in common with it, whatever its billing line."""
        ask = {"role": "user", "content": [{"type": "text", "text": "Run ls.", **MARK}]}
        first = self.messages(ask, tool_choice={"type": "any"})
        blocks, made = {}, {}
        for e in first:
            if e["type"] == "content_block_start":
                blocks[e["index"]] = e["content_block"]
            elif e["type"] == "content_block_delta":
                text = e["delta"].get("thinking") or e["delta"].get("partial_json") or e["delta"].get("signature") or ""
                made.setdefault(e["index"], []).append((e["delta"]["type"], text))
        calls = [i for i in blocks if blocks[i]["type"] == "tool_use"]
        self.assertGreaterEqual(len(calls), 1)
        for i, b in blocks.items():
            said = lambda kind: "".join(text for k, text in made.get(i, []) if k == kind)
            if b["type"] == "tool_use":
                b["input"] = json.loads(said("input_json_delta"))
                self.assertEqual((b["name"], type(b["input"]["command"])), ("Bash", str))
            elif b["type"] == "thinking":
                b["thinking"], b["signature"] = said("thinking_delta"), said("signature_delta")
        usage = first[0]["message"]["usage"]
        self.assertEqual(first[0]["message"]["model"], "claude-x")
        results = [{"type": "tool_result", "tool_use_id": blocks[i]["id"], "content": [{"type": "text", "text": "README.md"}], **MARK} for i in calls]
        turns = (ask, {"role": "assistant", "content": [blocks[i] for i in sorted(blocks)]}, {"role": "user", "content": results})
        second = self.messages(*turns)
        self.assertEqual(second[-1]["type"], "message_stop")
        again = second[0]["message"]["usage"]
        self.assertGreaterEqual(again["cache_read_input_tokens"], usage["input_tokens"] + usage["cache_read_input_tokens"])
        status, counted = self.server.call("POST", "/v1/messages/count_tokens?beta=true", {"model": "m3", "messages": list(turns)})
        self.assertEqual(status, 200, counted)

    def test_messages_without_the_vendors_tools(self):
        body = {"model": "m3", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}], "tools": [{"type": "web_search_20250305", "name": "web_search"}]}
        status, a = self.server.call("POST", "/v1/messages", body)
        self.assertEqual((status, "web_search_20250305" in a["error"]["message"]), (400, True))

    def responses(self, *items, **more):
        body = {"model": "m3", "instructions": "You are brief.", "input": list(items), "tool_choice": "auto", "parallel_tool_calls": False,
                "tools": [{"type": "function", "name": "shell", "description": "Runs a command", "strict": False, "parameters": {
                    "type": "object", "required": ["command"], "properties": {"command": {"type": "array", "items": {"type": "string"}}}}}],
                "reasoning": {"effort": "medium", "summary": "auto"}, "store": False, "include": ["reasoning.encrypted_content"],
                "prompt_cache_key": "k", "text": {"verbosity": "low"}, "max_output_tokens": 200, "temperature": 0, **more}
        events = self.stream("/v1/responses", body, **{"OpenAI-Beta": "responses=experimental", "session_id": "s"})
        self.assertEqual([e["sequence_number"] for e in events], list(range(len(events))))
        self.assertIn(events[-1]["type"], ("response.completed", "response.incomplete"))
        return events[-1]["response"]

    def test_responses(self):
        ask = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Run ls."}]}
        first = self.responses({"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Stay here."}]}, ask,
                               tool_choice="required")
        call = [item for item in first["output"] if item["type"] == "function_call"]
        self.assertEqual((len(call), call[0]["name"]), (1, "shell"))
        self.assertIsInstance(json.loads(call[0]["arguments"])["command"], list)
        second = self.responses(ask, *first["output"], {"type": "function_call_output", "call_id": call[0]["call_id"], "output": "README.md"})
        self.assertGreater(second["usage"]["output_tokens"], 0)
        body = {"model": "m3", "input": "x", "tools": [{"type": "custom", "name": "apply_patch"}]}
        status, a = self.server.call("POST", "/v1/responses", body)
        self.assertEqual((status, "custom" in a["error"]["message"]), (400, True))


if __name__ == "__main__":
    if not MODEL.exists():
        print("skipped: models/m3-nano is not there")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
