// The page of one report: the answer first, then its details.

const COUNTED = "counted, exact";
const PREDICTED = "predicted";

function reportPage({ title, headline, report, modules, notes, roofs, curves, curves_missing: missing }) {
  summarySection(title, headline, report, curves);
  if (report.warnings.length > 0) {
    main.append(element("section", { class: "warnings", "aria-label": "Warnings" }, element("h2", {}, "Warnings"), lines(report.warnings)));
  }
  stageSection(report);
  const zoom = hierarchy("modules", report, modules);
  section("hierarchy", ["Hierarchy", "Where it goes"], COUNTED,
    element("p", { class: "lead" }, "The prefill pass and one decode step by module, largest first."),
    element("p", { class: "lead screen-only" }, "Click a part, or use the list: "
      + "arrow keys move, Right or Enter opens a part, Left or Escape goes up."),
    zoom.controls, zoom.crumbs, zoom.box);
  rooflineSection(report, roofs, curves.length > 0 ? newest(report.time, curves) : report.time);
  timeSection(report, curves, missing);
  moduleSection(report, modules, zoom);
  memorySection(report);
  checkSection(report);
  noteSection(report, notes);
}

/** Predictions by GPU and runtime: the report's own before those of the curves. */
function newest(own, more) {
  const isOwn = (entry) => own.some((each) => each.gpu === entry.gpu && runtimeText(each) === runtimeText(entry));
  return [...own, ...more.filter((entry) => !isOwn(entry))];
}

function summarySection(title, headline, report, curves) {
  const { metadata, workload, total, memory } = report;
  const held = [memory.weights_bytes, memory.inputs_bytes ?? 0, memory.peak_activation_bytes].reduce(sum, 0);
  const pages = Number(total.page.pages);
  const one = workload.page === null ? "prompt" : "page";
  const alone = workload.prompt_pages > 1 ? `Prompt of ${exact(workload.prompt_pages)} pages` : one === "page" ? "Page" : "Prompt";
  const cards = [
    card(`FLOPs of one ${one}`, scaled(total.page.flops, "FLOPs"), exact(total.page.flops)),
    card(`Bytes moved for one ${one}`, scaled(movedBytes(total.page), "B"), exact(movedBytes(total.page))),
    card("Prefill pass", scaled(total.flops, "FLOPs"), exact(total.flops)),
    total.decode_step && card("One decode step", scaled(total.decode_step.flops, "FLOPs"), exact(total.decode_step.flops)),
    card("Parameters", scaled(total.params), exact(total.params)),
    card("Memory at the prefill pass's peak", scaled(held, "B"), `${exact(held)} B`),
    workload.visual_tokens === null ? card("Prompt", plural(workload.seq_len, "token"), "")
      : card("Visual tokens", exact(workload.visual_tokens), `${exact(workload.text_tokens)} text, ${exact(workload.seq_len)} in the prompt`),
    ...report.time.map((entry) => card(
      `${alone} alone${otherLength(report, entry)} on ${entry.gpu} (predicted)`, seconds(entry.page_seconds),
      `${seconds(entry.bands.page_seconds.low)} to ${seconds(entry.bands.page_seconds.high)}`, runtimeText(entry))),
  ].filter(Boolean);
  const made = element("section", { class: "plain", id: "summary", "aria-labelledby": "summary-title" },
    element("h1", { id: "summary-title" }, title),
    element("p", { class: "lead" }, `${headline}.`),
    element("p", {}, answer(report)),
    element("div", { class: "cards" }, ...cards),
    facts([
      ["Page", workload.page && `${workload.page.join(" x ")} pixels`],
      ["Views", workload.views && workload.views.map((view) => `${view.count} of ${view.resolution} x ${view.height ?? view.resolution}`).join(", ")],
      ["Grid", workload.grid && workload.grid.join(" x ")],
      ["Batch", `${plural(workload.batch_size, "prompt")}${pages > workload.batch_size ? `, ${plural(pages, "page")}` : ""}`],
      ["New tokens", exact(workload.max_new_tokens)],
      ["Counted by", metadata.engine === "trace" ? `trace on ${metadata.device}` : "closed forms (analytic engine)"],
      ["Type", metadata.dtype], ["Attention", metadata.attention],
      ["Architecture", metadata.model.architecture], ["Class", metadata.model.class],
      ["Versions", Object.entries(metadata.versions).map(([name, version]) => `${name} ${version}`).join(", ")],
      ["Written", `${metadata.created.slice(0, 19).replace("T", " ")} UTC`],
    ]));
  document.getElementById("sections").append(element("a", { href: "#summary" }, "Summary"));
  main.append(made);
}

