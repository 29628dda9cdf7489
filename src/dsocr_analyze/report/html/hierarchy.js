// The tree of modules: an icicle chart, with the path up above it and a list of parts next to it. The
// list is enough for keyboard use; the chart shows the same levels and further ones below.

const METRICS = {
  flops: { label: "FLOPs", text: (value) => scaled(value, "FLOPs"), unit: "FLOPs" },
  bytes: { label: "Bytes moved", text: (value) => scaled(value, "B"), unit: "bytes" },
  params: { label: "Parameters", text: (value) => scaled(value), unit: "parameters" },
};
const LEVELS = 3;
const SMALLEST_SHARE = 0.008;

/** A node of the tree; `exact` and `own` hold its counts by metric, null where unknown. */
function treeNode(id, label, path, stage, counts, own) {
  return { id, label, path, stage, exact: counts, own, children: [], parent: null };
}

function adopt(parent, child) {
  parent.children.push(child);
  child.parent = parent;
}

/** The tree of a report: stages, and the modules of each. */
function moduleTree(report, modules) {
  const root = treeNode("all", "All stages", "", null, { flops: 0, bytes: 0, params: 0 }, {});
  for (const [stage, columns] of Object.entries(modules)) {
    const top = stageTree(report, stage, columns);
    adopt(root, top);
    for (const metric of Object.keys(METRICS)) {
      const known = root.exact[metric] !== null && top.exact[metric] !== null;
      root.exact[metric] = known ? sum(root.exact[metric], top.exact[metric]) : null;
    }
  }
  return root;
}

function stageTree(report, stage, columns) {
  const nodes = new Map();
  columns.path.forEach((path, row) => {
    const counts = {
      flops: columns.flops[row], bytes: sum(columns.bytes_read[row], columns.bytes_written[row]),
      params: columns.params[row],
    };
    const own = { flops: columns.own_flops[row], bytes: columns.own_bytes[row], params: null };
    const label = path.slice(path.lastIndexOf(".") + 1);
    nodes.set(path, treeNode(`${stage}:${path}`, label, path, stage, counts, own));
  });
  for (const [path, node] of nodes) {
    if (path !== "") adopt(nodes.get(pathAbove(path, nodes)), node);
  }
  const top = nodes.get("");
  const steps = stage === decodeName(report) ? " (one step)" : "";
  top.label = `${stage}${steps}`;
  for (const node of nodes.values()) {
    const below = node.children.reduce((total, child) => total + Number(child.exact.params), 0);
    node.own.params = node.exact.params === null ? null : Number(node.exact.params) - below;
  }
  return top;
}

/** The path of the nearest existing ancestor; in the end the model's own. */
function pathAbove(path, nodes) {
  const above = path.slice(0, Math.max(path.lastIndexOf("."), 0));
  return nodes.has(above) ? above : pathAbove(above, nodes);
}

function amount(node, metric) {
  return Number(node.exact[metric]);
}

/** The non-empty parts, largest first; a module with a single part is merged with it. */
function partsOf(node, metric) {
  const parts = node.children.filter((child) => amount(child, metric) > 0).map((child) => {
    const labels = [child.label];
    let deepest = child;
    for (let only = onlyPart(deepest, metric); only; only = onlyPart(deepest, metric)) {
      deepest = only;
      labels.push(only.label);
    }
    const name = node.parent === null ? child.label : labels.join(".");
    return { name, node: deepest, value: deepest.exact[metric] };
  });
  const own = node.own[metric];
  if (parts.length > 0 && Number(own) > 0) parts.push({ name: "own work", node: null, value: own });
  return parts.sort((a, b) => Number(b.value) - Number(a.value));
}

function onlyPart(node, metric) {
  if (Number(node.own[metric]) > 0) return null;
  const parts = node.children.filter((child) => amount(child, metric) > 0);
  return parts.length === 1 ? parts[0] : null;
}

/** A node's ancestors and, last, the node itself. */
function lineage(node) {
  return node.parent === null ? [node] : [...lineage(node.parent), node];
}

/** The way down to a node as steps of `name` and `node`, named as in the lists of parts. */
function stepsTo(node, metric) {
  const steps = [];
  let labels = [];
  lineage(node).forEach((each, depth, all) => {
    labels.push(each.label);
    if (depth > 0 && each !== node && onlyPart(each, metric) === all[depth + 1]) return;
    const isStage = depth - labels.length + 1 === 1;
    steps.push({ name: isStage ? labels[0] : labels.join("."), node: each });
    labels = [];
  });
  return steps;
}

