#!/usr/bin/env python3
"""Drafts behind HTTP: answers that stay the same in every dialect, a request's own number and method, usage, metrics, the line.

    test_speculation.py BUILD/hayate
"""
import http.client
import json
import re
import unittest

from test_chat import Server

QUESTION = "Write the numbers from 1 to 12 with commas."
CONFIG = ("--speculative-config", json.dumps({"method": "dspark", "num_speculative_tokens": 5}))


def chat(server, **more):
    status, got = server.chat(QUESTION, **{"temperature": 1, "seed": 7, "return_token_ids": True, **more})
    assert status == 200, got
    return got["choices"][0]["token_ids"], got["usage"]


class SpeculationTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.plain, cls.server = Server(), Server(*CONFIG)

    @classmethod
    def tearDownClass(cls):
        cls.plain.stop()
        assert cls.server.stop() == 0, "".join(cls.server.lines)
        lines = [l for l in cls.server.lines if "SpecDecoding metrics: " in l]
        assert lines, "".join(cls.server.lines)
        number = r"(\d+\.\d\d)"
        form = (rf"SpecDecoding metrics: Mean acceptance length: {number}, Accepted throughput: {number} tokens/s, Drafted throughput: {number} "
                r"tokens/s, Accepted: (\d+) tokens, Drafted: (\d+) tokens, Per-position acceptance rate: ((?:\d\.\d{3}(?:, )?)+), "
                r"Avg Draft acceptance rate: (\d+\.\d)%$")
        for line in lines:
            m = re.search(form, line)
            assert m, line
            rates = [float(x) for x in m[6].split(", ")]
            assert len(rates) == 5 and rates == sorted(rates, reverse=True), line
            assert abs(float(m[1]) - 1 - sum(rates)) < 0.02, line
            assert abs(float(m[7]) - 100 * int(m[4]) / int(m[5])) < 0.1, line
        assert not any("SpecDecoding" in l for l in cls.plain.lines)

    def test_same_answer_in_every_dialect(self):
        for temperature in (0, 1):
            a, usage = chat(self.plain, temperature=temperature)
            b, drafted = chat(self.server, temperature=temperature)
            self.assertEqual(a, b)
            self.assertNotIn("hayate_drafts", usage)
            self.assertGreater(drafted["hayate_drafts"]["accepted"], 0)
            for own in ({"num_speculative_tokens": 0}, {"num_speculative_tokens": 1}, {"num_speculative_tokens": 16},
                        {"num_speculative_tokens": 2, "rejection_sample_method": "coupled"}, {}):
                c, u = chat(self.server, temperature=temperature, speculation=own)
                self.assertEqual(a, c, own)
                d = u.get("hayate_drafts", {"rounds": 0, "drafted": 0, "accepted": 0})
                self.assertEqual(d["rounds"] > 0, own.get("num_speculative_tokens") != 0)
                most = min(own.get("num_speculative_tokens", 5), 5)
                self.assertLessEqual(d["drafted"], most * d["rounds"])
                self.assertLessEqual(d["accepted"], d["drafted"])
        many = {"temperature": 1, "seed": 3, "n": 3, "return_token_ids": True}
        self.assertEqual(*[[c["token_ids"] for c in s.chat(QUESTION, **many)[1]["choices"]] for s in (self.plain, self.server)])

    def test_other_dialects(self):
        bodies = {"/v1/completions": {"prompt": "One, two, three,", "max_tokens": 40},
                  "/v1/messages": {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 64},
                  "/v1/responses": {"input": QUESTION, "max_output_tokens": 64, "store": False},
                  "/inference/v1/generate": {"token_ids": [5, 6, 7, 8], "sampling_params": {"max_tokens": 40, "temperature": 1, "seed": 4, "ignore_eos": True}}}
        for path, body in bodies.items():
            if path[:4] == "/v1/":
                body = {**body, "temperature": 1, "seed": 4, "ignore_eos": True}
            answers = []
            for server, own in ((self.plain, {}), (self.server, {}), (self.server, {"speculation": {"num_speculative_tokens": 0}}),
                                (self.server, {"speculation": {"num_speculative_tokens": 2}})):
                status, got = server.call("POST", path, {**body, **own})
                self.assertEqual(status, 200, got)
                usage = got["usage"]
                self.assertEqual("hayate_drafts" in usage, server is self.server and own.get("speculation", {"num_speculative_tokens": 5})["num_speculative_tokens"] > 0,
                                 (path, own))
                answers.append([got.get(k) for k in ("choices", "content")] or [o["content"] for o in got["output"]])
            for a in answers[1:]:
                strip = lambda x: re.sub(r'"(id|signature)": "[^"]*"', "", json.dumps(x))
                self.assertEqual(strip(answers[0]), strip(a), path)
            status, got = self.server.call("POST", path, {**body, "speculation": {"num_speculative_tokens": 99}})
            self.assertEqual(status, 400, (path, got))

    def test_refusals(self):
        for wrong, words in (({"num_speculative_tokens": 17}, "must be between 0 and 16"), ({"num_speculative_tokens": -1}, "must be between"),
                             ({"num_speculative_tokens": "many"}, "valid integer"), (7, "valid dictionary"), ([], "valid dictionary"),
                             ({"rejection_sample_method": "x"}, "coupled, standard, block or synthetic"), ({"rejection_sample_method": 1}, "valid string"),
                             ({"num_drafts": 3}, "no member num_drafts"), ({"rejection_sample_method": "synthetic"}, "opened with it"),
                             ({"rejection_sample_method": "standard"}, "opened with coupled")):
            status, got = self.server.chat(speculation=wrong)
            self.assertEqual(status, 400, (wrong, got))
            self.assertIn(words, got["error"]["message"])
            self.assertTrue(got["error"]["param"], wrong)
        self.assertEqual(self.plain.chat(speculation={"num_speculative_tokens": 3})[0], 200)

    def test_stream(self):
        _, events = self.server.stream(stream_options={"include_usage": True}, ignore_eos=True)
        usage = json.loads(events[-2])["usage"]
        self.assertGreater(usage["hayate_drafts"]["rounds"], 0)
        self.assertEqual(usage["completion_tokens"], 64)

    def metrics(self, server):
        c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        c.request("GET", "/metrics")
        text = c.getresponse().read().decode()
        c.close()
        return {name: float(value) for name, value in re.findall(r"^(vllm:spec_decode_\S+?) (\S+)$", text, re.M) if "_created" not in name}

    def test_metrics(self):
        self.assertEqual(self.metrics(self.plain), {})
        before = self.metrics(self.server)
        _, usage = chat(self.server, ignore_eos=True)
        d, after = usage["hayate_drafts"], self.metrics(self.server)
        labels = '{engine="0",model_name="m3-nano"}'
        names = {f"vllm:spec_decode_num_{n}_total": n for n in ("drafts", "draft_tokens", "accepted_tokens")}
        grown = {k: after[k] - before[k] for k in after}
        by = {names[k.split("{")[0]]: v for k, v in grown.items() if "per_pos" not in k}
        self.assertEqual(by, {"drafts": d["rounds"], "draft_tokens": d["drafted"], "accepted_tokens": d["accepted"]})
        places = [v for k, v in sorted(grown.items()) if "per_pos" in k]
        self.assertEqual(len(places), 5)
        self.assertEqual(sum(places), d["accepted"])
        self.assertEqual(places, sorted(places, reverse=True))
        self.assertTrue(any(labels in k for k in after), after)


