"""The page in a real browser: it opens, draws, makes no requests, and says what the answer says."""

import json
import re
import subprocess

import pytest

from simulator.analysis.metrics import PARTS
from simulator.explore import full_answer as documents
from simulator.explore.named_settings import Sweep
from simulator.explore.nearby_answers import nearby_answers
from simulator.explore.presets import presets
from simulator.explore.sweeps import run_sweep
from simulator.explore.work.evaluation import Store
from simulator.report import answer_page
from simulator.report.gallery_pages import write_gallery
from simulator.report.sweep_page import sweep_page, write_sweep

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run",
]  # fmt: skip
COMPLETE = "document.documentElement.dataset.complete === 'true'"


@pytest.fixture(scope="module")
def browser(chromium):
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def page_file(large, tmp_path_factory):
    """The report of GPT-3 175B on 1,024 GPUs."""
    return answer_page.report([large]).save(tmp_path_factory.mktemp("report") / "report.html")[0]


class Visit:
    """One page with everything it said and asked for."""

    def __init__(self, browser, path, **settings):
        self.context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}} | settings)
        self.page = self.context.new_page()
        self.messages, self.requests = [], []
        self.page.on("console", lambda message: self.messages.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.messages.append(f"error: {error}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_function(COMPLETE)

    def attribute(self, name, selector="#plot-timeline"):
        return self.page.locator(selector).get_attribute(name)

    def range(self, key="timeline"):
        return self.page.evaluate(f"document.getElementById('plot-{key}').layout.xaxis.range")

    def sideways(self):
        return self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


@pytest.fixture(scope="module")
def visit(browser, page_file):
    made = Visit(browser, page_file)
    yield made
    made.context.close()


def test_it_draws_without_complaints_and_without_asking_anybody(visit, page_file):
    assert visit.messages == []
    assert [url for url in visit.requests if not url.startswith("data:")] == [page_file.as_uri()]
    plots = visit.page.locator(".plot")
    assert (
        plots.count() == visit.page.locator(".plot .main-svg .plot-container, .plot .main-svg .cartesianlayer").count()
    )
    assert visit.page.locator("#plot-breakdown .bars path").count() >= 5


def test_pictures_in_view_are_there_when_the_page_has_loaded(chromium, page_file, tmp_path):
    """``chromium --headless`` writes down a page on its load event, whatever comes later."""
    done = subprocess.run(
        [chromium, "--headless", *ARGUMENTS, f"--user-data-dir={tmp_path}", "--dump-dom", page_file.as_uri()],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert re.search(r'id="plot-breakdown"[^>]* data-drawn="true"', done.stdout)
    assert "<iframe" not in done.stdout


def test_numbers_on_the_page_are_the_answers(visit, large):
    whole = json.loads(json.dumps(documents.document([large])))
    assert json.loads(visit.page.locator("script#answer").text_content()) == whole
    shown = visit.page.eval_on_selector_all(
        ".n", "all => all.map(one => [one.dataset.key, JSON.parse(one.dataset.value)])"
    )
    for key, value in shown:
        found = whole
        for part in key.split("."):
            found = found[int(part)] if isinstance(found, list) else found[part]
        assert found == value, key
    assert visit.page.locator("[data-key=iteration_time_s]").first.is_visible()


def test_bars_are_bounded_and_zooming_opens_blocks(visit):
    element = visit.page.locator("#plot-timeline")
    assert 0 < int(visit.attribute("data-bars")) < 5000
    whole = visit.range()
    element.focus()
    for _ in range(10):
        visit.page.keyboard.press("+")
    low, high = visit.range()
    assert high - low == pytest.approx((whole[1] - whole[0]) / 2**10, rel=1e-6)
    kinds = visit.page.evaluate(
        "document.getElementById('plot-timeline').data.filter(t => t.x.length && t.name).map(t => t.name)"
    )
    assert "recompute" in kinds  # only seen inside blocks
    visit.page.keyboard.press("Home")
    assert visit.range() == pytest.approx(whole)


def test_buttons_move_and_drag_zooms(visit):
    whole = visit.range()
    visit.page.locator("[data-stream=timeline][data-do=in]").click()
    first = visit.range()
    visit.page.locator("[data-stream=timeline][data-do=right]").click()
    assert visit.range()[0] > first[0]
    visit.page.locator("[data-stream=timeline][data-do=all]").click()
    assert visit.range() == pytest.approx(whole)
    visit.page.locator("#plot-timeline").scroll_into_view_if_needed()
    box = visit.page.locator("#plot-timeline .nsewdrag").bounding_box()
    visit.page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 80)
    visit.page.mouse.down()
    visit.page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 90, steps=3)
    visit.page.mouse.up()
    visit.page.wait_for_function(f"document.getElementById('plot-timeline').layout.xaxis.range[1] < {0.6 * whole[1]}")
    visit.page.locator("[data-stream=timeline][data-do=all]").click()


def test_pointing_at_a_span_names_it(visit):
    visit.page.locator("#plot-pipeline").scroll_into_view_if_needed()
    visit.page.evaluate(
        "new Promise(done => setTimeout(done, 300))"
    )  # the event of scrolling, which hides what is named, is late
    box = visit.page.locator("#plot-pipeline .nsewdrag").bounding_box()
    visit.page.mouse.move(box["x"] + 3, box["y"] + 0.5 / 8 * box["height"])
    visit.page.wait_for_selector("#tip:not([hidden])")
    assert "forward, chunk 0, micro-batch 0" in visit.page.locator("#tip").inner_text()
    visit.page.keyboard.press("Escape")
    assert visit.page.locator("#tip").is_hidden()


def test_switch_changes_colours_of_page_and_pictures(visit):
    def background():
        return visit.page.evaluate("document.getElementById('plot-breakdown').layout.paper_bgcolor")

    before = background()
    visit.page.locator("#theme").click()
    visit.page.wait_for_function(
        f"document.getElementById('plot-breakdown').layout.paper_bgcolor !== {json.dumps(before)}"
    )
    visit.page.locator("#theme").click()
    visit.page.wait_for_function(
        f"document.getElementById('plot-breakdown').layout.paper_bgcolor === {json.dumps(before)}"
    )


def test_everything_is_reached_by_keyboard(visit):
    controls = visit.page.evaluate(
        """() => [...document.querySelectorAll('button, a[href], summary, [tabindex="0"]')].filter(e => e.tabIndex < 0).length"""
    )
    assert controls == 0
    unnamed = visit.page.evaluate(
        """() => [...document.querySelectorAll('button, .plot, .scroll')].filter(
             e => !(e.getAttribute('aria-label') || e.textContent).trim()).length"""
    )
    assert unnamed == 0


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_pictures_can_be_saved(visit, tmp_path, kind):
    with visit.page.expect_download() as download:
        visit.page.locator(f"button[data-save=breakdown][data-format={kind}]").click()
    path = tmp_path / f"picture.{kind}"
    download.value.save_as(path)
    assert path.read_bytes().startswith(b"<svg" if kind == "svg" else b"\x89PNG")


def test_dark_phone_and_paper(browser, page_file):
    made = Visit(
        browser, page_file, viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True, color_scheme="dark"
    )
    assert made.messages == []
    assert made.sideways() <= 0
    assert made.page.locator("#theme-name").inner_text() == "dark"
    assert made.page.evaluate("document.getElementById('plot-breakdown').layout.dragmode") is False
    assert len(made.page.pdf(format="A4")) > 50_000
    made.context.close()


def test_the_page_of_a_sweep(browser, tmp_path):
    base = {"topology": "bigred200", "model": "gpt2", "micro_batch": 2, "framework": "deepspeed"}
    sweep = Sweep(base=base, axes={"gpus": (1, 4, 8), "sharding": ("zero1", "zero3")})
    result = run_sweep(sweep, Store(tmp_path / "store"), n_jobs=1)
    page_file = write_sweep(result, tmp_path, "csv")[-1]
    made = Visit(browser, page_file)
    assert made.messages == []
    assert [url for url in made.requests if not url.startswith("data:")] == [page_file.as_uri()]
    assert json.loads(made.page.locator("script#answer").text_content())["rows"] == result.rows
    for key in ("curve", "heat", "breakdown", "pareto"):
        assert made.page.locator(f"#plot-{key} .main-svg").count() > 0
    drawn = made.page.evaluate("document.getElementById('plot-heat').data[0].z")
    assert drawn[0] == [
        round(row["tokens_per_s"] / row["gpus"], 2) for row in result.rows if row["sharding"] == "zero1"
    ]
    assert made.sideways() <= 0
    made.context.close()


@pytest.mark.parametrize(("rate", "text"), [(0.3146, "0.3146"), (12_345.6, "12,346")])
def test_rates_of_neighbours_have_four_digits_however_small(browser, large, tmp_path, rate, text):
    answer = {**nearby_answers(large, 0)[0], "tokens_per_s": None, "samples_per_s": rate}
    nearby = [answer, {**answer, "choices": {"micro_batch": "2"}}]
    (file,) = answer_page.report([large], nearby=nearby).save(tmp_path / "nearby.html")
    made = Visit(browser, file)
    assert made.messages == []
    made.page.locator("table.nearby").first.wait_for(state="attached", timeout=10_000)
    rows = made.page.eval_on_selector_all("table.nearby tr", "all => all.map(row => row.textContent)")
    assert f"samples/s{text}" in rows
    made.context.close()


@pytest.mark.parametrize(("width", "n_shown"), [(390, 2), (1200, 3)])
def test_labels_of_points_lie_flat_and_cover_no_other(browser, tmp_path, width, n_shown):
    """Four points of one front, whose long names have no room beside each other on a phone."""
    names = [f"a long name of choice {i}" for i in range(4)]
    figures = dict.fromkeys((*PARTS, "iteration_time_s", "mfu", "communication_fraction"), 0.5)
    rows = [
        {**figures, "sharding": name, "status": "ok", "reason": "", "gpus": 8,
         "tokens_per_s": 1e6 / (4 + i), "peak_bytes": (60, 22, 21, 20)[i] << 29}
        for i, name in enumerate(names)
    ]  # fmt: skip
    (file,) = sweep_page("Sweep", {"sharding": names}, rows, base={}).save(tmp_path / "sweep.html")
    made = Visit(browser, file, viewport={"width": width, "height": 844})
    made.page.locator("#plot-pareto").scroll_into_view_if_needed()
    made.page.locator("#plot-pareto .main-svg .annotation").first.wait_for(state="attached")
    boxes = made.page.eval_on_selector_all(
        "#plot-pareto .annotation",
        "all => all.filter(one => one.style.visibility !== 'hidden').map(one => one.getBoundingClientRect().toJSON())",
    )
    assert len(boxes) >= n_shown
    for number, one in enumerate(boxes):
        assert one["width"] > 2 * one["height"] and one["left"] >= 0 and one["right"] <= width
        for other in boxes[:number]:
            apart = one["bottom"] <= other["top"] or other["bottom"] <= one["top"]
            assert apart or one["right"] <= other["left"] or other["right"] <= one["left"]
    made.context.close()


def test_a_published_run_fits_a_phone(browser, tmp_path):
    """Its commands were longer than a line of one."""
    name = "llama3-405b-grand-teton-h100-96g-512-fp8-current"
    row = run_sweep(Sweep(axes={"preset": ("gpt-22b-selene-8",)}), n_jobs=1).rows[0] | {"preset": name}
    for file in write_gallery({name: presets()[name]}, [row], tmp_path):
        page = browser.new_page(viewport={"width": 390, "height": 844})
        page.goto(file.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, file.name
        page.close()