/** The new tokens of a predicted page if they are not those that FLOPs and bytes are counted for. */
function otherLength(report, entry) {
  const mean = entry.assumptions.new_tokens_mean;
  return mean === Number(report.workload.max_new_tokens) ? "" : ` with ${exact(Math.round(mean))} new tokens`;
}

/** What dominates, in a sentence or two, and whether the engines agree. */
function answer(report) {
  const names = stageNames(report);
  const leader = (values) => {
    const all = values.reduce((total, value) => total + value, 0);
    const best = values.indexOf(Math.max(...values));
    return `${stageLabel(report, names[best])}, ${percent(values[best] / all)}`;
  };
  const flops = leader(batchByStage(report, (counts) => Number(counts.flops)));
  const bytes = leader(batchByStage(report, (counts) => Number(movedBytes(counts))));
  const agrees = report.agreement === null ? "Only one engine counted."
    : report.agreement.agrees ? "The trace and the closed forms agree."
      : `The trace and the closed forms differ, first at ${report.agreement.first_difference}.`;
  return `Most FLOPs: ${flops}. Most bytes: ${bytes}. ${report.time.slice(0, 1).map((entry) => slowest(report, entry))}${agrees}`;
}

/** Where a page's predicted seconds go on a GPU, and what bounds that. */
function slowest(report, entry) {
  const parts = secondsByStage(report, entry);
  const longest = parts.indexOf(Math.max(...parts));
  const name = stageNames(report)[longest] ?? OUTSIDE;
  const bound = entry.stages[name] ? `, bound by ${entry.stages[name].bound}` : "";
  return `Predicted on ${entry.gpu}, ${runtimeText(entry)}: ${seconds(entry.page_seconds)} for ${report.workload.prompt_pages > 1 ? "a prompt" : "a page"} alone, `
    + `${percent(parts[longest] / entry.page_seconds)} of it in ${name}${bound}. `;
}

function stageSection(report) {
  const decode = decodeName(report);
  const rows = Object.entries(report.stages).map(([name, stage]) => ({ name, ...stage }));
  const count = (label, key, unit) => ({ label, unit, kind: "number", value: (row) => row[key] });
  section("stages", "Stages", `${COUNTED}${report.time.length > 0 ? "; seconds predicted" : ""}`,
    element("p", { class: "lead" }, "Each bar is the whole batch: its prefill pass and all its decode steps. The table's last row is a single step."),
    chartPlace("stage-bars", "Stages stacked to the whole: FLOPs, bytes, parameters and, if predicted, seconds", STACKS_HEIGHT + SHARE_HEIGHT * (3 + report.time.length)),
    table("stage-table", "Stages", [
      { label: "Stage", kind: "text", value: (row) => (row.name === decode ? `${row.name} step` : row.name) },
      count("Parameters", "params"), count("Calls", "calls"), count("FLOPs", "flops", "FLOPs"),
      count("Matrix", "matrix_flops", "FLOPs"), count("Other", "vector_flops", "FLOPs"),
      count("Read", "bytes_read", "bytes"), count("Written", "bytes_written", "bytes"),
      { label: "Intensity", unit: "FLOPs/byte", kind: "number", value: (row) => row.arithmetic_intensity, show: (row) => ratioText(row.arithmetic_intensity) },
      count("Activations", "activations", "elements"),
    ], rows));
  drawings.push(() => drawStackedBars("stage-bars", report));
}

