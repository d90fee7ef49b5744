"use strict";
// The exact kernels of the infinitely wide network with one input, k(x, x') = E[sigma(w x + b) sigma(w x' + b)].
//
// Inputs are multiples of STEP, given by their integers: x = STEP i. So each entry is computed once and kept, and the
// integrals below can share what depends on |i - j| or min(i, j) alone.

const STEP = 0.05;
const REACH = 100; // the largest |i|: inputs from -5 to 5
const INDICES = Array.from({ length: 2 * REACH + 1 }, (_, i) => i - REACH);
const GRID = Float64Array.from({ length: 2 * REACH + 1 }, (_, i) => (i - REACH) / 20);

/** sigma, the activation. */
function activation({ activation: name, nu, lengthscale }) {
  if (name === "relu") return (z) => (z > 0 ? z : 0);
  if (name === "erf") return erf;
  if (name === "sine") return (z) => Math.sin(z / lengthscale);
  if (name === "rbf") {
    const amplitude = (2 / Math.PI) ** 0.25 / Math.sqrt(lengthscale);
    return (z) => amplitude * Math.exp(-(z / lengthscale) * (z / lengthscale));
  }
  const { rate, logAmplitude } = maternConstants(nu, lengthscale);
  const p = nu - 0.5;
  if (p === 0) return (z) => (z > 0 ? Math.exp(logAmplitude - rate * z) : 0);
  return (z) => (z > 0 ? Math.exp(logAmplitude + p * Math.log(z) - rate * z) : 0);
}

/** Of sigma(x) = (2 rate)^nu / sqrt(Gamma(2 nu)) x^(nu - 1/2) e^(-rate x), rate = sqrt(2 nu) / lengthscale. */
function maternConstants(nu, lengthscale) {
  const rate = Math.sqrt(2 * nu) / lengthscale;
  return { rate, logAmplitude: nu * Math.log(2 * rate) - 0.5 * logGamma(2 * nu) };
}

/** (i, j) => k(STEP i, STEP j), each entry computed at most once; k(-x, -x') = k(x, x') = k(x', x). */
function exactKernel(parameters) {
  const kind = parameters.weights === "gaussian" ? gaussianWeights : binaryWeights;
  const entry = kind[parameters.activation](parameters, polar(parameters));
  const size = 2 * REACH + 1;
  const known = new Float64Array(size * size).fill(NaN);
  return (i, j) => {
    if (i + j < 0) [i, j] = [-i, -j];
    if (i < j) [i, j] = [j, i];
    const place = (i + REACH) * size + j + REACH;
    if (known[place] !== known[place]) known[place] = entry(i, j);
    return known[place];
  };
}

// Gaussian weights and bias: (z, z') is Gaussian with the variances s^2 = bias_std^2 + weight_std^2 |x|^2 and s'^2, and
// cos(theta) is its correlation. What there is to know of the inputs comes as a second argument, so that the same
// formulas hold for one input, which ``polar`` describes, and for two.

/** s, theta and the covariance of all inputs, and the squares of x - x' and x + x'. */
function polar({ weightStd, biasStd }) {
  const s = (i) => Math.hypot(biasStd, weightStd * STEP * i);
  const angle = (i) => Math.atan2(weightStd * STEP * i, biasStd);
  return {
    s,
    largest: s(REACH),
    theta: (i, j) => Math.abs(angle(i) - angle(j)),
    covariance: (i, j) => biasStd ** 2 + weightStd ** 2 * STEP ** 2 * i * j,
    apart: (i, j) => (STEP * (i - j)) ** 2,
    together: (i, j) => (STEP * (i + j)) ** 2,
  };
}

