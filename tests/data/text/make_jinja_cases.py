#!/usr/bin/env python3
"""Makes jinja_cases.json: small templates for every part of the language, with what jinja2 makes of them.

jinja2 is set up as tests/text/compare_templates.py sets it up, that is, as `transformers` does. Needs the package jinja2.
"""
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent / "text"))
import compare_templates  # noqa: E402

CONTEXT = {
    "s": "Hello, Wörld", "empty": "", "n": 7, "neg": -7, "f": 2.5, "big": 1e20, "t": True, "no": False, "nil": None,
    "l": [3, 1, 2], "names": ["b", "A", "c"], "d": {"x": 1, "y": {"z": [1, 2]}, "items": "own"}, "e": [], "lines": "a\nb\n\nc\n",
    "messages": [{"role": "user", "content": "hi", "n": 2}, {"role": "tool", "content": "r", "n": 1}, {"role": "user", "content": "", "n": 3}],
    "tree": [{"v": 1, "c": [{"v": 2, "c": []}, {"v": 3, "c": [{"v": 4, "c": []}]}]}], "q": "it's \"q\"\t\\\x01\u00a0\u2028é",
}

EXPRESSIONS = """
s | s[0] | s[-1] | s[7:] | s[::-1] | s[1:8:3] | s[99] | l[1:] | l[::-1] | l[-2:] | l[5:] | l[::2] | l[10] is defined | s[:-100] | l[2:0:-1]
n // 2 | neg // 2 | n % 3 | neg % 3 | n / 2 | n ** 2 | 2 ** -1 | f * 2 | n + f | 7.0 // 2 | -7.5 % 2 | 1_000 + 0x1f + 0b11 + 0o17 | 1e3 | 1.5e-7
-n ** 2 | - n | +f | n - -1 | 'ab' * 3 | [1] * 2 | 2 * 'x' | l + [4] | (1,) + (2,) | 'a' 'b' "c" | s ~ n ~ nil ~ t ~ f ~ l
n == 7.0 | '7' == 7 | t == 1 | 1 < 2 < 3 | 1 < 2 > 5 | 'a' < 'b' | [1, 2] < [1, 3] | l == [3, 1, 2] | d == d | (1, 2) == [1, 2] | nil == undef
'x' in d | 'z' in d | 'ell' in s | 3 in l | 3 not in l | not t | not not n | t and n | no or s | nil or 0 or 'x' | 1 in (1, 2) | '' in s | x in undef
n if t else s | (n if no) is defined | 'a' if no else 'b' if no else 'c' | d.x | d['x'] | d.y.z[1] | d['items'] | d.items() | list | d.missing is undefined
big | 0.1 | 1e16 | 123456789012345.0 | 1e-5 | 0.0001 | -0.0 | [1.0, nil, t, 'a', ('b',), {'k': 1}] | {} | [] | () | {'a': 1, 2: 'b', nil: t} | [q] | [s]
d | q | ["it's"] | ['"'] | ['\\n'] | undef | [undef] | d.keys() | d.values() | d.items() | range(3) | list | range(5, 1, -2) | list | range(0) | list
d.get('x') | d.get('zz') | d.get('zz', 5) | d.y.get('z')[0] | dict(a=1, b=2) | dict([('a', 1)]) | namespace(a=1).a | namespace(a=1).b is defined
'%s-%d-%5.1f|%-4s|%05d|%x|%%' % ('a', 3, 2.55, 'b', 42, 255) | '%(a)s' % {'a': 1} | '%s' % nil | '%r' % 'x' | '%s' % [1] | '%+d %e' % (5, 12345.678)
'{} {1}' | '{} {}'.format(1, 'a') | '{0}{1}{0}'.format('a', 'b') | '{x:>5}|{x:<5}|{x:^5}|{y:05.2f}|{z:,}'.format(x='a', y=3.14159, z=1234567) | '{{}}'.format() | '{a[x]} {b.x}'.format(a=d, b=namespace(x=1))
"""

