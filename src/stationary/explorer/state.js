"use strict";
// The state: its ranges, where it starts, and the address that holds it.

const RANGES = {
  nu: { min: 0.5, max: 6, step: 0.05 },
  lengthscale: { min: 0.2, max: 3, log: true },
  weightStd: { min: 0.25, max: 4, log: true },
  biasStd: { min: 0.3, max: 10, log: true },
  outputStd: { min: 0.2, max: 100, log: true },
  width: { min: 1, max: MAX_WIDTH, log: true, whole: true },
  noise: { min: 0.02, max: 1, log: true },
  anchor: { min: -5, max: 5, step: STEP },
};
const CHOICES = { activation: ["relu", "erf", "rbf", "matern", "sine"], weights: ["gaussian", "binary"] };
const LOG_STEPS = 200; // of a logarithmic slider
const MAX_POINTS = 40;

const DATA = [
  [-2.6, -0.35],
  [-2.2, 0.4],
  [-1.75, 0.95],
  [-1.3, 0.75],
  [-0.9, 0.1],
  [0.5, -1.1],
  [0.9, -0.55],
  [1.35, 0.35],
  [1.7, 1.05],
];
const DEFAULTS = {
  activation: "matern",
  nu: 1.5,
  lengthscale: 1,
  weights: "binary",
  weightStd: 1,
  biasStd: 5,
  outputStd: 1,
  width: 100,
  noise: 0.1,
  anchor: 0,
  finite: false,
  seed: 1,
  points: DATA.map(([x, y]) => ({ x, y })),
  cursor: { x: 4, y: 0 },
};
const state = structuredClone(DEFAULTS);

const onGrid = (x) => Math.round(Math.min(5, Math.max(-5, x)) / STEP) / 20;
const index = (x) => Math.round(x / STEP);
const bounded = (y) => Math.round(Math.min(Y_REACH, Math.max(-Y_REACH, y)) * 100) / 100;

// The address holds the state, so that a link shows the same view

let writing = 0;
function remember() {
  clearTimeout(writing);
  writing = setTimeout(() => history.replaceState(null, "", `#${toHash()}`), 250);
}

function toHash() {
  const { points, cursor, ...rest } = state;
  const words = { ...rest, points: points.map(({ x, y }) => `${x},${y}`).join(";"), cursor: `${cursor.x},${cursor.y}` };
  return Object.entries(words)
    .map(([name, value]) => `${name}=${value}`)
    .join("&");
}

/** Take what a link says; what it does not say, or says wrongly, stays as it is. */
function fromHash(hash) {
  const given = Object.fromEntries(new URLSearchParams(hash.slice(1)));
  const number = (text) => (text?.trim() ? Number(text) : NaN);
  for (const [name, { min, max, whole }] of Object.entries(RANGES)) {
    const value = Math.min(max, Math.max(min, number(given[name])));
    if (Number.isFinite(value)) state[name] = name === "anchor" ? onGrid(value) : whole ? Math.round(value) : value;
  }
  for (const [name, values] of Object.entries(CHOICES)) {
    if (values.includes(given[name])) state[name] = given[name];
  }
  if (given.finite) state.finite = given.finite === "true";
  if (number(given.seed) >= 0) state.seed = Math.floor(number(given.seed));
  const toPoint = (text) => ({ x: onGrid(number(text.split(",")[0])), y: bounded(number(text.split(",")[1])) });
  const valid = ({ x, y }) => Number.isFinite(x) && Number.isFinite(y);
  if (given.points !== undefined)
    state.points = given.points.split(";").map(toPoint).filter(valid).slice(0, MAX_POINTS);
  if (given.cursor && valid(toPoint(given.cursor))) state.cursor = toPoint(given.cursor);
}
