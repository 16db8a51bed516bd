#!/usr/bin/env python3
"""Every field of the protocols with its default, both ends of its range, just outside of it, of a wrong type, and null.

    test_ranges.py BUILD/hayate

hayate-test: slow
"""
import sys
import unittest

from test_chat import Server

MESSAGES = [{"role": "user", "content": "hi"}]
LARGE = 10 ** 7
PATTERN = {"max_pattern_size": 3, "min_count": 3}

# field: (values that are answered, values that are refused with 400)
SAMPLING = {
    "temperature": ([0, 1e-6, 0.005, 2, "0.5", None], [-0.1, 2.0001, "x", [], {}]),
    "top_p": ([1e-3, 1, None], [0, -1, 1.01, "x", []]),
    "top_k": ([-1, 0, 1, 10 ** 6, None], [-2, 1.5, "x", [], 10 ** 30]),
    "min_p": ([0, 1, None], [-0.1, 1.1, "x"]),
    "frequency_penalty": ([-2, 2, 0, None], [-2.01, 2.01, "x"]),
    "presence_penalty": ([-2, 2, None], [-2.01, 2.01, []]),
    "repetition_penalty": ([0.01, 1, 2, 100, None], [0, -1, "x"]),
    "seed": ([-1, 0, 2 ** 63 - 1, -2 ** 63, None], [2 ** 63, "x", 1.5]),
    "min_tokens": ([0, 3, None], [-1, 4, "x"]),
    "stop": (["a", ["a", "b"], [], None], ["", [""], 5, [5]]),
    "stop_token_ids": ([[], [5], None], ["x", [-1], [LARGE], ["a"], 5]),
    "include_stop_str_in_output": ([True, False, None, "true", 1], ["x", 5, []]),
    "ignore_eos": ([True, None], ["x"]),
    "logit_bias": ([{}, {"5": -100}, {"5": 1000}, None], [{"x": 1}, {"5": "x"}, {"99999999": 1}, [], 5]),
    "allowed_token_ids": ([[5, 6], None], [[], [LARGE], ["a"], 5]),
    "bad_words": ([["a"], [], None], [[""], [5], "a"]),
    "skip_special_tokens": ([True, False, None], ["x"]),
    "repetition_detection": ([PATTERN, {"max_pattern_size": 0}, {}, None],
                             [{"max_pattern_size": 3}, 5, {**PATTERN, "min_pattern_size": 4}, {**PATTERN, "max_pattern_size": -1},
                              {**PATTERN, "max_pattern_size": "x"}]),
    "structured_outputs": ([None, {"regex": "a"}, {"choice": ["a"]}, {"json": {"type": "object"}}, {"json_object": True}],
                           [{}, {"regex": "a", "choice": ["b"]}, {"regex": "("}, 5, {"choice": []}, {"regex": 5}]),
}
CALL = {
    "priority": ([0, None], [1, "x"]),
    "cache_salt": (["a", None], ["", 5, "x" * 2000]),
    "model": (["m3-nano", None], [5]),
    "stream": ([False, None], ["x", 5]),
}
COMMON = {
    **SAMPLING, **CALL,
    "hayate_deadline_s": ([0, 100, None], [-1, "x", LARGE]),
    "user": (["a", None], []),
}
OPENAI = {
    "n": ([1, 2, None, "2"], [0, -1, 16385, "x", 1.5]),
    "stream_options": ([None], [{"include_usage": True}, 5]),
    "stream_interval": ([1, 100, None], [0, -1, "x"]),
    "prompt_logprobs": ([0, 20, None], [-2, 21, -1, "x"]),
    "return_token_ids": ([True, None], ["x"]),
    "return_tokens_as_token_ids": ([True, None], ["x"]),
    "truncate_prompt_tokens": ([-1, 1, 100, None], [0, -2, "x"]),
    "truncation_side": (["left", "right", None], ["x", 5]),
    "request_id": (["a", None], []),
    "spaces_between_special_tokens": ([True, None], []),
    "length_penalty": ([0, 1.0, -1, None], ["x"]),
    "use_beam_search": ([False, True, None], ["x"]),
    "kv_transfer_params": ([None, {}], [{"a": 1}, 5, "x"]),
    "ec_transfer_params": ([None, {}], [{"a": 1}, 5, "x"]),
    "vllm_xargs": ([None, {"a": 1}], []),
    "max_tokens": ([1, 3, None], [0, -1, LARGE, "x", 1.5]),
}
CHAT = {
    "logprobs": ([True, False, None], ["x", 5]),
    "top_logprobs": ([0, None], [1]),
    "max_completion_tokens": ([1, None], [0, -1, LARGE, "x"]),
    "tools": ([None], [[], 5, [{"type": "x"}], [{}]]),
    "tool_choice": (["none", None], ["auto", "required", "x", {"type": "function", "function": {"name": "zz"}}]),
    "parallel_tool_calls": ([True, False, None], []),
    "reasoning_effort": (["low", "minimal", "none", None, "anything"], [5]),
    "thinking_token_budget": ([-1, 0, 5, None], [-2, "x", 1.5]),
    "include_reasoning": ([True, False, None], ["x"]),
    "chat_template": ([None], ["x", 5]),
    "chat_template_kwargs": ([{}, None], [5, "x"]),
    "add_generation_prompt": ([True, False, None], ["x"]),
    "continue_final_message": ([False, None], [True, "x"]),
    "add_special_tokens": ([True, None], []),
    "echo": ([True, False, None], ["x"]),
    "documents": ([None, []], [5]),
    "media_io_kwargs": ([None, {}], []),
    "mm_processor_kwargs": ([None, {}], []),
    "return_token_offsets": ([False, None], [True, "x", 1]),
    "return_prompt_text": ([True, None], ["x"]),
    "return_assistant_tokens_mask": ([False, None], [True, "x", 1]),
    "response_format": ([{"type": "text"}, {"type": "json_object"}, None,
                         {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}],
                        [{"type": "x"}, {}, 5, {"type": "json_schema"}]),
    "messages": ([], [None, [], 5, [5], [{"role": 5}], [{"content": "x"}], [{"role": "user", "content": 5}]]),
}
COMPLETIONS = {
    "logprobs": ([0, 5, 20, None], [-1, 21, "x", -2]),
    "echo": ([True, None], ["x"]),
    "suffix": ([None, ""], ["x"]),
    "best_of": ([1, None], []),
    "prompt_embeds": ([None], ["x", ["x"]]),
    "prompt": (["a", ["a", "b"], [5], [[5], [6]]], [None, [], [[]], 5, [-1], [LARGE], ["a", 5], [[5], "a"], ""]),
}
MESSAGES_FIELDS = {
    "max_tokens": ([1], [0, -1, None, "x", LARGE]),
    "system": (["a", [{"type": "text", "text": "a"}], None], [5, [5]]),
    "stop_sequences": ([["a"], [], None], ["a", [""], [5]]),
    "thinking": ([{"type": "disabled"}, {"type": "enabled", "budget_tokens": 1024}, None],
                 [{"type": "x"}, 5, {"type": "enabled", "budget_tokens": -1}]),
    "tools": ([None, [{"name": "a", "input_schema": {}}]], [5, [5], [{}]]),
    "tool_choice": ([None], [{"type": "x"}, {"type": "tool", "name": "q"}, 5]),
    "output_config": ([{"effort": "low"}, None], [{"effort": 5}, 5]),
    "metadata": ([{"user_id": "a"}, None], []),
    "messages": ([], [None, 5, [], [{"role": "x", "content": "a"}], [{"role": "user"}]]),
}
RESPONSES = {
    "max_output_tokens": ([1, 16, None], [0, -1, "x", LARGE]),
    "instructions": (["a", None], [5]),
    "input": ([[{"role": "user", "content": "a"}]], [None, 5, [5], [{"type": "x"}]]),
    "tools": ([None, []], [5, [{"type": "web_search"}], [{"type": "function"}]]),
    "tool_choice": (["auto", "none", None], ["x", "required", 5]),
    "text": ([{"format": {"type": "text"}}, {"format": {"type": "json_object"}}, None], [{"format": {"type": "x"}}, 5]),
    "reasoning": ([{"effort": "low"}, {}, None], [5, {"effort": 5}]),
    "include": ([[], ["message.output_text.logprobs"], None], [["x"], 5]),
    "top_logprobs": ([0, None], [21, -1, "x", 2]),
    "previous_response_id": ([None], ["x"]),
    "background": ([False, None], [True, "x"]),
    "store": ([True, False, None], ["x"]),
    "truncation": (["disabled", None], ["auto", "x", 5]),
    "parallel_tool_calls": ([True, None], []),
    "metadata": ([{"a": "b"}, None], []),
    "prompt": ([None], [{"id": "x"}]),
}
PARAMS = {
    **SAMPLING,
    **{name: OPENAI[name] for name in ("n", "prompt_logprobs", "max_tokens")},
    "logprobs": ([0, 20, None], [-2, 21, "x"]),
    "thinking_token_budget": ([-1, 0, 5, None], [-2, "x", 1.5]),
    "skip_reading_prefix_cache": ([True, False, None], ["x"]),
    "extra_args": ([None, {}], [{"a": 1}, 5]),
    "logits_processors": ([None, []], [["x"], "x"]),
    "truncate_prompt_tokens": ([None], [3, -1, 0]),
    "use_beam_search": ([None, False], [True, "x"]),
}
GENERATE = {
    **CALL,
    "token_ids": ([[5]], [None, [], [-1], ["a"], 5, [LARGE]]),
    "sampling_params": ([{}], [None, 5]),
    "stream_options": ([None], [{"include_usage": True}]),
    "features": ([None], [{"a": 1}, 5]),
    "kv_transfer_params": ([None, {}], [{"a": 1}, 5]),
    "ec_transfer_params": ([None, {}], [{"a": 1}, 5]),
}
TOKENIZE = {
    "prompt": (["", "a"], [None, 5, ["a"]]),
    "add_special_tokens": ([True, None], []),
    "return_token_strs": ([True, None], ["x"]),
    "model": (["m3-nano", None], [5]),
}
TOKENIZE_CHAT = {
    "messages": ([], [None, 5, [5]]),
    "add_generation_prompt": ([True, False, None], ["x"]),
    "continue_final_message": ([False, None], ["x"]),
    "chat_template": ([None], ["x", 5]),
    "chat_template_kwargs": ([{}, None], [5]),
    "tools": ([None], [5]),
}


class RangesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--max-model-len", "4096", "--enable-auto-tool-choice", "--tool-call-parser", "minimax_m3")

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, "".join(cls.server.lines)

    def check(self, path, body, *tables, inside=None):
        self.assertEqual(self.server.call("POST", path, body)[0], 200)
        for field, columns in (item for table in tables for item in table.items()):
            for status, values in zip((200, 400), columns):
                for value in values:
                    asked = {**body, inside: {**body[inside], field: value}} if inside else {**body, field: value}
                    got, answer = self.server.call("POST", path, asked)
                    with self.subTest(field=field, value=str(value)[:60]):
                        self.assertEqual(got, status, answer)
                        if status != 200:
                            self.assertTrue(answer["error"]["message"])
                            self.assertNotIn("\n\n", answer["error"]["message"])

    def test_chat(self):
        self.check("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 3, "temperature": 0.5,
                                            "chat_template_kwargs": {"thinking_mode": "disabled"}}, COMMON, OPENAI, CHAT)

    def test_completions(self):
        self.check("/v1/completions", {"prompt": "hi", "max_tokens": 3, "temperature": 0.5}, COMMON, OPENAI, COMPLETIONS)

    def test_messages(self):
        self.check("/v1/messages", {"model": "m3-nano", "messages": MESSAGES, "max_tokens": 3, "temperature": 0.5},
                   COMMON, MESSAGES_FIELDS)

    def test_responses(self):
        self.check("/v1/responses", {"model": "m3-nano", "input": "hi", "max_output_tokens": 3, "temperature": 0.5},
                   COMMON, RESPONSES)

    def test_generate(self):
        body = {"token_ids": [5, 6], "sampling_params": {"max_tokens": 3}}
        self.check("/inference/v1/generate", body, PARAMS, inside="sampling_params")
        self.check("/inference/v1/generate", body, GENERATE)

    def test_tokenize(self):
        self.check("/tokenize", {"prompt": "a"}, TOKENIZE)
        self.check("/tokenize", {"messages": MESSAGES}, TOKENIZE_CHAT)
        self.check("/detokenize", {"tokens": [5]}, {"tokens": ([[], [5]], [None, 5, ["a"], [-1], [LARGE]])})


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
