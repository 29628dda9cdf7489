"use strict";
// Numbers as people read them, the same way as report/table.py. A count above 2^53 comes as
// text, so that no digit is lost: `Number` for charts, `exact` for what is read.

const STEPS = [
  [1e24, "Y"], [1e21, "Z"], [1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"],
];

/** Four digits and a decimal prefix: 4568380069376 FLOPs is "4.568 TFLOPs". */
function scaled(value, unit = "") {
  const number = Number(value);
  for (const [step, prefix] of STEPS) {
    if (Math.abs(number) >= step) {
      const quotient = number / step;
      const whole = String(Math.trunc(Math.abs(quotient))).length;
      return `${quotient.toFixed(Math.max(4 - whole, 0))} ${prefix}${unit}`;
    }
  }
  return unit ? `${short(number)} ${unit}` : short(number);
}

/** All digits, grouped by three; a dash for unknown values. */
function exact(value) {
  if (value === null || value === undefined) return "-";
  if (typeof value === "string") return BigInt(value).toLocaleString("en-US");
  return value.toLocaleString("en-US", { maximumFractionDigits: 2 });
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

/** Seconds in a suitable unit. */
function seconds(value) {
  if (value === null || value === undefined) return "-";
  if (value === 0 || value >= 1) return `${short(value)} s`;
  return value >= 1e-3 ? `${short(value * 1e3)} ms` : `${short(value * 1e6)} µs`;
}

function percent(share) {
  if (!Number.isFinite(share)) return "-";
  return share > 0 && share < 0.001 ? "<0.1 %" : `${(100 * share).toFixed(1)} %`;
}

function plural(count, one, many = `${one}s`) {
  return `${exact(count)} ${Number(count) === 1 ? one : many}`;
}

/** The exact sum of two counts, each a number or a string of digits. */
function sum(a, b) {
  const both = Number(a) + Number(b);
  return Number.isSafeInteger(both) ? both : String(BigInt(a) + BigInt(b));
}