FILTERS = """
s|upper | s|lower | s|title | 'hello wORLD-x (y'|title | s|capitalize | 'ß'|upper | 'éa'|capitalize | '  x '|trim | 'xxaxx'|trim('x') | s|length | l|length | d|length | undef|length
s|replace('l', 'L') | s|replace('l', 'L', 1) | 'aaa'|replace('', '-') | s|reverse | l|reverse|list | l|sort | l|sort(reverse=true) | names|sort | names|sort(case_sensitive=true) | names|join(',') | l|join | l|join('-') | ''|join('x')
messages|map(attribute='role')|list | messages|map(attribute='zz', default='-')|list | l|map('string')|join('+') | names|map('upper')|list | messages|selectattr('role', 'equalto', 'user')|list|length | messages|rejectattr('content')|map(attribute='role')|list
messages|selectattr('n', 'gt', 1)|map(attribute='n')|list | l|select('odd')|list | l|reject('odd')|list | [0, 1, '', 'a']|select|list | messages|sort(attribute='n')|map(attribute='n')|list | messages|map(attribute='n')|sum | messages|sum(attribute='n') | [1, 2.5]|sum | l|sum(start=10)
l|first | l|last | e|first is defined | s|first | s|last | l|min | l|max | names|max | names|min(case_sensitive=true) | messages|max(attribute='n') | ['a', 'A', 'b']|unique|list | ['a', 'A']|unique(case_sensitive=true)|list | messages|unique(attribute='role')|map(attribute='n')|list
d.y|items|list | {'b': 1, 'A': 2}|dictsort | {'b': 1, 'A': 2}|dictsort(true) | {'b': 1, 'a': 2}|dictsort(by='value') | {'b': 1, 'a': 2}|dictsort(reverse=true) | undef|items|list | l|batch(2)|list | l|batch(2, 'x')|list | range(7)|slice(3)|list | range(7)|slice(3, 'x')|map('list')|list
undef|default('x') | empty|default('x') | empty|default('x', true) | nil|default('x') | undef|d | '42'|int | '4.7'|int | 'x'|int | 'x'|int(5) | '0x1f'|int(base=16) | 'ff'|int(0, 16) | 3.9|int | t|int | ' 12 '|int | '1_000'|int | '1.5'|float | 'x'|float | n|float | 'inf'|float | 'nan'|float
2.567|round(2) | 2.5|round | 3.5|round | -2.5|round | 2.1|round(0, 'ceil') | 2.19|round(1, 'floor') | 7|round | 15|round(-1) | -5|abs | neg|abs | f|string | nil|string | l|string | s|list | '<a href="x">\\'&'|escape | '<b>'|safe | ('<b>'|e) + '<c>' | '<b>'|e|e | '<b>'|e|forceescape | '<a>' ~ ('<b>'|safe)
lines|indent | lines|indent(2, true) | lines|indent(2, true, true) | lines|indent('> ', first=true) | ''|indent(2, true) | 'abc'|center(9) | 'one two three four'|truncate(9) | 'one two three four'|truncate(9, true) | 'one two three four'|truncate(12, true, '..', 0) | 'a b, c_d'|wordcount | 'ä /?&='|urlencode | '%s-%s'|format(1, 'x')
d|tojson | q|tojson | q|tojson(ensure_ascii=true) | '👋'|tojson(ensure_ascii=true) | d|tojson(indent=2) | [1, [], {}, [2]]|tojson(indent=1) | {'b': 1, 'a': [t, no, nil, 1.0, 1e20]}|tojson(sort_keys=true) | d|tojson(separators=(',', ':')) | {1: 2, nil: 3, t: 4, 2.5: 5}|tojson | (1, 2)|tojson | d|tojson(indent='--') | '</script>'|tojson
d|attr('x') is defined | s|attr('upper') is callable | l|count | 'abc'|list|tojson | l|list == l | l|map('abs')|list | ['a,b']|map('replace', ',', ';')|list | [d]|map(attribute='y.z.0')|list | [[1, 2]]|map(attribute=1)|list
"""

TESTS = """
s is string | n is number | f is number | t is number | n is integer | t is integer | f is float | t is boolean | d is mapping | l is mapping | l is sequence | s is sequence | d is sequence | l is iterable | n is iterable | s is iterable | nil is none | undef is none | undef is undefined | s is defined
t is true | n is true | no is false | 0 is false | n is odd | n is even | n is divisibleby 7 | n is divisibleby(3) | n is eq 7 | n is equalto(8) | n is ne 7 | n is lt 8 | n is gt 8 | n is ge 7 | n is le 6 | n is in l | 3 is in [1, 3] | 'a' is lower | 'A' is upper | 'aB' is lower | '1' is lower | l is sameas l | nil is sameas none
n is not string | not n is string | s is string and n is number | n is not none and n is defined | range is callable | s is callable | 'upper' is filter | 'odd' is test | 'x' is filter | s is escaped | undef is iterable | (l|map('abs')) is iterable | (l|map('abs')) is sequence | undef is string or t
"""

