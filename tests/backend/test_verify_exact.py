"""Judging drafts in whole fractions: the rules of src/backend/verify.c give the target's law exactly, and the program decides by
them.

Three tokens, answers of three, two drafts; p and q depend on the past. Equality everywhere, no tolerance, but for one thing: the
program's noise is continuous, so the weights of a token that replaces a draft are read off where its choice changes.

usage: test_verify_exact.py .../hayate    (the program beside it that is used is tests/verify_grid)
"""
import itertools
import math
import pathlib
import random
import subprocess
import sys
from fractions import Fraction

VOCAB, DRAFTS, PARTS = 3, 2, 8
TOKENS = range(VOCAB)


def laws(rng, length, zeros):
    """A law in parts of 8 for every past shorter than `length`."""
    out = {}
    for count in range(length):
        for past in itertools.product(TOKENS, repeat=count):
            while True:
                cuts = sorted(rng.randint(0, PARTS) for _ in range(VOCAB - 1))
                parts = [b - a for a, b in zip([0, *cuts], [*cuts, PARTS])]
                if zeros or min(parts) > 0:
                    break
            out[past] = [Fraction(x, PARTS) for x in parts]
    return out


def rest(rho, p, q):
    left = [max(rho * a - b, Fraction(0)) for a, b in zip(p, q)]
    return left, sum(left)


def after(p, q, rho):
    """The law of the token in place of a draft."""
    left, mass = rest(rho, p, q)
    return [x / mass for x in left] if mass else p


def standard(ps, qs, drafts):
    """[(probability, accepted, law of the token behind)] of one round; ps [m + 1], qs [m]."""
    out, here = [], Fraction(1)
    for i, d in enumerate(drafts):
        accept = min(Fraction(1), ps[i][d] / qs[i][d])
        out.append((here * (1 - accept), i, after(ps[i], qs[i], 1)))
        here *= accept
    return out + [(here, len(drafts), ps[len(drafts)])]


def heights(ps, qs, drafts):
    """rho_0 .. rho_m and h_1 .. h_m."""
    rho, high = [Fraction(1)], []
    for i, d in enumerate(drafts):
        rho.append(min(Fraction(1), rho[-1] * ps[i][d] / qs[i][d]))
        if i + 1 == len(drafts):
            high.append(rho[-1])
        else:
            mass = rest(rho[-1], ps[i + 1], qs[i + 1])[1]
            whole = mass + 1 - rho[-1]
            high.append(mass / whole if whole else Fraction(1))
    return rho, high


def block(ps, qs, drafts):
    rho, high = heights(ps, qs, drafts)
    out, none_behind = [], Fraction(1)
    for i in range(len(drafts), 0, -1):
        law = ps[i] if i == len(drafts) else after(ps[i], qs[i], rho[i])
        out.append((none_behind * high[i - 1], i, law))
        none_behind *= 1 - high[i - 1]
    law = after(ps[0], qs[0], 1) if drafts else ps[0]
    return out + [(none_behind, 0, law)]


def point(token):
    return [Fraction(int(t == token)) for t in TOKENS]


def answers(judge, p, q, length, wanted, greedy=False):
    """The law of whole answers: rounds until `length` tokens are there. wanted(past, drafts so far, q of the next) says whether
    another draft is made; a second answer, for drafts that were drawn, whether it is kept."""
    out = {}

    def go(past, weight):
        if len(past) >= length:
            out[past[:length]] = out.get(past[:length], 0) + weight
            return
        most = min(DRAFTS, length - len(past) - 1)

        def draw(drafts, chance):
            ways = []
            if len(drafts) < most and wanted(past, drafts, None):
                law = point(max(TOKENS, key=lambda t: q[past + drafts][t])) if greedy else q[past + drafts]
                for d in TOKENS:
                    if law[d]:
                        kept = wanted(past, drafts, d)
                        ways += draw(drafts + (d,), chance * law[d]) if kept else [(drafts, chance * law[d])]
                return ways
            return [(drafts, chance)]

        for drafts, chance in draw((), Fraction(1)):
            pasts = [past + drafts[:i] for i in range(len(drafts) + 1)]
            qs = [point(d) if greedy else q[x] for d, x in zip(drafts, pasts)]
            for weight_of, count, law in judge([p[x] for x in pasts], qs, drafts):
                for t in TOKENS:
                    if weight_of * law[t]:
                        go(past + drafts[:count] + (t,), weight * chance * weight_of * law[t])

    go((), Fraction(1))
    return out


