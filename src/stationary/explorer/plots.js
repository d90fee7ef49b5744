"use strict";
// Drawing: numbers in, pixels out.

const Y_REACH = 3.5; // the posterior is shown from -Y_REACH to Y_REACH

let palette = {};
/** The colours of the theme, read again when it changes. */
function readPalette() {
  const style = getComputedStyle(document.documentElement);
  const names = ["page", "card", "text", "soft", "line", "well", "exact", "drawn"];
  palette = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** An empty plot with axes on a canvas, in CSS pixels on any screen; [x0, x1] and [y0, y1] are what it shows. */
function plot(canvas, [x0, x1], [y0, y1], { yTicks = ticks(y0, y1, 4), left = 34 } = {}) {
  const [width, height, ratio] = [canvas.clientWidth, canvas.clientHeight, window.devicePixelRatio || 1];
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  const box = { left, right: width - 8, top: 8, bottom: height - 20 };
  const X = (x) => box.left + ((x - x0) / (x1 - x0)) * (box.right - box.left);
  const Y = (y) => box.bottom - ((y - y0) / (y1 - y0)) * (box.bottom - box.top);
  const toX = (pixel) => x0 + ((pixel - box.left) / (box.right - box.left)) * (x1 - x0);
  const toY = (pixel) => y0 + ((box.bottom - pixel) / (box.bottom - box.top)) * (y1 - y0);
  const drawing = { context, box, X, Y, toX, toY };
  axes(drawing, ticks(x0, x1, 5), yTicks);
  return drawing;
}

/** Round numbers between a and b, about this many. */
function ticks(a, b, count) {
  const raw = (b - a) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const found = [];
  for (let n = Math.ceil(a / step - 1e-9); n * step <= b + 1e-9 * step; n++) found.push(n * step);
  return found;
}

function axes({ context, box, X, Y }, xTicks, yTicks) {
  context.font = '11px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';
  context.fillStyle = palette.soft;
  context.lineWidth = 1;
  for (const y of yTicks) {
    context.strokeStyle = palette.line;
    context.beginPath();
    context.moveTo(box.left, Math.round(Y(y)) + 0.5);
    context.lineTo(box.right, Math.round(Y(y)) + 0.5);
    context.stroke();
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillText(label(y), box.left - 6, Y(y));
  }
  context.textAlign = "center";
  context.textBaseline = "top";
  for (const x of xTicks) context.fillText(label(x), X(x), box.bottom + 6);
}

const label = (value) => String(Number(value.toPrecision(3))).replace("-", "−");

function clipped({ context, box }, draw) {
  context.save();
  context.beginPath();
  context.rect(box.left, box.top - 2, box.right - box.left, box.bottom - box.top + 4);
  context.clip();
  draw();
  context.restore();
}

function line(drawing, xs, ys, color, { width = 2, dash = [], alpha = 1 } = {}) {
  const { context, X, Y } = drawing;
  clipped(drawing, () => {
    context.beginPath();
    for (let n = 0; n < xs.length; n++) context.lineTo(X(xs[n]), Y(ys[n]));
    Object.assign(context, { strokeStyle: color, lineWidth: width, globalAlpha: alpha, lineJoin: "round" });
    context.setLineDash(dash);
    context.stroke();
  });
}

/** The area between two curves. */
function band(drawing, xs, low, high, color, alpha) {
  const { context, X, Y } = drawing;
  clipped(drawing, () => {
    context.beginPath();
    for (let n = 0; n < xs.length; n++) context.lineTo(X(xs[n]), Y(low[n]));
    for (let n = xs.length - 1; n >= 0; n--) context.lineTo(X(xs[n]), Y(high[n]));
    Object.assign(context, { fillStyle: color, globalAlpha: alpha });
    context.fill();
  });
}

function vertical(drawing, x, color, dash = []) {
  const { context, box, X } = drawing;
  context.save();
  Object.assign(context, { strokeStyle: color, lineWidth: 1 });
  context.setLineDash(dash);
  context.beginPath();
  context.moveTo(X(x), box.top);
  context.lineTo(X(x), box.bottom);
  context.stroke();
  context.restore();
}

function dots(drawing, points, color, radius) {
  const { context, X, Y } = drawing;
  for (const { x, y } of points) {
    context.beginPath();
    context.arc(X(x), Y(y), radius, 0, 2 * Math.PI);
    Object.assign(context, { fillStyle: color, strokeStyle: palette.card, lineWidth: 2 });
    context.fill();
    context.stroke();
  }
}

// The five pictures

function drawActivation(canvas, sigma) {
  const xs = Float64Array.from({ length: 601 }, (_, n) => (n - 300) / 60 + 1e-9); // just right of a jump at 0
  const ys = xs.map(sigma);
  const top = Math.max(...ys);
  const drawing = plot(canvas, [-5, 5], [Math.min(...ys) < 0 ? -1.12 * top : -0.06 * top, 1.12 * top]);
  line(drawing, xs, ys, palette.text, { width: 2.25 });
  return drawing;
}

function drawKernel(canvas, exact, drawn, anchor) {
  const most = Math.max(...exact);
  const least = Math.min(...exact);
  const top = Math.max(1.15 * most, Math.min(1.05 * Math.max(...drawn), 2 * most));
  const drawing = plot(canvas, [-5, 5], [least < -0.02 * most ? 1.25 * least : -0.06 * top, top]);
  vertical(drawing, anchor, palette.soft, [3, 3]);
  line(drawing, GRID, drawn, palette.drawn, { width: 1.5 });
  line(drawing, GRID, exact, palette.exact, { width: 2.25 });
  return drawing;
}

function drawPrior(canvas, prior, draws) {
  const reach = 2.8 * Math.max(...prior.sd);
  const drawing = plot(canvas, [-5, 5], [-reach, reach]);
  band(
    drawing,
    GRID,
    prior.sd.map((s) => -2 * s),
    prior.sd.map((s) => 2 * s),
    palette.exact,
    0.14,
  );
  draws.forEach((draw, n) => line(drawing, GRID, draw, palette.drawn, { width: 1.5, alpha: 1 - 0.2 * n }));
  return drawing;
}

function drawRegression(canvas, { prior, posterior, finite, points, cursor, showCursorY }) {
  const drawing = plot(canvas, [-5, 5], [-Y_REACH, Y_REACH], { yTicks: [-3, -2, -1, 0, 1, 2, 3], left: 24 });
  for (const sign of [-2, 2]) {
    line(
      drawing,
      GRID,
      prior.sd.map((s) => sign * s),
      palette.soft,
      { width: 1, dash: [4, 4] },
    );
  }
  const at = (p, c) => p.mean.map((m, n) => m + c * p.sd[n]);
  band(drawing, GRID, at(posterior, -2), at(posterior, 2), palette.exact, 0.2);
  line(drawing, GRID, posterior.mean, palette.exact, { width: 2.5 });
  if (finite) {
    for (const c of [-2, 2]) line(drawing, GRID, at(finite, c), palette.drawn, { width: 1.25, alpha: 0.8 });
    line(drawing, GRID, finite.mean, palette.drawn, { width: 2, dash: [6, 4] });
  }
  vertical(drawing, cursor.x, palette.soft);
  if (showCursorY) dots(drawing, [cursor], palette.exact, 4);
  dots(drawing, points, palette.text, 5.5);
  return drawing;
}

const GRAM_STEP = 4; // every fourth input
const GRAM_SIZE = (2 * REACH) / GRAM_STEP + 1;
const gramImage = document.createElement("canvas");
gramImage.width = gramImage.height = GRAM_SIZE;

/** Rows downwards, as matrices are written; value(i, j) for the inputs STEP i and STEP j. */
function drawGram(canvas, value, anchor) {
  const size = Math.min(canvas.clientHeight - 28, canvas.clientWidth - 76);
  const left = Math.max(24, Math.round((canvas.clientWidth - size - 52) / 2));
  const drawing = plot(canvas, [-5, 5], [0, 1], { yTicks: [] });
  const { context } = drawing;
  context.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
  const position = (x) => 8 + ((x + 5) / 10) * size;
  Object.assign(drawing, {
    X: (x) => left - 8 + position(x),
    Y: position,
    toRow: (pixel) => ((pixel - 8) / size) * 10 - 5,
  });
  const values = [];
  for (let a = 0; a < GRAM_SIZE; a++) {
    for (let b = 0; b < GRAM_SIZE; b++) values.push(value(GRAM_STEP * a - REACH, GRAM_STEP * b - REACH));
  }
  const top = Math.max(...values.filter((_, n) => Math.floor(n / GRAM_SIZE) <= n % GRAM_SIZE)); // of the exact half
  paint(gramImage, values, top);
  context.imageSmoothingEnabled = false;
  context.drawImage(gramImage, left, 8, size, size);
  context.fillStyle = palette.soft;
  Object.assign(context, { textAlign: "center", textBaseline: "top" });
  for (const x of [-5, 0, 5]) context.fillText(label(x), drawing.X(x), size + 14);
  Object.assign(context, { textAlign: "right", textBaseline: "middle" });
  for (const x of [-5, 0, 5]) context.fillText(label(x), left - 6, drawing.Y(x));
  const row = Math.round(drawing.Y(anchor)) + 0.5;
  Object.assign(context, { strokeStyle: palette.text, lineWidth: 1 });
  context.setLineDash([3, 3]);
  context.beginPath();
  context.moveTo(left - 3, row);
  context.lineTo(left + size + 3, row);
  context.stroke();
  context.setLineDash([]);
  colorBar(context, left + size + 14, size, top, Math.min(...values) < -0.05 * top);
  return drawing;
}

/** A pixel for each value, row by row; top and -top have the full colours. */
function paint(canvas, values, top) {
  const image = canvas.getContext("2d").createImageData(canvas.width, canvas.height);
  const [zero, plus, minus] = [palette.well, palette.exact, palette.drawn].map(channels);
  values.forEach((value, n) => {
    const share = Math.min(1, Math.abs(value) / top);
    const end = value < 0 ? minus : plus;
    for (let c = 0; c < 3; c++) image.data[4 * n + c] = zero[c] + (end[c] - zero[c]) * share;
    image.data[4 * n + 3] = 255;
  });
  canvas.getContext("2d").putImageData(image, 0, 0);
}

function colorBar(context, left, size, top, signed) {
  const gradient = context.createLinearGradient(0, 8 + size, 0, 8);
  const stops = signed ? [palette.drawn, palette.well, palette.exact] : [palette.well, palette.exact];
  stops.forEach((color, n) => gradient.addColorStop(n / (stops.length - 1), color));
  context.fillStyle = gradient;
  context.fillRect(left, 8, 8, size);
  Object.assign(context, { fillStyle: palette.soft, textAlign: "left", textBaseline: "middle" });
  const shown = signed ? [-top, 0, top] : [0, top];
  shown.forEach((value, n) => {
    const height = 8 + size - (n / (shown.length - 1)) * size;
    context.fillText(label(Number(value.toPrecision(2))), left + 13, Math.min(Math.max(height, 13), size + 3));
  });
}

const channels = (color) => [1, 3, 5].map((start) => parseInt(color.slice(start, start + 2), 16));
