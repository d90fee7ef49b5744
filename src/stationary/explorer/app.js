"use strict";
// What follows from the state, what is drawn from it, and how controls change it.

const $ = (id) => document.getElementById(id);

// What follows from the state, computed again only where what it depends on has changed

const kept = {};
function keep(name, dependencies, make) {
  const key = JSON.stringify(dependencies);
  if (kept[name]?.key !== key) kept[name] = { key, value: make() };
  return kept[name].value;
}

/** The scale makes the prior variance output_std^2 on average over the inputs shown. */
function infinitelyWide() {
  const { activation, nu, lengthscale, weights, weightStd, biasStd, outputStd } = state;
  return keep("prior", [activation, nu, lengthscale, weights, weightStd, biasStd, outputStd], () => {
    const unscaled = exactKernel(state);
    const variance = GRID.map((_, g) => unscaled(g - REACH, g - REACH));
    const scale = (outputStd ** 2 * GRID.length) / variance.reduce((sum, v) => sum + v);
    return { kernel: (i, j) => scale * unscaled(i, j), scale, sd: variance.map((v) => Math.sqrt(scale * v)) };
  });
}

function finitelyWide() {
  const { width, seed } = state;
  const { scale } = infinitelyWide();
  const units = keep("units", seed, () => randomUnits(seed));
  return keep("features", [kept.prior.key, width, seed], () => {
    const features = randomFeatures(state, scale, width, units);
    const draws = units.v.map((v) => Float64Array.from(features, (row) => dot(row, v)));
    return { kernel: (i, j) => dot(features[i + REACH], features[j + REACH]), draws };
  });
}

function posteriorOf(name, { kernel }) {
  const points = state.points.map(({ x, y }) => ({ i: index(x), y }));
  const key = [kept.prior.key, name === "finite" && kept.features.key, state.points, state.noise];
  return keep(name, key, () => regression(kernel, points, state.noise));
}

/** The output_std with the largest evidence, of those that the slider has. */
function fittedOutputStd() {
  const { kernel } = infinitelyWide();
  const points = state.points.map(({ x, y }) => ({ i: index(x), y }));
  let best = { outputStd: state.outputStd, logEvidence: -Infinity };
  for (let position = 0; points.length && position <= LOG_STEPS; position++) {
    const outputStd = fromSlider("outputStd", position);
    const factor = (outputStd / state.outputStd) ** 2;
    const { logEvidence } = evidence((i, j) => factor * kernel(i, j), points, state.noise);
    if (logEvidence > best.logEvidence) best = { outputStd, logEvidence };
  }
  return best.outputStd;
}

// Pictures and numbers

let scheduled = false;
function update() {
  if (!scheduled) requestAnimationFrame(render);
  scheduled = true;
}

const drawn = {}; // the plots, for the way back from pixels to numbers
function render() {
  scheduled = false;
  const prior = infinitelyWide();
  const network = finitelyWide();
  const anchor = index(state.anchor);
  const slice = (kernel) => Float64Array.from(GRID, (_, g) => kernel(anchor, g - REACH));
  const posterior = posteriorOf("posterior", prior);
  const finite = state.finite ? posteriorOf("finite", network) : null;
  drawn.activation = drawActivation($("activation"), activation(state));
  drawn.kernel = drawKernel($("kernel"), slice(prior.kernel), slice(network.kernel), state.anchor);
  drawn.gram = drawGram($("gram"), (i, j) => (i <= j ? prior.kernel(i, j) : network.kernel(i, j)), state.anchor);
  drawn.draws = drawPrior($("draws"), prior, network.draws);
  const showCursorY = document.activeElement === $("regression");
  drawn.regression = drawRegression($("regression"), { ...state, prior, posterior, finite, showCursorY });
  showNumbers(prior, network, posterior);
  updatePlane();
}

function showNumbers(prior, network, posterior) {
  const g = index(state.cursor.x) + REACH;
  const numbers = {
    "at-mean": posterior.mean[g],
    "at-sd": posterior.sd[g],
    "at-prior": prior.sd[g],
    evidence: posterior.logEvidence,
    k00: prior.kernel(0, 0),
    k01: prior.kernel(0, 20),
    "k00-drawn": network.kernel(0, 0),
    "k01-drawn": network.kernel(0, 20),
    "output-std": Math.sqrt(prior.scale),
  };
  for (const [id, value] of Object.entries(numbers)) $(id).textContent = decimals(value);
  $("at-x").textContent = state.cursor.x.toFixed(2).replace("-", "−");
  $("formula").innerHTML = FORMULA[state.activation](state);
  $("character").innerHTML = CHARACTER[state.activation](state);
  $("story").innerHTML = STORY[state.activation](state, prior.sd[0] < 0.5 * Math.max(...prior.sd));
  $("finite-legend").hidden = !state.finite;
  $("code").textContent = python(state, prior.scale);
  $("undo").disabled = !past.length;
}

