"use strict";
// What the page says about a choice, and the same choice in Python.

const CHARACTER = {
  relu: () => "It grows for ever, and has no length-scale: zoomed in, it looks the same.",
  erf: () => "It saturates on both sides. The size of the weights sets how fast.",
  rbf: () => "A bump, and 0 elsewhere: each unit sees a piece of the line. It is the Matérn with <i>ν</i> = ∞.",
  matern: ({ nu }) => {
    const start =
      nu === 0.5
        ? "It jumps"
        : nu < 1.5
          ? "It rises steeply"
          : nu === 1.5
            ? "It rises from a kink"
            : "It rises smoothly";
    return `${start}, then fades: each unit sees a piece of the line. The larger <i>ν</i>, the smoother.`;
  },
  sine: () => 'It never ends. Its frequency is <span class="together">1 / <i>ℓ</i>.</span>',
};

/** What is seen after the data; faded says whether the prior is much narrower at an end than elsewhere. */
const STORY = {
  relu: () => `The band opens like a fan. ReLU units grow for ever, so the network draws a straight line on and doubts
    only its slope. It never returns to the prior.`,
  erf: () => `Far away every unit is saturated, so the network goes on with a constant. The band stops growing before it
    reaches that of the prior.`,
  rbf: local,
  matern: local,
  sine: ({ weights }) =>
    weights === "gaussian"
      ? `One unit is a wave without end, but Gaussian weights mix waves of all frequencies. Together they forget: the
        network returns to the prior.`
      : `With weights of one size every unit is a wave of the same frequency. Two numbers say it all, so the network is
        certain everywhere.`,
};

function local(_, faded) {
  return faded
    ? `The mean returns to 0 and the band to that of the prior. But the prior itself fades: with these biases few units
      sit there, and where there are none the network is sure of 0.`
    : `Away from the data the mean returns to 0 and the band to that of the prior: the network says that it does not
      know.`;
}

const RAYS = {
  relu: () => "ReLU units never switch off, so the network is sure up to the rim, with any number of them.",
  erf: () => "ERF units never switch off, so the network stays sure of a class on either side, with any number of them.",
  rbf: rays,
  matern: rays,
  sine: () => "With few units the waves go on for ever. Infinitely many of all frequencies forget.",
};

function rays() {
  return `A unit sees a single direction and stays active along a line. With few units the network is sure along such rays;
    more <i>K</i>, and they fade. Infinite width has none.`;
}

const constant = (name, id, value) =>
  `<span class="together"><i>${name}</i> = <b id="${id}">${decimals(value)}</b></span>`;

const FORMULA = {
  relu: () => "<i>σ</i>(<i>z</i>) = max(0, <i>z</i>)",
  erf: () => "<i>σ</i>(<i>z</i>) = erf(<i>z</i>)",
  rbf: ({ lengthscale }) => {
    const amplitude = (2 / Math.PI) ** 0.25 / Math.sqrt(lengthscale);
    return `<i>σ</i>(<i>z</i>) = <i>A</i> e<sup>−(<i>z</i> / <i>ℓ</i>)²</sup>,
      ${constant("A", "amplitude", amplitude)}`;
  },
  matern: ({ nu, lengthscale }) => {
    const { rate, logAmplitude } = maternConstants(nu, lengthscale);
    return `<i>σ</i>(<i>z</i>) = <i>A</i> <i>z</i><sup> <i>ν</i> − ½</sup> e<sup>−<i>λz</i></sup> for <i>z</i> &gt; 0,
      ${constant("A", "amplitude", Math.exp(logAmplitude))}, ${constant("λ", "rate", rate)}`;
  },
  sine: () => "<i>σ</i>(<i>z</i>) = sin(<i>z</i> / <i>ℓ</i>)",
};

/** Four decimals, one of large numbers, with a true minus sign. */
function decimals(value) {
  const text = value.toFixed(Math.abs(value) < 1000 ? 4 : 1);
  return (Number(text) === 0 ? text.replace("-", "") : text).replace("-", "−");
}

const MODULE = {
  relu: () => "torch.nn.ReLU()",
  erf: () => "st.Erf()",
  rbf: ({ lengthscale }) => `st.RBF(lengthscale=${lengthscale})`,
  matern: ({ nu, lengthscale }) => `st.Matern(nu=${nu}, lengthscale=${lengthscale})`,
  sine: ({ lengthscale }) => `st.Sine(frequency=1 / ${lengthscale})`,
};

/** The kernel in Python: kernel_of where the library has a closed form, otherwise its Monte Carlo estimate. */
function pythonKernel(state, scale) {
  const module = MODULE[state.activation](state);
  const options = `weights="${state.weights}", weight_std=${state.weightStd}, bias_std=${state.biasStd}`;
  const factor = Number(scale.toPrecision(10));
  if (state.weights === "gaussian" || ["rbf", "matern"].includes(state.activation)) {
    return `from stationary.gp import kernel_of

kernel = kernel_of(${module}, ${options}, scale=${factor})

def k(a, b):
    return kernel(a, b).to_dense().detach()`;
  }
  return `
activation = ${module}
options = dict(n_units=100_000, ${options})

def k(a, b):  # by Monte Carlo; the page has a closed form in one dimension
    return ${factor} * st.monte_carlo_kernel(activation, a, b, **options).mean`;
}

function python(state, scale) {
  const list = (values) => `[${values.join(", ")}]`;
  const start = `import torch
import stationary as st
${pythonKernel(state, scale)}
`;
  if (!state.points.length) {
    return `${start}
new = torch.tensor([[${state.cursor.x}]], dtype=torch.float64)
print(k(new, new).sqrt())  # the prior's standard deviation`;
  }
  return `${start}
x = torch.tensor(${list(state.points.map((p) => p.x))}, dtype=torch.float64)[:, None]
y = torch.tensor(${list(state.points.map((p) => p.y))}, dtype=torch.float64)
new = torch.tensor([[${state.cursor.x}]], dtype=torch.float64)
noisy = k(x, x) + ${state.noise}**2 * torch.eye(len(x))
mean = k(new, x) @ torch.linalg.solve(noisy, y)
variance = k(new, new) - k(new, x) @ torch.linalg.solve(noisy, k(x, new))
print(mean, variance.sqrt())`;
}
