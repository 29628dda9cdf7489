// Throughput and latency over pages at once, as the time model predicts them.

const CURVES = [
  { id: "throughput", title: "pages per second", of: (load) => load.pages_per_second, text: (value) => `${rateText(value)} pages/s` },
  { id: "latency", title: "seconds per page", of: (load) => load.page_seconds,
    text: seconds },
];

const CURVE_HEIGHT = 480;

function curveFigures(id) {
  return element("div", { class: "plots" }, ...CURVES.map((curve) => (
    chartPlace(`${id}-${curve.id}`, `Predicted ${curve.title} over pages at once`, CURVE_HEIGHT)
  )));
}

function drawCurves(id, entries) {
  const single = entries.length === 1;
  for (const curve of CURVES) {
    const traces = entries.flatMap((entry, index) => {
      const colour = PALETTE[index % PALETTE.length];
      const made = [curveTrace(entry, curve, colour, index)];
      if (single && curve.id === "throughput") made.unshift(...bandTraces(entry, colour));
      return made;
    });
    const concurrencies = [...new Set(entries.flatMap((entry) => entry.throughput.map((load) => load.concurrency)))];
    draw(`${id}-${curve.id}`, traces, {
      height: forPaper(CURVE_HEIGHT), hovermode: "closest",
      xaxis: axis("pages at once", { type: "log", tickvals: ticks(concurrencies), ticktext: ticks(concurrencies).map(exact) }),
      yaxis: oneTwoFive(`${curve.title} [${curve.id === "latency" ? "s" : "pages/s"}]`, traces.flatMap((trace) => trace.y)),
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    });
  }
}

/** Powers of two among the values, or all values if there are few. */
function ticks(values) {
  const ordered = [...values].sort((a, b) => a - b);
  return ordered.length <= 10 ? ordered : ordered.filter((value) => Number.isInteger(Math.log2(value)));
}

const DASHES = ["solid", "dash", "dot"];

function curveTrace(entry, curve, colour, index) {
  const loads = entry.throughput;
  return {
    type: "scatter", mode: "lines+markers", name: plain(`${entry.gpu}, ${runtimeText(entry)}`),
    x: loads.map((load) => load.concurrency), y: loads.map(curve.of),
    line: { color: colour, dash: DASHES[Math.floor(index / PALETTE.length) % DASHES.length] },
    marker: { size: 7, symbol: loads.map((load) => (load.fits ? "circle" : "circle-open")) },
    hovertext: loads.map((load) => (
      `<b>${plain(entry.gpu)}</b>, ${plain(runtimeText(entry))}, ${plural(load.concurrency, "page")} at once<br>`
      + `${curve.text(curve.of(load))}<br>`
      + `${rateText(load.pages_per_second_band.low)} to ${rateText(load.pages_per_second_band.high)} pages/s, bound by ${load.bound}<br>`
      + `first token ${seconds(load.ttft_seconds)}, each after it ${seconds(load.tpot_seconds)}<br>`
      + `${scaled(load.memory_bytes, "B")}${load.fits ? "" : ": more than fits, the rest wait"}`
    )),
    hovertemplate: "%{hovertext}<extra></extra>",
  };
}

function bandTraces(entry, colour) {
  const x = entry.throughput.map((load) => load.concurrency);
  const line = { width: 0, color: colour };
  const ends = (end) => entry.throughput.map((load) => load.pages_per_second_band[end]);
  return [
    { type: "scatter", mode: "lines", x, y: ends("low"), line, showlegend: false, hoverinfo: "skip" },
    { type: "scatter", mode: "lines", x, y: ends("high"), line, fill: "tonexty", fillcolor: `${colour}33`,
      name: "band of the prediction", hoverinfo: "skip" },
  ];
}
