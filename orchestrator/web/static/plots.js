"use strict";
// Draws each series over the table that is below it: medians, their levels, and the target.

const HEIGHT = 190;
const HOUR_S = 3600;
const drawn = new Map(); // by element: the plot and the text of its data

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function around(low, high, margin) {
  return [low - margin, high + margin];
}

function options(values, width) {
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--rule"), width: 1 }, ticks: { show: false } };
  const line = (label, name, dash) => ({
    label,
    stroke: colour(name),
    width: label === "median" ? 0 : 1.5,
    dash,
    paths: label === "level" ? uPlot.paths.stepped({ align: 1 }) : undefined,
    points: { show: label === "median", size: 5, fill: colour(name), stroke: colour(name) },
    value: (_, value) => (value === null || value === undefined ? "" : `${Number(value.toPrecision(5))} ${values.unit}`),
  });
  return {
    width,
    height: HEIGHT,
    legend: { live: true },
    scales: {
      x: values.times.length === 1 ? { range: () => around(values.times[0], values.times[0], HOUR_S) } : {},
      y: { range: (_, low, high) => around(low, high, (high - low || high) * 0.15) },
    },
    axes: [axis, { ...axis, size: 60 }],
    series: [
      {},
      line("median", "--curve"),
      line("level", "--level"),
      ...(values.target === null ? [] : [line("target", "--target", [6, 4])]),
    ],
  };
}

function draw(element) {
  const text = document.getElementById(element.dataset.plot).textContent;
  const known = drawn.get(element);
  if (known && known.text === text && known.width === element.clientWidth) return;
  if (known) known.plot.destroy();
  const values = JSON.parse(text);
  const target = values.target === null ? [] : [values.times.map(() => values.target)];
  const data = [values.times, values.medians, values.levels, ...target];
  const width = element.clientWidth;
  drawn.set(element, { plot: new uPlot(options(values, width), data, element), text, width });
}

function drawAll() {
  for (const element of document.querySelectorAll("[data-plot]")) draw(element);
}

function redrawAll() {
  for (const known of drawn.values()) known.plot.destroy();
  drawn.clear();
  drawAll();
}

drawAll();
document.addEventListener("htmx:afterSettle", drawAll);
window.addEventListener("resize", drawAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