function rooflineSection(report, roofs, entries) {
  const rows = operatorRows(report);
  const place = section("operators", ["Roofline", "Roofline and operators"], `${COUNTED}; peaks from data sheets`);
  let roof = null;
  const columns = [
    { label: "Operator", kind: "path", value: (row) => row.operator },
    { label: "Family", kind: "text", value: (row) => row.family },
    { label: "Stage", kind: "text", value: (row) => row.stage },
    { label: "FLOPs", unit: "FLOPs", kind: "number", value: (row) => row.flops },
    { label: "Bytes", unit: "bytes", kind: "number", value: (row) => row.bytes },
    { label: "Intensity", unit: "FLOPs/byte", kind: "number", value: (row) => row.intensity, show: (row) => ratioText(row.intensity) },
    { label: "Bound", ofGpu: true, kind: "text", value: (row) => bestCase(row, roof).bound ?? "-" },
    { label: "At least", unit: "at the GPU's peaks", ofGpu: true, kind: "number", value: (row) => bestCase(row, roof).seconds,
      show: (row) => seconds(bestCase(row, roof).seconds) },
  ];
  const shown = roofs.length > 0 ? columns : columns.filter((column) => !column.ofGpu);
  const operators = table("operator-table", "Operators", shown, rows, { sortedBy: "FLOPs", searched: true });
  if (roofs.length > 0) {
    const made = roofline("roofline", report, roofs, entries, rows, (chosen) => {
      roof = chosen;
      operators.refresh();
    });
    place.append(made.controls, made.figure, made.caption);
  } else {
    place.append(element("p", { class: "lead" }, `No GPU in the catalogue supports ${report.metadata.dtype}.`));
  }
  place.append(element("h3", {}, "Operators"), operators);
}

function timeSection(report, curves, missing) {
  const place = section("time", ["Time", "Latency and throughput"], PREDICTED);
  if (curves.length > 0) {
    place.append(
      element("p", { class: "lead" }, "Predicted by the analytic time model, not measured. Open circles: more pages than fit in memory; the rest wait."),
      curveFigures("curves"),
    );
    drawings.push(() => drawCurves("curves", curves));
  } else {
    place.append(element("p", { class: "lead" }, missing));
  }
  if (report.time.length === 0) return;
  const band = (entry, key) => `${seconds(entry[key])} (${seconds(entry.bands[key]?.low)} to ${seconds(entry.bands[key]?.high)})`;
  const time = (label, key) => ({ label, unit: "band", kind: "number", value: (row) => row[key],
    show: (row) => (row[key] === null ? "-" : band(row, key)) });
  place.append(
    element("h3", {}, "A page alone"),
    table("time-table", "Predicted seconds of a page alone", [
      { label: "GPU", kind: "short", value: (row) => row.gpu }, { label: "Runtime", kind: "short", value: runtimeText },
      time("First token", "ttft_seconds"), time("Each token after it", "tpot_seconds"), time("Page", "page_seconds"),
      { label: "Most pages at once", kind: "number", value: (row) => row.largest_concurrency },
    ], report.time),
    element("h3", {}, "Under load"), loadTable(report),
  );
}

function loadTable(report) {
  const rows = report.time.flatMap((entry) => entry.throughput.map((load) => ({ gpu: entry.gpu, runtime: runtimeText(entry), ...load })));
  const columns = [
    { label: "GPU", kind: "short", value: (row) => row.gpu }, { label: "Runtime", kind: "short", value: (row) => row.runtime },
    { label: "Pages at once", kind: "number", value: (row) => row.concurrency },
    { label: "Throughput", unit: "pages/s", kind: "number", value: (row) => row.pages_per_second, show: (row) => rateText(row.pages_per_second) },
    { label: "Tokens", unit: "tokens/s", kind: "number", value: (row) => row.tokens_per_second, show: (row) => fixed(row.tokens_per_second, 0) },
    { label: "First token", kind: "number", value: (row) => row.ttft_seconds, show: (row) => seconds(row.ttft_seconds) },
    { label: "Page", kind: "number", value: (row) => row.page_seconds, show: (row) => seconds(row.page_seconds) },
    { label: "Memory", unit: "bytes", kind: "number", value: (row) => row.memory_bytes },
    { label: "Bound", kind: "text", value: (row) => row.bound },
    { label: "Fits", kind: "text", value: (row) => (row.fits ? "yes" : "no") },
  ];
  if (rows.some((row) => row.cost_per_thousand_pages !== null)) {
    columns.push({ label: "1,000 pages", unit: "currency of the price", kind: "number",
      value: (row) => row.cost_per_thousand_pages, show: (row) => priceText(row.cost_per_thousand_pages) });
  }
  return table("load-table", "Predicted throughput", columns, rows);
}