// Controls

function toSlider(name, value) {
  const { min, max, log } = RANGES[name];
  return log ? Math.round((LOG_STEPS * Math.log(value / min)) / Math.log(max / min)) : value;
}

function fromSlider(name, position) {
  const { min, max, log, whole } = RANGES[name];
  if (!log) return Number(Number(position).toFixed(2));
  const value = min * (max / min) ** (position / LOG_STEPS);
  return whole ? Math.round(value) : Number(value.toPrecision(3));
}

/** Put the state into the controls. */
function showControls() {
  for (const [name, { min, max, step, log }] of Object.entries(RANGES)) {
    const input = $(name);
    Object.assign(input, log ? { min: 0, max: LOG_STEPS, step: 1 } : { min, max, step });
    input.value = toSlider(name, state[name]);
    describe(name);
  }
  for (const [name, values] of Object.entries(CHOICES)) {
    for (const value of values)
      document.querySelector(`[name=${name}][value=${value}]`).checked = state[name] === value;
  }
  $("finite").checked = state.finite;
}

/** The value beside a slider; some activations have no use for one. */
function describe(name) {
  const input = $(name);
  const unused = {
    nu: { relu: "–", erf: "–", rbf: "∞", sine: "–" },
    lengthscale: { relu: "none", erf: "none" },
  }[name]?.[state.activation];
  const text = unused ?? String(state[name]).replace("-", "−");
  input.disabled = unused !== undefined;
  input.setAttribute("aria-valuetext", text);
  input.parentElement.classList.toggle("off", input.disabled);
  input.parentElement.querySelector("output").textContent = text;
  const share = name === "anchor" ? 0 : (input.value - input.min) / (input.max - input.min);
  input.style.setProperty("--filled", `${100 * share}%`);
}

function change(patch) {
  Object.assign(state, patch);
  showControls();
  update();
  remember();
}

function connectControls() {
  for (const name of Object.keys(RANGES)) {
    $(name).addEventListener("input", (event) => {
      state[name] = fromSlider(name, event.target.value);
      describe(name);
      update();
      remember();
    });
  }
  for (const name of Object.keys(CHOICES)) {
    for (const input of document.getElementsByName(name)) {
      input.addEventListener("change", () => {
        change({ [name]: input.value });
        change({ outputStd: fittedOutputStd() }); // so that every activation is seen at its best
      });
    }
  }
  $("finite").addEventListener("change", (event) => change({ finite: event.target.checked }));
  $("fit").addEventListener("click", () => change({ outputStd: fittedOutputStd() }));
  $("redraw").addEventListener("click", () => change({ seed: state.seed + 1 }));
  $("undo").addEventListener("click", undo);
  $("clear").addEventListener("click", () => setPoints([], "No data"));
  $("reset").addEventListener("click", () => {
    past.length = 0;
    change(structuredClone(DEFAULTS));
  });
  $("share").addEventListener("click", () => copy(location.href, $("share")));
  $("copy").addEventListener("click", () => copy($("code").textContent, $("copy")));
}

async function copy(text, button) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed here";
  }
  setTimeout(() => (button.textContent = before), 1500);
}

function connectAnchor() {
  const follow = (id, toX) => {
    const canvas = $(id);
    const move = (event) => {
      if (event.buttons & 1) change({ anchor: onGrid(toX(event)) });
    };
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      move(event);
    });
    canvas.addEventListener("pointermove", move);
  };
  follow("kernel", (event) => drawn.kernel.toX(event.offsetX));
  follow("gram", (event) => drawn.gram.toRow(event.offsetY));
}

// Light and dark: as the system says, until the button is used

const systemIsDark = window.matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = null;
function showTheme() {
  const theme = chosenTheme ?? (systemIsDark.matches ? "dark" : "light");
  document.documentElement.dataset.theme = theme;
  $("theme").textContent = theme === "dark" ? "Light" : "Dark";
  readPalette();
  update();
}

function start() {
  document.documentElement.classList.toggle("embedded", window.self !== window.top);
  fromHash(location.hash);
  connectControls();
  connectRegression();
  connectAnchor();
  showControls();
  showTheme();
  systemIsDark.addEventListener("change", showTheme);
  $("theme").addEventListener("click", () => {
    chosenTheme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    showTheme();
  });
  window.addEventListener("hashchange", () => {
    fromHash(location.hash);
    change({});
  });
  const resized = new ResizeObserver(update);
  for (const canvas of document.querySelectorAll("canvas")) resized.observe(canvas);
}

start();
