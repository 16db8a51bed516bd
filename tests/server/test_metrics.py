#!/usr/bin/env python3
"""/metrics as Prometheus' own parser reads it: names, types, labels and buckets that dashboards and routers rely on, and
numbers that agree with what requests did.

    test_metrics.py BUILD/hayate
"""
import http.client
import json
import math
import socket
import sys
import time
import unittest

try:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
    from prometheus_client.parser import text_string_to_metric_families as parse_text
except ImportError:
    print("skipped: the Python package prometheus_client is not installed")
    sys.exit(77)
from test_chat import MODEL, Server

TTFT = [.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560]
ITL = [.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80]
REQUEST = [.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680]
ROWS = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]


def one_two_five(most):
    return [d * 10 ** e for e in range(9) for d in (1, 2, 5) if d * 10 ** e <= most]


GAUGES = {"num_requests_running": None, "num_requests_waiting": None, "kv_cache_usage_perc": None,
          "num_requests_waiting_by_reason": ("reason", {"capacity", "deferred"}),
          "engine_sleep_state": ("sleep_state", {"awake", "weights_offloaded", "discard_all"})}
COUNTERS = {"prefix_cache_queries": None, "prefix_cache_hits": None, "external_prefix_cache_queries": None,
            "external_prefix_cache_hits": None, "mm_cache_queries": None, "mm_cache_hits": None, "num_preemptions": None,
            "prompt_tokens": None, "prompt_tokens_cached": None, "generation_tokens": None,
            "prompt_tokens_by_source": ("source", {"local_compute", "local_cache_hit", "external_kv_transfer"}),
            "request_success": ("finished_reason", {"stop", "length", "abort", "error", "repetition"})}
TOKENS = ("request_prompt_tokens", "request_generation_tokens", "request_max_num_generation_tokens", "request_params_max_tokens",
          "request_prefill_kv_computed_tokens")
HISTOGRAMS = {"request_params_n": [1, 2, 5, 10, 20], "iteration_tokens_total": ROWS, "time_to_first_token_seconds": TTFT,
              "inter_token_latency_seconds": ITL, "request_time_per_output_token_seconds": ITL,
              "e2e_request_latency_seconds": REQUEST, "request_queue_time_seconds": REQUEST,
              "request_inference_time_seconds": REQUEST, "request_prefill_time_seconds": REQUEST,
              "request_decode_time_seconds": REQUEST}


class Metrics:
    """One scrape: sample(name, **labels) is a number, family(name) what the parser made of it."""

    def __init__(self, server, query="", accept=None):
        c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        c.request("GET", "/metrics" + query, headers={"Accept": accept} if accept else {})
        r = c.getresponse()
        self.status, self.type, self.text = r.status, r.getheader("Content-Type"), r.read().decode()
        c.close()
        self.families = {f.name: f for f in (parse_open if accept else parse_text)(self.text)}
        self.samples = [s for f in self.families.values() for s in f.samples]

    def sample(self, name, **labels):
        found = [s.value for s in self.samples if s.name == name and labels.items() <= s.labels.items()]
        assert len(found) == 1, (name, labels, found)
        return found[0]

    def vllm(self, name, **labels):
        return self.sample("vllm:" + name, **labels)

    def buckets(self, name):
        return [(float(s.labels["le"]), s.value) for s in self.samples if s.name == name + "_bucket"]


class MetricsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--served-model-name", 'm "3"', "--enable-auto-tool-choice", "--tool-call-parser", "minimax_m3")

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, "".join(cls.server.lines)

    def settled(self):
        """A scrape of an engine that has let go of all its requests."""
        end = time.monotonic() + 120
        while time.monotonic() < end:
            m = Metrics(self.server)
            if m.vllm("num_requests_running") + m.vllm("num_requests_waiting") == 0:
                return m
            time.sleep(.01)
        self.fail("requests are still there")

    def test_names_types_labels(self):
        m = Metrics(self.server)
        self.assertEqual((m.status, m.type), (200, "text/plain; version=0.0.4; charset=utf-8"))
        both = {"engine": "0", "model_name": 'm "3"'}
        for kind, wanted, suffix in (("gauge", GAUGES, ""), ("counter", COUNTERS, "_total")):
            for name, extra in wanted.items():
                f = m.families["vllm:" + name]
                self.assertEqual(f.type, kind, name)
                self.assertTrue(f.documentation)
                samples = [s for s in f.samples if s.name == "vllm:" + name + suffix]
                if extra:
                    self.assertEqual({s.labels.pop(extra[0]) for s in samples}, extra[1])
                for s in samples:
                    self.assertEqual(s.labels, both, name)
                if kind == "counter":
                    created = [s for s in m.samples if s.name == "vllm:" + name + "_created"]
                    self.assertEqual(len(created), len(samples), name)
                    self.assertLess(abs(created[0].value - time.time()), 3600)
        _, models = self.server.call("GET", "/v1/models")
        length = models["data"][0]["max_model_len"]
        for name, bounds in {**HISTOGRAMS, **{t: one_two_five(length) for t in TOKENS}}.items():
            self.assertEqual(m.families["vllm:" + name].type, "histogram", name)
            self.assertEqual([b for b, _ in m.buckets("vllm:" + name)], [*map(float, bounds), math.inf], name)
            self.assertEqual(m.vllm(name + "_count"), m.buckets("vllm:" + name)[-1][1])
            self.assertIn(f"vllm:{name}_created", m.text)
        config = next(s for s in m.samples if s.name == "vllm:cache_config_info")
        self.assertEqual((config.value, config.labels["block_size"]), (1, "128"))
        self.assertGreater(int(config.labels["num_gpu_blocks"]), 0)
        self.assertEqual(config.labels["enable_prefix_caching"], "True")
        self.assertEqual(m.families["vllm:tool_call_parser_invocations"].type, "counter")
        for name in ("process_resident_memory_bytes", "process_virtual_memory_bytes", "process_cpu_seconds_total",
                     "process_open_fds", "process_max_fds"):
            self.assertGreater(m.sample(name), 0, name)
        self.assertLess(abs(m.sample("process_start_time_seconds") - time.time()), 3600)

    def test_open_metrics_and_filter(self):
        text, opened = Metrics(self.server), Metrics(self.server, accept="application/openmetrics-text; version=1.0.0,*/*;q=0.1")
        self.assertTrue(opened.type.startswith("application/openmetrics-text"))
        self.assertTrue(opened.text.endswith("# EOF\n"))
        names = {s.name for s in text.samples}
        self.assertEqual({s.name for s in opened.samples}, names)
        self.assertEqual(len(names), len({n.lower() for n in names}))
        some = Metrics(self.server, "?name[]=vllm:num_requests_running&name%5B%5D=vllm:prompt_tokens_total&other=1")
        self.assertEqual({s.name for s in some.samples}, {"vllm:num_requests_running", "vllm:prompt_tokens_total"})
        self.assertEqual(Metrics(self.server, "?name[]=nothing").text, "")

    def test_numbers_agree(self):
        before = self.settled()
        prompt = generated = cached = 0
        for turn in range(4):
            status, a = self.server.chat("Count the numbers from 1 to 20, please. " * 12, max_tokens=7, ignore_eos=True)
            self.assertEqual(status, 200)
            u = a["usage"]
            prompt, generated = prompt + u["prompt_tokens"], generated + u["completion_tokens"]
            cached += (u.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        m = self.settled()
        grown = lambda name, **labels: m.vllm(name, **labels) - before.vllm(name, **labels)
        self.assertEqual(grown("prompt_tokens_total"), prompt)
        self.assertEqual(grown("generation_tokens_total"), generated)
        self.assertEqual(generated, 28)
        self.assertGreater(grown("prompt_tokens_cached_total"), 0)
        self.assertEqual(grown("prompt_tokens_by_source_total", source="local_cache_hit"), grown("prefix_cache_hits_total"))
        self.assertEqual(sum(grown("prompt_tokens_by_source_total", source=s) for s in COUNTERS["prompt_tokens_by_source"][1]), prompt)
        self.assertEqual(grown("prefix_cache_queries_total"), prompt)
        self.assertEqual(grown("request_success_total", finished_reason="length"), 4)
        for name, total in (("request_prompt_tokens", prompt), ("request_generation_tokens", generated), ("request_params_max_tokens", 28),
                            ("request_prefill_kv_computed_tokens", prompt - grown("prompt_tokens_cached_total"))):
            self.assertEqual((grown(name + "_count"), grown(name + "_sum")), (4, total), name)
        for name, count in (("time_to_first_token_seconds", 4), ("inter_token_latency_seconds", 24), ("e2e_request_latency_seconds", 4),
                            ("request_time_per_output_token_seconds", 4), ("request_queue_time_seconds", 4),
                            ("request_prefill_time_seconds", 4), ("request_decode_time_seconds", 4)):
            self.assertEqual(grown(name + "_count"), count, name)
            self.assertGreaterEqual(grown(name + "_sum"), 0, name)
        self.assertAlmostEqual(grown("request_prefill_time_seconds_sum") + grown("request_decode_time_seconds_sum"),
                               grown("request_inference_time_seconds_sum"), places=6)
        self.assertAlmostEqual(grown("inter_token_latency_seconds_sum"), grown("request_decode_time_seconds_sum"), places=6)
        self.assertGreaterEqual(grown("e2e_request_latency_seconds_sum"),
                                grown("request_inference_time_seconds_sum") + grown("request_queue_time_seconds_sum"))
        own = lambda name, **labels: m.sample("hayate:" + name, **labels)
        self.assertEqual(own("steps_total"), m.vllm("iteration_tokens_total_count"))
        self.assertEqual(own("step_rows_total"), m.vllm("iteration_tokens_total_sum"))
        self.assertEqual(sum(s.value for s in m.samples if s.name == "hayate:prefix_misses_total"), m.vllm("e2e_request_latency_seconds_count"))
        self.assertGreater(own("step_seconds_total", part="forward"), 0)
        self.assertEqual(own("prefix_hit_tokens_total", tier="cache"), m.vllm("prefix_cache_hits_total"))

    def test_counters_only_grow_while_it_works(self):
        """Scrapes beside a stream: nothing that counts goes back, buckets are cumulative, running is seen."""
        c = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
        c.request("POST", "/v1/chat/completions", json.dumps(
            {"messages": [{"role": "user", "content": "hi"}], "ignore_eos": True, "max_tokens": 30000, "stream": True}),
            {"Content-Type": "application/json"})
        r = c.getresponse()
        last, running = {}, 0
        for _ in range(25):
            r.readline()
            m = Metrics(self.server)
            running = max(running, m.vllm("num_requests_running"))
            for s in m.samples:
                if s.name.endswith(("_total", "_count", "_bucket", "_sum")):
                    key = (s.name, *sorted(s.labels.items()))
                    self.assertGreaterEqual(s.value, last.get(key, 0), key)
                    last[key] = s.value
            for name in HISTOGRAMS:
                counts = [v for _, v in m.buckets("vllm:" + name)]
                self.assertEqual(counts, sorted(counts), name)
        self.assertEqual(running, 1)
        r.close()
        c.close()
        self.settled()

    def test_abort_is_counted(self):
        before = self.settled()
        body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "ignore_eos": True, "max_tokens": 10000, "stream": True})
        s = socket.create_connection(("127.0.0.1", self.server.port))
        s.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                  f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
        s.recv(200)
        s.close()
        m = self.settled()
        self.assertEqual(m.vllm("request_success_total", finished_reason="abort") -
                         before.vllm("request_success_total", finished_reason="abort"), 1)

    def test_answers_and_calls(self):
        before = self.settled()
        self.assertEqual(self.server.chat(n=3, temperature=1, seed=3)[0], 200)
        tool = {"type": "function", "function": {"name": "get_weather", "description": "Get the weather of a city", "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
        status, a = self.server.chat("What is the weather in Kyoto?", tools=[tool], max_tokens=200)
        self.assertEqual((status, len(a["choices"][0]["message"]["tool_calls"])), (200, 1))
        self.server.stream(tools=[tool])
        m = self.settled()
        grown = lambda name, **labels: m.vllm(name, **labels) - before.vllm(name, **labels)
        self.assertEqual((grown("request_params_n_count"), grown("request_params_n_sum")), (3, 5))
        self.assertEqual(grown("request_max_num_generation_tokens_count"), 3)
        self.assertLess(grown("request_max_num_generation_tokens_sum"), grown("request_generation_tokens_sum"))
        calls = lambda **labels: grown("tool_call_parser_invocations_total", request_type="chat_completions", **labels)
        self.assertEqual((calls(mode="non_streaming", outcome="tool_call"), calls(mode="non_streaming", outcome="no_tool_call")), (1, 0))
        self.assertEqual(calls(mode="streaming", outcome="tool_call") + calls(mode="streaming", outcome="no_tool_call"), 1)

    def test_http_requests(self):
        """Requests by class of status, without probes and scrapes."""
        self.server.call("GET", "/v1/models")
        self.server.call("GET", "/nothing")
        self.server.call("GET", "/health")
        m = Metrics(self.server)
        found = [s for s in m.samples if s.name == "http_requests_total"]
        of = lambda **labels: sum(s.value for s in found if labels.items() <= s.labels.items())
        self.assertGreaterEqual(of(handler="/v1/models", method="GET", status="2xx"), 1)
        self.assertGreaterEqual(of(handler="none", status="4xx"), 1)
        self.assertEqual(of(handler="/health") + of(handler="/metrics"), 0)
        self.assertEqual(m.sample("http_request_duration_highr_seconds_count"), of())
        self.assertEqual(sum(s.value for s in m.samples if s.name == "http_request_duration_seconds_count"), of())
        self.assertEqual([b for b, _ in m.buckets("http_request_duration_highr_seconds")][:3], [.01, .025, .05])
        self.assertEqual(sum(s.value for s in m.samples if s.name == "http_response_size_bytes_count"), of())


if __name__ == "__main__":
    if not MODEL.exists():
        print("skipped: models/m3-nano is not there")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
