// The page of a comparison: the reports' stages side by side, and every quantity with its change.

function comparisonPage({ title, headline, names, rows, reports, config_names: configs, config_differences: keys, assumptions }) {
  const made = element("section", { class: "plain", id: "summary", "aria-labelledby": "summary-title" },
    element("h1", { id: "summary-title" }, title), element("p", { class: "lead" }, headline),
    element("div", { class: "cards" }, ...names.map((name, index) => card(
      name, scaled(reports[index].total.page.flops, "FLOPs"), `${exact(reports[index].total.page.flops)} FLOPs for one page`))));
  document.getElementById("sections").append(element("a", { href: "#summary" }, "Summary"));
  main.append(made);
  stackSection(names, reports, stageOrder(reports, rows));
  section("quantities", ["Quantities", "Every quantity"], "counted; seconds predicted", comparedTable(names, rows));
  if (configs.length > 0) section("configs", ["Configs", "Config keys that differ"], null, configTable(configs, keys));
  if (assumptions.length > 0) section("assumed", ["Assumed", "Assumed for predicted seconds"], null, lines(assumptions));
}

/** The stages of all reports, in the comparison's order. */
function stageOrder(reports, rows) {
  const keys = rows.map((row) => row.key);
  const place = (name) => Math.max(keys.indexOf(`${name}_flops`), keys.indexOf(`${name}_step_flops`));
  return [...new Set(reports.flatMap(stageNames))].sort((a, b) => place(a) - place(b));
}

function stackSection(names, reports, order) {
  const quantities = comparedQuantities(reports);
  section("stages", ["Stages", "Stages side by side"], "counted; seconds predicted",
    element("p", { class: "lead" }, "One page's share of its batch: the prefill pass and all decode steps. Colours are stages, in the order of the passes."),
    ...quantities.map((quantity, index) => chartPlace(`compared-${index}`, quantity.title, STACKS_HEIGHT + COMPARED_HEIGHT * reports.length)));
  quantities.forEach((quantity, index) => drawings.push(() => drawComparedBars(`compared-${index}`, names, reports, order, quantity)));
}

function comparedQuantities(reports) {
  const share = (report, of) => batchByStage(report, of).map((value) => value / Number(report.total.page.pages));
  const found = [
    { title: "FLOPs of one page [FLOPs]", values: (report) => share(report, (counts) => Number(counts.flops)), text: (value) => scaled(value, "FLOPs") },
    { title: "bytes moved for one page [bytes]", values: (report) => share(report, (counts) => Number(movedBytes(counts))), text: (value) => scaled(value, "B") },
  ];
  const runs = new Map(reports.flatMap((report) => report.time.map((entry) => [`${entry.gpu}, ${runtimeText(entry)}`, entry])));
  for (const [name, { gpu, ...run }] of runs) {
    found.push({
      title: `seconds of a page alone on ${name}, predicted [s]`, text: seconds, outside: true,
      values: (report) => {
        const entry = report.time.find((each) => each.gpu === gpu && runtimeText(each) === runtimeText(run));
        return entry ? secondsByStage(report, entry) : null;
      },
    });
  }
  return found;
}

function comparedTable(names, rows) {
  const columns = [
    { label: "Quantity", kind: "text", value: (row) => row.quantity },
    { label: "Unit", kind: "text", value: (row) => row.unit },
    ...names.map((name, index) => ({
      label: name, unit: index === 0 ? "compared with" : "difference, ratio", kind: "number",
      value: (row) => row.values[index], show: (row) => comparedCell(row, index),
    })),
  ];
  return table("compared-table", "Every quantity of every report", columns, rows, { searched: true });
}

function comparedCell(row, index) {
  const value = row.values[index];
  const text = isPredicted(row.unit) ? short(value) : exact(value);
  if (index === 0 || row.differences[index] === null) return element("span", {}, text);
  const difference = isPredicted(row.unit) ? short(row.differences[index]) : exact(row.differences[index]);
  const sign = Number(row.differences[index]) > 0 ? "+" : "";
  const times = row.ratios[index] === null ? "" : `, ${row.ratios[index].toFixed(3)} x`;
  return element("span", {}, text, element("span", { class: "change" }, `${sign}${difference}${times}`));
}

function isPredicted(unit) {
  return ["s", "pages/s", "price"].includes(unit);
}

function configTable(configs, keys) {
  if (keys.length === 0) return element("p", {}, "No key differs.");
  return table("config-table", "Config keys that differ", [
    { label: "Key", kind: "path", value: (row) => row.key },
    ...configs.map((name, index) => ({ label: name, kind: "path", value: (row) => row.values[index] ?? "-" })),
  ], keys);
}
