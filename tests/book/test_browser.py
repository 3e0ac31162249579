"""The site in a browser: every page at phone and desktop width, light and dark, with and without scripts."""

import functools
import http.server
import shutil
import threading
import zipfile
from pathlib import Path

import axe_playwright_python
import pytest
import runner
import site_zip
from browser import chromium

PAGES = [path.stem for path in sorted((runner.ROOT / "book").glob("*.md"))]
PAGES += [f"notebooks/{source.stem}" for source in runner.chapters()]
SIZES = {"phone": {"width": 360, "height": 740}, "desktop": {"width": 1280, "height": 900}}
AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
# All formulas are set, and every picture has come or failed.
READY = """async () => {
  if (window.MathJax?.startup?.promise) await window.MathJax.startup.promise;
  for (const image of document.images) { image.loading = "eager"; await image.decode().catch(() => null); }
}"""
BROKEN = "() => [...document.images].filter(image => !image.naturalWidth).map(image => image.src)"
# The theme gives the keyboard what scrolls at this width, a moment after the width has changed.
REACHED = """() => [...document.querySelectorAll("pre, .cell_output > .output, .pst-scrollable-table-container")]
  .every(place => place.scrollWidth <= place.clientWidth || place.tabIndex === 0)"""
TOO_WIDE = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
SERIOUS = """async () => (await axe.run(document, {resultTypes: ["violations"], preload: false})).violations
  .filter(found => ["serious", "critical"].includes(found.impact))
  .map(found => `${found.id}: ${found.nodes.slice(0, 3).map(node => node.html.slice(0, 160)).join(" | ")}`)"""


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def address(site, tmp_path_factory):
    """The site under a path of its own, as on a page that somebody hosts."""
    root = tmp_path_factory.mktemp("host")
    shutil.copytree(site, root / "some" / "where")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(root)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/some/where"
    server.shutdown()
    server.server_close()


def listening(page):
    """Collect what goes wrong while a page is open, and where it asks."""
    wrong, asked = [], []
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("requestfailed", lambda request: wrong.append(f"failed: {request.url}"))
    page.on("response", lambda answer: wrong.append(f"{answer.status}: {answer.url}") if answer.status >= 400 else None)
    page.on("request", lambda request: asked.append(request.url))
    return wrong, asked


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole_readable_and_asks_nobody_else(browser, address, name):
    page = browser.new_page(viewport=SIZES["desktop"], color_scheme="light")
    wrong, asked = listening(page)
    page.goto(f"{address}/{name}.html")
    page.evaluate(READY)
    assert page.evaluate(BROKEN) == []
    page.evaluate(AXE)
    # Colours and names do not depend on the width: each of the two schemes is looked at once.
    for size, scheme in (("desktop", "light"), ("phone", "dark")):
        page.set_viewport_size(SIZES[size])
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function(f"document.documentElement.dataset.theme === '{scheme}'")
        page.wait_for_function(REACHED)
        assert page.evaluate(TOO_WIDE) <= 0, size
        assert page.evaluate(SERIOUS) == [], scheme
    assert wrong == []
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
    page.close()


@pytest.mark.parametrize(
    "name", ["intro", "plain-hi", "notebooks/theory", "notebooks/layer-varying", "notebooks/steering-price"]
)
def test_a_page_can_be_read_without_scripts(browser, address, name):
    context = browser.new_context(java_script_enabled=False, viewport=SIZES["phone"])
    page = context.new_page()
    page.goto(f"{address}/{name}.html")
    article = page.locator("article")
    assert article.locator("h1").first.is_visible()
    assert len(article.inner_text().split()) > 200
    for picture in article.locator("img").all():
        assert picture.is_visible()
    if name.endswith("price"):
        assert page.locator("[data-samples] tr").count() > 3
    if name.endswith("varying"):
        assert page.locator("[data-layers] table").is_visible()
    for solution in page.locator("#exercises .solution").all():
        assert solution.is_visible() and len(solution.inner_text()) > 60
    context.close()


