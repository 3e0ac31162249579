// A slider over the layers of a model: its eigenvalues in the complex plane, and the alignment of its tokens.
// The numbers are those of companion.Explorer, whose table stays below. Without this script the table is all.
"use strict";

{
  const [BLUE, ORANGE, GREY] = ["#0173b2", "#de8f05", "#949494"];
  const SMALL = { displayModeBar: false, responsive: true };
  const signed = (layer) =>
    layer.imag ? `${layer.real.toFixed(2)} ± ${Math.abs(layer.imag).toFixed(2)}i` : layer.real.toFixed(2);

  /** All eigenvalues of a layer: [real parts, imaginary parts]. Of each conjugate pair one is stored. */
  function eigenvalues({ all }) {
    const [x, y] = [[], []];
    for (let i = 0; i < all.length; i += 2) {
      for (const imag of all[i + 1] ? [all[i + 1], -all[i + 1]] : [0]) {
        x.push(all[i]);
        y.push(imag);
      }
    }
    return [x, y];
  }

  /** One range for all layers of a model, so that the slider does not change the scale. */
  function range(model) {
    const [x, y] = [[], []];
    for (const layer of model.layers) {
      const values = eigenvalues(layer);
      x.push(...values[0]);
      y.push(...values[1]);
    }
    const [left, right] = [Math.min(...x), Math.max(...x)];
    const [pad, top] = [0.1 * (right - left), Math.max(...y, 0.3 * (right - left))];
    return { x: [left - pad, right + pad], y: [-top - pad, top + pad] };
  }

  function build(box) {
    const models = JSON.parse(box.querySelector("script").textContent);
    const panel = document.createElement("div");
    panel.innerHTML = `
      <form class="layers-controls">
        <label>model <select name="model"></select></label>
        <label>layer <output></output><input type="range" name="layer" min="0" step="1" value="0"></label>
      </form>
      <p class="layers-status" role="status"></p>
      <div class="layers-plots">
        <div class="layers-spectrum" role="img" aria-label="Eigenvalues of the layer matrix; the line above says which leads"></div>
        <div class="layers-gamma" role="img" aria-label="Alignment by layer; the table below has its numbers"></div>
      </div>`;
    const whole = document.createElement("details");
    whole.innerHTML = "<summary>All layers as a table</summary>";
    whole.append(box.querySelector("table"));
    box.replaceChildren(panel, whole);
    const form = panel.querySelector("form");
    const [plane, curve] = [panel.querySelector(".layers-spectrum"), panel.querySelector(".layers-gamma")];
    models.forEach(({ name }) => form.model.add(new Option(name, name)));

    function draw() {
      const model = models[form.model.selectedIndex];
      form.layer.max = model.layers.length - 1;
      const layer = model.layers[form.layer.value];
      const kind = layer.imag ? "a complex pair" : "real";
      form.querySelector("output").textContent = layer.layer;
      form.layer.setAttribute("aria-valuetext", `layer ${layer.layer}`);
      panel.querySelector(".layers-status").textContent =
        `Layer ${layer.layer} of ${model.name}: λ₁ = ${signed(layer)} (${kind}), |1 + λ₁| = ${layer.growth.toFixed(2)}, ` +
        `gap ${layer.gap.toFixed(3)}. Alignment γ = ${layer.gamma.toFixed(3)} (${layer.gamma_low.toFixed(3)} to ` +
        `${layer.gamma_high.toFixed(3)}; by chance ${layer.chance.toFixed(3)}); ρ = ${layer.rho.toFixed(2)}.`;
      const ink = getComputedStyle(box).color;
      const faint = "rgba(128, 128, 128, 0.25)";
      const axis = { color: ink, gridcolor: faint, zerolinecolor: faint };
      const layout = {
        margin: { l: 50, r: 10, t: 10, b: 45 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
        font: { color: ink, size: 12 }, showlegend: false,
      };
      const [x, y] = eigenvalues(layer);
      const { x: across, y: up } = range(model);
      const turn = Array.from({ length: 181 }, (_, k) => (Math.PI * k) / 90);
      const pair = layer.imag ? [Math.abs(layer.imag), -Math.abs(layer.imag)] : [0];
      Plotly.react(plane, [
        { type: "scatter", mode: "markers", marker: { color: GREY, size: 4 }, x, y, name: "eigenvalues of F" },
        {
          type: "scatter", mode: "lines", line: { color: BLUE, dash: "dash", width: 1 }, hoverinfo: "skip",
          x: turn.map((t) => layer.growth * Math.cos(t) - 1), y: turn.map((t) => layer.growth * Math.sin(t)),
        },
        {
          type: "scatter", mode: "markers", marker: { color: ORANGE, size: 11, symbol: "diamond", line: { color: ink, width: 1 } },
          x: pair.map(() => layer.real), y: pair, name: "leads",
        },
      ], {
        ...layout,
        xaxis: { ...axis, title: { text: "Re λ" }, range: across },
        yaxis: { ...axis, title: { text: "Im λ" }, range: up, scaleanchor: "x", constrain: "domain" },
      }, SMALL);
      const number = model.layers.map((one) => one.layer);
      const gamma = model.layers.map((one) => one.gamma);
      Plotly.react(curve, [
        {
          type: "scatter", mode: "lines+markers", x: number, y: gamma, name: "γ", line: { color: BLUE },
          error_y: {
            type: "data", symmetric: false, color: BLUE, thickness: 1,
            array: model.layers.map((one) => one.gamma_high - one.gamma),
            arrayminus: model.layers.map((one) => one.gamma - one.gamma_low),
          },
        },
        {
          type: "scatter", mode: "lines", line: { color: GREY, dash: "dot" }, name: "by chance",
          x: number, y: model.layers.map((one) => one.chance),
        },
        {
          type: "scatter", mode: "markers", hoverinfo: "skip", x: [layer.layer], y: [layer.gamma],
          marker: { color: ORANGE, size: 13, symbol: "diamond", line: { color: ink, width: 1 } },
        },
      ], {
        ...layout,
        xaxis: { ...axis, title: { text: "layer" }, dtick: number.length > 16 ? 4 : number.length > 8 ? 2 : 1 },
        yaxis: { ...axis, title: { text: "alignment γ (line), by chance (dots)" }, rangemode: "tozero" },
      }, SMALL);
    }

    form.model.addEventListener("input", () => { form.layer.value = 0; });
    form.addEventListener("input", draw);
    form.addEventListener("submit", (event) => event.preventDefault());
    new MutationObserver(draw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    draw();
  }

  (globalThis.companionInteractive ??= []).push(["[data-layers]", build]);
}
