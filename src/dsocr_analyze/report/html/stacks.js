// Stages stacked to the whole: one bar per quantity in a report, one bar per report in a comparison.

const STACKS_HEIGHT = 80;
const SHARE_HEIGHT = 62;
const COMPARED_HEIGHT = 42;
/** Texts that don't fit into their bars are left out. */
const FITTING = { mode: "hide", minsize: 12 };

/** Pixels of a chart whose rows are at least so high, and as high as the longest label needs. */
function rowsHeight(labels, least) {
  const most = Math.max(...labels.map((label) => label.split("<br>").length));
  return STACKS_HEIGHT + labels.length * Math.max(forPaper(least), 18 * most + 6);
}

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
      label: `Seconds, predicted, ${entry.gpu}, ${runtimeText(entry)}`,
      values: secondsByStage(report, entry), text: seconds,
    });
  }
  return bars;
}

/** Bars whose parts are shares of their own whole: quantities of different units side by side. */
function shareTraces(report, bars, labels) {
  const names = [...stageNames(report), OUTSIDE];
  const colours = stageColours(names);
  const sums = bars.map((bar) => bar.values.reduce((sum, value) => sum + value, 0));
  return names.map((name, index) => {
    const values = bars.map((bar) => bar.values[index] ?? 0);
    const shares = values.map((value, bar) => (sums[bar] ? value / sums[bar] : 0));
    return {
      type: "bar", orientation: "h", name: plain(stageLabel(report, name)),
      y: labels, x: shares.map((share) => 100 * share),
      marker: { color: colours.get(name) }, insidetextanchor: "middle", textposition: "inside",
      text: values.map((value, bar) => (value ? `${bars[bar].text(value)}<br>${percent(shares[bar])}` : "")),
      textangle: 0, textfont: { color: "#ffffff", size: 12 },
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
  const labels = bars.map((bar) => wrapped(bar.label, isNarrow(id) ? 105 : 170));
  draw(id, shareTraces(report, bars, labels), {
    barmode: "stack", height: rowsHeight(labels, SHARE_HEIGHT), uniformtext: FITTING,
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
  const shown = names.map((name) => wrapped(name, isNarrow(id) ? 90 : 200));
  const traces = stages.map((stage) => ({
    type: "bar", orientation: "h", name: plain(stage), y: shown,
    x: columns.map((column) => column.get(stage) ?? 0), marker: { color: colours.get(stage) },
    insidetextanchor: "middle", textposition: "inside", textangle: 0,
    textfont: { color: "#ffffff", size: 12 },
    text: columns.map((column) => (column.get(stage) ? quantity.text(column.get(stage)) : "")),
    hovertext: columns.map((column, index) => (
      `${plain(names[index])}, ${plain(stage)}: ${quantity.text(column.get(stage) ?? 0)}`
    )),
    hovertemplate: "%{hovertext}<extra></extra>",
  }));
  draw(id, traces, {
    barmode: "stack", height: rowsHeight(shown, COMPARED_HEIGHT), uniformtext: FITTING,
    margin: { l: 50, r: 12 + Math.max(...sums.map((sum) => textWidth(quantity.text(sum)))), t: 20, b: 60 },
    xaxis: axis(quantity.title, { range: [0, 1.03 * Math.max(...sums)], exponentformat: "SI", nticks: isNarrow(id) ? 4 : 0 }),
    yaxis: { automargin: true, autorange: "reversed", type: "category" },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal" },
    annotations: sums.map((sum, index) => ({
      x: sum, y: shown[index], text: quantity.text(sum), showarrow: false, xanchor: "left", xshift: 6,
    })),
  });
}