def target(p, length):
    out = {}
    for answer in itertools.product(TOKENS, repeat=length):
        chance = Fraction(1)
        for i, t in enumerate(answer):
            chance *= p[answer[:i]][t]
        if chance:
            out[answer] = chance
    return out


def always(past, drafts, drawn):
    return True


def check_rules():
    cases = early = caught = 0
    for seed in range(6):
        rng = random.Random(seed)
        p, q = laws(rng, 4, seed % 3 == 0), laws(rng, 4, seed % 2 == 0)
        if seed > 3:
            q |= {x: p[x] for x in q if rng.random() < 0.5}  # drafts that are never refused
        sure = {x: Fraction(rng.randint(0, PARTS), PARTS) for n in range(5) for x in itertools.product(TOKENS, repeat=n)}
        for length in (3, 4):
            law = target(p, length)
            for judge in (standard, block):
                for greedy in (False, True):
                    assert answers(judge, p, q, length, always, greedy) == law, (seed, length, judge.__name__, greedy)
                    cases += 1
                for tenths in range(0, 11, 2):
                    def before(past, drafts, drawn, least=Fraction(tenths, 10)):
                        return drawn is not None or sure[past + drafts] >= least

                    def behind(past, drafts, drawn, least=Fraction(tenths, 10)):
                        return drawn is None or sure[past + drafts + (drawn,)] >= least

                    assert answers(judge, p, q, length, before) == law, (seed, length, judge.__name__, tenths)
                    early += 1
                    caught += answers(judge, p, q, length, behind) != law
    assert caught > early // 3, f"looking at a draft before judging it kept the law in {early - caught} of {early} cases"
    return cases, early, caught


# ---- The program's decisions ---------------------------------------------------------------------------------------------------


class Grid:
    """tests/verify_grid: one round a line, on random numbers that the line gives."""

    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, questions):
        """A question: (block?, drafts, ps, qs or None, uniforms of acceptance, noise per token) -> [(accepted, last token)]."""
        lines = []
        for is_block, drafts, ps, qs, uniforms, noise in questions:
            numbers = [int(is_block), VOCAB, len(drafts), int(qs is not None), *drafts]
            numbers += [float(x) for law in ps for x in law] + [float(x) for law in qs or () for x in law]
            lines.append(" ".join(map(repr, [*numbers, *uniforms, *noise])))
        answer, _ = self.process.communicate("\n".join(lines) + "\n", timeout=300)
        assert self.process.returncode == 0, self.process.returncode
        out = [tuple(map(int, line.split())) for line in answer.splitlines()]
        assert len(out) == len(lines)
        return out


def uniform_grid(n):
    """Whole numbers x for which the program's uniform lies in the middle of the n equal parts of (0, 1)."""
    return [int((Fraction(2 * i + 1, 2 * n)) * 2**32) for i in range(n)]


def gumbel(x):
    u = min(x * 2.0**-32 + 2.0**-33, 1 - 2.0**-24)
    return -math.log(-math.log1p(-u))


def tie_questions(rng):
    """Rounds of `block` where q is p at some positions: rho stays 1, the mass of the rest may be nothing, and then a draft that
    must be accepted is, up to the largest uniform that there is."""
    questions, wanted = [], []
    for equal in itertools.product((False, True), repeat=DRAFTS):
        p, q = laws(rng, 3, False), laws(rng, 2, False)
        for drafts in itertools.product(TOKENS, repeat=DRAFTS):
            pasts = [drafts[:i] for i in range(DRAFTS + 1)]
            ps = [p[x] for x in pasts]
            qs = [ps[i] if equal[i] else q[pasts[i]] for i in range(DRAFTS)]
            rho, edges = heights(ps, qs, drafts)
            assert not equal[0] or (rho[1] == edges[0] == 1)
            assert equal != (True, True) or edges == [1, 1]
            for x in itertools.product((0, 1 << 31, 2**32 - 1), repeat=DRAFTS):
                u = [min(Fraction(2 * v + 1, 2**33), 1 - Fraction(1, 2**24)) for v in x]
                if any(edge != 1 and abs(v - edge) < Fraction(1, 2**18) for v, edge in zip(u, edges)):
                    continue
                accepted = max([i + 1 for i in range(DRAFTS) if edges[i] == 1 or u[i] < edges[i]], default=0)
                questions.append((True, drafts, ps, qs, x, [1 << 31] * VOCAB))
                wanted.append((accepted, None))
    return questions, wanted


