"""The ratios as a picture: one bar a claim, with its spread, the baseline at 1, and a mark for what is wanted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from benchmarks.measuring import Comparison, Verdict

_LINE, _LABEL, _BARS, _TOP = 24, 460, 460, 84
_LEGEND = (
    "bar: median of the rounds; thin line: least to most; black mark: what is wanted;"
    " green: reached, red: missed, grey: nothing is wanted"
)
_GREEN, _RED, _GREY = "#2e7d5b", "#b5473c", "#7a8594"


def svg(comparisons: Sequence[Comparison], caption: str) -> str:
    """A logarithmic scale, so that twice as fast and half as fast are equally far from the line."""
    verdicts = [verdict for comparison in comparisons for verdict in comparison.verdicts()]
    shown = [v.ratio.high for v in verdicts] + [v.claim.wanted or 1.0 for v in verdicts]
    most = 2 ** math.ceil(math.log2(max([*shown, 2.0])))
    least = 2 ** math.floor(math.log2(min([v.ratio.low for v in verdicts] + [0.5])))

    def x(ratio: float) -> float:
        return _LABEL + _BARS * math.log(ratio / least) / math.log(most / least)

    width, height = _LABEL + _BARS + 120, _TOP + _LINE * len(verdicts) + 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        '<text x="12" y="20" font-size="14">How many times as fast as the baseline</text>',
        f'<text x="12" y="38" fill="{_GREY}">{escape(caption)}</text>',
        f'<text x="12" y="55" fill="{_GREY}">{_LEGEND}</text>',
    ]
    tick = least
    while tick <= most:
        stroke = "#333" if tick == 1 else "#ddd"
        parts.append(
            f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{_TOP - 4}" y2="{height - 12}" stroke="{stroke}"/>'
        )
        parts.append(f'<text x="{x(tick):.1f}" y="{_TOP - 8}" text-anchor="middle" fill="{_GREY}">{_tick(tick)}</text>')
        tick *= 2
    parts += [part for index, verdict in enumerate(verdicts) for part in _bar(verdict, _TOP + index * _LINE, x)]
    return "\n".join([*parts, "</svg>", ""])


def _tick(ratio: float) -> str:
    return f"{ratio:g}" if ratio >= 1 else f"1/{1 / ratio:g}"


def _bar(verdict: Verdict, top: float, x: Callable[[float], float]) -> list[str]:
    ratio, wanted = verdict.ratio, verdict.claim.wanted
    colour = {True: _GREEN, False: _RED, None: _GREY}[verdict.is_reached]
    left, right = sorted((x(1.0), x(ratio.median)))
    middle = top + _LINE / 2
    parts = [
        f'<text x="12" y="{middle + 4:.1f}">{escape(verdict.claim.label)}</text>',
        f'<rect x="{left:.1f}" y="{top + 5:.1f}" width="{max(1.0, right - left):.1f}"'
        f' height="{_LINE - 10}" fill="{colour}"/>',
        f'<line x1="{x(ratio.low):.1f}" x2="{x(ratio.high):.1f}" y1="{middle:.1f}" y2="{middle:.1f}" stroke="black"/>',
        f'<text x="{x(max(ratio.high, wanted or 1.0, 1.0)) + 6:.1f}" y="{middle + 4:.1f}">{ratio.median:.2f}</text>',
    ]
    if wanted is not None:
        parts.append(
            f'<line x1="{x(wanted):.1f}" x2="{x(wanted):.1f}" y1="{top + 2:.1f}" y2="{top + _LINE - 2:.1f}"'
            ' stroke="black" stroke-width="2.5"/>'
        )
    return parts
