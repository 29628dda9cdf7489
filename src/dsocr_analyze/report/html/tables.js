// Tables that sort when a heading is clicked and search while typing. Of thousands of rows, only as
// many are in the page as the reader requests.

const ROWS_SHOWN = [50, 250, Infinity];
const MOST_ON_PAPER = 250;

/** Functions that fill the tables with the rows that they show. */
const fills = [];

/**
 * A table.
 * @param {string} id Prefix of the ids of its controls.
 * @param {string} caption What it holds.
 * @param columns {label, unit, value(row), show(row), kind}: `kind` is text, short, name, path, prose or number; `show`
 *   gives a text or an element, by default the value with all its digits. What they give may
 *   change: the table's `refresh` then shows it, sorted and searched as before.
 * @param rows The rows.
 * @param options searched: whether there is a search; sortedBy: a column's label, largest first.
 */
function table(id, caption, columns, rows, { searched = rows.length > 12, sortedBy = null } = {}) {
  const state = { column: null, descending: true, words: [], shown: ROWS_SHOWN[0] };
  const body = element("tbody");
  const status = element("span", { class: "lead", role: "status" });
  const heads = columns.map((column) => heading(column, () => sortBy(column)));
  let texts = [];

  function sortBy(column) {
    const isSame = state.column === column;
    state.descending = isSame ? !state.descending : column.kind === "number";
    state.column = column;
    fill();
  }

  function chosen() {
    const found = rows.filter((_, index) => state.words.every((word) => texts[index].includes(word)));
    if (!state.column) return found;
    const { value } = state.column;
    const keys = new Map(found.map((row) => [row, sortKey(value(row), state.column.kind)]));
    const sign = state.descending ? -1 : 1;
    return found.sort((a, b) => inOrder(keys.get(a), keys.get(b), sign));
  }

  function fill() {
    const found = chosen();
    const all = onPaper && found.length <= MOST_ON_PAPER;
    const shown = all ? found : found.slice(0, state.shown);
    body.replaceChildren(...shown.map((row) => tableRow(columns, row)));
    status.textContent = `${exact(shown.length)} of ${plural(rows.length, "row")} shown`
      + (found.length < rows.length ? `, ${exact(found.length)} found` : "");
    columns.forEach((column, index) => {
      if (column !== state.column) heads[index].removeAttribute("aria-sort");
      else heads[index].setAttribute("aria-sort", state.descending ? "descending" : "ascending");
    });
  }

  const controls = element("div", { class: "controls" });
  if (searched) {
    const search = element("input", { type: "search", id: `${id}-search`, autocomplete: "off", oninput: () => {
      state.words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      fill();
    } });
    const counts = ROWS_SHOWN.map((count) => (
      { value: String(count), text: Number.isFinite(count) ? String(count) : "all" }
    ));
    controls.append(
      element("label", { for: `${id}-search`, class: "screen-only" }, "Search", search),
      choice(`${id}-rows`, "Rows", counts, (value) => { state.shown = Number(value); fill(); }, "screen-only"),
      status,
    );
  }
  function refresh() {
    texts = rows.map((row) => searchText(columns, row));
    fill();
  }

  state.column = columns.find((column) => column.label === sortedBy) ?? null;
  fills.push(fill);
  refresh();
  const made = element(
    "div", {}, controls,
    element(
      "div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
      element("table", { id }, element("caption", { class: "unseen" }, caption),
        element("thead", {}, element("tr", {}, ...heads)), body),
    ),
  );
  made.refresh = refresh;
  return made;
}

function heading(column, onclick) {
  const unit = column.unit ? element("span", { class: "unit" }, column.unit) : null;
  return element(
    "th", { scope: "col", class: column.kind === "number" ? "number" : null },
    element("button", { type: "button", onclick }, column.label), unit,
  );
}

function tableRow(columns, row) {
  return element("tr", {}, ...columns.map((column) => {
    const shown = column.show ? column.show(row) : plainCell(column.value(row));
    return element("td", { class: column.kind === "text" ? null : column.kind }, shown);
  }));
}

function plainCell(value) {
  return typeof value === "number" || value === null ? exact(value) : numeral(value);
}

/** Text of a value, which may be a count too large for a number. */
function numeral(value) {
  return /^-?\d{16,}$/.test(value) ? exact(value) : value;
}

function searchText(columns, row) {
  const texts = columns.filter((column) => column.kind !== "number").map((column) => column.value(row));
  return texts.join(" ").toLowerCase();
}

function sortKey(value, kind) {
  if (value === null || value === undefined || value === "") return null;
  return kind === "number" ? Number(value) : String(value);
}

/** Unknown values come last in either direction. */
function inOrder(a, b, sign) {
  if (a === null || b === null) return (a === null) - (b === null);
  if (typeof a === "number") return sign * (a - b);
  return sign * a.localeCompare(b, "en", { numeric: true });
}