def check_program(path):
    """Every pair of drafts of every world: how many are accepted over a grid of uniforms, and by what odds a token replaces."""
    rng = random.Random(1)
    questions, wanted, count = [], [], 0
    middle = 1 << 31
    for _ in range(3):
        p, q = laws(rng, 3, True), laws(rng, 2, True)
        for is_block, greedy in itertools.product((False, True), repeat=2):
            for drafts in itertools.product(TOKENS, repeat=DRAFTS):
                pasts = [drafts[:i] for i in range(DRAFTS + 1)]
                ps, qs = [p[x] for x in pasts], [point(d) if greedy else q[x] for d, x in zip(drafts, pasts)]
                if any(law[d] == 0 for law, d in zip(qs, drafts)):
                    continue
                given = None if greedy else qs
                if is_block:
                    edges = heights(ps, qs, drafts)[1]
                else:
                    edges = [min(Fraction(1), a[d] / b[d]) for a, b, d in zip(ps, qs, drafts)]
                # Edges lie on the lines of a grid of as many parts as their denominator has, which is then counted exactly.
                parts = [min(edge.denominator * (2 if edge.denominator < 16 else 1), 64) for edge in edges]
                outcomes = {}
                for x in itertools.product(*(uniform_grid(n) for n in parts)):
                    below = [Fraction(2 * v + 1, 2**33) < edge for v, edge in zip(x, edges)]
                    if any(abs(Fraction(2 * v + 1, 2**33) - edge) < Fraction(1, 2**18) for v, edge in zip(x, edges)):
                        continue
                    if is_block:
                        accepted = max([i + 1 for i in range(DRAFTS) if below[i]], default=0)
                    else:
                        accepted = next((i for i in range(DRAFTS) if not below[i]), DRAFTS)
                    questions.append((is_block, drafts, ps, given, x, [middle] * VOCAB))
                    wanted.append((accepted, None))
                    outcomes[accepted] = x
                    count += 1
                # Odds of the token behind, by noise that has to make up for them: on both sides of the edge.
                rho = heights(ps, qs, drafts)[0] if is_block else [1] * (DRAFTS + 1)
                for accepted, x in outcomes.items():
                    law = ps[accepted] if accepted == DRAFTS else after(ps[accepted], qs[accepted], rho[accepted])
                    for a, b in itertools.permutations(TOKENS, 2):
                        other = 3 - a - b
                        for side in (-1, 1):
                            if not law[a] and not law[b]:
                                continue
                            # a has the noise of the middle, b that which makes them equal and a little, the third hardly any
                            noise = [0] * VOCAB
                            noise[a], noise[other] = middle, 2**32 - 1
                            if law[a] and law[b]:
                                edge = gumbel(middle) + math.log(law[a] / law[b]) + side * 1e-4
                                u = -math.expm1(-math.exp(-edge))
                                noise[b] = min(max(int(u * 2**32), 0), 2**32 - 1)
                                if gumbel(noise[other]) + math.log(max(law[other], Fraction(1, 10**9))) > min(
                                        gumbel(middle) + math.log(law[a]), gumbel(noise[b]) + math.log(law[b])) - 0.1:
                                    continue
                                best = b if side > 0 else a
                            else:
                                noise[b], best = middle, a if law[a] else b
                                if law[other] and gumbel(noise[other]) + math.log(law[other]) > gumbel(middle) + math.log(
                                        law[best]) - 0.1:
                                    continue
                            questions.append((is_block, drafts, ps, given, x, noise))
                            wanted.append((accepted, best))
    ties = tie_questions(rng)
    questions, wanted, count = questions + ties[0], wanted + ties[1], count + len(ties[0])
    for question, (accepted, token), got in zip(questions, wanted, Grid(path).ask(questions)):
        assert got[0] == accepted, (question, accepted, got)
        assert token is None or got[1] == token, (question, token, got)
    return count, len(questions) - count


def main():
    grid = pathlib.Path(sys.argv[1]).resolve().parent / "tests" / "verify_grid"
    print("the rules: %d laws of answers, %d with drafts that end early; %d of these go wrong when they look ahead" % check_rules())
    decisions, odds = check_program(grid)
    assert decisions > 5000 and odds > 500, (decisions, odds)
    print("the program: %d rounds on a grid of uniforms, %d replacements at their odds" % (decisions, odds))


if __name__ == "__main__":
    main()