const gaussianWeights = {
  /** s s' (sin(theta) + (pi - theta) cos(theta)) / (2 pi): half of Cho and Saul's arc-cosine kernel. */
  relu(_, { s, theta: angle }) {
    return (i, j) => {
      const theta = angle(i, j);
      return (s(i) * s(j) * (Math.sin(theta) + (Math.PI - theta) * Math.cos(theta))) / (2 * Math.PI);
    };
  },

  /** 2 / pi asin(2 k / sqrt((1 + 2 s^2) (1 + 2 s'^2))), Williams' kernel. */
  erf(_, { covariance: k }) {
    return (i, j) => (2 / Math.PI) * Math.asin((2 * k(i, j)) / Math.sqrt((1 + 2 * k(i, i)) * (1 + 2 * k(j, j))));
  },

  /** sqrt(2 / pi) / sqrt((1 + 2 s^2) (1 + 2 s'^2) - 4 k^2), in units of the length-scale. */
  rbf({ lengthscale }, { covariance }) {
    const k = (i, j) => covariance(i, j) / lengthscale ** 2;
    const amplitude = Math.sqrt(2 / Math.PI) / lengthscale;
    return (i, j) => amplitude / Math.sqrt((1 + 2 * k(i, i)) * (1 + 2 * k(j, j)) - 4 * k(i, j) ** 2);
  },

  /** E[sin z sin z'] = (e^(-Var[z - z'] / 2) - e^(-Var[z + z'] / 2)) / 2, in units of the length-scale. */
  sine({ lengthscale, weightStd, biasStd }, { apart, together }) {
    const [w, b] = [weightStd / lengthscale, biasStd / lengthscale];
    const faded = (squared) => Math.exp(-0.5 * w * w * squared);
    return (i, j) => (faded(apart(i, j)) - faded(together(i, j)) * Math.exp(-2 * b * b)) / 2;
  },

  /**
   * For any nu. With z = rho e^(y / 2), z' = rho e^(-y / 2), the integral over rho is h_(2 nu), which leaves
   *
   *   k = A^2 / (2 pi s s' cos(theta / 2))
   *       int q^-(nu + 1/2) h_(2 nu)(2 rate cosh(y / 2) / sqrt(q)) cosh(u) / cosh(v / 2) du,
   *
   * sqrt(q) = cosh(u) / (sqrt(s s') cos(theta / 2)), sinh(v / 2) = sin(theta / 2) sinh(u), y = v + log(s / s'), where A
   * is the amplitude of the activation. It is regular at theta = 0, and a node needs no function but a power.
   */
  matern({ nu, lengthscale }, { s, largest, theta }) {
    const { rate, logAmplitude } = maternConstants(nu, lengthscale);
    const { c, table, size } = tableOf(2 * nu);
    const { sinh, cosh, weight } = stretchedNodes(nu, rate * largest);
    const power = -(2 * nu + 1);
    const constant = Math.exp(2 * logAmplitude) / (2 * Math.PI);
    return (i, j) => {
      const [s1, s2, half] = [s(i), s(j), theta(i, j) / 2];
      const [sinHalf, cosHalf, mean] = [Math.sin(half), Math.cos(half), Math.sqrt(s1 * s2)];
      const [coshY, sinhY] = [(rate * (s1 + s2)) / mean, (rate * (s1 - s2)) / mean]; // 2 rate cosh(y / 2), v = 0
      const scale = c / (mean * cosHalf);
      let sum = 0;
      for (let n = 0; n < sinh.length; n++) {
        const sinhV = sinHalf * sinh[n];
        const coshV = Math.sqrt(1 + sinhV * sinhV);
        const a = coshV * coshY + sinhV * sinhY;
        const b = scale * cosh[n];
        const position = (a / (a + b)) * size; // (t - c) / (t + c) = 2 a / (a + b) - 1
        const cell = Math.floor(position);
        const smooth = table[cell] + (position - cell) * (table[cell + 1] - table[cell]);
        sum += ((weight[n] * cosh[n]) / coshV) * smooth * Math.exp(power * Math.log(a + b));
      }
      return (constant * sum) / (mean * mean * cosHalf);
    };
  },
};

let lastTable = { n: NaN };
/** The table of h_n, kept while n stays. */
function tableOf(n) {
  if (lastTable.n !== n) lastTable = { n, ...halfLineTable(n) };
  return lastTable;
}

/**
 * The trapezoidal rule in v, u = sinh(v / 4) 4, since the integrand falls only like e^(-2 nu |u|).
 *
 * The step leaves an error of 1e-7 or less over the ranges of the sliders.
 */
function stretchedNodes(nu, largest) {
  const step = 0.32 / (1 + 0.08 * nu);
  const reach = 18 / (2 * nu) + Math.log(1 + 2 * largest);
  const n = Math.ceil((4 * Math.asinh(reach / 4)) / step);
  const v = Array.from({ length: 2 * n + 1 }, (_, i) => (i - n) * step);
  const u = v.map((v) => 4 * Math.sinh(v / 4));
  return {
    sinh: Float64Array.from(u, Math.sinh),
    cosh: Float64Array.from(u, Math.cosh),
    weight: Float64Array.from(v, (v) => step * Math.cosh(v / 4)),
  };
}

// Binary weights, w = +weight_std or -weight_std, and a Gaussian bias: the mean over both signs of an integral over b.

/** The mean of f(s, s') over both signs of the weight. */
function overSigns({ weightStd }, f) {
  const w = weightStd * STEP;
  return (i, j) => (f(w * i, w * j) + f(-w * i, -w * j)) / 2;
}

