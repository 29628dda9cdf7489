"use strict";
// Numbers as people read them, the same way as report/table.py. A count above 2^53 comes as
// text, so that no digit is lost: `Number` for charts, `exact` for what is read.

const STEPS = [
  [1e24, "Y"], [1e21, "Z"], [1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"],
];

/** Four digits and a decimal prefix: 4568380069376 FLOPs is "4.568 TFLOPs". */
function scaled(value, unit = "") {
  const number = Number(value);
  const place = STEPS.findIndex(([step]) => Math.abs(number) >= step);
  if (place < 0) return `${Number(number.toPrecision(4))} ${unit}`.trimEnd();
  const quotient = number / STEPS[place][0];
  const digits = Math.abs(quotient) < 9999.5 ? quotient.toPrecision(4) : quotient.toFixed(0);
  return digits === "1000" && place > 0
    ? `1.000 ${STEPS[place - 1][1]}${unit}` : `${digits} ${STEPS[place][1]}${unit}`;
}

/** All digits, grouped by three; a dash for unknown values. */
function exact(value) {
  if (value === null || value === undefined) return "-";
  if (typeof value === "string") return BigInt(value).toLocaleString("en-US");
  return Number.isInteger(value) ? value.toLocaleString("en-US") : fixed(value, 2).replace(/\.00$/, "");
}

/** Four significant digits, without an exponent if that is readable. */
function short(value) {
  if (value === null || value === undefined) return "-";
  const number = Number(value);
  if (number !== 0 && (Math.abs(number) < 1e-3 || Math.abs(number) >= 1e7)) {
    return number.toExponential(3);
  }
  return number.toLocaleString("en-US", { maximumSignificantDigits: 4 });
}

/** A number with so many decimals, grouped by three. */
function fixed(number, decimals) {
  const [whole, rest] = number.toFixed(decimals).split(".");
  return [BigInt(whole).toLocaleString("en-US"), rest].filter(Boolean).join(".");
}

/** Four significant digits: "0.9034", "104.1", "1,234". */
function ratioText(value) {
  if (value === null) return "-";
  return value < 999.95 ? value.toPrecision(4) : fixed(value, 0);
}

/** A throughput with three digits or more. */
function rateText(value) {
  return value < 999.5 ? value.toPrecision(3) : fixed(value, 0);
}

/** Money; a dash for unknown amounts. */
function priceText(value) {
  if (value === null) return "-";
  return value >= 1 ? fixed(value, 2) : value.toPrecision(3);
}

/** Seconds with three digits in a suitable unit. */
function seconds(value) {
  if (value === null || value === undefined) return "-";
  const [number, unit] = value >= 1 ? [value, "s"] : value >= 1e-3 ? [value / 1e-3, "ms"] : [value * 1e6, "us"];
  return `${fixed(number, number < 10 ? 2 : number < 100 ? 1 : 0)} ${unit}`;
}

/** What runs the model, with the serving engine: "eager", "serving, vllm". */
function runtimeText(entry) {
  return [...new Set([entry.runtime, entry.assumptions.host])].join(", ");
}

function percent(share) {
  if (!Number.isFinite(share)) return "-";
  return share > 0 && share < 0.0005 ? "<0.1 %" : `${fixed(100 * share, 1)} %`;
}

function plural(count, one, many = `${one}s`) {
  return `${exact(count)} ${Number(count) === 1 ? one : many}`;
}

/** The sum of two counts, each a number or a string of digits: exact, but for shares of a count. */
function sum(a, b) {
  const both = Number(a) + Number(b);
  const isShare = [a, b].some((each) => typeof each === "number" && !Number.isInteger(each));
  return isShare || Number.isSafeInteger(both) ? both : String(BigInt(a) + BigInt(b));
}
