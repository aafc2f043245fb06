"""What a person sees at once and a program has to measure: what runs over the edge, and what one cannot read."""

from __future__ import annotations

from playwright.sync_api import Locator

# Ancestors and descendants that scroll sideways; a table may, inside of its region.
_OVERFLOWING = """root => {
  const around = [];
  for (let e = root; e; e = e.parentElement) around.push(e);
  return [...around, ...root.querySelectorAll("*")]
    .filter((e) => e === document.documentElement || ["auto", "scroll"].includes(getComputedStyle(e).overflowX))
    .filter((e) => e.scrollWidth > e.clientWidth + 1 && !e.closest("[role=region]") && e.clientWidth > 0)
    .map((e) => `${e.tagName} ${e.getAttribute("data-testid") ?? ""}: ${e.scrollWidth} in ${e.clientWidth}`);
}"""

# https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio. The canvas turns any notation of a colour into bytes.
_PALE = """(root, least) => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => [...[0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])), 1];
  const behind = (element) => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) layers.unshift(rgba(getComputedStyle(e).backgroundColor));
    return layers.reduce((below, top) => over(top, below), [255, 255, 255, 1]);
  };
  const light = (color) => {
    const [r, g, b] = color.slice(0, 3).map((n) => (n /= 255) <= 0.04045 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = new Set();
  const texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  for (let node = texts.nextNode(); node; node = texts.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || !element.checkVisibility() || element.closest(":disabled, option")) continue;
    const back = behind(element);
    const front = over(rgba(getComputedStyle(element).color), back);
    const [dark, bright] = [light(back), light(front)].sort((a, b) => a - b);
    const ratio = (bright + 0.05) / (dark + 0.05);
    if (ratio < least) found.add(`${ratio.toFixed(1)}: ${node.data.trim().slice(0, 40)}`);
  }
  return [...found];
}"""


def overflowing(root: Locator) -> list[str]:
    """What has to be scrolled sideways although it is no table."""
    return list(root.evaluate(_OVERFLOWING))


def pale(root: Locator, least: float) -> list[str]:
    """Texts whose contrast to what is behind them is less than `least`; WCAG asks for 4.5, of large ones for 3."""
    return list(root.evaluate(_PALE, least))