METHODS = """
'a,b,,c'.split(',') | ' a  b '.split() | 'a b c'.split(' ', 1) | 'a b c'.split(maxsplit=1) | 'a b c'.rsplit(' ', 1) | 'a b c'.rsplit(none, 1) | ''.split() | ''.split(',') | lines.splitlines() | lines.splitlines(true) | 'a=b=c'.partition('=') | 'a=b=c'.rpartition('=') | 'abc'.partition('x') | 'abc'.rpartition('x')
'  x '.strip() | 'xxaxx'.strip('x') | 'xya'.lstrip('yx') | 'axy'.rstrip('yx') | '\u3000a\u00a0'.strip() | s.startswith('Hell') | s.startswith(('x', 'H')) | s.endswith('ld') | s.startswith('l', 2) | s.upper() | s.lower() | s.title() | "it's a1b".title() | s.capitalize() | s.swapcase() | s.replace('l', '1') | s.replace('l', '1', 2)
s.find('l') | s.find('zz') | s.rfind('l') | s.find('l', 4) | s.find('ö') | s.index('W') | s.count('l') | ''.count('') | ', '.join(names) | 'abc'.isalpha() | '12'.isdigit() | 'a1'.isalnum() | ' '.isspace() | 'AB'.isupper() | 'ab'.islower() | '42'.zfill(5) | '-42'.zfill(5) | 'a'.ljust(3) ~ '|' | 'a'.rjust(3) | 'ab'.center(5) ~ '|' | 'abc'.center(6, '*')
'prefix-x'.removeprefix('prefix-') | 'x.py'.removesuffix('.py') | l.index(1) | l.count(3) | d.copy() == d | 'x'.__class__ is defined | l.append is defined | s['upper']() | d['get']('x') | 'ab'.join(['x', 'y']) | 'a-b'.split('-')|first | (s.split(', ')[1]).lower()
"""

STATEMENTS = [
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }};{% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {{ loop.cycle('a', 'b') }} {{ loop.changed(x > 1) }}\n{% endfor %}",
    "{% for x in e %}x{% else %}none{% endfor %}{% for x in l if x > 1 %}{{ loop.index }}{{ x }}{% else %}no{% endfor %}{% for x in l if x > 9 %}{% else %}none{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }},{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for c in s %}{{ c }}.{% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a + b + c }}{% endfor %}",
    "{% for n in tree recursive %}[{{ n.v }}{{ loop.depth }}{{ loop(n.c) }}]{% endfor %}",
    "{% for x in range(9) %}{% if x == 2 %}{% continue %}{% endif %}{% if x > 4 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% set x = 1 %}{% for i in l %}{{ x }}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}",
    "{% set ns = namespace(x=1, l=[]) %}{% for i in l %}{% set ns.x = ns.x + i %}{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.x }}{{ ns.l }}",
    "{% if no %}{% set y = 1 %}{% endif %}{{ y is defined }}{% if t %}{% set y = 2 %}{% endif %}{{ y }}{% if no %}a{% elif nil %}b{% elif n %}c{% else %}d{% endif %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c = 1, 2 %}{{ c }}{% set t2 %}x{{ n }}\n{% endset %}[{{ t2 }}]{% set u | upper | trim %} up {% endset %}[{{ u }}]",
    "{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(c='y', a=0) }} {{ m() }}|{{ m.name }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, a=3) }}",
    "{% macro f(x) %}{{ x }}{% if x > 0 %}{{ f(x - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{% macro box(t) %}<{{ t }}>{{ caller('in') }}</>{% endmacro %}{% call(w) box('b') %}{{ w }}{{ n }}{% endcall %}",
    "{% set v = 'out' %}{% macro m() %}{{ v }}{% endmacro %}{{ m() }}{% set v = 'new' %}{{ m() }}{% for v in l %}{{ m() }}{% endfor %}",
    "{% filter upper %}a{{ s }}{% endfilter %}{% filter replace('a', 'b') | trim %} aa {% endfilter %}",
    "{% with a = 1, b = n %}{{ a }}{{ b }}{% set n = 0 %}{{ n }}{% endwith %}{{ n }}{{ a is defined }}",
    "{% generation %}g{% set inner = 1 %}{% endgeneration %}{{ inner is defined }}{% do l %}{% raw %}{{ x }}{% y %}{# z #}{% endraw %}",
    "a\n  {% if t %}\n  b\n  {% endif %}\nc\n", "a \n  {%- if t -%} \n b \n {%- endif -%} \n c", "x {{- n -}} y\n {{ n }} \n", "a\n  {#- c -#}\n  b", "a\n  {# c #}\n  b",
    "a\n  {%+ if t %}\n  b{% endif +%}\n c", "  {% if t %}x{% endif %}\n\n\ny", "{% raw -%}  \n x {%- endraw %}\ny", "\n{% if t %}\n\n{% endif %}\n", "{{ n }}\n", "{{ n }}\n\n", "a\r\nb{% if t %}\r\nc{% endif %}\rd",
    " {# a #} {# b #} \n x", "{%- for i in l %}\n  - {{ i }}\n{% endfor %}", "{{ '}}' }}{{ '%}' }}{{ {'a': {'b': 1}}['a']['b'] }}{{ \"\\u00e9\\x41\\n\\t\\\\\\q\\101\" }}",
    "{{ strftime_now('%Y-%m-%d %H:%M') }}{{ strftime_now('') }}", "{% set loop = 5 %}{{ loop }}{% for i in l %}{{ loop.index }}{% endfor %}", "{{ l | map('string') }}"[:0] + "{% if l | map('abs') %}yes{% endif %}{% set g = l | map('abs') %}{{ g | list }}{{ g | list }}",
    "{{ '<' + ('<b>' | safe) + '>' }}{{ ('<i>' | safe).strip() + '<' }}{{ '<' ~ ('&' | e) }}",
]

