// The only place that creates elements. Their text is never parsed as markup.

const data = JSON.parse(document.getElementById("data").textContent);
const main = document.getElementById("main");

const ACTING = new RegExp(
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u034f\\u061c\\u115f\\u1160\\u180b-\\u180f"
  + "\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ufeff\\uffa0\\ufff9-\\ufffb\\ufffe\\uffff"
  + "\\u{e0000}-\\u{e0fff}]", "gu",
);

/** Text with escapes for invisible characters and those that change its direction. */
function visible(text) {
  return text.replace(ACTING, (found) => {
    const code = found.codePointAt(0).toString(16);
    return code.length > 4 ? `\\U${code.padStart(8, "0")}` : `\\u${code.padStart(4, "0")}`;
  });
}

const LONG_WORD = /(\S{16,})/;
const MAY_BREAK = /(?<=[./_:=,-])(?=\p{L})/u;

/** A text, with places in long names at which a line may break. */
function breakable(text) {
  return text.split(LONG_WORD).flatMap((piece, index) => (index % 2 ? piece.split(MAY_BREAK) : [piece])
    .flatMap((part, place) => (place > 0 ? [document.createElement("wbr"), part] : [part])));
}

/** An element with attributes, event handlers (`onclick`) and children (elements or text). */
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  const wanted = children.filter((child) => child !== null && child !== undefined);
  made.append(...wanted.flatMap((child) => (child instanceof Node ? child : breakable(visible(String(child))))));
  return made;
}

/** A section of the page: its title, or a short one for the menu and a full one; its figures' source. */
function section(id, title, origin, ...children) {
  const [menu, heading] = Array.isArray(title) ? title : [title, title];
  const tag = origin ? element("span", { class: "tag" }, origin) : null;
  const made = element(
    "section", { id, "aria-labelledby": `${id}-title` },
    element("h2", { id: `${id}-title` }, heading, tag), ...children,
  );
  document.getElementById("sections").append(element("a", { href: `#${id}` }, menu));
  main.append(made);
  return made;
}

/** A labelled choice. */
function choice(id, label, options, onchange, shownOn = null) {
  const made = element("select", { id, onchange: () => onchange(made.value) });
  for (const { value, text, group } of options) {
    let parent = made;
    if (group) {
      parent = [...made.children].find((child) => child.label === group);
      if (!parent) made.append((parent = element("optgroup", { label: group })));
    }
    parent.append(element("option", { value }, text));
  }
  return element("label", { for: id, class: shownOn }, label, made);
}

/** A list of terms and their values. */
function facts(pairs) {
  return element(
    "dl", { class: "facts" },
    ...pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").map(
      ([term, value]) => element("div", {}, element("dt", {}, term), element("dd", {}, value)),
    ),
  );
}

/** A figure's card: its name, the figure with its unit and what it is of, and all its digits. */
function card(term, value, digits, how = null) {
  return element(
    "dl", { class: "card" }, element("dt", {}, term),
    element("dd", { class: "value" }, value, how && element("span", { class: "how" }, ` ${how}`)), element("dd", { class: "digits" }, digits ?? ""),
  );
}

function lines(texts) {
  return element("ul", { class: "lines" }, ...texts.map((text) => element("li", {}, text)));
}

function announce(text) {
  document.getElementById("announcer").textContent = text;
}

// --- light and dark ---------------------------------------------------------------------------

const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
const themeButton = document.getElementById("theme");

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  const other = theme === "dark" ? "light" : "dark";
  themeButton.textContent = other === "dark" ? "Dark" : "Light";
  themeButton.setAttribute("aria-label", `Switch to ${other} colours`);
}

setTheme(prefersDark.matches ? "dark" : "light");
prefersDark.addEventListener("change", () => setTheme(prefersDark.matches ? "dark" : "light"));
themeButton.addEventListener("click", () => {
  setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
});
