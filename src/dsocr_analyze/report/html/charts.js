// Shared by all charts: colours dark enough for white text, a layout, printing, names as plain text.

const PALETTE = data.colours.palette;
const FONT = { family: "system-ui, 'Segoe UI', Roboto, Arial, sans-serif", size: 13 };
const CONFIG = { displayModeBar: false };
const NARROW = 560;

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

/**
 * Draws a chart `layout.height` pixels high without its legend, whose height is added, and wraps
 * the x axis's title. `notes(size, axes)` gives annotations for a plot of that size.
 */
function draw(id, traces, layout, notes = null) {
  const place = document.getElementById(id);
  const title = layout.xaxis?.title.text;
  const titled = (pixels) => (title ? { xaxis: { ...layout.xaxis, title: { ...layout.xaxis.title, text: wrapped(title, pixels) } } } : {});
  const whole = {
    font: FONT, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    hoverlabel: { bgcolor: "#263238", bordercolor: "#263238", font: { ...FONT, color: "#ffffff" }, align: "left" },
    margin: { l: 70, r: 20, t: 20, b: 60 }, width: chartWidth(place), ...layout,
    ...titled(chartWidth(place) / 2),
  };
  Plotly.react(place, traces, whole, CONFIG);
  const legend = place.querySelector(".legend .bg")?.getBBox().height ?? 0;
  const height = Math.ceil(layout.height + legend);
  place.style.height = `${height}px`;
  Plotly.react(place, traces, { ...whole, height, ...titled(place._fullLayout._size.w) }, CONFIG);
  if (notes) Plotly.relayout(place, { annotations: notes(place._fullLayout._size, place._fullLayout) });
  return place;
}

/** The pixels that a chart has on the screen, or on paper. */
function chartWidth(place) {
  return onPaper ? PAPER_WIDTH : place.clientWidth;
}

/** Pixels of a height, of which a sheet of paper has fewer. */
function forPaper(pixels) {
  return onPaper ? 0.8 * pixels : pixels;
}

function isNarrow(id) {
  return chartWidth(document.getElementById(id)) < NARROW;
}

function axis(title, more = {}) {
  return { title: { text: title, standoff: 10, font: FONT }, automargin: true, gridcolor: "#d9dee5", ...more };
}

const pen = document.createElement("canvas").getContext("2d");

/** Pixels of a text on one line. */
function textWidth(text, size = FONT.size) {
  pen.font = `${size}px ${FONT.family}`;
  return pen.measureText(text).width;
}

/** Lines of a text no wider than some pixels, escaped: they break at spaces, or in long words. */
function wrapped(text, pixels, size = FONT.size) {
  const lines = [""];
  const pieces = String(text).match(/\S+\s*/g) ?? [];
  for (const piece of pieces.flatMap((each) => (textWidth(each.trimEnd(), size) > pixels ? pieced(each, pixels, size) : [each]))) {
    if (lines.at(-1) && textWidth((lines.at(-1) + piece).trimEnd(), size) > pixels) lines.push("");
    lines.push(lines.pop() + piece);
  }
  return lines.map((line) => plain(line.trimEnd())).join("<br>");
}

/** A word in parts that end at separators, those too wide for the line in shorter ones. */
function pieced(word, pixels, size) {
  const most = Math.max(4, Math.floor((word.length * pixels) / textWidth(word, size)));
  return word.split(/(?<=[-./_:,])/).flatMap((part) => part.match(new RegExp(`.{1,${most}}`, "gsu")));
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
function decades(title, more = {}) {
  const powers = Array.from({ length: 31 }, (_, index) => index - 6);
  return axis(title, {
    type: "log", tickvals: powers.map((power) => 10 ** power),
    ticktext: powers.map((power) => decadeText(power)), ...more,
  });
}

function decadeText(power) {
  return power < 3 ? String(Number((10 ** power).toPrecision(1))) : scaled(10 ** power).replace(/\.0+ /, " ");
}

// Charts are redrawn when their width changes. Paper is narrower than most screens: what is folded
// opens for it, text keeps its size, and tables show all rows unless there are thousands.
const PAPER_WIDTH = 680;
let onPaper = false;
let unfolded = [];
let widthDrawn = window.innerWidth;

function setPaper(isPaper) {
  if (isPaper === onPaper) return;
  onPaper = isPaper;
  document.documentElement.classList.toggle("paper", isPaper);
  if (isPaper) unfolded = [...document.querySelectorAll("details:not([open])")];
  for (const each of unfolded) each.open = isPaper;
  fills.forEach((fill) => fill());
  document.querySelectorAll("table").forEach(fitTable);
  if (window.Plotly) drawings.forEach(drawNow);
}

/** Shrinks a table's text until it is no wider than the paper. */
function fitTable(table) {
  table.style.fontSize = "";
  const excess = table.offsetWidth / PAPER_WIDTH;
  if (!onPaper || excess <= 1) return;
  table.style.fontSize = `${parseFloat(getComputedStyle(table).fontSize) / excess - 0.1}px`;
}

window.addEventListener("beforeprint", () => setPaper(true));
window.addEventListener("afterprint", () => setPaper(false));
window.matchMedia("print").addEventListener("change", (event) => setPaper(event.matches));
window.addEventListener("resize", () => {
  if (onPaper || window.innerWidth === widthDrawn) return;
  widthDrawn = window.innerWidth;
  drawn.forEach((drawing) => drawing());
});
