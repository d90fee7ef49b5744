"use strict";
// The finite network with random hidden units, and regression with any kernel.

const DRAWS = 4; // functions shown from the prior
const MAX_WIDTH = 1000;

/** Standard normal numbers from a seed: the generator mulberry32, then Box and Muller. */
function normals(seed) {
  let a = seed;
  const uniform = () => {
    a = (a + 0x6d2b79f5) | 0;
    let t = Math.imul(a ^ (a >>> 15), a | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
  return () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
}

/** w, b and the output weights of MAX_WIDTH units before scaling; a narrower network has the first of them. */
function randomUnits(seed) {
  const normal = normals(seed);
  const units = { w: new Float64Array(MAX_WIDTH), b: new Float64Array(MAX_WIDTH), v: [] };
  for (let d = 0; d < DRAWS; d++) units.v.push(new Float64Array(MAX_WIDTH));
  for (let k = 0; k < MAX_WIDTH; k++) {
    units.w[k] = normal();
    units.b[k] = normal();
    for (const v of units.v) v[k] = normal();
  }
  units.second = Float64Array.from({ length: MAX_WIDTH }, normal); // weights of a second input
  return units;
}

/** sqrt(scale / width) sigma(w x + b): a row for each input, so that the product of two rows estimates the kernel. */
function randomFeatures(parameters, scale, width, units) {
  const sigma = activation(parameters);
  const factor = Math.sqrt(scale / width);
  const binary = parameters.weights === "binary";
  const w = units.w.slice(0, width).map((w) => parameters.weightStd * (binary ? Math.sign(w) : w));
  const b = units.b.slice(0, width).map((b) => parameters.biasStd * b);
  return Array.from(GRID, (x) => {
    const row = new Float64Array(width);
    for (let k = 0; k < width; k++) row[k] = factor * sigma(w[k] * x + b[k]);
    return row;
  });
}

function dot(a, b) {
  let sum = 0;
  for (let n = 0; n < a.length; n++) sum += a[n] * b[n];
  return sum;
}

/**
 * The posterior of a Gaussian process with this kernel, given points { i, y } with noise: with L L' = K + noise^2 I,
 *
 *   mean = k' L'^-1 L^-1 y,    sd^2 = k(x, x) - |L^-1 k|^2,    log evidence = log N(y; 0, K + noise^2 I).
 *
 * For a kernel of random features it is the Bayesian last layer on them. The places are numbered as the kernel does.
 */
function regression(kernel, points, noise, places = INDICES) {
  const { L, whitened, logEvidence } = evidence(kernel, points, noise);
  const [mean, sd] = [[], []];
  for (const i of places) {
    const column = solve(L, (a) => kernel(points[a].i, i));
    mean.push(dot(column, whitened));
    sd.push(Math.sqrt(Math.max(0, kernel(i, i) - dot(column, column))));
  }
  return { mean: Float64Array.from(mean), sd: Float64Array.from(sd), logEvidence };
}

/** L, L^-1 y and the log evidence. */
function evidence(kernel, points, noise) {
  const n = points.length;
  const L = cholesky(n, (a, b) => kernel(points[a].i, points[b].i) + (a === b ? noise * noise : 0));
  const whitened = solve(L, (a) => points[a].y);
  let logEvidence = -0.5 * dot(whitened, whitened) - 0.5 * n * Math.log(2 * Math.PI);
  for (let a = 0; a < n; a++) logEvidence -= Math.log(L[a][a]);
  return { L, whitened, logEvidence };
}

/** The lower triangle L with L L' = A, row by row. */
function cholesky(n, A) {
  const L = [];
  for (let a = 0; a < n; a++) {
    L.push(new Float64Array(a + 1));
    for (let b = 0; b <= a; b++) {
      let rest = A(a, b);
      for (let c = 0; c < b; c++) rest -= L[a][c] * L[b][c];
      L[a][b] = a === b ? Math.sqrt(Math.max(rest, 1e-12)) : rest / L[b][b];
    }
  }
  return L;
}

/** L^-1 y. */
function solve(L, y) {
  const solution = new Float64Array(L.length);
  for (let a = 0; a < L.length; a++) {
    let rest = y(a);
    for (let c = 0; c < a; c++) rest -= L[a][c] * solution[c];
    solution[a] = rest / L[a][a];
  }
  return solution;
}