const binaryWeights = {
  /** (s s' + bias_std^2) Phi(m) + bias_std max(s, s') phi(m), m = min(s, s') / bias_std. */
  relu(parameters) {
    const b = parameters.biasStd;
    return overSigns(parameters, (s, t) => {
      const m = Math.min(s, t) / b;
      return (s * t + b * b) * normalCdf(m) + b * Math.max(s, t) * normalDensity(m);
    });
  },

  /**
   * erf(z) is the expected sign of z + e, e ~ N(0, 1/2), which makes this a probability of two correlated normals.
   * Plackett's identity, with h = s / sqrt(bias_std^2 + 1/2), h' likewise, sin(a) = bias_std^2 / (bias_std^2 + 1/2):
   *
   *   erf(h / sqrt 2) erf(h' / sqrt 2) + 2 / pi int_0^a e^(-(h^2 - 2 h h' sin t + h'^2) / (2 cos^2 t)) dt
   */
  erf({ weightStd, biasStd }) {
    const variance = biasStd ** 2 + 0.5;
    const unit = (weightStd * STEP) / Math.sqrt(variance);
    const end = Math.asin(biasStd ** 2 / variance);
    const { nodes, weights } = gaussLegendre(32);
    const sin = nodes.map((t) => Math.sin(end * t));
    return (i, j) => {
      const [h, k] = [unit * i, unit * j]; // both signs of the weight give the same
      let sum = 0;
      for (let n = 0; n < sin.length; n++) {
        sum += weights[n] * Math.exp(-(h * h - 2 * h * k * sin[n] + k * k) / (2 - 2 * sin[n] * sin[n]));
      }
      return erf(h / Math.SQRT2) * erf(k / Math.SQRT2) + (2 / Math.PI) * end * sum;
    };
  },

  /** N((s + s') / 2; 0, bias_std^2 + ell^2 / 4) e^(-(s - s')^2 / (2 ell^2)). */
  rbf(parameters) {
    const { biasStd, lengthscale } = parameters;
    const variance = biasStd ** 2 + lengthscale ** 2 / 4;
    return overSigns(parameters, (s, t) => {
      const envelope = normalDensity((s + t) / 2 / Math.sqrt(variance)) / Math.sqrt(variance);
      return envelope * Math.exp(-0.5 * ((s - t) / lengthscale) ** 2);
    });
  },

  /** (cos(s - s') - e^(-2 bias_std^2) cos(s + s')) / 2, in units of the length-scale. */
  sine({ lengthscale, weightStd, biasStd }) {
    const w = (weightStd * STEP) / lengthscale;
    const faded = Math.exp(-2 * (biasStd / lengthscale) ** 2);
    return (i, j) => (Math.cos(w * (i - j)) - faded * Math.cos(w * (i + j))) / 2;
  },

  /**
   * For any nu. With m = min(s, s'), r = |s - s'| and p = nu - 1/2,
   *
   *   A^2 e^(-rate r) int_0^inf z^p (z + r)^p e^(-2 rate z) N(z - m; 0, bias_std^2) dz
   *
   * by one rule for all pairs, so that an entry is the product of a row for r and a row for m.
   */
  matern({ nu, lengthscale, weightStd, biasStd }) {
    const { rate, logAmplitude } = maternConstants(nu, lengthscale);
    const [w, p] = [weightStd * STEP, nu - 0.5];
    const { z, weight } = halfLineNodes(p, rate, biasStd, w * REACH);
    const ofDistance = rows(2 * REACH + 1, z.length, (r, n) => Math.exp(p * Math.log(z[n] + w * r) - rate * w * r));
    const local = z.map((z, n) => weight[n] * Math.exp(2 * logAmplitude + p * Math.log(z) - 2 * rate * z));
    const ofMinimum = rows(2 * REACH + 1, z.length, (m, n) => {
      return (local[n] * normalDensity((z[n] - w * (m - REACH)) / biasStd)) / biasStd;
    });
    return (i, j) => {
      const distance = ofDistance[Math.abs(i - j)];
      const plus = ofMinimum[Math.min(i, j) + REACH];
      const minus = ofMinimum[REACH - Math.max(i, j)];
      let sum = 0;
      for (let n = 0; n < z.length; n++) sum += distance[n] * (plus[n] + minus[n]);
      return sum / 2;
    };
  },
};

/** A table of Float64Arrays. */
function rows(count, length, f) {
  return Array.from({ length: count }, (_, r) => {
    const row = new Float64Array(length);
    for (let n = 0; n < length; n++) row[n] = f(r, n);
    return row;
  });
}

/**
 * The trapezoidal rule in y, z = unit log(1 + e^y): logarithmic near 0, where the integrand is a power, and linear
 * further out, with steps that resolve both e^(-2 rate z) and the normal density of the bias.
 */
function halfLineNodes(p, rate, biasStd, largest) {
  const unit = Math.min(biasStd, (1 + p / 2) / rate);
  const step = 0.5;
  const start = -19 / (1 + p);
  const end = Math.min(largest + 6.5 * biasStd, (p + 12 + 4 * Math.sqrt(p)) / rate) / unit;
  const y = Float64Array.from({ length: Math.ceil((end - start) / step) }, (_, n) => start + step * n);
  return {
    z: y.map((y) => unit * Math.log1p(Math.exp(y))),
    weight: y.map((y) => (step * unit) / (1 + Math.exp(-y))),
  };
}
