"""Bodies that no client should send, for every POST route: a thousand and more, the same ones every time."""
import json
import random

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
TEXT = {"prompt": "hi", "max_tokens": 1}
IDS = {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 1}}
MADE = {"request_id": "r", "choices": [{"index": 0, "token_ids": [1, 2, 3], "finish_reason": "stop"}]}
ROUTES = {
    "/v1/chat/completions": CHAT, "/v1/completions": TEXT, "/v1/chat/completions/batch": {**CHAT, "messages": [CHAT["messages"]]},
    "/v1/chat/completions/render": CHAT, "/v1/completions/render": TEXT, "/v1/messages": CHAT, "/v1/messages/count_tokens": CHAT,
    "/v1/responses": {"input": "hi", "max_output_tokens": 1}, "/inference/v1/generate": IDS, "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [1, 2, 3]}, "/invocations": CHAT,
    "/v1/chat/completions/derender": {"model": "m3-nano", "generate_response": MADE},
    "/v1/completions/derender": {"model": "m3-nano", "generate_responses": [MADE]},
}
FIELDS = ("model", "messages", "prompt", "input", "max_tokens", "max_completion_tokens", "max_output_tokens", "temperature", "top_p", "top_k",
          "min_p", "stop", "stop_token_ids", "seed", "n", "stream", "stream_options", "logprobs", "top_logprobs", "prompt_logprobs", "echo",
          "tools", "tool_choice", "response_format", "structured_outputs", "logit_bias", "bad_words", "allowed_token_ids", "priority",
          "cache_salt", "chat_template_kwargs", "reasoning_effort", "system", "thinking", "output_config", "reasoning", "text", "tokens",
          "token_ids", "sampling_params", "repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens", "user", "metadata",
          "ignore_eos", "skip_special_tokens", "truncate_prompt_tokens", "add_generation_prompt", "continue_final_message", "instructions",
          "generate_response", "generate_responses", "chat_request", "completion_request", "prompt_tokens",
          "previous_response_id", "store", "background", "include", "stop_sequences", "suffix", "best_of", "documents", "request_id")
VALUES = (b"null", b"true", b"-1", b"0", b"1.5", b"1e308", b"-1e308", b"9223372036854775807", b"-9223372036854775808", b'""', b'"x"',
          b"[]", b"{}", b"[null]", b"[[]]", b"[{}]", b'[""]', b'{"type":null}', b'{"type":"x"}', b'{"":{}}', b'[{"role":"user"}]',
          b'[{"role":7,"content":7}]', b'[{"role":"user","content":[{"type":"text"}]}]', b'[{"role":"user","content":[{"type":7}]}]',
          b'[{"role":"assistant","tool_calls":[{}]}]', b'[{"role":"tool","content":{}}]', b'[{"type":"function"}]',
          b'[{"type":"function","function":{"name":"f","parameters":7}}]', b'{"type":"json_schema","json_schema":{"schema":{"$ref":"#"}}}',
          b'{"5":1e999}', b"[-1]", b"[99999999999]", b'"\\ud800"', b'"\\u0000"')


def broken(valid):
    """What is no JSON, or none that can be taken: always 4xx."""
    text = json.dumps(valid).encode()
    yield from (b"", b" ", b"\0", b"\xef\xbb\xbf" + text, text + b"x", text + text, text + b"\0", b"'" + text + b"'", b"nul", b"NaN",
                b"[]", b"null", b"7", b'"x"', b"true", b"-", b"{]", b"{,}", b'{"a"}', b'{"a":}', b'{"a":1,}', b"{'a':1}", b"\x1f\x8b\x08\0")
    yield from (text[:i] for i in range(1, len(text)))
    head = text[:-1] + b","
    for value in (b"1e999", b"-1e999", b"9" * 400, b"-" + b"9" * 400, b"01", b"+1", b".5", b"5.", b"1e", b"0x1", b"Infinity", b"-Infinity", b"NaN",
                  b'"\xff"', b'"\xc0\xaf"', b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"', b'"\xe2\x82"', b'"\0"', b'"\x1f"', b'"\\x"', b'"\\u12"', b'"\\ud800"',
                  b'"\\udc00\\ud800"', b'"a\nb"', b'"', b'"\\"'):
        yield head + b'"x":' + value + b"}"
        yield head + b'"user":' + value + b"}"
        yield b'{"messages":[{"role":"user","content":' + value + b'}],"prompt":' + value + b',"input":' + value + b',"tokens":' + value + \
              b',"token_ids":' + value + b"}"
    for depth in (200, 5000, 100000):
        for opening in (b"[", b'{"a":', b'[{"a":', b"[[],"):
            yield head + b'"x":' + opening * depth
            yield head + b'"x":' + opening * depth + b"1"
            yield opening * depth
        if depth > 2048:
            yield head + b'"x":' + b"[" * depth + b"]" * depth + b"}"
            yield head + b'"x":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}"
    yield head + b'"x":[' + b"{}," * 400000 + b"{}]}"
    yield b'{"x":[' + b"0," * 400000 + b"0]}"


def odd(valid, seed=1):
    """Well-formed and strange: an answer of any kind but 5xx."""
    for name in FIELDS:
        for value in VALUES:
            body = {k: v for k, v in valid.items() if k != name}
            yield json.dumps(body).encode()[:-1] + (b"," if body else b"") + b'"' + name.encode() + b'":' + value + b"}"
    rng = random.Random(seed)
    text = bytearray(json.dumps(valid).encode())
    for _ in range(200):  # bytes changed
        damaged = bytearray(text)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        yield bytes(damaged)
