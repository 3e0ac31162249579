// Turns the table of texts by strength (companion.samples) into a slider. Without this script the table stays.
for (const place of document.querySelectorAll("[data-samples]")) {
  const table = place.querySelector("table");
  const rows = [...table.tBodies[0].rows];
  const label = document.createElement("label");
  const value = document.createElement("output");
  const slider = Object.assign(document.createElement("input"), {
    type: "range", min: 0, max: rows.length - 1, step: 1, value: 0,
  });
  const all = document.createElement("button");
  all.type = "button";
  let whole = false;
  label.append("strength α ", value, slider);
  place.prepend(label, all);
  const show = () => {
    const strength = rows[slider.value].cells[0].textContent;
    rows.forEach((row, index) => { row.hidden = !whole && index !== Number(slider.value); });
    value.textContent = strength;
    slider.setAttribute("aria-valuetext", `strength ${strength}`);
    slider.disabled = whole;
    all.textContent = whole ? "One at a time" : "Show all strengths";
  };
  slider.addEventListener("input", show);
  all.addEventListener("click", () => { whole = !whole; show(); });
  table.setAttribute("aria-live", "polite");
  show();
}
