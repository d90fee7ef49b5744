"use strict";
// Two inputs and two classes: what the network of K units and its limit believe all around the data.
//
// Weights and biases are Gaussian here. A unit sees one direction, w'x + b, and along the line on which that is in its
// active range it never switches off: with few units such rays remain, and in the limit there are none.

const PLANE_REACH = 6; // both inputs go from -PLANE_REACH to PLANE_REACH
const PLANE_SIZE = 41; // places along each side of the picture
const RIM = 90; // places on the circle of radius PLANE_REACH
const MOONS = Array.from({ length: 12 }, (_, n) => {
  const [cos, sin] = [1.6 * Math.cos((Math.PI * n) / 11), 1.6 * Math.sin((Math.PI * n) / 11)];
  return [
    { x: cos - 0.6, y: sin - 0.3, label: 1 },
    { x: cos + 0.6, y: 0.5 - sin, label: -1 },
  ];
}).flat();

/** The data, the picture row by row from the bottom, and the rim: all places that are computed. */
const PLACES = (() => {
  const side = (n) => PLANE_REACH * ((2 * n) / (PLANE_SIZE - 1) - 1);
  const picture = Array.from({ length: PLANE_SIZE ** 2 }, (_, n) => {
    return { x: side(n % PLANE_SIZE), y: side(Math.floor(n / PLANE_SIZE)) };
  });
  const rim = Array.from({ length: RIM }, (_, n) => {
    const angle = (2 * Math.PI * n) / RIM;
    return { x: PLANE_REACH * Math.cos(angle), y: PLANE_REACH * Math.sin(angle) };
  });
  return [...MOONS, ...picture, ...rim];
})();

/** As ``polar`` for one input: s, the angle between (bias_std, weight_std x) of two places, and their distances. */
function planeGeometry({ weightStd, biasStd }) {
  const vectors = PLACES.map(({ x, y }) => [biasStd, weightStd * x, weightStd * y]);
  const s = vectors.map((v) => Math.hypot(...v));
  const sums = (i, j, sign) => {
    let sum = 0;
    for (let c = 0; c < 3; c++) sum += (vectors[i][c] / s[i] + (sign * vectors[j][c]) / s[j]) ** 2;
    return Math.sqrt(sum);
  };
  const squared = (i, j, sign) => (PLACES[i].x + sign * PLACES[j].x) ** 2 + (PLACES[i].y + sign * PLACES[j].y) ** 2;
  return {
    s: (i) => s[i],
    largest: Math.max(...s),
    theta: (i, j) => 2 * Math.atan2(sums(i, j, -1), sums(i, j, 1)),
    covariance: (i, j) => dot(vectors[i], vectors[j]),
    apart: (i, j) => squared(i, j, -1),
    together: (i, j) => squared(i, j, 1),
  };
}

/** sqrt(1 / width) sigma(w'x + b), a row for each place; the first weight and the bias are those of one input. */
function planeFeatures(parameters, units) {
  const { width, weightStd, biasStd } = parameters;
  const sigma = activation(parameters);
  return PLACES.map(({ x, y }) => {
    const row = new Float64Array(width);
    for (let k = 0; k < width; k++) {
      const z = weightStd * (units.w[k] * x + units.second[k] * y) + biasStd * units.b[k];
      row[k] = sigma(z) / Math.sqrt(width);
    }
    return row;
  });
}

/**
 * The probability of the first class at every place: labels 1 and -1 are regressed, and a new one is the sign of
 * N(mean, sd^2 + noise^2). The kernel is scaled to the size of the output, on average over the picture.
 */
function planeProbabilities(kernel, scale, noise) {
  const points = MOONS.map(({ label }, i) => ({ i, y: label }));
  const { mean, sd } = regression((i, j) => scale * kernel(i, j), points, noise, PLACES.keys());
  return mean.map((m, i) => normalCdf(m / Math.hypot(sd[i], noise)));
}

/** The probabilities of the limit and of the network, both in the scale that the limit has. */
function plane() {
  const { activation: name, nu, lengthscale, weightStd, biasStd, outputStd, noise, width, seed } = state;
  const shape = [name, nu, lengthscale, weightStd, biasStd];
  const exact = keep("plane kernel", shape, () => {
    const entry = gaussianWeights[name](state, planeGeometry(state));
    const [first, last] = [MOONS.length, MOONS.length + PLANE_SIZE ** 2];
    let variance = 0;
    for (let i = first; i < last; i++) variance += entry(i, i) / PLANE_SIZE ** 2;
    return { entry, variance };
  });
  const scale = outputStd ** 2 / exact.variance;
  const units = keep("units", seed, () => randomUnits(seed));
  return {
    exact: keep("plane", [...shape, outputStd, noise], () => planeProbabilities(exact.entry, scale, noise)),
    finite: keep("plane of K units", [...shape, outputStd, noise, width, seed], () => {
      const features = planeFeatures(state, units);
      return planeProbabilities((i, j) => dot(features[i], features[j]), scale, noise);
    }),
  };
}

/** The largest probability of a class on the rim: how sure it is in the direction in which it is surest. */
const surest = (probabilities) => Math.max(...probabilities.slice(-RIM).map((p) => Math.max(p, 1 - p)));

const planeImage = document.createElement("canvas");
planeImage.width = planeImage.height = PLANE_SIZE;

function drawPlane(canvas, probabilities) {
  const range = [-PLANE_REACH, PLANE_REACH];
  const drawing = plot(canvas, range, range, { yTicks: [-5, 0, 5], left: 24 });
  const { context, X, Y } = drawing;
  const shown = probabilities.slice(MOONS.length, MOONS.length + PLANE_SIZE ** 2);
  const rows = Array.from({ length: PLANE_SIZE }, (_, r) => shown.slice(r * PLANE_SIZE, (r + 1) * PLANE_SIZE));
  const downwards = rows.reverse().flatMap((row) => Array.from(row, (p) => 2 * p - 1));
  paint(planeImage, downwards, 1);
  const [left, top] = [X(-PLANE_REACH), Y(PLANE_REACH)];
  context.drawImage(planeImage, left, top, X(PLANE_REACH) - left, Y(-PLANE_REACH) - top);
  for (const label of [1, -1]) {
    const points = MOONS.filter((point) => point.label === label);
    dots(drawing, points, label > 0 ? palette.exact : palette.drawn, 4);
  }
  return drawing;
}

let planeTimer = 0;
/** Draw the plane when nothing has changed for a moment, since it takes longer than a frame. */
function updatePlane() {
  clearTimeout(planeTimer);
  planeTimer = setTimeout(showPlane, 120);
}

function showPlane() {
  const { exact, finite } = plane();
  drawn.planeFinite = drawPlane($("plane-finite"), finite);
  drawn.planeExact = drawPlane($("plane-exact"), exact);
  $("surest-finite").textContent = decimals(surest(finite));
  $("surest-exact").textContent = decimals(surest(exact));
  $("plane-width").textContent = state.width;
  $("plane-words").innerHTML = RAYS[state.activation]();
}
