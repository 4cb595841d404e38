// Bars over days, with uPlot (vendor/uplot), and the same numbers as a table.

import uPlot from "../vendor/uplot/uPlot.esm.js";
import { h } from "../dom.js";

const HEIGHT = 180;

// Returns a figure. days: YYYY-MM-DD, ascending; format(value) → text. Call its dispose() when it is replaced: the browser
// would keep it, with its canvas, for the sake of its listeners.
export function bars(title, days, values, format) {
  const place = h("div.plot", { "aria-hidden": "true" });
  const rows = days.map((day, index) => [day, values[index]]).filter(([, value]) => value > 0);
  const table = h("details", h("summary", "As a table"), h("table", h("caption.unseen", title), h("thead", h("tr", h("th", { scope: "col" }, "Day"), h("th.num", { scope: "col" }, title))), h("tbody", rows.map(([day, value]) => h("tr", h("td", day), h("td.num", format(value)))))));
  if (rows.length === 0) return h("figure", h("figcaption", title), h("p.empty.small", "Nothing in this span."));
  const figure = h("figure", h("figcaption", title), place, table);
  const times = days.map((day) => Date.parse(`${day}T00:00:00Z`) / 1000);
  let plot = null;
  const draw = () => {
    if (!place.isConnected || place.clientWidth === 0) return;
    plot?.destroy();
    plot = new uPlot(options(place.clientWidth, format), [times, values], place);
  };
  const size = new ResizeObserver(() => (plot === null ? draw() : plot.setSize({ width: place.clientWidth, height: HEIGHT })));
  size.observe(place);
  // A canvas knows no colours of CSS: it is drawn again when they change.
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  scheme.addEventListener("change", draw);
  figure.dispose = () => {
    size.disconnect();
    scheme.removeEventListener("change", draw);
    plot?.destroy();
  };
  return figure;
}

function options(width, format) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => {
    const probe = h("span", { class: `probe ${name}` });
    document.body.append(probe);
    const value = getComputedStyle(probe).color;
    probe.remove();
    return value;
  };
  const font = `11px ${style.fontFamily}`;
  const axis = { stroke: colour("dim"), font, grid: { stroke: colour("line"), width: 1 }, ticks: { show: false } };
  const day = (seconds) => new Date(seconds * 1000).toISOString().slice(5, 10);
  return {
    width,
    height: HEIGHT,
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC"),
    cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
    legend: { show: true },
    scales: { x: { time: true, range: (_, least, most) => [least - 43_200, most + 43_200] }, y: { range: (_, __, most) => [0, most > 0 ? most * 1.1 : 1] } },
    axes: [
      { ...axis, size: 26, grid: { show: false }, values: (_, ticks) => ticks.map(day), space: 60 },
      { ...axis, size: 70, values: (_, ticks) => ticks.map((tick) => (tick === 0 ? "0" : format(tick))), space: 40 },
    ],
    series: [
      { label: "Day", value: (_, seconds) => (seconds === null ? "–" : new Date(seconds * 1000).toISOString().slice(0, 10)) },
      { label: "Used", fill: colour("accent"), stroke: colour("accent"), width: 0, points: { show: false }, paths: uPlot.paths.bars({ size: [0.7, 40] }), value: (_, value) => (value === null || value === undefined ? "–" : format(value)) },
    ],
  };
}
