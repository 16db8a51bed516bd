"""Loss curves as SVG, from the .jsonl files that a stage writes."""
import json
import math

WIDTH, HEIGHT, LEFT, TOP, PLOT_W, PLOT_H = 720, 360, 62, 34, 520, 280
COLOURS = ("#1b6ca8", "#d1495b", "#3a7d44", "#8d5a97", "#edae49", "#2e4057", "#00798c", "#a44a3f")
LEFT_OUT = ("step", "seconds", "rate", "tokens_s")


def ticks(low, high, count=5):
    step = 10 ** math.floor(math.log10((high - low) / count))
    step *= min((1, 2, 5, 10), key=lambda m: abs((high - low) / (step * m) - count))
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def read(path):
    """name -> [(seconds, value)]"""
    series = {}
    with open(path) as f:
        for line in f:
            point = json.loads(line)
            for k, v in point.items():
                if k not in LEFT_OUT and v is not None and math.isfinite(v):
                    series.setdefault(k, []).append((point["seconds"], v))
    return series


def draw(source, out, title):
    try:
        series = read(source)
    except FileNotFoundError:
        return
    points = [p for s in series.values() for p in s]
    if len(points) < 2:
        return
    end = max(x for x, _ in points) or 1
    values = sorted(y for _, y in points if y > 0) or [1e-3, 1]
    low = max(values[0], 1e-5)
    high = max(values[-1], low * 1.01)
    logarithmic = high / low > 20
    if not logarithmic:
        low = 0.0

    def at(x, y):
        if logarithmic:
            share = math.log(max(y, low) / low) / math.log(high / low)
        else:
            share = (y - low) / (high - low)
        return f"{LEFT + PLOT_W * x / end:.1f},{TOP + PLOT_H * (1 - min(1, max(0, share))):.1f}"

    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
           f'font-size="11">', f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
           f'<text x="{LEFT}" y="20" font-size="14">{title}</text>']
    if logarithmic:
        lines = [m * 10.0 ** e for e in range(-6, 6) for m in (1, 2, 5) if low <= m * 10.0 ** e <= high]
    else:
        lines = ticks(low, high)
    for y in lines:
        px, py = at(0, y).split(",")
        svg.append(f'<path d="M{px} {py}h{PLOT_W}" stroke="#ddd"/><text x="{LEFT - 6}" y="{float(py) + 4:.1f}" '
                   f'text-anchor="end">{y:g}</text>')
    for x in ticks(0, end):
        px = at(x, high).split(",")[0]
        svg.append(f'<text x="{px}" y="{TOP + PLOT_H + 16}" text-anchor="middle">{x:g}</text>')
    svg.append(f'<text x="{LEFT + PLOT_W / 2}" y="{HEIGHT - 12}" text-anchor="middle">seconds of training</text>')
    for i, (name, s) in enumerate(sorted(series.items())):
        colour = COLOURS[i % len(COLOURS)]
        thin = s[::max(1, len(s) // 400)]
        svg.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.4" '
                   f'points="{" ".join(at(x, y) for x, y in thin)}"/>')
        svg.append(f'<text x="{LEFT + PLOT_W + 10}" y="{TOP + 12 + 15 * i}" fill="{colour}">{name} {s[-1][1]:.3g}</text>')
    with open(out, "w") as f:
        f.write("\n".join(svg + ["</svg>"]) + "\n")
