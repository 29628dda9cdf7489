// Stages stacked to the whole: one bar per quantity in a report, one bar per report in a comparison.

/** Stages of a report in order, and the sum of all decode steps. */
function stageNames(report) {
  return Object.keys(report.stages);
}

function decodeName(report) {
  return report.total.decode_step === null ? null : stageNames(report).at(-1);
}

function movedBytes(counts) {
  return sum(counts.bytes_read, counts.bytes_written);
}

/** A quantity of the whole batch by stage: the prefill pass and every decode step. */
function batchByStage(report, of) {
  return stageNames(report).map((name) => (
    name === decodeName(report) ? of(report.total.batch) - of(report.total) : of(report.stages[name])
  ));
}

const OUTSIDE = data.colours.outside;

/** Seconds of a page alone by stage, with the rest last, for one of the report's predictions. */
function secondsByStage(report, entry) {
  const index = data.kind === "report" ? 0 : data.reports.indexOf(report);
  const parts = data.seconds[index][report.time.indexOf(entry)];
  return [...stageNames(report), OUTSIDE].map((name) => parts[name] ?? 0);
}

/** The bars of one report: {label, unit, values by stage, text(value)}. */
function stackedBars(report) {
  const whole = Number(report.workload.batch_size) === 1 ? "" : " of the batch";
  const bars = [
    { label: `FLOPs${whole}`, values: batchByStage(report, (counts) => Number(counts.flops)),
      text: (value) => scaled(value, "FLOPs") },
    { label: `Bytes moved${whole}`, values: batchByStage(report, (counts) => Number(movedBytes(counts))), text: (value) => scaled(value, "B") },
    { label: "Parameters", values: stageNames(report).map((name) => Number(report.stages[name].params)),
      text: (value) => scaled(value) },
  ];
  for (const entry of report.time) {
    bars.push({
      label: `Seconds, predicted<br>${plain(entry.gpu)}, ${plain(entry.runtime)}`,
      values: secondsByStage(report, entry), text: seconds,
    });
  }
  return bars;
}

/** Bars whose parts are shares of their own whole: quantities of different units side by side. */
function shareTraces(report, bars) {
  const names = [...stageNames(report), OUTSIDE];
  const colours = stageColours(names);
  const sums = bars.map((bar) => bar.values.reduce((sum, value) => sum + value, 0));
  return names.map((name, index) => {
    const values = bars.map((bar) => bar.values[index] ?? 0);
    const shares = values.map((value, bar) => (sums[bar] ? value / sums[bar] : 0));
    return {
      type: "bar", orientation: "h", name: plain(stageLabel(report, name)),
      y: bars.map((bar) => bar.label), x: shares.map((share) => 100 * share),
      marker: { color: colours.get(name) }, insidetextanchor: "middle", textposition: "inside",
      text: values.map((value, bar) => (shares[bar] >= 0.07 ? `${bars[bar].text(value)}<br>${percent(shares[bar])}` : "")),
      textangle: 0, textfont: { color: "#ffffff", size: 12 }, constraintext: "none",
      hovertext: values.map((value, bar) => (
        `${plain(stageLabel(report, name))}: ${bars[bar].text(value)}, ${percent(shares[bar])} of ${bars[bar].text(sums[bar])}`
      )),
      hovertemplate: "%{hovertext}<extra></extra>",
    };
  }).filter((trace) => trace.x.some((share) => share > 0));
}

function stageLabel(report, name) {
  if (name !== decodeName(report)) return name;
  return `${name} (${plural(report.total.batch.decode_steps, "step")})`;
}

function drawStackedBars(id, report) {
  const bars = stackedBars(report);
  draw(id, shareTraces(report, bars), {
    barmode: "stack", height: 130 + 62 * bars.length,
    xaxis: axis("share of the whole [%]", { range: [0, 100] }),
    yaxis: { automargin: true, autorange: "reversed" },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal" },
  });
}

/** One bar per report, one part per stage, in units of the quantity. */
function drawComparedBars(id, names, reports, order, quantity) {
  const stages = [...order, ...(quantity.outside ? [OUTSIDE] : [])];
  const colours = stageColours(stages);
  const columns = reports.map((report) => {
    const values = quantity.values(report) ?? [];
    return new Map([...stageNames(report), OUTSIDE].map((name, index) => [name, values[index] ?? 0]));
  });
  const sums = columns.map((column) => [...column.values()].reduce((sum, value) => sum + value, 0));
  const longest = Math.max(...sums);
  const shown = names.map(wrapped);
  const traces = stages.map((stage) => ({
    type: "bar", orientation: "h", name: plain(stage), y: shown,
    x: columns.map((column) => column.get(stage) ?? 0), marker: { color: colours.get(stage) },
    insidetextanchor: "middle", textposition: "inside", textangle: 0, constraintext: "none",
    textfont: { color: "#ffffff", size: 12 },
    text: columns.map((column) => (column.get(stage) >= 0.09 * longest ? quantity.text(column.get(stage)) : "")),
    hovertext: columns.map((column, index) => (
      `${plain(names[index])}, ${plain(stage)}: ${quantity.text(column.get(stage) ?? 0)}`
    )),
    hovertemplate: "%{hovertext}<extra></extra>",
  }));
  draw(id, traces, {
    barmode: "stack", height: 150 + 42 * reports.length, margin: { l: 70, r: 110, t: 30, b: 60 },
    xaxis: axis(quantity.title, { ticksuffix: "", rangemode: "tozero", exponentformat: "SI" }),
    yaxis: { automargin: true, autorange: "reversed", type: "category" },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal" },
    annotations: sums.map((sum, index) => ({
      x: sum, y: shown[index], text: quantity.text(sum), showarrow: false, xanchor: "left", xshift: 6,
    })),
  });
}

/** A long name, wrapped. */
function wrapped(name) {
  const pieces = String(name).match(/.{1,28}(?:[\s,/]|$)|.{1,28}/g) ?? [String(name)];
  return pieces.map(plain).join("<br>");
}
