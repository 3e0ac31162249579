// Builds what is interactive. The plotly bundle lies beside this file, and only a page that has something to build
// asks for it. Other scripts register in companionInteractive: a selector, and what builds a place that it finds.
"use strict";

{
  const here = document.currentScript;
  document.addEventListener("DOMContentLoaded", () => {
    const due = (globalThis.companionInteractive ?? []).flatMap(([selector, build]) =>
      [...document.querySelectorAll(selector)].map((place) => () => build(place)));
    if (!due.length) return;
    const bundle = document.createElement("script");
    bundle.src = new URL("plotly-gl3d.min.js", here.src).href;
    bundle.onload = () => due.forEach((build) => build());
    document.head.append(bundle);
  });
}