REFUSED = [
    "{{ undef.x }}", "{{ undef['x'] }}", "{{ undef() }}", "{{ undef + 1 }}", "{{ s + 1 }}", "{{ 1 + s }}", "{{ nil + s }}", "{{ nil.x.y }}", "{{ d.a.b }}", "{{ l.append(1) }}",
    "{{ d.update(x=1) }}", "{{ s.__class__ }}", "{{ d.pop('x') }}", "{{ raise_exception('no: ' ~ n) }}", "{% for x in n %}{% endfor %}", "{% for x in nil %}{% endfor %}", "{{ n() }}", "{{ n | length }}",
    "{{ 1 < s }}", "{{ l | sort(attribute='x') }}", "{{ [1, 'a'] | sort }}", "{{ nil in s }}", "{{ 1 in n }}", "{{ 1 / 0 }}", "{{ n % 0 }}", "{{ d | tojson(zz=1) }}", "{{ undef | tojson }}", "{{ range(1000001) }}",
    "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{% endmacro %}{{ m(b=1) }}", "{% set d.x = 1 %}", "{% set a, b = l %}", "{{ '%d' % 'x' }}", "{{ '%s %s' % 'x' }}", "{{ s.split('') }}", "{{ s.index('zz') }}",
    "{{ {[]: 1} }}", "{{ l | map('nothing') | list }}", "{{ l | select('nothing') | list }}", "{{ -s }}", "{{ l['x'].y }}", "{{ s[99].y }}", "{{ undef | int }}", "{{ n[1:2] }}", "{{ undef[1:] }}", "{{ l[::0] }}", "{{ n | items | list }}",
    "{% if no %}{{ n | nothing }}{% endif %}ok", "{% if t %}{{ n | nothing }}{% endif %}", "{{ n | nothing }}", "{{ n is nothing }}", "{% if t %}", "{% endif %}", "{{ n", "{{ n }", "{% for %}{% endfor %}", "{{ 'a }}", "{{ (1 }}", "{{ 1 + }}",
    "{# x", "{% raw %}x", "{{ a.1x }}", "{{ [1, 2 }}", "{% set 1 = 2 %}", "{% nothing %}", "{% break %}", "{{ n is is }}", "{{ | x }}", "{% macro %}{% endmacro %}", "{{ f(a=1, 2) }}", "{{ $ }}", "{% set none = 1 %}",
    "{% if x %}{% for y in l %}{% endif %}{% endfor %}", "{% else %}",
]


def pieces(block):
    """Expressions stand between " | "; filters are written without spaces around the bar, and " | list" belongs to its left."""
    for line in block.strip().splitlines():
        held = None
        for part in line.split(" | "):
            if part == "list":
                held += "|list"
                continue
            if held is not None:
                yield held
            held = part
        yield held


def main():
    env, cases = compare_templates.environment(), []
    templates = ["{{ " + e + " }}" for b in (EXPRESSIONS, FILTERS, TESTS, METHODS) for e in pieces(b)] + STATEMENTS + REFUSED
    for text in templates:
        try:
            how, said = compare_templates.theirs(env.from_string(text), CONTEXT)
        except Exception as e:
            how, said = "syntax", str(e)
        if how == "error" and "object at 0x" in said:
            said = ""
        cases.append({"template": text, "result": how, "text": said if how in ("text", "raised") else ""})
    path = HERE / "jinja_cases.json"
    rows = ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases)
    path.write_text('{"now": %d, "context": %s,\n"cases": [\n%s\n]}\n' % (compare_templates.NOW, json.dumps(CONTEXT), rows))
    counts = {}
    for c in cases:
        counts[c["result"]] = counts.get(c["result"], 0) + 1
    print(f"{len(cases)} cases: {counts}")


if __name__ == "__main__":
    main()