/** The section with the chart; `show(node)` zooms. */
function hierarchy(id, report, modules) {
  const root = moduleTree(report, modules);
  const state = { node: root, metric: "flops" };
  const crumbs = element("nav", { class: "crumbs", "aria-label": "Way up from the module shown" });
  const list = element("ul", { class: "parts", id: `${id}-parts`, "aria-label": "Parts, largest first" });
  const heading = element("h3", { id: `${id}-heading`, tabindex: "-1" });
  const known = Object.keys(METRICS).filter((metric) => root.exact[metric] !== null);
  const metrics = choice(
    `${id}-metric`, "Area shows", known.map((metric) => ({ value: metric, text: METRICS[metric].label })),
    (metric) => { state.metric = metric; refresh(); },
  );

  function show(node, { focus = true } = {}) {
    state.node = node;
    refresh();
    if (focus) (list.querySelector("button") ?? heading).focus({ preventScroll: true });
    const parts = partsOf(node, state.metric).length;
    announce(`${stepsTo(node, state.metric).at(-1).name}: ${METRICS[state.metric].text(node.exact[state.metric])}, ${plural(parts, "part")}`);
  }

  function refresh() {
    const { text, unit } = METRICS[state.metric];
    const total = state.node.exact[state.metric];
    const steps = stepsTo(state.node, state.metric);
    heading.textContent = `${steps.at(-1).name}: ${text(total)}`;
    heading.title = `${exact(total)} ${unit}`;
    fillCrumbs(crumbs, steps, show);
    fillParts(list, state, show);
    if (window.Plotly) drawIcicle(`${id}-chart`, root, state, show);
  }

  const box = element("div", { class: "zoom", id: `${id}-zoom` },
    chartPlace(`${id}-chart`, "Modules as an icicle chart; the list next to it has the same parts", 520),
    element("div", {}, heading, list));
  box.addEventListener("keydown", (event) => onKey(event, list, state, show));
  drawings.push(refresh);
  refresh();
  const zoomTo = (stage, path) => {
    const top = root.children.find((node) => node.stage === stage);
    const found = path === "" ? top : find(top, path);
    show(found);
    box.scrollIntoView({ block: "nearest" });
  };
  return { controls: element("div", { class: "controls" }, metrics), crumbs, box, zoomTo };
}

function find(top, path) {
  let node = top;
  while (node && node.path !== path) {
    node = node.children.find((child) => path === child.path || path.startsWith(`${child.path}.`));
  }
  return node ?? top;
}

function fillCrumbs(place, steps, show) {
  place.replaceChildren(element("ol", {}, ...steps.map((step) => element("li", {}, step === steps.at(-1)
    ? element("span", { "aria-current": "location" }, step.name)
    : element("button", { type: "button", onclick: () => show(step.node) }, step.name)))));
}

function fillParts(list, { node, metric }, show) {
  const total = amount(node, metric);
  const { text, unit } = METRICS[metric];
  list.replaceChildren(...partsOf(node, metric).map((part) => {
    const share = total ? Number(part.value) / total : 0;
    const bar = element("span", { class: "share" });
    bar.style.width = `${100 * share}%`;
    const name = part.node !== null && part.node.children.length > 0
      ? element("button", { type: "button", class: "name path", onclick: () => show(part.node) }, part.name)
      : element("span", { class: "name path" }, part.name);
    return element(
      "li", { title: `${exact(part.value)} ${unit}` }, name,
      element("span", { class: "amount" }, text(part.value)),
      element("span", { class: "percent" }, percent(share)), bar,
    );
  }));
}

/** Up and Down walk the list, Right goes into a part; Left, Escape and Backspace go one level up. */
function onKey(event, list, state, show) {
  const buttons = [...list.querySelectorAll("button")];
  const place = buttons.indexOf(document.activeElement);
  const moves = { ArrowDown: 1, ArrowUp: -1 };
  if (event.key in moves && buttons.length > 0) {
    buttons[Math.min(Math.max(place + moves[event.key], 0), buttons.length - 1)].focus();
  } else if (event.key === "ArrowRight" && place >= 0) {
    buttons[place].click();
  } else if (["ArrowLeft", "Escape", "Backspace"].includes(event.key) && state.node.parent !== null) {
    show(nodeAbove(state));
  } else {
    return;
  }
  event.preventDefault();
}

