"""The site that a plain build gives: every page, link, picture and number is there, and nothing comes from outside."""

import re
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import nbformat
import pandas as pd
import pytest
import runner
from browser import chromium

PAGES = [path.stem for path in sorted((runner.ROOT / "book").glob("*.md"))]
PAGES += [f"notebooks/{source.stem}" for source in runner.chapters()]


class Page(HTMLParser):
    """Links, anchors, pictures and loaded files of one page."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors, self.images, self.loaded = [], set(), [], []
        self.html = path.read_text(encoding="utf-8")
        self.feed(self.html)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.anchors |= {found[name] for name in ("id", "name") if found.get(name)}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        if tag == "img":
            self.images.append(found)
        if tag in ("img", "script", "iframe", "source") and found.get("src"):
            self.loaded.append(found["src"])
        if tag == "link" and found.get("rel") in ("stylesheet", "preload", "icon") and found.get("href"):
            self.loaded.append(found["href"])


@pytest.fixture(scope="module")
def pages(site):
    return {name: Page(site / f"{name}.html") for name in PAGES}


def test_every_internal_link_and_anchor_resolves(site, pages):
    checked, known = 0, {(site / f"{name}.html").resolve(): page for name, page in pages.items()}
    for name, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (site / f"{name}.html").parent / unquote(parts.path) if parts.path else site / f"{name}.html"
            assert target.exists(), f"{name} links to {link}"
            if parts.fragment and target.suffix == ".html":
                found = known.get(target.resolve()) or Page(target)
                assert unquote(parts.fragment) in found.anchors, f"{name} links to {link}"
            checked += 1
    assert checked > 100


def test_no_page_loads_anything_from_another_host(pages):
    for name, page in pages.items():
        assert page.loaded
        outside = [source for source in page.loaded if urlsplit(source).netloc]
        assert not outside, f"{name} loads {outside}"


def test_mathjax_and_its_fonts_are_part_of_the_site(site, pages):
    assert any("mathjax/tex-mml-chtml.js" in source for source in pages["notebooks/theory"].loaded)
    assert (site / "_static/mathjax/tex-mml-chtml.js").stat().st_size > 1_000_000
    assert (site / "_static/mathjax/output/chtml/fonts/woff-v2/MathJax_Main-Regular.woff").is_file()


def test_every_figure_is_there_and_has_alternative_text_with_numbers(site, pages):
    for name, page in pages.items():
        if not name.startswith("notebooks/"):
            continue
        figures = [image for image in page.images if "_images/" in image["src"]]
        assert len(figures) >= 3, name
        for image in figures:
            assert ((site / f"{name}.html").parent / image["src"]).is_file()
            assert len(image["alt"]) > 40 and re.search(r"\d", image["alt"]), image


def test_every_figure_can_be_downloaded_with_its_data(site, pages):
    for name, page in pages.items():
        if not name.startswith("notebooks/"):
            continue
        figures = page.html.count('<figure class="align-default" id="fig-')
        data = [link for link in page.links if link.endswith(".csv") and "/data/" in link]
        assert len(data) == figures >= 3, name
        assert sum(link.endswith(".svg") for link in page.links) == figures, name
        for link in data:
            table = pd.read_csv((site / f"{name}.html").parent / link)
            assert len(table) and len(table.columns) > 1, link


def test_every_glued_number_reached_its_sentence(pages):
    for name, page in pages.items():
        assert "glue:" not in page.html, name
        assert "np.float64" not in page.html, name
        source = runner.ROOT / (f"{name}.md" if name.startswith("notebooks/") else f"book/{name}.md")
        expected = len(re.findall(r"\{glue:text\}", source.read_text(encoding="utf-8")))
        assert page.html.count("pasted-text") >= expected, name


def test_no_chapter_printed_a_warning():
    for source in runner.chapters():
        notebook = nbformat.read(runner.BUILT / f"{source.stem}.ipynb", as_version=4)
        for cell in notebook.cells:
            for output in cell.get("outputs", []):
                assert output.get("name") != "stderr", (source.stem, output["text"])


def test_reproducibility_names_versions_commit_and_hardware(pages):
    html = pages["reproducibility"].html
    for part in ("torch", "transformers", "embedded", "cores", "layer-varying"):
        assert part in html


def test_the_glance_has_every_claim_with_its_interval_and_the_same_as_files(site, pages):
    table = pd.read_csv(site / "_static" / "results.csv")
    assert set(table["claim"]) == {f"C{i}" for i in range(1, 13)}
    again = pd.read_parquet(site / "_static" / "results.parquet")
    # A CSV cannot tell an empty word from a missing one.
    pd.testing.assert_frame_equal(again.replace("", None).isna(), table.isna())
    pd.testing.assert_series_equal(again["value"], table["value"])
    assert again["effect"].tolist() == table["effect"].tolist()
    ran = table[table["verdict"] != "not run here"]
    assert ran[["value", "low", "high", "null", "figure"]].notna().all(axis=None)
    for row in ran.itertuples():
        assert f"notebooks/{row.chapter}.html#{row.figure}" in pages["glance"].links
    assert pages["glance"].html.count("not run here") >= (table["verdict"] == "not run here").sum()


def test_every_chapter_links_symbols_to_the_notation_and_every_symbol_of_ours_is_linked(pages):
    symbols = {anchor for anchor in pages["notation"].anchors if anchor.startswith("sym-")}
    linked = {}
    for name, page in pages.items():
        fragments = {urlsplit(link).fragment for link in page.links if "notation.html#" in link}
        linked[name] = fragments & symbols
    for source in runner.chapters():
        assert linked[f"notebooks/{source.stem}"], source.stem
    assert len(symbols) > 15
    # What every reader of the field knows needs no link.
    assert symbols - set().union(*linked.values()) <= {"sym-sizes", "sym-heads"}


def test_every_chapter_can_be_opened_on_colab_and_binder(pages):
    for source in runner.chapters():
        found = [link for link in pages[f"notebooks/{source.stem}"].links if "/owner/name/" in link]
        path = f"notebooks/{source.stem}.ipynb"
        assert f"https://colab.research.google.com/github/owner/name/blob/notebooks/{path}" in found
        assert f"https://mybinder.org/v2/gh/owner/name/notebooks?urlpath=lab/tree/{path}" in found
    assert any("blob/notebooks/paper-models.ipynb" in link for link in pages["paper-models"].links)


def test_related_work_cites_what_it_speaks_of(pages):
    cited = [link for link in pages["related"].links if "references.html#" in link]
    assert len(set(cited)) >= 12


def test_plotly_is_part_of_the_site_and_no_page_loads_it_unasked(site, pages):
    """A small script asks for it where there is something to build."""
    assert (site / "_static" / "plotly-gl3d.min.js").stat().st_size > 1_000_000
    assert not [name for name, page in pages.items() if any("plotly" in source for source in page.loaded)]
    for part, where, script in (
        ("data-sphere", "notebooks/theory-states", "sphere.js"),
        ("data-layers", "notebooks/layer-varying", "layers.js"),
    ):
        assert [name for name, page in pages.items() if part in page.html] == [where]
        assert sum(script in source for source in pages[where].loaded) == 1


def test_the_sphere_runs_on_its_page(site):
    """From the file system, with no error, and its words follow its controls."""
    with chromium() as browser:
        page = browser.new_page()
        problems = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("requestfailed", lambda request: problems.append(request.url))
        page.goto((site / "notebooks/theory-states.html").as_uri())
        page.wait_for_selector(".sphere-plot .main-svg", timeout=60_000)
        assert page.inner_text(".sphere-status").startswith("Layer 0: tokens still apart")
        for _ in range(60):
            page.click("[name=step]")
        assert "Layer 60: consensus." in page.inner_text(".sphere-status")
        page.focus("[name=angle]")
        page.keyboard.press("ArrowRight")
        assert page.inner_text(".sphere-status").startswith("Layer 0: tokens still apart")
        # The theme's own thebe snippet stands on the page twice; what the sphere does not cause it need not answer for.
        assert not [problem for problem in problems if "THEBE_JS_URL" not in problem]
