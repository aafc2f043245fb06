"""What a person sees at once and a program has to measure: what runs over the edge, what one cannot read or reach."""

from __future__ import annotations

from functools import cache

from playwright.sync_api import Locator

from tools.servers.base import local_folder

# Ancestors and descendants that scroll sideways; a table may, inside of its region.
_OVERFLOWING = """root => {
  const around = [];
  for (let e = root; e; e = e.parentElement) around.push(e);
  return [...around, ...root.querySelectorAll("*")]
    .filter((e) => e === document.documentElement || ["auto", "scroll"].includes(getComputedStyle(e).overflowX))
    .filter((e) => e.scrollWidth > e.clientWidth + 1 && !e.closest("[role=region]") && e.clientWidth > 0)
    .map((e) => `${e.tagName} ${e.getAttribute("data-testid") ?? ""}: ${e.scrollWidth} in ${e.clientWidth}`);
}"""

# Of axe's rules those of WCAG 2.2 at level AA: contrasts (4.5 to 1, of large texts 3), names, roles, focus.
_FAULTS = """async (root) => {
  const tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];
  const { violations } = await axe.run(root, { runOnly: tags, resultTypes: ["violations"] });
  return violations.flatMap(({ id, nodes }) => nodes.map((e) => `${id}: ${e.html.slice(0, 200)} ${e.failureSummary}`));
}"""


# What a click does something on; of tabs and radio buttons the arrow keys reach all but one.
_REACHABLE = """root => [...root.querySelectorAll("button, a[href], input, select, textarea, [tabindex='0']")]
  .filter((e) => !e.disabled && e.checkVisibility() && e.tabIndex >= 0)
  .map((e, place) => (e.dataset.place = `${place} ${e.tagName} ${e.innerText.slice(0, 30)}`))"""
_FOCUSED = """() => {
  const element = document.activeElement;
  const { outlineStyle, boxShadow } = getComputedStyle(element);
  return [element.dataset.place ?? "", outlineStyle !== "none" || boxShadow !== "none"];
}"""


def reachable(root: Locator) -> list[str]:
    """All of it that the keyboard has to reach; names that `focused` tells."""
    return list(root.evaluate(_REACHABLE))


def focused(root: Locator) -> tuple[str, bool]:
    """What has the focus ("": nothing of `reachable`), and whether that is to be seen."""
    name, marked = root.evaluate(_FOCUSED)
    return name, marked


def overflowing(root: Locator) -> list[str]:
    """What has to be scrolled sideways although it is no table."""
    return list(root.evaluate(_OVERFLOWING))


def faults(root: Locator) -> list[str]:
    """What of it does not follow the WCAG (https://www.w3.org/TR/WCAG22), as far as axe can tell."""
    if not root.evaluate("() => 'axe' in window"):
        root.page.evaluate(_axe())
    return list(root.evaluate(_FAULTS))


@cache
def _axe() -> str:
    file = local_folder() / "js" / "node_modules" / "axe-core" / "axe.min.js"
    assert file.exists(), f"there is no {file}.\nFix: make install ONLY=js"
    return file.read_text()
