// Tokens on a sphere under the paper's map, live. The numbers are those of companion.examples.sphere_layer and
// companion.power_step; a test compares the two.
"use strict";

const companionSphere = (() => {
  const TOKENS = 8;
  const TRAIL = 40;
  const COLOURS = ["#0173b2", "#de8f05", "#029e73", "#d55e00", "#cc78bc", "#ca9161", "#949494", "#56b4e9"];

  const dot = (a, b) => a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
  const times = (M, x) => M.map((row) => dot(row, x));

  /** I + F, as rows. */
  function grown({ gap, angle }) {
    const rest = 2 - gap;
    if (angle === 0) return [[2, 0, 0], [0, rest, 0], [0, 0, rest]];
    const [c, s] = [2 * Math.cos(angle), 2 * Math.sin(angle)];
    return [[c, -s, 0], [s, c, 0], [0, 0, rest]];
  }

  /** Rotation by `turn` about (1, 1, 1), by Rodrigues' formula. */
  function turned(turn) {
    const [c, s] = [Math.cos(turn), Math.sin(turn) / Math.sqrt(3)];
    const k = (1 - c) / 3;
    return [[c + k, k - s, k + s], [k + s, c + k, k - s], [k - s, k + s, c + k]];
  }

  /** One layer: softmax attention of every head, residual sum, back to unit length. */
  function step(tokens, settings) {
    const { heads, temperature, causal } = settings;
    const F = grown(settings).map((row, i) => row.map((value, j) => value - (i === j)));
    const mixed = tokens.map(() => [0, 0, 0]);
    for (let h = 0; h < heads; h++) {
      const turn = turned((2 * Math.PI * h) / heads);
      const keys = tokens.map((x) => times(turn, x));
      tokens.forEach((x, i) => {
        const seen = causal ? i + 1 : tokens.length;
        const logits = keys.slice(0, seen).map((key) => dot(x, key) / temperature);
        const top = Math.max(...logits);
        const weights = logits.map((logit) => Math.exp(logit - top));
        const total = weights.reduce((a, b) => a + b);
        weights.forEach((weight, j) => {
          for (let c = 0; c < 3; c++) mixed[i][c] += ((weight / total) * tokens[j][c]) / heads;
        });
      });
    }
    return tokens.map((x, i) => {
      const y = times(F, mixed[i]).map((value, c) => value + x[c]);
      const length = Math.hypot(...y);
      return y.map((value) => value / length);
    });
  }

  /** Where the tokens are, in words. */
  function describe(tokens, settings) {
    const cosines = [];
    tokens.forEach((x, i) => tokens.slice(i + 1).forEach((y) => cosines.push(dot(x, y))));
    const mean = cosines.reduce((a, b) => a + b) / cosines.length;
    let state = "tokens still apart";
    if (cosines.every((c) => c > 0.999)) {
      state = settings.angle ? "consensus, turning: a limit cycle" : "consensus";
    } else if (cosines.every((c) => Math.abs(c) > 0.999)) {
      state = settings.angle ? "two opposite camps, turning" : "two opposite camps";
    }
    return { mean, state };
  }

  /** A small seeded generator (mulberry32), so that a start can be had again. */
  function random(seed) {
    let a = seed >>> 0;
    return () => {
      a = (a + 0x6d2b79f5) >>> 0;
      let t = Math.imul(a ^ (a >>> 15), a | 1);
      t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
      return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
    };
  }

  /** Unit tokens in uniformly random directions. */
  function start(seed) {
    const next = random(seed);
    return Array.from({ length: TOKENS }, () => {
      const z = 2 * next() - 1;
      const turn = 2 * Math.PI * next();
      const r = Math.sqrt(1 - z * z);
      return [r * Math.cos(turn), r * Math.sin(turn), z];
    });
  }

  const CONTROLS = `
    <label>gap <output></output><input type="range" name="gap" min="0.05" max="2" step="0.05" value="0.8"></label>
    <label>angle of the pair <output></output><input type="range" name="angle" min="0" max="120" step="5" value="0"></label>
    <label>heads <output></output><input type="range" name="heads" min="1" max="4" step="1" value="1"></label>
    <label>temperature <output></output><input type="range" name="temperature" min="-1" max="1" step="0.05" value="0.3"></label>
    <label><span>tokens see</span>
      <select name="mask"><option value="full">every token</option><option value="causal">those before them</option></select></label>
    <div class="sphere-buttons">
      <button type="button" name="run">Run</button><button type="button" name="step">One layer</button>
      <button type="button" name="restart">New start</button>
      <button type="button" name="left" aria-label="Turn the sphere left">⟲</button>
      <button type="button" name="right" aria-label="Turn the sphere right">⟳</button>
    </div>
    <p class="sphere-status" role="status"></p>`;

  function wires() {
    const [x, y, z] = [[], [], []];
    const circle = (place) => {
      for (let k = 0; k <= 48; k++) {
        const [a, b, c] = place((2 * Math.PI * k) / 48);
        x.push(a); y.push(b); z.push(c);
      }
      x.push(null); y.push(null); z.push(null);
    };
    for (const height of [-0.6, 0, 0.6]) {
      const r = Math.sqrt(1 - height * height);
      circle((t) => [r * Math.cos(t), r * Math.sin(t), height]);
    }
    for (let m = 0; m < 4; m++) {
      const turn = (Math.PI * m) / 4;
      circle((t) => [Math.cos(t) * Math.cos(turn), Math.cos(t) * Math.sin(turn), Math.sin(t)]);
    }
    return { x, y, z };
  }

  function traces(history, settings, ink) {
    const now = history[history.length - 1];
    const line = (points, colour, width) => ({
      type: "scatter3d", mode: "lines", hoverinfo: "skip", line: { color: colour, width },
      x: points.map((p) => p[0]), y: points.map((p) => p[1]), z: points.map((p) => p[2]),
    });
    const circle = Array.from({ length: 65 }, (_, k) => {
      const t = (2 * Math.PI * k) / 64;
      return [Math.cos(t), Math.sin(t), 0];
    });
    const target = settings.angle ? circle : [[-1.25, 0, 0], [1.25, 0, 0]];
    return [
      { ...line([], ink, 1), ...wires(), opacity: 0.25 },
      line(target, ink, 6),
      ...now.map((_, i) => line(history.map((tokens) => tokens[i]), COLOURS[i], 3)),
      {
        type: "scatter3d", mode: "markers", marker: { size: 6, color: COLOURS }, hoverinfo: "text",
        text: now.map((_, i) => `token ${i + 1}`),
        x: now.map((p) => p[0]), y: now.map((p) => p[1]), z: now.map((p) => p[2]),
      },
    ];
  }

  function build(box) {
    box.innerHTML = `<div class="sphere-plot" role="img" aria-label="Tokens on a sphere; the line below says what they do"></div>
      <form class="sphere-controls">${CONTROLS}</form>`;
    const plot = box.querySelector(".sphere-plot");
    const form = box.querySelector("form");
    const status = box.querySelector(".sphere-status");
    let seed = 1;
    let layers = 0;
    let timer = null;
    let turn = 0.7;
    let history = [start(seed)];

    const settings = () => ({
      gap: Number(form.gap.value),
      angle: (Number(form.angle.value) * Math.PI) / 180,
      heads: Number(form.heads.value),
      temperature: 10 ** Number(form.temperature.value),
      causal: form.mask.value === "causal",
    });

    function draw() {
      const chosen = settings();
      const say = {
        gap: chosen.gap.toFixed(2),
        angle: `${form.angle.value}°`,
        heads: form.heads.value,
        temperature: chosen.temperature.toPrecision(2),
      };
      for (const [name, text] of Object.entries(say)) form[name].previousElementSibling.textContent = text;
      const { mean, state } = describe(history[history.length - 1], chosen);
      status.textContent = `Layer ${layers}: ${state}. Mean cosine ${mean.toFixed(2)}.`;
      const ink = getComputedStyle(box).color;
      const hidden = { visible: false, range: [-1.3, 1.3] };
      Plotly.react(plot, traces(history, chosen, ink), {
        margin: { l: 0, r: 0, t: 0, b: 0 }, showlegend: false, paper_bgcolor: "rgba(0,0,0,0)",
        scene: {
          xaxis: hidden, yaxis: hidden, zaxis: hidden, aspectmode: "cube", uirevision: turn,
          camera: { eye: { x: 1.15 * Math.cos(turn), y: 1.15 * Math.sin(turn), z: 0.55 } },
        },
      }, { displayModeBar: false, responsive: true });
    }

    function advance() {
      history = [...history.slice(-TRAIL), step(history[history.length - 1], settings())];
      layers += 1;
      draw();
    }

    function pause() {
      clearInterval(timer);
      timer = null;
      form.run.textContent = "Run";
    }

    function restart() {
      layers = 0;
      history = [start(seed)];
      draw();
    }

    form.run.addEventListener("click", () => {
      if (timer) return pause();
      form.run.textContent = "Pause";
      timer = setInterval(() => (layers % 100 === 99 ? (advance(), pause()) : advance()), 120);
    });
    form.step.addEventListener("click", () => { pause(); advance(); });
    form.restart.addEventListener("click", () => { seed += 1; restart(); });
    form.left.addEventListener("click", () => { turn += 0.3; draw(); });
    form.right.addEventListener("click", () => { turn -= 0.3; draw(); });
    form.addEventListener("input", restart);
    form.addEventListener("submit", (event) => event.preventDefault());
    new MutationObserver(draw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    draw();
  }

  (globalThis.companionInteractive ??= []).push(["[data-sphere]", build]);
  return { step, start, describe };
})();