class OtherMethodsTest(unittest.TestCase):
    def test_standard_and_synthetic(self):
        for config, other in (({"rejection_sample_method": "standard"}, "coupled"), ({"rejection_sample_method": "block"}, "standard"),
                              ({"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 3, "num_speculative_tokens": 4}, "coupled")):
            server = Server("--speculative-config", json.dumps(config))
            try:
                self.assertTrue(any("rejection_sample_method=" + config["rejection_sample_method"] in l for l in server.lines), server.lines)
                _, usage = chat(server, ignore_eos=True, max_tokens=62)
                d = usage["hayate_drafts"]
                if "synthetic_acceptance_length" in config:
                    self.assertEqual(d["accepted"] // d["rounds"], 2, d)  # the last round may be cut
                ids, _ = chat(server, speculation={"rejection_sample_method": other})
                self.assertTrue(ids)
            finally:
                self.assertEqual(server.stop(), 0, "".join(server.lines))

    def test_batch_table(self):
        server = Server("--speculative-config", json.dumps({"num_speculative_tokens": "auto"}), "--max-num-seqs", "64")
        try:
            line = next(l for l in server.lines if "Drafts by sequences of a step: " in l)
            drafts = [int(x) for x in re.findall(r"(\d+) from", line)]
            self.assertEqual(drafts, sorted(drafts, reverse=True))
            self.assertIn("from 1", line)
        finally:
            self.assertEqual(server.stop(), 0, "".join(server.lines))


if __name__ == "__main__":
    unittest.main(argv=["test_speculation.py"])
