#!/usr/bin/env python3
"""The page at / in a real Chromium: chat, stop, tools, settings, the board, with keys alone, on a phone, for screen readers.

    test_page.py BUILD/hayate        PAGE_SHOTS=FOLDER keeps screenshots of both themes

hayate-test: slow
"""
import http.client
import json
import os
import re
import shutil
import sys
import time
import unittest

try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    print("skipped: the Python package playwright is not installed")
    sys.exit(77)
from test_chat import MODEL, ROOT, Server

CHROMIUM = next((c for c in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if c), None)
SHOTS = os.environ.get("PAGE_SHOTS")
WAIT = 60000  # ms, for slow machines
PHONE = {"width": 360, "height": 640}

MARKDOWN = """# Title

Some **bold**, *slanted*, `code` and a [link](https://example.org/a?b=1).

1. one
   - inner
   - more
2. two

| a | b |
|---|---|
| 1 | 2 |

> quoted

```python
print("<b>no</b>")
```

<img src=x onerror=alert(1)> and <script>window.broken = 1</script> [bad](javascript:alert(1))
"""


def stream(*deltas, finish="stop", usage=None):
    """The body of an event stream with these deltas."""
    chunks = [{"choices": [{"index": 0, "delta": d, "finish_reason": None}]} for d in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    chunks.append({"choices": [], "usage": usage or {"prompt_tokens": 5, "completion_tokens": len(deltas), "total_tokens": 5 + len(deltas)}})
    return "".join(f"data: {json.dumps(c)}\n\n" for c in chunks) + "data: [DONE]\n\n"


# Names, labels and contrast of everything that is shown: what is wrong, one line each.
CHECKS = """() => {
  const wrong = [], shown = e => e.checkVisibility({visibilityProperty: true}) && !e.closest('.unseen');
  const rgb = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = c => [0.2126, 0.7152, 0.0722].reduce((s, w, i) => s + w * (c[i] / 255 <= .04045 ? c[i] / 255 / 12.92 : ((c[i] / 255 + .055) / 1.055) ** 2.4), 0);
  const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + .05) / (y + .05); };
  const ground = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length === 3 || c[3] === 1) return c; } return [255, 255, 255]; };
  const name = e => (e.getAttribute('aria-label') || (e.labels && [...e.labels].map(l => l.textContent).join(' ')) || e.textContent || '').trim();
  for (const e of document.querySelectorAll('button, input, select, textarea, a, summary, [role=img], [tabindex]')) {
    if (shown(e) && !name(e)) wrong.push('no name: ' + e.outerHTML.slice(0, 80));
    if (shown(e) && e.tabIndex > 0) wrong.push('own tab order: ' + e.outerHTML.slice(0, 80));
    if (shown(e) && e.matches('button') && e.getBoundingClientRect().height < 24) wrong.push('small: ' + e.outerHTML.slice(0, 80));
  }
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let n; (n = walk.nextNode());) {
    const e = n.parentElement;
    if (!n.data.trim() || !shown(e) || e.closest('script, option')) continue;
    const r = ratio(rgb(getComputedStyle(e).color), ground(e));
    if (r < 4.5) wrong.push(`contrast ${r.toFixed(2)}: ${n.data.trim().slice(0, 40)}`);
  }
  for (const e of document.querySelectorAll('input, textarea'))
    if (shown(e) && e.placeholder && ratio(rgb(getComputedStyle(e, '::placeholder').color), ground(e)) < 4.5) wrong.push('contrast of the placeholder of ' + e.id);
  const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
  for (const id of ids) if (ids.filter(i => i === id).length > 1) wrong.push('twice: #' + id);
  for (const e of document.querySelectorAll('[for], [aria-labelledby], [aria-describedby], [aria-controls]'))
    for (const a of ['for', 'aria-labelledby', 'aria-describedby', 'aria-controls'])
      if (e.hasAttribute(a) && !document.getElementById(e.getAttribute(a))) wrong.push(a + ' of nothing: ' + e.getAttribute(a));
  if (!document.documentElement.lang || !document.title) wrong.push('no language or title');
  if (document.documentElement.scrollWidth > innerWidth) wrong.push('wider than the window: ' + document.documentElement.scrollWidth);
  return wrong;
}"""


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--enable-auto-tool-choice", "--tool-call-parser", "minimax_m3")
        expect.set_options(timeout=WAIT)
        cls.playwright = sync_playwright().start()
        cls.browser = cls.playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"])

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.playwright.stop()
        assert cls.server.stop() == 0, "".join(cls.server.lines)

    def setUp(self):
        self.pages, self.asked, self.trouble, self.own = [], [], [], ["data:image/svg+xml"]

    def tearDown(self):
        for context in self.pages:
            context.close()
        self.assertEqual(self.trouble, [])
        self.assertEqual([u for u in self.asked if not u.startswith(tuple(self.own))], [])

    def open(self, server=None, context=None, **options):
        if not context:
            context = self.browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
            context.set_default_timeout(WAIT)
            self.pages.append(context)
        page = context.new_page()
        page.on("request", lambda r: self.asked.append(r.url))
        page.on("pageerror", lambda e: self.trouble.append(str(e)))
        page.on("console", lambda m: m.type == "error" and "status of 401" not in m.text and self.trouble.append(m.text))
        self.own.append(f"http://127.0.0.1:{(server or self.server).port}/")
        page.goto(self.own[-1])
        return page

    def said(self, page):
        return page.locator(".turn.assistant .said").last

    def ask(self, page, text, finish=True):
        page.get_by_label("Message").fill(text)
        page.keyboard.press("Enter")
        if finish:
            expect(page.locator(".turn.assistant .foot button", has_text="Again")).to_be_visible(timeout=WAIT)

    def until(self, page, expression, arg=None):
        """Waits for a condition of the page. (Playwright's own way needs eval, which the page's policy forbids.)"""
        end = time.monotonic() + WAIT / 1000
        while not page.evaluate(expression, arg):
            self.assertLess(time.monotonic(), end, expression)
            page.wait_for_timeout(20)

    def mock(self, page, *bodies):
        """Answers in place of the model's, one after the other; returns the bodies of the requests."""
        sent, left = [], list(bodies)

        def fulfill(route):
            sent.append(route.request.post_data_json)
            route.fulfill(status=200, content_type="text/event-stream", body=left.pop(0))
        page.route("**/v1/chat/completions", fulfill)
        return sent

    def shot(self, page, name):
        if SHOTS:
            page.screenshot(path=os.path.join(SHOTS, name + ".png"))

    def test_what_is_served(self):
        c = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        c.request("GET", "/")
        r = c.getresponse()
        body = r.read()
        c.close()
        self.assertEqual((r.status, r.getheader("Content-Type")), (200, "text/html; charset=utf-8"))
        self.assertEqual(body, (ROOT / "web" / "page.html").read_bytes())
        self.assertLess(len(body), 60000)
        policy = r.getheader("Content-Security-Policy")
        self.assertIn("default-src 'none'", policy)
        self.assertNotIn("unsafe", policy)
        for word in (b"innerHTML", b"outerHTML", b"insertAdjacentHTML", b"document.write", b"eval("):
            self.assertNotIn(word, body)

    def test_chat_streams_and_is_kept(self):
        page = self.open()
        expect(page.locator("#model")).to_have_text("m3-nano")
        self.ask(page, "What is 4837 + 961?")
        expect(self.said(page)).to_contain_text("5798")
        think = page.locator("details.think").last
        self.assertIsNone(think.get_attribute("open"))  # folded
        think.locator("summary").click()
        expect(think.locator("div")).to_be_visible()
        self.assertIn("tokens", page.locator(".foot span").last.text_content())
        self.assertTrue(page.locator("#status").text_content().startswith("Answer complete: "))
        self.ask(page, "And 2 + 3?")
        self.assertEqual(page.locator(".turn").count(), 4)
        texts = page.locator(".said").all_text_contents()
        page.reload()
        self.assertEqual(page.locator(".said").all_text_contents(), texts)
        page.get_by_role("button", name="Again").click()
        expect(page.get_by_role("button", name="Again")).to_be_visible(timeout=WAIT)
        self.assertEqual(page.locator(".turn").count(), 4)
        page.get_by_role("button", name="New chat").click()
        page.reload()
        self.assertEqual(page.locator(".turn").count(), 0)

    def test_stream_grows_and_stops(self):
        page = self.open()
        page.evaluate("settings.max_tokens = '4000'; settings.temperature = '2'; settings.top_p = '1'")
        page.evaluate("request = (old => () => ({...old(), ignore_eos: true, chat_template_kwargs: {thinking_mode: 'disabled'}}))(request)")
        self.ask(page, "Tell me a very long story", finish=False)
        lengths = [0]
        for _ in range(2):  # grows twice before it ends
            self.until(page, "n => document.querySelector('.turn.assistant .said').textContent.length > n", lengths[-1])
            lengths.append(len(self.said(page).text_content()))
        page.get_by_role("button", name="Stop").click()
        expect(page.locator(".foot span").last).to_contain_text("stopped")
        expect(page.get_by_role("button", name="Send")).to_be_visible()
        self.until(page, "() => fetch('metrics').then(r => r.text()).then(t => /num_requests_running\\{.*\\} 0.0/.test(t))")
        aborted = page.evaluate("fetch('metrics').then(r => r.text()).then(t => +/request_success_total\\{.*\"abort\".*\\} (\\S+)/.exec(t)[1])")
        self.assertGreaterEqual(aborted, 1)

    def test_markdown_is_text(self):
        for theme in ("light", "dark"):
            page = self.open(color_scheme=theme)
            pieces = [MARKDOWN[i:i + 7] for i in range(0, len(MARKDOWN), 7)]
            self.mock(page, stream({"reasoning": "I think."}, *({"content": p} for p in pieces)))
            self.ask(page, "Show me")
            said = self.said(page)
            for tag, text in (("h3", "Title"), ("strong", "bold"), ("em", "slanted"), ("p code", "code"), ("ol > li ul > li", "inner"),
                              ("td", "2"), ("blockquote", "quoted"), ("pre code", 'print("<b>no</b>")')):
                expect(said.locator(tag).last if tag == "td" else said.locator(tag).first).to_contain_text(text)
            self.assertEqual(said.locator("a").get_attribute("href"), "https://example.org/a?b=1")
            self.assertEqual((said.locator("a").count(), said.locator("img, script, b").count()), (1, 0))
            self.assertIn("<img src=x onerror=alert(1)>", said.text_content())
            self.assertIsNone(page.evaluate("window.broken ?? null"))
            self.shot(page, "markdown-" + theme)
            self.assertEqual(page.evaluate(CHECKS), [])
            whole = page.evaluate("t => { const e = make('div'); renderInto(e, t); return e.textContent; }", MARKDOWN)
            self.assertEqual(said.text_content(), whole)  # what grew is what would have come at once

    def test_tool_call(self):
        page = self.open()
        calls = stream({"content": "Let me look."},
                       {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": ""}}]},
                       {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": "'}}]},
                       {"tool_calls": [{"index": 0, "function": {"arguments": 'Kyoto"}'}}]}, finish="tool_calls")
        sent = self.mock(page, calls, stream({"content": "It rains."}))
        page.get_by_role("button", name="Settings").click()
        page.get_by_role("button", name="Put in an example tool").click()
        page.keyboard.press("Escape")
        self.ask(page, "Weather in Kyoto?")
        call = page.locator(".call")
        expect(call).to_contain_text("get_weather")
        expect(call).to_contain_text('"city": "Kyoto"')
        result = page.get_by_label("Result of get_weather")
        expect(result).to_be_focused()
        self.shot(page, "tool")
        self.assertEqual(page.evaluate(CHECKS), [])
        result.fill("rain, 9 degrees")
        page.get_by_role("button", name="Give this result").click()
        expect(self.said(page)).to_contain_text("It rains.")
        self.assertEqual(sent[0]["tools"][0]["function"]["name"], "get_weather")
        self.assertEqual([m["role"] for m in sent[1]["messages"]], ["user", "assistant", "tool"])
        self.assertEqual(sent[1]["messages"][1]["tool_calls"][0]["function"], {"name": "get_weather", "arguments": '{"city": "Kyoto"}'})
        self.assertEqual(sent[1]["messages"][2], {"role": "tool", "tool_call_id": "call_1", "content": "rain, 9 degrees"})

    def test_tool_call_of_the_model(self):
        page = self.open()
        page.evaluate("() => { settings.tools = JSON.stringify(EXAMPLE); settings.temperature = '0'; }")
        self.ask(page, "What is the weather in Kyoto?")
        expect(page.locator(".call")).to_contain_text('"city": "Kyoto"')
        page.keyboard.type("rain")  # the field has the focus
        page.get_by_role("button", name="Give this result").click()
        expect(page.locator(".turn.assistant")).to_have_count(2)
        expect(page.get_by_role("button", name="Again")).to_be_visible(timeout=WAIT)
        self.assertEqual(page.locator(".problem").count(), 0)

    def test_settings_persist_and_are_sent(self):
        page = self.open()
        sent = self.mock(page, stream({"content": "x"}), stream({"content": "y"}))
        self.ask(page, "first")
        self.assertEqual(sent[0].keys() & {"temperature", "top_p", "max_tokens", "reasoning_effort", "tools", "chat_template_kwargs"}, set())
        page.get_by_role("button", name="Settings").click()
        for label, value in (("Temperature", "0.5"), ("Top p", "0.9"), ("Most tokens", "77"), ("System prompt", "Be brief.")):
            page.get_by_label(label, exact=True).fill(value)
        page.get_by_label("Effort").select_option("high")
        page.get_by_label("Thinking").select_option("adaptive")
        page.get_by_label("Theme").select_option("dark")
        self.shot(page, "settings-dark")
        self.assertEqual(page.evaluate(CHECKS), [])
        page.get_by_label("Tools").fill("[1")
        page.get_by_role("button", name="Done").click()
        self.assertTrue(page.evaluate("document.getElementById('settings').open"))  # the tools are no JSON
        page.get_by_label("Tools").fill("")
        page.get_by_role("button", name="Done").click()
        page.reload()
        self.assertEqual(page.evaluate("getComputedStyle(document.documentElement).colorScheme"), "dark")
        self.ask(page, "second")
        want = {"temperature": .5, "top_p": .9, "max_tokens": 77, "reasoning_effort": "high", "chat_template_kwargs": {"thinking_mode": "adaptive"}}
        self.assertEqual({k: sent[1].get(k) for k in want}, want)
        self.assertEqual(sent[1]["messages"][0], {"role": "system", "content": "Be brief."})
        self.assertEqual(len(sent[1]["messages"]), 4)

    def test_board_moves(self):
        for theme in ("light", "dark"):
            page = self.open(color_scheme=theme)
            page.evaluate("() => { period = 100 }")  # ms between two looks of the board
            board = page.get_by_role("complementary", name="Board")
            expect(board).to_be_visible()
            count = page.get_by_role("figure").filter(has_text="Why not more was reused").locator("output")
            expect(count).to_contain_text("prompt", timeout=WAIT)
            before = int(count.text_content().split()[0])
            self.ask(page, "Say something about " + theme)
            self.until(page, "n => parseInt(document.querySelectorAll('#board output')[4].textContent) > n", before)
            self.until(page, "() => document.querySelector('#board svg.plot path').getAttribute('d').includes('L')")
            for name in ("Tokens/s", "Requests", "Prefix hit rate"):
                expect(page.get_by_role("img", name=name)).to_be_visible()
            expect(board).to_contain_text(re.compile(r"of [1-9]\d* blocks"))
            expect(board).to_contain_text("forward")
            self.shot(page, "board-" + theme)
            self.assertEqual(page.evaluate(CHECKS), [])
            page.get_by_role("button", name="Board").click()
            expect(board).to_be_hidden()

    def test_before_the_first_measurement(self):
        for theme in ("light", "dark"):
            context = self.browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme=theme)
            context.set_default_timeout(WAIT)
            self.pages.append(context)
            context.route("**/metrics*", lambda route: None)  # asked, and never answered
            page = self.open(context=context)
            expect(page.get_by_role("complementary", name="Board")).to_be_visible()
            self.until(page, "() => document.querySelectorAll('#board [role=img]').length === 3")
            self.assertEqual(page.evaluate(CHECKS), [])

    def test_board_pauses_when_hidden(self):
        page = self.open()
        page.evaluate("() => { period = 100 }")
        self.until(page, "() => samples.length > 1")
        page.evaluate("Object.defineProperty(document, 'hidden', {get: () => true})")
        looks, end = [-1, 0], time.monotonic() + WAIT / 1000
        while looks[-1] != looks[-2]:  # one may have been on its way
            self.assertLess(time.monotonic(), end)
            page.wait_for_timeout(500)
            looks.append(len([u for u in self.asked if "/metrics" in u]))

    def test_keyboard_only(self):
        page = self.open()
        expect(page.get_by_label("Message")).to_be_focused()
        page.keyboard.type("What is 4837 + 961?")
        page.keyboard.press("Shift+Enter")
        self.assertIn("\n", page.get_by_label("Message").input_value())
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Again")).to_be_visible(timeout=WAIT)
        expect(page.get_by_label("Message")).to_be_focused()
        seen = []
        for _ in range(30):  # everything can be reached, and the way leads back
            page.keyboard.press("Tab")
            seen.append(page.evaluate("(e => e.id || e.textContent.slice(0, 10))(document.activeElement)"))
            if seen.count("say") == 2:
                break
        for wanted in ("new", "open", "show", "talk", "say", "send", "Thought", "Copy", "Again", "board"):
            self.assertIn(wanted, seen)
        page.get_by_role("button", name="Settings").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_be_hidden()
        expect(page.get_by_role("button", name="Settings")).to_be_focused()
        page.evaluate("request = (old => () => ({...old(), ignore_eos: true, max_tokens: 4000}))(request)")
        page.get_by_label("Message").focus()
        page.keyboard.type("Go on")
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Stop")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator(".foot span").last).to_contain_text("stopped")

    def test_phone(self):
        page = self.open(viewport=PHONE, has_touch=True, is_mobile=True, device_scale_factor=2)
        expect(page.locator("#board")).to_be_hidden()
        self.mock(page, stream({"content": MARKDOWN + "\n```\n" + "x" * 300 + "\n```\n" + "y" * 200}))
        self.ask(page, "a" * 200)
        expect(self.said(page)).to_contain_text("quoted")
        self.assertEqual(page.evaluate(CHECKS), [])
        self.shot(page, "phone")
        for id in ("say", "send"):
            box = page.locator("#" + id).bounding_box()
            self.assertTrue(box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"] and box["y"] + box["height"] <= PHONE["height"], box)
        page.get_by_role("button", name="Board").tap()
        expect(page.locator("#board")).to_be_visible()
        self.until(page, "() => samples.length > 1")
        self.shot(page, "phone-board")
        box = page.locator("#board").bounding_box()
        self.assertTrue(box["width"] == PHONE["width"] and box["height"] > 500, box)
        self.assertEqual(page.evaluate(CHECKS), [])

    def test_errors_and_key(self):
        page = self.open()
        page.evaluate("settings.temperature = '3'")
        page.get_by_label("Message").fill("x")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("temperature")
        self.trouble = [t for t in self.trouble if "status of 400" not in t]
        locked = Server("--api-key", "secret")
        try:
            page = self.open(locked)
            expect(page.get_by_role("dialog")).to_be_visible()
            expect(page.get_by_label("API key")).to_be_focused()
            page.keyboard.type("secret")
            page.keyboard.press("Enter")
            expect(page.locator("#model")).to_have_text("m3-nano")
            self.ask(page, "What is 2 + 3?")
            expect(self.said(page)).to_contain_text("5")
        finally:
            page.context.close()
            self.pages = [p for p in self.pages if p is not page.context]
            self.assertEqual(locked.stop(), 0)


if __name__ == "__main__":
    if not MODEL.exists():
        print("skipped: models/m3-nano is not there")
        sys.exit(77)
    if not CHROMIUM:
        print("skipped: there is no Chromium on this machine (tools/install_deps browser)")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
