"""How long the page of an answer keeps its own thread busy until what is in view is drawn; reported, not gated: machines differ."""

from __future__ import annotations

import pytest

from simulator.report import answer_page

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
READY = "document.documentElement.dataset.ready === 'true'"
GOAL_S = 2.0


def test_opening_a_report(benchmark, chromium, large, tmp_path):
    """The report of GPT-3 175B on 1,024 GPUs; other work on the machine does not count in."""
    (file,) = answer_page.report([large]).save(tmp_path / "report.html")

    def opened(browser):
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.goto(file.as_uri())
        page.wait_for_function(READY)
        return {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}

    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        metrics = benchmark.pedantic(opened, (browser,), rounds=1, iterations=1)
        browser.close()
    benchmark.extra_info |= {"thread_s": metrics["TaskDuration"], "goal_s": GOAL_S}
