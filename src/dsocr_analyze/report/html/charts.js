// Shared by all charts: colours dark enough for white text, a layout, printing, names as plain text.

const PALETTE = data.colours.palette;
const FONT = { family: "system-ui, 'Segoe UI', Roboto, Arial, sans-serif", size: 13 };
const CONFIG = { displayModeBar: false, responsive: true };

/** Functions that draw the charts once the library is loaded, and the charts drawn so far. */
const drawings = [];
const drawn = new Set();

function drawNow(drawing) {
  drawn.add(drawing);
  drawing();
}

/** A name escaped for the library, which interprets some tags in texts as markup. */
function plain(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/** The same colour for the same stage in all charts and pictures. */
function stageColours(names) {
  return new Map(names.map((name) => [name, data.colours.stages[name]]));
}

/** A figure with a place for a chart and a description in words. */
function chartPlace(id, label, height, caption = null) {
  const place = element("div", { id, class: "plot", role: "img", "aria-label": label });
  place.style.height = `${height}px`;
  return element("figure", {}, place, caption ? element("figcaption", {}, caption) : null);
}

function draw(id, traces, layout) {
  const place = document.getElementById(id);
  Plotly.react(place, traces, {
    font: FONT, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    hoverlabel: { bgcolor: "#263238", bordercolor: "#263238", font: { ...FONT, color: "#ffffff" }, align: "left" },
    margin: { l: 70, r: 20, t: 30, b: 60 }, autosize: true, ...layout,
  }, CONFIG);
  return place;
}

function axis(title, more = {}) {
  return { title: { text: title, standoff: 10 }, automargin: true, gridcolor: "#d9dee5", ...more };
}

/** A logarithmic axis with ticks at 1, 2 and 5 of every decade with values. */
function oneTwoFive(title, values) {
  const steps = Array.from({ length: 45 }, (_, index) => [1, 2, 5][index % 3] * 10 ** (Math.floor(index / 3) - 6));
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const from = Math.max(0, steps.findLastIndex((step) => step <= least));
  const shown = steps.slice(from, steps.findIndex((step) => step >= most) + 1 || undefined);
  return axis(title, {
    type: "log", tickvals: shown, ticktext: shown.map(short),
    range: [Math.log10(Math.min(shown[0], least)) - 0.03, Math.log10(Math.max(shown.at(-1), most)) + 0.03],
  });
}

/** An axis of decades, each labelled with its prefix. */
function decades(title, unit, more = {}) {
  const powers = Array.from({ length: 31 }, (_, index) => index - 6);
  return axis(title, {
    type: "log", tickvals: powers.map((power) => 10 ** power),
    ticktext: powers.map((power) => decadeText(power, unit)), ...more,
  });
}

function decadeText(power, unit) {
  if (power < 3) return `${power < 0 ? (10 ** power).toFixed(-power) : 10 ** power} ${unit}`.trim();
  return scaled(10 ** power, unit).replace(/\.0+ /, " ");
}

// Paper is narrower than the screen: charts are redrawn for it, with full-size text.
const PAPER_WIDTH = 690;
window.addEventListener("beforeprint", () => {
  drawings.filter((drawing) => !drawn.has(drawing)).forEach(drawNow);
  for (const place of document.querySelectorAll(".js-plotly-plot")) {
    Plotly.relayout(place, { width: PAPER_WIDTH });
  }
});
window.addEventListener("afterprint", () => {
  for (const place of document.querySelectorAll(".js-plotly-plot")) {
    Plotly.relayout(place, { width: null, autosize: true });
  }
});
