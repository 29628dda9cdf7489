// The top of the page is drawn first, the rest one chart at a time, so that the page stays usable.
const FIRST = 2;

function drawFrom(index) {
  if (index >= drawings.length) {
    performance.mark("charts-ready");
    return;
  }
  if (!drawn.has(drawings[index])) drawNow(drawings[index]);
  setTimeout(() => drawFrom(index + 1));
}

drawings.slice(0, FIRST).forEach(drawNow);
performance.mark("interactive");
setTimeout(() => drawFrom(FIRST));