def test_the_site_opens_from_its_zip_without_a_server_and_search_finds_the_spectral_gap(browser, site, tmp_path):
    files = site_zip.pack(site, tmp_path / "site.zip")
    with zipfile.ZipFile(tmp_path / "site.zip") as archive:
        assert len(archive.namelist()) == files
        archive.extractall(tmp_path)
    page = browser.new_page(viewport=SIZES["desktop"])
    wrong, asked = listening(page)
    page.goto((tmp_path / "companion-book" / "index.html").as_uri())
    page.wait_for_url("**/intro.html")
    page.evaluate(READY)
    assert wrong == []
    page.goto((tmp_path / "companion-book" / "search.html").as_uri() + "?q=spectral+gap")
    page.wait_for_selector("#search-results li a")
    found = [link.inner_text() for link in page.locator("#search-results li a").all()]
    assert any("Steering" in title or "Notation" in title for title in found), found
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    page.close()


def test_a_site_that_is_not_there_is_not_packed(tmp_path):
    with pytest.raises(FileNotFoundError, match="run make book first"):
        site_zip.pack(tmp_path, tmp_path / "site.zip")
    assert list(tmp_path.iterdir()) == []


def test_the_strength_slider_changes_the_text_and_obeys_the_keyboard(browser, address):
    page = browser.new_page(viewport=SIZES["phone"])
    page.goto(f"{address}/notebooks/steering-price.html")
    place = page.locator("[data-samples]")
    slider = place.locator("input[type=range]")
    rows = place.locator("tbody tr")
    first = place.locator("tbody tr:visible").inner_text()
    slider.focus()
    for _ in range(rows.count() - 1):
        page.keyboard.press("ArrowRight")
    last = place.locator("tbody tr:visible").inner_text()
    assert place.locator("output").inner_text() == last.split()[0]
    assert first != last and "whale" in last.lower()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert place.locator("tbody tr:visible").count() == rows.count()
    page.close()


def test_the_layer_slider_changes_spectrum_and_words_and_obeys_the_keyboard(browser, address):
    page = browser.new_page(viewport=SIZES["phone"])
    wrong, _ = listening(page)
    page.goto(f"{address}/notebooks/layer-varying.html")
    page.wait_for_selector(".layers-gamma .main-svg", timeout=60_000)
    says, picture = page.locator(".layers-status"), page.locator(".layers-spectrum .main-svg").first
    assert says.inner_text().startswith("Layer 0 of minilm: λ₁ = ")
    before = picture.inner_html()
    page.focus("[name=layer]")
    page.keyboard.press("ArrowRight")
    assert says.inner_text().startswith("Layer 1 of minilm")
    assert picture.inner_html() != before
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("ArrowDown")
    assert says.inner_text().startswith("Layer 0 of zoo/bert")
    whole = page.locator("[data-layers] table")
    assert not whole.is_visible()
    page.locator("[data-layers] summary").press("Enter")
    assert whole.is_visible()
    assert wrong == []
    page.close()


def test_solutions_are_folded_and_unfold_by_keyboard(browser, address):
    page = browser.new_page(viewport=SIZES["phone"])
    page.goto(f"{address}/notebooks/theory.html")
    solution = page.locator("#exercises .solution, #exercises .admonition.dropdown").first
    button = solution.locator("button").first
    assert not solution.locator(".section, div.cell").first.is_visible()
    button.focus()
    page.keyboard.press("Enter")
    assert solution.locator("div.cell").first.is_visible()
    page.close()


def test_the_hindi_page_is_hindi_in_a_font_of_its_own(browser, address):
    page = browser.new_page()
    page.goto(f"{address}/plain-hi.html")
    assert page.locator("html").get_attribute("lang") == "hi"
    page.evaluate("document.fonts.ready")
    assert page.evaluate("document.fonts.check('400 16px \"Noto Sans Devanagari\"', 'मंज़िल')")
    loaded = page.evaluate("[...document.fonts].filter(f => f.status === 'loaded').map(f => f.family)")
    assert any("Devanagari" in family for family in loaded)
    page.close()


def test_every_chapter_says_at_its_foot_what_made_it(browser, address):
    page = browser.new_page()
    for source in runner.chapters():
        page.goto(f"{address}/notebooks/{source.stem}.html")
        foot = page.locator(".provenance").inner_text()
        for part in ("commit", "embedded", "cores", "torch"):
            assert part in foot, (source.stem, part)
        if source.stem.startswith(("steering", "zoo", "albert")):
            assert "zoo/" in foot
    page.close()
