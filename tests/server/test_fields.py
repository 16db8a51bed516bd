#!/usr/bin/env python3
"""Fields at the ends of their ranges: log-probabilities of the whole vocabulary, counts beyond the queue, parameters of
/inference/v1/generate, fields of old, budgets that cannot end.

    test_fields.py BUILD/hayate

hayate-test: slow
"""
import http.client
import json
import math
import re
import sys
import time
import unittest

from test_chat import MODEL, Server

PLAIN = {"chat_template_kwargs": {"thinking_mode": "disabled"}}
THINK = {"chat_template_kwargs": {"thinking_mode": "enabled"}}
ASK = {"messages": [{"role": "user", "content": "What is 2 + 3?"}], "temperature": 0, "max_tokens": 4}


class Case(unittest.TestCase):
    flags = ()

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.flags)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, "".join(cls.server.lines)

    def ok(self, path, body):
        status, a = self.server.call("POST", path, body)
        self.assertEqual(status, 200, a)
        return a

    def refused(self, path, body, param, *words, status=400):
        got, a = self.server.call("POST", path, body)
        self.assertEqual(got, status, a)
        self.assertEqual(a["error"]["param"], param, a)
        for word in words:
            self.assertIn(word, a["error"]["message"])

    def generate(self, ids, **params):
        return self.ok("/inference/v1/generate",
                       {"token_ids": ids, "sampling_params": {"temperature": 0, "max_tokens": 4, **params}})

    def ids(self, text):
        return self.ok("/tokenize", {"prompt": text})["tokens"]


