"""The page under a strict Content-Security-Policy, as an administrator may set it in front of Airflow."""

from __future__ import annotations

import pytest
from playwright.sync_api import Route

from tests.browser.pages import PAGE, Visit
from tests.browser.test_looks import everywhere

pytestmark = [pytest.mark.airflow, pytest.mark.sampled(among="the page")]

# Styles and workers are Airflow's own affair: it writes the ones into the page, and the others into blobs.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self';"
    " worker-src 'self' blob:;"
    " img-src 'self' data:; font-src 'self' data:; base-uri 'self'; form-action 'none'; frame-ancestors 'none'"
)


def test_nothing_on_the_page_needs_inline_scripts_or_eval(visit: Visit) -> None:
    """Whatever the policy forbids is an error on the console, which fails the test."""
    strict = []

    def answer(route: Route) -> None:
        if not route.request.is_navigation_request():
            return route.continue_()
        given = route.fetch()
        strict.append(given.url)
        return route.fulfill(response=given, headers={**given.headers, "content-security-policy": POLICY})

    visit.used_up = True
    visit.page.route("**/*", answer)
    visit.load(PAGE)
    assert len(list(everywhere(visit))) > 5
    assert strict and not visit.problems
    visit.excuse("Content Security Policy")
    visit.page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), { text: 'window.ran = 1' }))"
    )
    assert not visit.page.evaluate("window.ran"), "the policy is not in force"
