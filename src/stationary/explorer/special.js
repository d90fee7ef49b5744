"use strict";
// Special functions in double precision: log Gamma, erf, the normal distribution, and the integral behind every Matérn
// kernel, h_n(t) = integral over R > 0 of R^n e^(-R^2 / 2 - t R) dR.

/** log Gamma(z) for z > 0, by Stirling's series at z + 8. */
function logGamma(z) {
  let product = z;
  for (let k = 1; k < 8; k++) product *= z + k;
  const s = z + 8;
  const series = 1 / 12 - (1 / 360 - (1 / 1260 - (1 / 1680 - 1 / (1188 * s * s)) / (s * s)) / (s * s)) / (s * s);
  return (s - 0.5) * Math.log(s) - s + 0.5 * Math.log(2 * Math.PI) + series / s - Math.log(product);
}

/** e^(x^2) erfc(x) for x >= 0: a Chebyshev series in (x - 2) / (x + 2), which covers the half-line. */
const scaledErfc = (() => {
  const series = chebyshevSeries((y) => {
    const x = (2 * (1 + y)) / (1 - y);
    // The definition, 2 / sqrt(pi) int_0^inf e^(-u^2 - 2 x u) du, by the trapezoidal rule in v, u = e^v / (1 + x).
    let sum = 0;
    for (let v = -38; v < 4; v += 1 / 16) {
      const u = Math.exp(v) / (1 + x);
      sum += u * Math.exp(-u * u - 2 * x * u);
    }
    return ((sum / 16) * 2 * (1 + x)) / Math.sqrt(Math.PI);
  }, 32);
  return (x) => clenshaw(series, (x - 2) / (x + 2)) / (1 + x);
})();

/** The error function, to about 1e-13: Taylor's series at the nearest of the values that are tabulated on [0, 6]. */
const erf = (() => {
  const cells = 128; // in a unit
  const value = new Float64Array(6 * cells + 1);
  const slope = value.map((_, n) => (2 / Math.sqrt(Math.PI)) * Math.exp(-((n / cells) ** 2)));
  for (let n = 1; n < value.length; n++) value[n] = 1 - Math.exp(-((n / cells) ** 2)) * scaledErfc(n / cells);
  return (x) => {
    const a = Math.abs(x);
    if (a > 6 - 1 / cells) return Math.sign(x);
    const n = Math.round(a * cells);
    const [x0, d] = [n / cells, a - n / cells];
    const series = 1 - d * (x0 - (d * (2 * x0 * x0 - 1 - d * x0 * (x0 * x0 - 1.5))) / 3);
    return Math.sign(x) * (value[n] + slope[n] * d * series);
  };
})();

const normalDensity = (z) => Math.exp(-0.5 * z * z) / Math.sqrt(2 * Math.PI);

/** The normal distribution function. */
const normalCdf = (z) => 0.5 * (1 + erf(z / Math.SQRT2));

/** Coefficients of the Chebyshev series of f on [-1, 1]. */
function chebyshevSeries(f, degree) {
  const n = degree + 1;
  const angles = Array.from({ length: n }, (_, k) => (Math.PI * (k + 0.5)) / n);
  const values = angles.map((a) => f(Math.cos(a)));
  const series = angles.map((_, j) => (2 / n) * values.reduce((sum, v, k) => sum + v * Math.cos(j * angles[k]), 0));
  series[0] /= 2;
  return Float64Array.from(series);
}

/** The sum of a Chebyshev series. */
function clenshaw(series, y) {
  let b1 = 0;
  let b2 = 0;
  for (let j = series.length - 1; j > 0; j--) {
    const b = series[j] + 2 * y * b1 - b2;
    b2 = b1;
    b1 = b;
  }
  return series[0] + y * b1 - b2;
}

/** log h_n(t), t >= 0: in u = log R the trapezoidal rule converges geometrically. */
function logHalfLineIntegral(n, t) {
  const peak = (2 * (n + 1)) / (t + Math.sqrt(t * t + 4 * (n + 1))); // of (n + 1) log R - R^2 / 2 - t R
  const step = Math.min(0.1, 0.4 / Math.sqrt(2 * peak * peak + t * peak));
  const end = Math.log(1 + 40 / peak);
  let sum = 0;
  for (let u = -1 - 40 / (n + 1) - Math.sqrt(80 / (n + 1)); u < end; u += step) {
    const R = peak * Math.exp(u);
    sum += Math.exp((n + 1) * u - 0.5 * (R * R - peak * peak) - t * (R - peak));
  }
  return Math.log(step * sum) + (n + 1) * Math.log(peak) - 0.5 * peak * peak - t * peak;
}

/**
 * c and a table of h_n(t) (t + c)^(n + 1) over y = (t - c) / (t + c), which takes all t >= 0 to [-1, 1].
 *
 * c gives both ends the same value. Linear interpolation in the table is good to about 1e-7.
 */
function halfLineTable(n, size = 4096) {
  const c = Math.exp((logGamma(n + 1) - logHalfLineIntegral(n, 0)) / (n + 1));
  const series = chebyshevSeries((y) => {
    const t = (c * (1 + y)) / (1 - y);
    return logHalfLineIntegral(n, t) + (n + 1) * Math.log(t + c);
  }, 28);
  const table = new Float64Array(size + 2);
  for (let i = 0; i < table.length; i++) table[i] = Math.exp(clenshaw(series, (2 * i) / size - 1));
  return { c, table, size };
}

/** Nodes and weights of the Gauss-Legendre rule on [0, 1], by Newton's method. */
function gaussLegendre(n) {
  const nodes = new Float64Array(n);
  const weights = new Float64Array(n);
  for (let i = 0; i < n; i++) {
    let x = Math.cos((Math.PI * (i + 0.75)) / (n + 0.5));
    let slope = 1;
    for (let iteration = 0; iteration < 8; iteration++) {
      let [p0, p1] = [1, x];
      for (let k = 2; k <= n; k++) [p0, p1] = [p1, ((2 * k - 1) * x * p1 - (k - 1) * p0) / k];
      slope = (n * (x * p1 - p0)) / (x * x - 1);
      x -= p1 / slope;
    }
    nodes[i] = (1 + x) / 2;
    weights[i] = 1 / ((1 - x * x) * slope * slope);
  }
  return { nodes, weights };
}
