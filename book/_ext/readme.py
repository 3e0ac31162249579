"""Take the README's figure and its picture of the book from the built site: ``make readme``."""

from __future__ import annotations

import sys

import picture
import runner
from browser import chromium

FIGURE = runner.ROOT / "book" / "_static" / "albert-network.svg"
NAME = "fig-albert-network"
PICTURE = runner.ROOT / "book" / "screenshot.png"
SITE = runner.ROOT / "book" / "_build" / "html"


def screenshot() -> bytes:
    """Return a picture of the chapter on layer-varying models, where its explorer is."""
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="light")
        page.goto((SITE / "notebooks" / "layer-varying.html").as_uri())
        page.wait_for_selector(".layers-gamma .main-svg")
        page.locator("[name=layer]").fill("3")
        page.evaluate("document.querySelector('[data-layers]').scrollIntoView()")
        page.mouse.wheel(0, -260)
        page.wait_for_timeout(1000)
        return page.screenshot()


def main() -> int:
    """Write both, each whole or not at all."""
    for target, content in ((FIGURE, picture.find("albert", NAME)[0].encode()), (PICTURE, screenshot())):
        temporary = target.with_suffix(".tmp")
        temporary.write_bytes(content)
        temporary.replace(target)
        print(f"wrote {target.relative_to(runner.ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