function nodeAbove({ node, metric }) {
  return stepsTo(node, metric).at(-2).node;
}

function drawIcicle(id, root, state, show) {
  const narrow = isNarrow(id);
  const levels = narrow ? LEVELS - 1 : LEVELS;
  const traces = icicleParts(state.node, state.metric, root, levels);
  const shown = new Map(traces.map((part) => [part.id, part.node]));
  const { text, unit } = METRICS[state.metric];
  const total = amount(state.node, state.metric);
  const { name } = stepsTo(state.node, state.metric).at(-1);
  const place = draw(id, [{
    type: "icicle", branchvalues: "remainder", tiling: { orientation: "h", pad: 1 },
    pathbar: { visible: false }, sort: false,
    ids: traces.map((part) => part.id), labels: traces.map((part) => plain(part.name)),
    parents: traces.map((part) => part.parent), values: traces.map((part) => part.rest),
    text: traces.map((part) => percent(part.value / total)),
    hovertext: traces.map((part) => (
      `${plain(part.path)}<br>${exact(part.exact)} ${unit}<br>${percent(part.value / total)} of ${plain(name)}`
    )),
    hovertemplate: "%{hovertext}<extra></extra>", texttemplate: narrow ? "%{label}<br>%{text}" : "%{label}  %{text}", leaf: { opacity: 1 },
    marker: { colors: traces.map((part) => part.colour), line: { width: 1, color: "#ffffff" } },
    root: { color: "rgba(0,0,0,0)" }, textfont: { color: "#ffffff" }, maxdepth: levels + 1,
  }], { height: 520, margin: { l: 0, r: 0, t: 0, b: 0 }, uniformtext: { mode: "hide", minsize: 11 } });
  place.removeAllListeners("plotly_icicleclick");
  place.on("plotly_icicleclick", (event) => {
    const id = event.points[0].id;
    const node = shown.get(id);
    if (node === state.node && node.parent !== null) show(nodeAbove(state), { focus: false });
    else if (node && node.children.length > 0) show(node, { focus: false });
    return false;
  });
}

/** The node shown and so many levels below it; parts too small to see are combined. */
function icicleParts(top, metric, root, levels) {
  const total = amount(top, metric);
  const colours = stageColours(root.children.map((node) => node.stage));
  const found = [];
  function visit(node, name, value, parent, level, colour) {
    const id = `${parent}/${name}`;
    const all = node !== null && level < levels ? partsOf(node, metric) : [];
    const large = all.filter((part) => Number(part.value) / total >= SMALLEST_SHARE);
    const small = all.filter((part) => !large.includes(part));
    const covered = all.reduce((sum, part) => sum + Number(part.value), 0);
    found.push({
      id, name, parent, node, value: Number(value), exact: value, colour,
      path: node?.path || name, rest: all.length > 0 ? Math.max(Number(value) - covered, 0) : Number(value),
    });
    large.forEach((part, index) => {
      visit(part.node, part.name, part.value, id, level + 1, partColour(part, index, level, colour));
    });
    if (small.length > 0) {
      const rest = small.reduce((sum, part) => sum + Number(part.value), 0);
      if (rest > 0) visit(null, `${small.length} smaller`, rest, id, level + 1, "#6b7580");
    }
  }
  function partColour(part, index, level, colour) {
    if (part.node === null) return "#6b7580";
    if (top === root && level === 0) return colours.get(part.node.stage);
    return top !== root && level === 0 ? PALETTE[index % PALETTE.length] : darker(colour, index);
  }
  visit(top, stepsTo(top, metric).at(-1).name, top.exact[metric], "", 0, top === root ? "#3c4650" : colours.get(top.stage));
  return found;
}

/** A slightly darker shade, different for neighbours. */
function darker(colour, index) {
  const factor = index % 2 ? 0.78 : 0.9;
  const parts = [1, 3, 5].map((at) => Math.round(factor * parseInt(colour.slice(at, at + 2), 16)));
  return `#${parts.map((part) => part.toString(16).padStart(2, "0")).join("")}`;
}
