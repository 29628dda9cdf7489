// The roofline of a GPU with every operator on it: its FLOPs per byte, and the most that the GPU can
// reach there. Diamonds are stages as predicted by the time model.

const LABEL_HEIGHT = 18;
const MARK_RADIUS = 11;
const MATRIX_FAMILIES = new Set(["gemm", "attention", "convolution"]);

/** Operators of every stage: {stage, operator, family, flops, bytes}; bytes null if unknown. */
function operatorRows(report) {
  return Object.entries(report.stages).flatMap(([stage, content]) => {
    const families = new Map(Object.entries(content.operator_families).flatMap(
      ([family, { operators }]) => operators.map((operator) => [operator, family]),
    ));
    return Object.entries(content.operators).map(([operator, flops]) => {
      const bytes = content.operator_bytes?.[operator] ?? null;
      return {
        stage: stageLabelOfOne(report, stage), operator, family: families.get(operator) ?? "", flops, bytes,
        intensity: Number(bytes) > 0 ? Number(flops) / Number(bytes) : null,
      };
    });
  });
}

function stageLabelOfOne(report, stage) {
  return stage === decodeName(report) ? `${stage} step` : stage;
}

/** The rate at which an operator computes if only arithmetic limits it. */
function computePeak(row, roof) {
  const isMatrix = MATRIX_FAMILIES.has(row.family);
  return isMatrix ? roof.matrix_flops_per_second : roof.vector_flops_per_second ?? roof.matrix_flops_per_second;
}

/** What bounds an operator on a GPU in the best case, and how long it then takes. */
function bestCase(row, roof) {
  if (row.bytes === null || !roof) return { bound: null, seconds: null };
  const compute = Number(row.flops) / computePeak(row, roof);
  const memory = Number(row.bytes) / roof.bytes_per_second;
  return { bound: compute > memory ? "compute" : "memory", seconds: Math.max(compute, memory) };
}

/** The chart and its choice of GPU; `onGpu` is called with every choice, including the initial one. */
function roofline(id, report, roofs, entries, rows, onGpu) {
  const state = { roof: roofs[0] };
  const caption = element("p", { class: "lead", id: `${id}-caption` });
  const select = choice(`${id}-gpu`, "GPU", roofs.map((roof) => ({
    value: roof.gpu, text: roof.title,
    group: roof.measured === null ? "no kernel times" : roof.measured ? "kernel times measured" : "kernel times taken from another GPU",
  })), (gpu) => {
    state.roof = roofs.find((roof) => roof.gpu === gpu);
    refresh();
  });
  select.querySelector("select").value = state.roof.gpu;

  const drawChart = () => drawRoofline(`${id}-chart`, report, state.roof, entries, rows);
  function refresh() {
    caption.textContent = roofCaption(state.roof, rows);
    onGpu(state.roof);
    if (window.Plotly) drawChart();
  }

  refresh();
  drawings.push(drawChart);
  return {
    controls: element("div", { class: "controls" }, select),
    figure: chartPlace(`${id}-chart`, "Roofline: FLOPs per second over FLOPs per byte, operators as dots", 520),
    caption,
  };
}

function roofCaption(roof, rows) {
  const still = rows.filter((row) => Number(row.flops) === 0).length;
  const ridge = roof.matrix_flops_per_second / roof.bytes_per_second;
  const vector = roof.vector_flops_per_second === null
    ? "its fp32 rate outside the matrix units is unknown, so all operators are shown under the matrix roof"
    : `${scaled(roof.vector_flops_per_second, "FLOP/s")} outside the matrix units`;
  return `${roof.title}: ${scaled(roof.matrix_flops_per_second, "FLOP/s")} dense ${roof.dtype}, `
    + `${vector}, ${scaled(roof.bytes_per_second, "B/s")}; memory bounds matrix products below ${ratioText(ridge)} FLOPs/byte. `
    + `A dot is at the most that the GPU could reach; its area is its share of the stage's bytes. `
    + `${plural(still, "operator")} that compute${still === 1 ? "s" : ""} nothing and only move${still === 1 ? "s" : ""} bytes `
    + `${still === 1 ? "is" : "are"} only in the table. Peaks: ${roof.source}${roof.weak ? `; poorly sourced: ${roof.weak}` : ""}.`;
}

function drawRoofline(id, report, roof, entries, rows) {
  const points = rows.filter((row) => row.intensity !== null && Number(row.flops) > 0);
  const least = Math.min(0.05, ...points.map((row) => row.intensity)) / 2;
  const most = 2 * Math.max(2 * roof.matrix_flops_per_second / roof.bytes_per_second, ...points.map((row) => row.intensity));
  const stages = [...new Set(rows.map((row) => row.stage))];
  const colours = new Map(stageNames(report).map((name) => [stageLabelOfOne(report, name), data.colours.stages[name]]));
  const traces = [
    roofTrace(`matrix units, ${roof.dtype}`, roof.matrix_flops_per_second, roof, least, most, "solid"),
    ...(roof.vector_flops_per_second ? [roofTrace("outside the matrix units", roof.vector_flops_per_second, roof, least, most, "dash")] : []),
    ...stages.map((stage) => operatorTrace(stage, points.filter((row) => row.stage === stage), roof, colours.get(stage))),
    ...stageTraces(report, roof, entries, colours),
  ];
  const labelled = traces.find((trace) => trace.labels);
  draw(id, traces, {
    height: 520, hovermode: "closest",
    xaxis: decades("arithmetic intensity [FLOPs/byte]", { range: [Math.log10(least), Math.log10(most)] }),
    yaxis: decades("rate [FLOP/s]", {
      range: [Math.log10(least * roof.bytes_per_second / 2), Math.log10(2 * roof.matrix_flops_per_second)],
    }),
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, itemsizing: "constant" },
  }, labelled && ((size, axes) => labelsBeside(labelled, traces, size, axes)));
}