function moduleSection(report, modules, zoom) {
  const rows = Object.entries(modules).flatMap(([stage, columns]) => columns.path.map((path, index) => ({
    stage, path, class: columns.class_name[index], calls: columns.calls[index], params: columns.params[index],
    flops: columns.flops[index], bytes: sum(columns.bytes_read[index], columns.bytes_written[index]),
    own: columns.own_flops[index], ownBytes: columns.own_bytes[index], activations: columns.activations[index],
  })));
  const count = (label, key, unit) => ({ label, unit, kind: "number", value: (row) => row[key] });
  const columns = [
    { label: "Module", kind: "path", value: (row) => row.path || "(the model)", show: (row) => element(
      "button", { type: "button", "aria-label": `Show ${row.path || "the model"} of ${row.stage} in the chart`, onclick: () => zoom.zoomTo(row.stage, row.path) },
      row.path || "(the model)") },
    { label: "Class", kind: "name", value: (row) => row.class ?? "-" },
    { label: "Stage", kind: "text", value: (row) => row.stage },
    count("Calls", "calls"), count("Parameters", "params"), count("FLOPs", "flops", "with all below"),
    count("Own FLOPs", "own", "without children"), count("Bytes", "bytes", "with all below"),
    count("Own bytes", "ownBytes", "without children"),
    { label: "Intensity", unit: "FLOPs/byte", kind: "number", value: (row) => ratio(row), show: (row) => ratioText(ratio(row)) },
  ].filter((column) => column.label !== "Parameters" || rows.some((row) => row.params !== null));
  section("module-rows", "Modules", COUNTED, table("module-table", "Modules", columns, rows, { sortedBy: "FLOPs", searched: true }));
}

function ratio(row) {
  return Number(row.bytes) > 0 ? Number(row.flops) / Number(row.bytes) : null;
}

function memorySection(report) {
  const { memory } = report;
  const named = { weights_bytes: "Weights", inputs_bytes: "Inputs", kv_cache_bytes: "KV cache", peak_activation_bytes: "Peak activation" };
  const rows = Object.entries(named).map(([key, label]) => ({ label, bytes: memory[key], about: memory.stated_for[key] ?? "" }));
  section("memory", "Memory", COUNTED, table("memory-table", "Memory of the batch", [
    { label: "What", kind: "text", value: (row) => row.label },
    { label: "Size", kind: "number", value: (row) => row.bytes, show: (row) => (row.bytes === null ? "-" : scaled(row.bytes, "B")) },
    { label: "Bytes", unit: "bytes", kind: "number", value: (row) => row.bytes },
    { label: "Stated for", kind: "prose", value: (row) => row.about },
  ], rows), memory.peak_module === null ? null : element("p", { class: "lead" }, `Peak in ${memory.peak_module || "the model itself"}.`));
}

function checkSection(report) {
  const { agreement, operator_ledger: ledger } = report;
  const place = section("checks", ["Checks", "Checks and ledger"], COUNTED);
  if (agreement !== null) {
    place.append(element("p", { class: agreement.agrees ? "good" : "bad" }, agreement.agrees
      ? "The trace and the closed forms agree." : `They differ, first at ${agreement.first_difference}.`));
    const rows = Object.entries(agreement.stages).flatMap(([stage, quantities]) => (
      Object.entries(quantities).map(([quantity, agrees]) => ({ stage, quantity, agrees: agrees ? "yes" : "no" }))
    ));
    place.append(element("details", {}, element("summary", {}, `Compared: ${plural(rows.length, "quantity", "quantities")} of the stages`),
      table("agreement-table", "What was compared", [
        { label: "Stage", kind: "text", value: (row) => row.stage }, { label: "Quantity", kind: "text", value: (row) => row.quantity },
        { label: "Agrees", kind: "text", value: (row) => row.agrees },
      ], rows)));
  }
  const rows = ["counted", "free", "unknown"].flatMap((status) => (
    Object.entries(ledger[status]).map(([operator, calls]) => ({ status, operator, calls }))
  ));
  place.append(element("details", { id: "ledger" },
    element("summary", {}, `Operator ledger: ${plural(rows.length, "operator")}, ${exact(Object.keys(ledger.unknown).length)} unknown`),
    table("ledger-table", "Operator ledger", [
      { label: "Operator", kind: "path", value: (row) => row.operator }, { label: "Status", kind: "text", value: (row) => row.status },
      { label: "Calls", kind: "number", value: (row) => row.calls },
    ], rows, { searched: true })));
}

function noteSection(report, notes) {
  section("notes", ["Notes", "Notes and conventions"], null,
    notes.length > 0 ? lines(notes) : null, element("h3", {}, "Conventions"), lines(report.metadata.conventions));
}