class WholeVocabularyTest(Case):
    """With --max-logprobs -1 any count is answered."""
    flags = ("--max-logprobs", "-1")

    def vocab(self):
        text = json.dumps(self.server.call("POST", "/v1/completions", {"prompt": [10 ** 7], "max_tokens": 1})[1])
        return int(re.search(r"outside 0 \.\. (\d+)", text)[1]) + 1

    def check_place(self, entry, count):
        """Descending, nothing twice, all of the probability where all tokens are there."""
        best = entry["top_logprobs"]
        self.assertEqual(len(best), count)
        values = [p["logprob"] for p in best]
        self.assertEqual(values, sorted(values, reverse=True))
        self.assertEqual(len({p["token"] for p in best}), count)
        self.assertEqual(best[0]["logprob"], entry["logprob"])

    def test_chat(self):
        vocab = self.vocab()
        few = self.ok("/v1/chat/completions", {**ASK, "logprobs": True, "top_logprobs": 20, "return_tokens_as_token_ids": True})
        for asked, count in ((21, 21), (100, 100), (vocab, vocab), (-1, vocab)):
            a = self.ok("/v1/chat/completions",
                        {**ASK, "logprobs": True, "top_logprobs": asked, "return_tokens_as_token_ids": True})
            for entry, known in zip(a["choices"][0]["logprobs"]["content"], few["choices"][0]["logprobs"]["content"]):
                self.check_place(entry, count)
                self.assertEqual(entry["top_logprobs"][:20], known["top_logprobs"])
                if count == vocab:
                    self.assertAlmostEqual(sum(math.exp(p["logprob"]) for p in entry["top_logprobs"]), 1, places=4)
        self.refused("/v1/chat/completions", {**ASK, "logprobs": True, "top_logprobs": vocab + 1}, "top_logprobs", str(vocab + 1))

    def test_stream(self):
        _, events = self.server.stream(max_tokens=3, logprobs=True, top_logprobs=-1, return_tokens_as_token_ids=True)
        places = [e for event in events[:-1] for c in json.loads(event)["choices"] if c["logprobs"]
                  for e in c["logprobs"]["content"]]
        self.assertEqual(len(places), 3)
        for entry in places:
            self.check_place(entry, self.vocab())

    def test_completions_and_prompts(self):
        vocab, ids = self.vocab(), self.ids("The capital of")
        few = self.ok("/v1/completions", {"prompt": ids, "max_tokens": 2, "temperature": 0, "logprobs": 5, "prompt_logprobs": 5})
        for asked in (300, vocab):
            a = self.ok("/v1/completions", {"prompt": ids, "max_tokens": 2, "temperature": 0, "logprobs": asked,
                                            "prompt_logprobs": asked, "return_tokens_as_token_ids": True})
            for top in a["choices"][0]["logprobs"]["top_logprobs"]:
                self.assertEqual(len(top), asked)
            scores = a["choices"][0]["prompt_logprobs"]
            self.assertEqual([s and len(s) for s in scores][1:], [asked + (asked < vocab and str(t) not in
                             list(s)[1:] and list(s.values())[0]["rank"] > asked) for t, s in zip(ids[1:], scores[1:])])
            for mine, known in zip(scores[1:], few["choices"][0]["prompt_logprobs"][1:]):
                for token, score in known.items():
                    self.assertEqual(mine[token], score)
        # by their text, of those that read the same one is told
        a = self.ok("/v1/completions", {"prompt": ids, "max_tokens": 1, "temperature": 0, "logprobs": vocab})
        top = a["choices"][0]["logprobs"]["top_logprobs"][0]
        self.assertTrue(vocab // 2 < len(top) <= vocab)
        echo = self.ok("/v1/completions", {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 50,
                                           "return_tokens_as_token_ids": True})
        self.assertTrue(all(len(t) >= 50 for t in echo["choices"][0]["logprobs"]["top_logprobs"][1:]))

    def test_generate_and_beside_others(self):
        """The same in a batch with others, and behind them the scores of ids."""
        ids, vocab = self.ids("One, two"), self.vocab()
        a = self.generate(ids, logprobs=vocab, logprob_token_ids=[5, 6], prompt_logprobs=-1)
        place = a["choices"][0]["logprobs"]["content"][0]
        self.assertEqual(len(place["top_logprobs"]), vocab + 2)
        for extra in place["top_logprobs"][-2:]:
            self.assertIn(extra, place["top_logprobs"][:-2])
        self.assertEqual(len(a["prompt_logprobs"][1]), vocab)

    def test_too_much_at_once(self):
        """What is kept until the end is bounded, and the line says by what."""
        long = {"prompt": self.ids("word " * 400), "temperature": 0}
        self.refused("/v1/completions", {**long, "max_tokens": 1, "n": 1, "prompt_logprobs": -1, "logprobs": 0,
                                         "prompt": long["prompt"] * 10}, "prompt_logprobs", "4194304")
        self.refused("/v1/chat/completions", {**ASK, "temperature": 1, "n": 100, "max_tokens": 2000, "logprobs": True,
                                              "top_logprobs": 1000}, "logprobs", "4194304", "stream")


class LimitsTest(Case):
    flags = ("--max-waiting", "5", "--max-logprobs", "50")

    def test_max_logprobs(self):
        self.assertEqual(len(self.ok("/v1/chat/completions", {**ASK, "logprobs": True, "top_logprobs": 50})
                             ["choices"][0]["logprobs"]["content"][0]["top_logprobs"]), 50)
        self.refused("/v1/chat/completions", {**ASK, "logprobs": True, "top_logprobs": 51}, "top_logprobs", "51", "50")
        self.refused("/v1/chat/completions", {**ASK, "logprobs": True, "top_logprobs": -1}, "top_logprobs", "50")
        self.refused("/v1/completions", {"prompt": "a", "logprobs": 51}, "logprobs", "51", "50")
        self.refused("/v1/completions", {"prompt": "a", "prompt_logprobs": 51}, "prompt_logprobs", "51", "50")

    def test_more_than_may_wait(self):
        """Never to be admitted is no matter of coming again."""
        self.refused("/v1/chat/completions", {**ASK, "temperature": 1, "n": 6}, "n", "6", "5", "--max-waiting")
        self.refused("/v1/completions", {"prompt": ["a", "b"], "n": 3, "temperature": 1}, "n", "6", "5")
        self.refused("/v1/completions", {"prompt": ["a"] * 6, "max_tokens": 1}, "prompt", "6", "5")
        self.assertEqual(len(self.ok("/v1/chat/completions", {**ASK, "temperature": 1, "n": 5})["choices"]), 5)


class FieldsTest(Case):
    def test_logprob_ids_need_logprobs(self):
        self.refused("/v1/chat/completions", {**ASK, "logprob_token_ids": [5]}, "logprob_token_ids", "logprobs")
        self.refused("/v1/completions", {"prompt": "a", "logprob_token_ids": [5]}, "logprob_token_ids", "logprobs")
        self.refused("/inference/v1/generate", {"token_ids": [5], "sampling_params": {"logprob_token_ids": [5]}},
                     "logprob_token_ids", "logprobs")
        self.ok("/v1/chat/completions", {**ASK, "logprob_token_ids": [5], "logprobs": True})

    def test_fields_of_old_warn_once(self):
        for i in range(3):
            for path, body in (("/v1/chat/completions", ASK), ("/v1/completions", {"prompt": "a", "max_tokens": 1})):
                self.ok(path, {**body, "guided_json": {"type": "object"}, "guided_regex": "a+", "guided_choice": None})
        self.ok("/v1/completions", {"prompt": "a", "max_tokens": 1, "guided_decoding_backend": "xgrammar"})
        log = self.server.log()
        for name, count in (("guided_json", 1), ("guided_regex", 1), ("guided_decoding_backend", 1), ("guided_choice", 0)):
            lines = [line for line in log if re.search(rf"\b{name}\b", line)]
            self.assertEqual(len(lines), count, lines)
            self.assertTrue(all("WARNING" in line for line in lines), lines)

    def test_sampling_params_of_generate(self):
        """Every name that upstream knows is done, has nothing to do, or is refused by its name."""
        ids = self.ids("ab ab ab ab ab ab")
        plain = self.generate(ids, max_tokens=6)["choices"][0]
        for nothing in ({"detokenize": False}, {"output_kind": 2}, {"flat_logprobs": True}, {"skip_clone": True},
                        {"spaces_between_special_tokens": False}, {"skip_special_tokens": False}, {"extra_args": {}},
                        {"repetition_detection": None}, {"thinking_token_budget": None}, {"unknown_name": 5},
                        {"skip_reading_prefix_cache": True}):
            self.assertEqual(self.generate(ids, max_tokens=6, **nothing)["choices"][0]["token_ids"], plain["token_ids"])
        for name, value in (("extra_args", {"a": 1}), ("logits_processors", ["x"]), ("truncate_prompt_tokens", 3),
                            ("use_beam_search", True)):
            self.refused("/inference/v1/generate", {"token_ids": ids, "sampling_params": {name: value}}, name, name)
        looping = self.generate(ids, max_tokens=60, ignore_eos=True, allowed_token_ids=[ids[0]],
                                repetition_detection={"max_pattern_size": 2, "min_count": 3})["choices"][0]
        self.assertEqual((looping["finish_reason"], len(looping["token_ids"])), ("repetition", 3))
        for wrong in ({"max_pattern_size": 2, "min_count": 1}, {"max_pattern_size": 2, "min_pattern_size": 3, "min_count": 2}):
            self.refused("/inference/v1/generate", {"token_ids": ids, "sampling_params": {"repetition_detection": wrong}},
                         "repetition_detection")
        self.refused("/inference/v1/generate", {"token_ids": ids, "sampling_params": {"repetition_detection": 5}},
                     "body.sampling_params.repetition_detection")
        prompt = self.ok("/v1/chat/completions/render", {**ASK, **THINK})["token_ids"]
        closer = self.ids("</mm:think>")
        self.assertEqual(len(closer), 1)
        for budget in (0, 3):
            made = self.generate(prompt, max_tokens=40, thinking_token_budget=budget)["choices"][0]["token_ids"]
            self.assertLessEqual(made.index(closer[0]), budget)
        self.refused("/inference/v1/generate", {"token_ids": ids, "sampling_params": {"thinking_token_budget": -2}},
                     "thinking_token_budget")

    def test_cache_is_not_read(self):
        ids = self.ids("something to remember " * 40)
        self.generate(ids)
        self.generate(ids)

        def hits():
            c = http.client.HTTPConnection("127.0.0.1", self.server.port)
            c.request("GET", "/metrics")
            lines = c.getresponse().read().decode().splitlines()
            c.close()
            return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:prefix_cache_hits_total{"))
        before = hits()
        self.generate(ids, skip_reading_prefix_cache=True)
        self.assertEqual(hits(), before)
        self.generate(ids)
        self.assertGreater(hits(), before)

    def test_wrong_words(self):
        """Of a few words a field is one, also where nothing asks for it; a list is of one kind."""
        for side in ("x", "", "Left"):
            self.refused("/v1/chat/completions", {**ASK, "truncation_side": side}, "truncation_side", "left or right")
        for prompt in ([[5], "a"], ["a", [5]], [[5], 5], ["a", 5]):
            self.refused("/v1/completions", {"prompt": prompt, "max_tokens": 1}, "body.prompt")

    def test_nothing_left_to_choose(self):
        """Restrictions that exclude each other, found when a token is to be chosen: the client's fault, also in a stream."""
        body = {**ASK, **PLAIN, "allowed_token_ids": self.ids("5"), "structured_outputs": {"choice": ["yes"]}}
        self.refused("/v1/chat/completions", body, None, "no token is left to choose")
        self.refused("/v1/chat/completions", {**body, "stream": True}, None, "no token is left to choose")
        # So many tokens before it that a stream has begun, however many of them a busy server takes at once.
        self.assertEqual(len(self.ids("y")), 1)
        events = self.server.stream(**{**body, "allowed_token_ids": self.ids("y"), "max_tokens": 2000,
                                       "structured_outputs": {"choice": ["y" * 1000 + "es"]}})[1]
        error = [json.loads(e)["error"] for e in events if "error" in e]
        self.assertEqual([e["code"] for e in error], [400], events)
        self.assertIn("no token is left to choose", error[0]["message"])
        self.ok("/v1/chat/completions", ASK)

    def test_budget_that_cannot_end(self):
        """When the budget is spent the closing marker is the only choice: what forbids it is refused at the start."""
        for words in (["</mm:think>"], ["a", "b</mm:think>"]):
            self.refused("/v1/chat/completions", {**ASK, **THINK, "thinking_token_budget": 2, "bad_words": words},
                         "bad_words", "</mm:think>")
            self.ok("/v1/chat/completions", {**ASK, **THINK, "bad_words": words})
        closer = self.ids("</mm:think>")
        body = {**ASK, **THINK, "thinking_token_budget": 2, "stop_token_ids": closer, "max_tokens": 20}
        self.refused("/v1/chat/completions", {**body, "min_tokens": 10}, "stop_token_ids", "min_tokens")
        self.assertEqual(self.ok("/v1/chat/completions", body)["choices"][0]["finish_reason"], "stop")
        self.refused("/inference/v1/generate",
                     {"token_ids": self.ids("<mm:think>"), "sampling_params":
                      {"thinking_token_budget": 2, "max_tokens": 9, "structured_outputs": {"regex": "[a-z]+"}}},
                     "thinking_token_budget", "grammar")

    def test_deadline_from_arrival(self):
        """The time that a request's own prompt takes to render and encode is its time too."""
        long = "word " * 20000
        begin = time.monotonic()
        self.ok("/tokenize", {"prompt": long})
        took = time.monotonic() - begin
        status, a = self.server.call("POST", "/v1/completions", {"prompt": long, "truncate_prompt_tokens": 2, "max_tokens": 1,
                                                                 "hayate_deadline_s": min(1e-6, took / 100)})
        self.assertEqual((status, a["error"]["type"]), (504, "GatewayTimeoutError"))

    def test_one_line_a_request(self):
        """By the port it came from."""
        c = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        c.request("POST", "/v1/chat/completions", json.dumps({**ASK, "temperature": 1}),
                  {"Content-Type": "application/json", "X-Request-Id": "one-line"})
        mine = f":{c.sock.getsockname()[1]} - "
        self.assertEqual(c.getresponse().status, 200)
        c.close()
        lines = self.server.log()
        self.assertEqual([line for line in lines if "chatcmpl-one-line" in line or "seed" in line], [])
        self.assertEqual(["POST /v1/chat/completions HTTP/1.1" in line for line in lines if mine in line], [True], lines)


class LoggedTest(Case):
    flags = ("--enable-log-requests",)

    def test_lines_of_a_logged_request(self):
        self.server.call("POST", "/v1/chat/completions", {**ASK, "temperature": 1}, {"X-Request-Id": "logged"})
        lines = [line for line in self.server.log() if "chatcmpl-logged" in line]
        self.assertEqual(len(lines), 2, lines)
        self.assertIn("Received request chatcmpl-logged: ", lines[0])
        self.assertRegex(lines[1], r"chatcmpl-logged: \d+ prompt tokens, .*, \d+ generated, \w+, seed \d+")


class LargeEventsTest(Case):
    """A stream's limit is for those who do not read it, not for one whose events are large."""
    flags = ("--max-logprobs", "-1")

    def test_events_of_megabytes(self):
        body = {**ASK, "max_tokens": 121, "ignore_eos": True, "stream": True, "stream_interval": 60, "logprobs": True,
                "top_logprobs": -1}
        c = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=300)
        c.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        time.sleep(1)  # a reader that comes late
        events = [e for e in c.getresponse().read().decode().split("\n\n") if e.startswith("data: {")]
        c.close()
        self.assertGreater(max(map(len, events)), 5 << 20)
        self.assertEqual(json.loads(events[-1][6:])["choices"][0]["finish_reason"], "length")


class BeamsTest(Case):
    """Beam search against one in Python over the log-probabilities that the server itself tells."""
    flags = ("--max-logprobs", "64")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.known = {}

    def best(self, ids, count):
        """The likeliest tokens behind ids, in order."""
        key = (tuple(ids), count)
        if key not in self.known:
            place = self.generate(ids, logprobs=count, max_tokens=1)["choices"][0]["logprobs"]["content"][0]
            self.known[key] = [(int(t["token"][9:]), t["logprob"]) for t in place["top_logprobs"]]
        return self.known[key]

    def search(self, prompt, n, max_tokens, penalty, ends):
        live, done = [([], 0.0)], []

        def score(tokens, total, ended):
            return total / (len(prompt) + len(tokens) - ended) ** penalty
        for _ in range(max_tokens):
            offers = []
            for tokens, total in live:
                for token, logprob in self.best(prompt + tokens, 2 * n):
                    offer = (tokens + [token], total + logprob)
                    if token in ends:
                        done.append((*offer, True))
                    else:
                        offers.append(offer)
            live = sorted(offers, key=lambda o: -o[1])[:n]
        done += [(*beam, False) for beam in live]
        return sorted(done, key=lambda d: -score(*d))[:n]

    def beams(self, prompt, n, max_tokens, penalty, **more):
        return self.ok("/v1/completions", {"prompt": prompt, "use_beam_search": True, "n": n, "max_tokens": max_tokens,
                                           "length_penalty": penalty, "temperature": 0, "return_token_ids": True, **more})

    def check(self, prompt, n, max_tokens, penalty, ends, **more):
        expected = self.search(prompt, n, max_tokens, penalty, ends)
        a = self.beams(prompt, n, max_tokens, penalty, logprobs=1, **more)
        self.assertEqual([c["token_ids"] for c in a["choices"]], [tokens for tokens, _, _ in expected])
        for i, (c, (tokens, total, ended)) in enumerate(zip(a["choices"], expected)):
            self.assertEqual((c["index"], c["finish_reason"]), (i, "stop" if ended else "length"))
            self.assertAlmostEqual(sum(c["logprobs"]["token_logprobs"]), total, places=3)
        return a

    def eos(self):
        with open(MODEL / "generation_config.json") as f:
            eos = json.load(f)["eos_token_id"]
        return {eos} if isinstance(eos, int) else set(eos)

    def test_against_python(self):
        for text, n, most, penalty in (("What is 2 + 3?", 1, 6, 1.0), ("The capital of", 3, 6, 1.0),
                                       ("One, two, three,", 4, 5, 0.0), ("Hello", 2, 8, -0.5)):
            self.check(self.ids(text), n, most, penalty, self.eos())

    def test_ends(self):
        """Answers that end are as long as they are; without ends none is; the end is told and not shown."""
        prompt = self.ok("/v1/chat/completions/render", {**ASK, **PLAIN})["token_ids"]
        whole = self.generate(prompt, max_tokens=100)["choices"][0]
        self.assertEqual(whole["finish_reason"], "stop")
        prompt += whole["token_ids"][:-4]
        ended = 0
        for penalty in (0.0, 1.0, 3.0):
            a = self.check(prompt, 4, 8, penalty, self.eos())
            ended += sum(c["finish_reason"] == "stop" for c in a["choices"])
        self.assertGreater(ended, 0)
        stop = self.best(prompt, 8)[0][0]
        a = self.check(prompt, 4, 4, 0.0, {stop, *self.eos()}, stop_token_ids=[stop])
        self.assertIn([stop], [c["token_ids"] for c in a["choices"]])
        first = next(c for c in a["choices"] if c["token_ids"] == [stop])
        self.assertEqual((first["text"], first["stop_reason"]), ("", stop))
        kept = self.beams(prompt, 4, 4, 0.0, stop_token_ids=[stop], include_stop_str_in_output=True)
        self.assertEqual(next(c for c in kept["choices"] if c["token_ids"] == [stop])["text"],
                         self.ok("/detokenize", {"tokens": [stop]})["prompt"])
        never = self.check(prompt, 3, 8, 1.0, set(), ignore_eos=True)
        self.assertEqual({c["finish_reason"] for c in never["choices"]}, {"length"})

    def test_chat_and_several_prompts(self):
        body = {**ASK, **PLAIN, "use_beam_search": True, "n": 3, "max_tokens": 6, "logprobs": True, "top_logprobs": 2}
        a = self.ok("/v1/chat/completions", body)
        prompt = self.ok("/v1/chat/completions/render", {**ASK, **PLAIN})["token_ids"]
        b = self.beams(prompt, 3, 6, 1.0)
        self.assertEqual([c["message"]["content"] for c in a["choices"]], [c["text"] for c in b["choices"]])
        self.assertEqual(a["usage"]["prompt_tokens"], len(prompt))
        self.assertEqual(a["usage"]["completion_tokens"], sum(len(c["token_ids"]) for c in b["choices"]))
        for c in a["choices"]:
            self.assertTrue(all(len(e["top_logprobs"]) == 2 for e in c["logprobs"]["content"]))
        two = self.beams([self.ids("Hello"), prompt], 2, 4, 1.0)
        one = [self.beams(p, 2, 4, 1.0)["choices"] for p in (self.ids("Hello"), prompt)]
        self.assertEqual([c["token_ids"] for c in two["choices"]], [c["token_ids"] for cs in one for c in cs])
        self.assertEqual([c["index"] for c in two["choices"]], [0, 1, 2, 3])

    def test_refused(self):
        body = {"prompt": "a", "use_beam_search": True, "n": 2, "max_tokens": 2}
        for more, param in (({"stream": True}, "stream"), ({"stop": "x"}, "stop"), ({"logit_bias": {"5": 1}}, "logit_bias"),
                            ({"min_tokens": 1}, "min_tokens"), ({"bad_words": ["a"]}, "bad_words"), ({"n": 257}, "n"),
                            ({"structured_outputs": {"regex": "a"}}, "structured_outputs"), ({"prompt_logprobs": 1}, "prompt_logprobs"),
                            ({"repetition_penalty": 1.1}, "repetition_penalty"), ({"allowed_token_ids": [5]}, "allowed_token_ids"),
                            ({"echo": True, "logprobs": 1}, "echo"), ({"n": 0}, "n")):
            self.refused("/v1/completions", {**body, **more}, param)
        self.refused("/v1/completions", {**body, "length_penalty": "x"}, "body.length_penalty")
        self.refused("/v1/chat/completions", {**ASK, "use_beam_search": True, "stream": True}, "stream")
        self.refused("/v1/chat/completions", {**ASK, **THINK, "use_beam_search": True, "thinking_token_budget": 3},
                     "thinking_token_budget")
        self.refused("/v1/chat/completions/batch", {**ASK, "messages": [ASK["messages"]], "use_beam_search": True},
                     "use_beam_search")
        self.ok("/v1/completions", {**body, "length_penalty": None, "repetition_penalty": 1.0, "top_p": 0.5, "stop": None})

    def test_deadline_and_leaving(self):
        status, a = self.server.call("POST", "/v1/completions", {"prompt": "Hello", "use_beam_search": True, "n": 8,
                                                                 "max_tokens": 4000, "ignore_eos": True, "hayate_deadline_s": 0.3})
        self.assertEqual((status, a["error"]["code"]), (504, 504))
        c = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        c.request("POST", "/v1/completions", json.dumps({"prompt": "Hello", "use_beam_search": True, "n": 8, "ignore_eos": True,
                                                         "max_tokens": 20000}), {"Content-Type": "application/json"})
        there = lambda: self.server.metric("vllm:num_requests_running") + self.server.metric("vllm:num_requests_waiting")
        self.server.wait_for(lambda: there() > 0)
        c.close()
        self.server.wait_for(lambda: there() == 0)


class DerenderTest(Case):
    """What generate answers to a rendered request reads as the answer to the request itself."""
    flags = ("--enable-auto-tool-choice", "--tool-call-parser", "minimax_m3")
    TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Get the weather of a city", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]

    def strip(self, answer):
        for name in ("id", "created", "system_fingerprint"):
            answer.pop(name)
        answer["usage"].pop("prompt_tokens_details")
        for c in answer["choices"]:
            for call in c.get("message", {}).get("tool_calls", []):
                call.pop("id")
        return answer

    def chat(self, request):
        direct = self.ok("/v1/chat/completions", request)
        rendered = self.ok("/v1/chat/completions/render", request)
        made = self.ok("/inference/v1/generate", rendered)
        again = self.ok("/v1/chat/completions/derender", {"model": rendered["model"], "generate_response": made, "chat_request": request,
                                                          "prompt_tokens": len(rendered["token_ids"])})
        self.assertEqual(again["id"], made["request_id"])
        self.assertEqual(self.strip(again), self.strip(direct))
        return again

    def test_chats(self):
        long = {"max_tokens": 80}
        self.chat({**ASK, **PLAIN, **long})
        thought = self.chat({**ASK, **THINK, **long})
        self.assertTrue(thought["choices"][0]["message"]["reasoning"])
        self.chat({**ASK, **THINK, **long, "include_reasoning": False})
        self.chat({**ASK, **long, "logprobs": True, "top_logprobs": 3})
        called = self.chat({**ASK, "messages": [{"role": "user", "content": "What is the weather in Paris?"}], "tools": self.TOOLS,
                            "max_tokens": 200, "chat_template_kwargs": {"thinking_mode": "disabled"}})
        self.assertEqual(called["choices"][0]["finish_reason"], "tool_calls")
        self.chat({**ASK, **PLAIN, "n": 2, "temperature": 1, "seed": 5, "max_tokens": 6})

    def test_completions(self):
        for more in ({}, {"logprobs": 2}, {"n": 2, "temperature": 1, "seed": 3}, {"logprobs": 0}):
            request = {"prompt": ["Hello", "The capital of"], "max_tokens": 5, "temperature": 0, **more}
            direct = self.ok("/v1/completions", request)
            rendered = self.ok("/v1/completions/render", request)
            made = [self.ok("/inference/v1/generate", r) for r in rendered]
            again = self.ok("/v1/completions/derender", {"model": rendered[0]["model"], "generate_responses": made,
                                                         "completion_request": request,
                                                         "prompt_tokens": [len(r["token_ids"]) for r in rendered]})
            self.assertEqual(self.strip(again), self.strip(direct))

    def response(self, ids, **more):
        return {"request_id": "r1", "choices": [{"index": 0, "token_ids": ids, "finish_reason": "stop", "logprobs": None}], **more}

    def test_without_the_request(self):
        """All of it is content; what has nothing to do with text is passed on."""
        ids = self.ids("<mm:think>a</mm:think>b")
        a = self.ok("/v1/chat/completions/derender", {"model": "m3-nano", "generate_response": self.response(
            ids, prompt_logprobs=[None, {"5": {"logprob": -1.5, "rank": 1, "decoded_token": "x"}}], kv_transfer_params={"a": [1]})})
        self.assertEqual(a["choices"][0]["message"]["content"], "<mm:think>a</mm:think>b")
        self.assertEqual(a["prompt_logprobs"], [None, {"5": {"logprob": -1.5, "rank": 1, "decoded_token": "x"}}])
        self.assertEqual((a["kv_transfer_params"], a["id"]), ({"a": [1]}, "r1"))
        self.assertEqual(a["usage"], {"prompt_tokens": 0, "total_tokens": len(ids), "completion_tokens": len(ids),
                                      "prompt_tokens_details": None})

    def test_refused(self):
        ids, chat, completions = self.ids("hello"), "/v1/chat/completions/derender", "/v1/completions/derender"
        good = {"model": "m3-nano", "generate_response": self.response(ids)}
        self.ok(chat, good)
        for more, param in (({"model": None}, "body.model"), ({"generate_response": None}, "body.generate_response"),
                            ({"generate_response": 5}, "body.generate_response"), ({"prompt_tokens": "x"}, "body.prompt_tokens"),
                            ({"prompt_tokens": -1}, "prompt_tokens"), ({"chat_request": {"messages": 5}}, "body.messages"),
                            ({"generate_response": self.response([])}, "token_ids"),
                            ({"generate_response": self.response(None)}, "token_ids"),
                            ({"generate_response": self.response([10 ** 9])}, "token_ids"),
                            ({"generate_response": self.response(["a"])}, "token_ids"),
                            ({"generate_response": {"choices": []}}, "choices"), ({"generate_response": {}}, "choices")):
            self.refused(chat, {**good, **more}, param)
        self.refused(chat, {**good, "model": "other"}, "model", status=404)
        self.refused(chat, {**good, "stream": True}, "stream")
        for logprobs in ({"content": [{"token": "hello", "logprob": -1}]}, {"content": []}, {"content": [{"token": "token_id:5"}]},
                         {"content": [{"token": "token_id:5", "logprob": -1}] * 99}):
            wrong = self.response(ids)
            wrong["choices"][0]["logprobs"] = logprobs
            self.refused(chat, {**good, "generate_response": wrong}, "logprobs")
        wrong = self.response(ids)
        wrong["choices"][0]["finish_reason"] = "odd"
        self.refused(chat, {**good, "generate_response": wrong}, "finish_reason")
        body = {"model": "m3-nano", "generate_responses": [self.response(ids)]}
        self.ok(completions, body)
        self.refused(completions, {**body, "generate_responses": []}, "generate_responses")
        self.refused(completions, {**body, "prompt_tokens": [1, 2]}, "prompt_tokens", "2", "1")
        self.refused(completions, {**body, "generate_responses": [self.response(ids), {"choices": [self.response(ids)["choices"][0]] * 2}]},
                     "choices")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
