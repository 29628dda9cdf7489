// Parses what the documentation hands to the browser: node parse-documents.mjs < documents.json
//
// Standard input holds {"diagrams": {name: source}, "formulas": {name: latex}}; standard output the
// names that do not parse, with the parser's message: {} where all is well.

import { readFileSync } from "node:fs";
import { JSDOM } from "jsdom";

const { window } = new JSDOM("<!doctype html><body></body>");
globalThis.window = window;
globalThis.document = window.document;

const { default: mermaid } = await import("mermaid");
const { default: katex } = await import("katex");

const { diagrams, formulas } = JSON.parse(readFileSync(0, "utf-8"));
const failures = {};
for (const [name, source] of Object.entries(diagrams)) {
  try {
    await mermaid.parse(source);
  } catch (error) {
    failures[name] = String(error.message ?? error);
  }
}
for (const [name, latex] of Object.entries(formulas)) {
  try {
    katex.renderToString(latex, { displayMode: true, throwOnError: true, strict: "error" });
  } catch (error) {
    failures[name] = String(error.message ?? error);
  }
}
console.log(JSON.stringify(failures));