function roofTrace(name, peak, roof, least, most, dash) {
  const x = [least, peak / roof.bytes_per_second, most];
  return {
    type: "scatter", mode: "lines", name, x, y: x.map((each) => Math.min(peak, each * roof.bytes_per_second)),
    line: { color: "#78848f", width: 2.5, dash }, hoverinfo: "skip",
  };
}

function operatorTrace(stage, points, roof, colour) {
  const most = Math.max(1, ...points.map((row) => Number(row.bytes)));
  return {
    type: "scatter", mode: "markers", name: plain(stage),
    x: points.map((row) => row.intensity),
    y: points.map((row) => Math.min(computePeak(row, roof), row.intensity * roof.bytes_per_second)),
    marker: {
      color: colour, opacity: 0.85, line: { color: "#ffffff", width: 1 },
      size: points.map((row) => 7 + 21 * Math.sqrt(Number(row.bytes) / most)),
    },
    hovertext: points.map((row) => {
      const best = bestCase(row, roof);
      return `<b>${plain(row.operator)}</b> (${plain(row.family)}), ${plain(stage)}<br>${exact(row.flops)} FLOPs<br>`
        + `${exact(row.bytes)} bytes<br>${ratioText(row.intensity)} FLOPs/byte, bound by ${best.bound}<br>`
        + `at least ${seconds(best.seconds)} on ${plain(roof.title)}`;
    }),
    hovertemplate: "%{hovertext}<extra></extra>",
  };
}

/** Stages at the rate that the time model predicts on this GPU: matrix FLOPs over seconds. */
function stageTraces(report, roof, entries, colours) {
  const marks = { eager: "diamond", serving: "diamond-tall" };
  return entries.filter((entry) => entry.gpu === roof.gpu).map((entry, order) => {
    const found = Object.entries(entry.stages).filter(([, stage]) => stage.peak_share > 0 && stage.bandwidth_share > 0);
    const rates = found.map(([, stage]) => stage.peak_share * roof.matrix_flops_per_second);
    return {
      type: "scatter", mode: "markers", name: `stages, predicted, ${runtimeText(entry)}`,
      x: found.map(([, stage], index) => rates[index] / (stage.bandwidth_share * roof.bytes_per_second)),
      y: rates, labels: order === 0 ? found.map(([name]) => name) : null,
      marker: {
        symbol: marks[entry.runtime], size: 15, line: { color: "#111111", width: 1.5 },
        color: found.map(([name]) => colours.get(stageLabelOfOne(report, name))),
      },
      hovertext: found.map(([name, stage], index) => (
        `<b>${plain(name)}</b>, predicted, ${plain(runtimeText(entry))}<br>${seconds(stage.seconds)} `
        + `(${seconds(stage.low)} to ${seconds(stage.high)}), ${stage.bound}-bound<br>`
        + `${scaled(rates[index], "FLOP/s")} of matrix products: ${percent(stage.peak_share)} of the peak`
      )),
      hovertemplate: "%{hovertext}<extra></extra>",
    };
  });
}

/** Names beside the points of a trace, where they cover neither each other nor a point of it, and no other if possible. */
function labelsBeside(trace, traces, { w, h }, { xaxis, yaxis }) {
  const along = (axis, length, value) => length * (Math.log10(value) - axis.range[0]) / (axis.range[1] - axis.range[0]);
  const points = trace.x.map((x, index) => [along(xaxis, w, x), h - along(yaxis, h, trace.y[index])]);
  const dots = traces.filter((each) => each.marker && !each.labels).flatMap((each) => each.x.map((x, index) => (
    boxAround(along(xaxis, w, x), h - along(yaxis, h, each.y[index]), each.marker.size[index], each.marker.size[index]))));
  const taken = points.map(([x, y]) => boxAround(x, y, 2 * MARK_RADIUS, 2 * MARK_RADIUS));
  return trace.labels.map((name, index) => {
    const [x, y] = points[index];
    const width = textWidth(name) + 8;
    const places = [0, 1, 2, 3, 4, 5].flatMap((ring) => directions(ring, width));
    const isFree = ([dx, dy], others) => {
      const box = boxAround(x + dx, y + dy, width, LABEL_HEIGHT);
      return box.left >= 0 && box.right <= w && box.top >= 0 && box.bottom <= h && !others.some((each) => overlap(each, box));
    };
    const all = [...taken, ...dots];
    const [ax, ay] = places.find((each) => isFree(each, all)) ?? places.find((each) => isFree(each, taken)) ?? places[0];
    taken.push(boxAround(x + ax, y + ay, width, LABEL_HEIGHT));
    return {
      x: Math.log10(trace.x[index]), y: Math.log10(trace.y[index]), ax, ay, text: plain(name),
      showarrow: true, arrowhead: 0, arrowwidth: 1, arrowcolor: "#78848f", standoff: MARK_RADIUS, borderpad: 0,
    };
  });
}

/** Offsets of a text's centre from its point, nearest first in each ring. */
function directions(ring, width) {
  const [dx, dy] = [MARK_RADIUS + 2 + width / 2 + 18 * ring, MARK_RADIUS + 2 + LABEL_HEIGHT / 2 + 18 * ring];
  return [[dx, 0], [-dx, 0], [0, dy], [0, -dy], [dx, dy], [-dx, dy], [dx, -dy], [-dx, -dy]];
}

function boxAround(x, y, width, height) {
  return { left: x - width / 2, right: x + width / 2, top: y - height / 2, bottom: y + height / 2 };
}

function overlap(one, other) {
  return one.left < other.right && other.left < one.right && one.top < other.bottom && other.top < one.bottom;
}
