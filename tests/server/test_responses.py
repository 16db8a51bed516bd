#!/usr/bin/env python3
"""POST /v1/responses on the wire: order and keys of events, what streams add up to, errors; kept responses.

    test_responses.py BUILD/hayate

hayate-test: slow
"""
import json
import re
import threading
import time
import unittest

from test_chat import MODEL, Server
from test_messages import HEX, TOOL_FLAGS, events_of, post

WEATHER = {"type": "function", "name": "get_weather", "description": "Current weather in a city",
           "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "city"}},
                          "required": ["city"]}}
KEYS = ["id", "object", "created_at", "status", "error", "incomplete_details", "model", "output", "temperature", "top_p",
        "background", "instructions", "max_output_tokens", "max_tool_calls", "previous_response_id", "prompt_cache_key",
        "safety_identifier", "user", "metadata", "parallel_tool_calls", "prompt", "reasoning", "service_tier", "store",
        "text", "tool_choice", "tools", "top_logprobs", "truncation", "usage"]


def ask(text="What is 12 + 34?", **more):
    return {"model": MODEL.name, "input": text, "temperature": 0, **more}


def texts(response):
    return [p["text"] for i in response["output"] if i["type"] == "message" for p in i["content"]]


def calls(response):
    return [(i["name"], json.loads(i["arguments"])) for i in response["output"] if i["type"] == "function_call"]


def add_up(events):
    """The response that a stream ends with, checking on the way that its events say the same."""
    names = [n for n, _ in events]
    assert [e["sequence_number"] for _, e in events] == list(range(len(events)))
    assert names[:2] == ["response.created", "response.in_progress"], names
    assert names[-1] in ("response.completed", "response.incomplete"), names
    last = events[-1][1]["response"]
    first = events[0][1]["response"]
    assert (first["status"], first["output"], first["usage"], first["id"]) == ("in_progress", [], None, last["id"])
    output, at = [], 2
    take = lambda: events[at]
    while at < len(events) - 1:
        name, e = take()
        assert name == "response.output_item.added" and e["output_index"] == len(output), (name, e)
        item, index, at = e["item"], e["output_index"], at + 1
        assert item["status"] == "in_progress"
        kind = {"reasoning": "reasoning_text", "message": "output_text", "function_call": "function_call_arguments"}[item["type"]]
        part = {"reasoning": "reasoning_part", "message": "content_part"}.get(item["type"])
        if part:
            name, e = take()
            assert name == f"response.{part}.added" and e["part"]["text"] == "", name
            assert item["content"] == []
            at += 1
        text, logprobs = "", []
        while take()[0] == f"response.{kind}.delta":
            e = take()[1]
            assert (e["item_id"], e["output_index"], e.get("content_index")) == (item["id"], index, 0 if part else None)
            assert e["delta"]
            text, at = text + e["delta"], at + 1
            logprobs += e.get("logprobs", [])
        name, e = take()
        assert name == f"response.{kind}.done" and e["text" if part else "arguments"] == text, (name, e, text)
        at += 1
        if part:
            name, e = take()
            assert name == f"response.{part}.done" and e["part"]["text"] == text
            assert e["part"].get("logprobs", []) == logprobs
            at += 1
        name, e = take()
        assert name == "response.output_item.done" and e["item"]["id"] == item["id"]
        at += 1
        done = e["item"]
        assert (done["content"][0]["text"] if part else done["arguments"]) == text
        output.append(done)
    assert output == last["output"]
    return last


def without_ids(response):
    return json.loads(HEX.sub("ID", json.dumps({**response, "created_at": 0, "usage": {
        **response["usage"], "input_tokens_details": None}})))


class ResponsesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(*TOOL_FLAGS)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, "".join(cls.server.lines)

    def response(self, body):
        status, a = post(self.server, "/v1/responses", body)
        self.assertEqual(status, 200, a)
        return a

    def both(self, body):
        whole = self.response(body)
        self.assertEqual(without_ids(add_up(events_of(self.server, "/v1/responses", body))), without_ids(whole))
        return whole

    def test_keys_and_order(self):
        a = self.both(ask())
        self.assertEqual(list(a), KEYS)
        self.assertRegex(a["id"], "^resp_[0-9a-f]{32}$")
        self.assertEqual((a["object"], a["status"], a["model"]), ("response", "completed", MODEL.name))
        self.assertLess(abs(a["created_at"] - time.time()), 3600)
        self.assertEqual([list(i) for i in a["output"]], [
            ["id", "type", "status", "summary", "content", "encrypted_content"], ["id", "type", "status", "role", "content"]])
        self.assertEqual([re.sub(HEX, "", i["id"]) for i in a["output"]], ["rs_", "msg_"])
        self.assertIn("46", texts(a)[0])
        u = a["usage"]
        self.assertEqual(list(u), ["input_tokens", "input_tokens_details", "output_tokens", "output_tokens_details", "total_tokens"])
        self.assertEqual(u["total_tokens"], u["input_tokens"] + u["output_tokens"])
        self.assertTrue(0 < u["output_tokens_details"]["reasoning_tokens"] < u["output_tokens"])

    def test_modes(self):
        for mode in ("enabled", "disabled"):
            a = self.both(ask("What is 2 + 3?", chat_template_kwargs={"thinking_mode": mode}))
            self.assertEqual([i["type"] for i in a["output"]], ["reasoning", "message"][mode == "disabled":])
            self.assertEqual(a["usage"]["output_tokens_details"]["reasoning_tokens"] > 0, mode == "enabled")

    def test_echo(self):
        a = self.both(ask(instructions="Be brief.", max_output_tokens=100, metadata={"k": "v"}, user="u", top_p=0.5,
                          reasoning={"effort": "low"}, parallel_tool_calls=False, prompt_cache_key="p"))
        want = {"instructions": "Be brief.", "max_output_tokens": 100, "metadata": {"k": "v"}, "user": "u", "top_p": 0.5,
                "temperature": 0.0, "reasoning": {"effort": "low", "summary": None}, "parallel_tool_calls": False,
                "prompt_cache_key": "p", "store": False, "tool_choice": "auto", "tools": [],
                "text": {"format": {"type": "text"}}, "truncation": "disabled", "background": False}
        self.assertEqual({k: a[k] for k in want}, want)

    def test_cut_off(self):
        a = self.both(ask(max_output_tokens=5))
        self.assertEqual((a["status"], a["incomplete_details"]), ("incomplete", {"reason": "max_output_tokens"}))
        self.assertEqual([(i["type"], i["status"]) for i in a["output"]], [("reasoning", "incomplete")])
        self.assertEqual(a["usage"]["output_tokens"], 5)

    def test_logprobs(self):
        for text, tokens in (("What is 2 + 3?", 9), ("What is 12 + 34?", 12)):
            a = self.both(ask(text, include=["message.output_text.logprobs"], top_logprobs=2))
            part = a["output"][-1]["content"][0]
            self.assertEqual("".join(p["token"] for p in part["logprobs"]), part["text"])
            for p in part["logprobs"]:
                self.assertEqual(list(p), ["token", "logprob", "bytes", "top_logprobs"])
                self.assertEqual(p["top_logprobs"][0]["token"], p["token"])  # greedy
                self.assertEqual(len(p["top_logprobs"]), 2)
        self.assertEqual(self.response(ask())["output"][-1]["content"][0]["logprobs"], [])

    def test_call_and_output(self):
        body = ask([{"role": "user", "content": "What is the weather in Nepaxvak?"}], tools=[WEATHER])
        a = self.both(body)
        self.assertEqual(calls(a), [("get_weather", {"city": "Nepaxvak"})])
        call = a["output"][-1]
        self.assertEqual(list(call), ["id", "type", "status", "call_id", "name", "arguments"])
        body["input"] += a["output"] + [{"type": "function_call_output", "call_id": call["call_id"],
                                         "output": '{"temp": 13, "sky": "dry"}'}]
        b = self.both(body)
        self.assertIn("13 degrees and dry", texts(b)[0])
        self.assertGreater(b["usage"]["input_tokens_details"]["cached_tokens"], a["usage"]["input_tokens"])

    def test_two_calls_and_one(self):
        body = ask("What is the weather in Nepaxvak? Also: Tell me the weather in Turin.", tools=[WEATHER])
        two = [("get_weather", {"city": "Nepaxvak"}), ("get_weather", {"city": "Turin"})]
        self.assertEqual(calls(self.both(body)), two)
        self.assertEqual(calls(self.both({**body, "parallel_tool_calls": False})), two[:1])
        self.assertEqual(calls(self.response({**body, "tool_choice": "none"})), [])

    def test_prompt_is_that_of_chats(self):
        a = self.response(ask([{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "hi"}], max_output_tokens=1))
        _, chat = self.server.call("POST", "/v1/chat/completions", {"max_tokens": 1, "messages": [
            {"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]})
        self.assertEqual(a["usage"]["input_tokens"], chat["usage"]["prompt_tokens"])

    def refused(self, status, kind, param, **body):
        body = {k: v for k, v in {**ask(), **body}.items() if v is not None}
        got, a = post(self.server, "/v1/responses", body)
        e = a["error"]
        self.assertEqual((got, e["code"], e["type"], e["param"]), (status, status, kind, param), a)
        return e["message"]

    def test_refusals(self):
        bad = "BadRequestError"
        self.refused(404, "NotFoundError", "model", model="nobody")
        self.refused(400, "Bad Request", "body.input", input=None)
        self.refused(400, bad, "input", input=[{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}])
        self.refused(400, bad, "prompt", prompt={"id": "p"})
        self.refused(400, bad, "temperature", temperature=3)
        self.refused(400, bad, "max_output_tokens", max_output_tokens=0)
        self.refused(400, "Bad Request", "body.stream", stream="perhaps")
        self.refused(400, bad, "tools", tools=[{"type": "web_search"}])
        self.refused(400, bad, "input_tokens", max_output_tokens=32760)
        for field in ({"previous_response_id": "resp_x"}, {"background": True}):
            self.assertIn("VLLM_ENABLE_RESPONSES_API_STORE=1", self.refused(400, bad, list(field)[0], **field))
        self.assertIn("no previous assistant", self.refused(400, bad, None, input=[
            {"type": "function_call_output", "call_id": "x", "output": "y"}]))
        for body in (b"", b"{", b"[]", b"null", b"\xff", b"[" * 100000):
            got, a = post(self.server, "/v1/responses", body)
            self.assertEqual((got, a["error"]["code"]), (400, 400))

    def test_nothing_is_kept(self):
        a = self.response(ask(store=True))
        self.assertFalse(a["store"])
        for method, path in (("GET", f"/v1/responses/{a['id']}"), ("POST", f"/v1/responses/{a['id']}/cancel")):
            status, e = self.server.call(method, path)
            self.assertEqual((status, e["error"]["type"], e["error"]["code"]), (404, "invalid_request_error", 404))

    def test_many_at_once(self):
        said = {}

        def one(a, b):
            said[a, b] = add_up(events_of(self.server, "/v1/responses", ask(f"What is {a} + {b}?")))

        sums = [(a, b) for a in range(11, 16) for b in range(21, 25)]
        threads = [threading.Thread(target=one, args=s) for s in sums]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for a, b in sums:
            self.assertIn(str(a + b), texts(said[a, b])[0])


class KeptTest(unittest.TestCase):
    """A server that keeps responses."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*TOOL_FLAGS, "--enable-responses-store", "--enable-log-requests")

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, "".join(cls.server.lines)

    def response(self, body):
        status, a = post(self.server, "/v1/responses", body)
        self.assertEqual(status, 200, a)
        return a

    def get(self, id, suffix=""):
        return self.server.call("GET", f"/v1/responses/{id}{suffix}")

    def cancel(self, id):
        return self.server.call("POST", f"/v1/responses/{id}/cancel")

    def wait(self, id, *statuses):
        end = time.monotonic() + 60
        while (a := self.get(id))[1]["status"] not in statuses:
            self.assertEqual(a[0], 200)
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        return a[1]

    def test_kept_as_it_was_said(self):
        a = self.response(ask())
        self.assertTrue(a["store"])
        self.assertEqual(self.get(a["id"]), (200, a))
        b = add_up(events_of(self.server, "/v1/responses", ask()))
        self.assertEqual(self.get(b["id"]), (200, b))
        self.assertEqual(self.get(self.response(ask(store=False))["id"])[0], 404)
        self.assertEqual(self.get(a["id"], "?stream=true")[0], 400)

    def test_goes_on(self):
        first = self.response(ask("What is the weather in Nepaxvak?", tools=[WEATHER], instructions="Help the user."))
        call = first["output"][-1]
        second = self.response(ask([{"type": "function_call_output", "call_id": call["call_id"], "output": '{"temp": 13, "sky": "dry"}'}],
                                   tools=[WEATHER], instructions="Help the user.", previous_response_id=first["id"]))
        self.assertEqual(second["previous_response_id"], first["id"])
        self.assertIn("13 degrees and dry", texts(second)[0])
        self.assertGreater(second["usage"]["input_tokens_details"]["cached_tokens"], first["usage"]["input_tokens"])
        # Two answers go on from the same one, and neither changes it.
        again = self.response(ask([{"type": "function_call_output", "call_id": call["call_id"], "output": '{"temp": 27, "sky": "wet"}'}],
                                  tools=[WEATHER], instructions="Help the user.", previous_response_id=first["id"]))
        self.assertEqual(again["usage"]["input_tokens"], second["usage"]["input_tokens"])
        self.assertIn("27 degrees and wet", texts(again)[0])
        status, e = post(self.server, "/v1/responses", ask(previous_response_id="resp_nobody"))
        self.assertEqual((status, e["error"]["type"], e["error"]["param"]), (404, "invalid_request_error", "previous_response_id"))

    def test_background(self):
        a = self.response(ask(background=True))
        self.assertEqual((a["status"], a["output"], a["usage"], a["background"]), ("queued", [], None, True))
        done = self.wait(a["id"], "completed")
        self.assertIn("46", texts(done)[0])
        self.assertEqual(self.cancel(a["id"]), (200, done))  # too late, and no harm
        status, e = self.cancel(self.response(ask())["id"])
        self.assertEqual((status, e["error"]["message"]), (400, "Cannot cancel a synchronous response."))

    def test_background_is_cancelled(self):
        a = self.response(ask("Say something.", background=True, ignore_eos=True, max_output_tokens=30000))
        status, e = post(self.server, "/v1/responses", ask(previous_response_id=a["id"]))
        self.assertEqual((status, e["error"]["param"]), (400, "previous_response_id"))
        status, b = self.cancel(a["id"])
        self.assertEqual((status, b["status"], b["id"]), (200, "cancelled", a["id"]))
        self.assertEqual(self.get(a["id"]), (200, b))
        self.server.wait_for(lambda: any(a["id"] in line and "abort" in line for line in list(self.server.lines)))
        self.assertEqual(self.get(a["id"])[1]["status"], "cancelled")
        self.assertEqual(self.cancel(a["id"]), (200, b))

    def test_background_outlives_its_stream(self):
        import http.client
        c = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
        c.request("POST", "/v1/responses", json.dumps(ask(background=True, stream=True)), {"Content-Type": "application/json"})
        r = c.getresponse()
        id = HEX.search(r.read(300).decode()).group()
        r.close()
        c.close()
        self.assertIn("46", texts(self.wait(f"resp_{id}", "completed"))[0])

    def test_background_fails(self):
        a = self.response(ask("Say something.", background=True, ignore_eos=True, hayate_deadline_s=0.2))
        e = self.wait(a["id"], "failed")
        self.assertEqual((e["error"]["code"], e["output"]), ("server_error", []))
        self.assertIn("deadline", e["error"]["message"])


if __name__ == "__main__":
    import sys
    unittest.main(argv=sys.argv[:1])
