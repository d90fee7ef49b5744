"use strict";
// Points of the regression: by mouse, finger and keyboard.

const past = []; // sets of points, for undo

function setPoints(points, announcement) {
  past.push(state.points);
  change({ points });
  announce(announcement);
}

function undo() {
  if (past.length) change({ points: past.pop() });
}

function announce(text) {
  $("announcement").textContent = `${text}. ${state.points.length} points.`;
}

const spoken = ({ x, y }) => `x ${x}, y ${y}`;

function addPoint(point) {
  if (state.points.length >= MAX_POINTS) return announce(`No more than ${MAX_POINTS} points`);
  return setPoints([...state.points, point], `Added ${spoken(point)}`);
}

function removePoint(n) {
  setPoints(
    state.points.filter((_, m) => m !== n),
    `Removed ${spoken(state.points[n])}`,
  );
}

function pointAt(event) {
  return { x: onGrid(drawn.regression.toX(event.offsetX)), y: bounded(drawn.regression.toY(event.offsetY)) };
}

function moveCursor(cursor) {
  state.cursor = cursor;
  update();
  remember();
}

/** The number of the point under the pointer, or -1. */
function hit(x, y, reach) {
  const distances = state.points.map((p) => Math.hypot(drawn.regression.X(p.x) - x, drawn.regression.Y(p.y) - y));
  const nearest = distances.indexOf(Math.min(...distances));
  return distances[nearest] <= reach ? nearest : -1;
}

function connectRegression() {
  const canvas = $("regression");
  let [held, moved, done] = [-1, false, false];
  const reach = (event) => (event.pointerType === "touch" ? 24 : 12);
  canvas.addEventListener("pointerdown", (event) => {
    held = hit(event.offsetX, event.offsetY, reach(event));
    [moved, done] = [false, false];
    if (held >= 0) canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const point = pointAt(event);
    if (held >= 0) {
      const { x, y } = state.points[held];
      if (!moved && Math.abs(point.x - x) < 2 * STEP && Math.abs(point.y - y) < 0.1) return;
      if (!moved) past.push(state.points);
      moved = true;
      change({ points: state.points.map((p, n) => (n === held ? point : p)), cursor: point });
    } else if (event.pointerType === "mouse") {
      canvas.style.cursor = hit(event.offsetX, event.offsetY, 12) >= 0 ? "grab" : "crosshair";
      moveCursor(point);
    }
  });
  canvas.addEventListener("pointerup", () => {
    done = held >= 0;
    if (done && !moved) removePoint(held);
    held = -1;
  });
  canvas.addEventListener("pointercancel", () => (held = -1));
  canvas.addEventListener("click", (event) => {
    if (done) return;
    moveCursor(pointAt(event));
    addPoint(pointAt(event));
  });
  // A finger on a point moves it; elsewhere it scrolls the page.
  canvas.addEventListener(
    "touchstart",
    (event) => {
      const box = canvas.getBoundingClientRect();
      const { clientX, clientY } = event.touches[0];
      if (hit(clientX - box.left, clientY - box.top, 24) >= 0) event.preventDefault();
    },
    { passive: false },
  );
  canvas.addEventListener("keydown", onKey);
  canvas.addEventListener("focus", update);
  canvas.addEventListener("blur", update);
}

function onKey(event) {
  const { x, y } = state.cursor;
  const far = event.shiftKey ? 10 : 1;
  const moves = {
    ArrowLeft: [-STEP * far, 0],
    ArrowRight: [STEP * far, 0],
    ArrowUp: [0, 0.05 * far],
    ArrowDown: [0, -0.05 * far],
    Home: [-10, 0],
    End: [10, 0],
  };
  if (moves[event.key]) {
    const cursor = { x: onGrid(x + moves[event.key][0]), y: bounded(y + moves[event.key][1]) };
    moveCursor(cursor);
    const { mean, sd } = posteriorOf("posterior", infinitelyWide());
    const g = index(cursor.x) + REACH;
    $("announcement").textContent = `${spoken(cursor)}; mean ${mean[g].toFixed(2)}, sd ${sd[g].toFixed(2)}`;
  } else if (event.key === "Enter" || event.key === " ") {
    addPoint({ x, y });
  } else if ((event.key === "Delete" || event.key === "Backspace") && state.points.length) {
    const distances = state.points.map((p) => Math.hypot(p.x - x, p.y - y));
    removePoint(distances.indexOf(Math.min(...distances)));
  } else if (event.key === "z" && (event.ctrlKey || event.metaKey)) {
    undo();
  } else return;
  event.preventDefault();
}
