// One metric over the last minutes: history once, then what arrives.

import { get } from "./api.js";
import { count, el, now, shown, span } from "./dom.js";

const RANGES = [5, 15, 60, 120]; // minutes
const MOST = 10000; // points of one answer of the gateway, and kept here
const WIDTH = 500; // columns that are drawn

export class Trend {
  constructor() {
    this.minutes = 15;
    this.clear();
  }

  clear() {
    this.points = [];
    this.state = "none";
  }

  begin(minutes) {
    this.clear();
    this.minutes = minutes;
    this.state = "loading";
  }

  // Reads the history; `wanted` says whether anybody still looks. A range that holds more points than one answer is
  // halved, since the answer begins with the oldest.
  async load(parts, metric, wanted) {
    try {
      for (let minutes = this.minutes; ; minutes /= 2) {
        const to = Math.round(now()) + 1000;
        const query = new URLSearchParams({ device: parts.map(encodeURIComponent).join("/"), metric, from: to - Math.round(minutes * 60000), to });
        const points = await get(`/api/history?${query}`);
        if (!wanted()) return;
        if (points.length >= MOST && minutes > 1) continue;
        const since = this.points; // what arrived meanwhile
        this.points = [];
        for (const [t, v] of points) this.add(t, v);
        const last = this.points.at(-1)?.[0] ?? 0;
        for (const point of since) if (point[0] > last) this.points.push(point);
        return;
      }
    } finally {
      if (wanted()) this.state = "live";
    }
  }

  add(time, value) {
    const number = typeof value === "boolean" ? Number(value) : value;
    if (typeof number !== "number" || !time) return;
    this.points.push([time, number]);
    if (this.points.length > MOST) this.points.splice(0, this.points.length - MOST);
  }

  view(metric, choose) {
    const from = now() - this.minutes * 60000;
    const points = this.points.filter((p) => p[0] >= from);
    const range = el("label", {}, "last ", el("select", { onchange: (e) => choose(Number(e.target.value)) },
      RANGES.map((m) => el("option", { value: m, selected: m === this.minutes }, span(m * 60)))));
    if (points.length < 2) {
      const why = this.state === "loading" ? "Loading…" : "Fewer than two numbers in this time.";
      return [el("p", { class: "tools" }, el("b", {}, metric), range), el("p", { class: "hint" }, why)];
    }
    const reading = this.state === "loading" ? ", reading the history…" : "";
    let [low, high] = [Infinity, -Infinity];
    for (const [, v] of points) { low = Math.min(low, v); high = Math.max(high, v); }
    const last = points.at(-1)[1];
    return [
      el("p", { class: "tools" }, el("b", {}, metric), el("span", {}, `now ${shown(last)}`), el("span", { class: "soft" }, `low ${shown(low)}, high ${shown(high)}, ${count(points.length)} points${reading}`), range),
      el("svg", { class: "trend", viewBox: `0 0 ${WIDTH} 100`, preserveAspectRatio: "none", role: "img", "aria-label": `${metric}, last ${this.minutes} minutes: low ${shown(low)}, high ${shown(high)}, now ${shown(last)}` },
        el("line", { x1: 0, x2: WIDTH, y1: 50, y2: 50 }), el("path", { d: line(points, from, low, high, this.minutes) })),
      el("p", { class: "axis soft" }, el("span", {}, `${span(this.minutes * 60)} ago`), el("span", {}, "now")),
    ];
  }
}

// A path of steps through the lowest and highest point of every column: a million points would draw no slower.
function line(points, from, low, high, minutes) {
  const y = (v) => (95 - ((v - low) / (high - low || 1)) * 90).toFixed(1);
  const columns = new Map();
  for (const [t, v] of points) {
    const x = Math.min(WIDTH, Math.max(0, Math.floor(((t - from) / (minutes * 60000)) * WIDTH)));
    const column = columns.get(x);
    if (!column) columns.set(x, { first: v, low: v, high: v, last: v });
    else { column.low = Math.min(column.low, v); column.high = Math.max(column.high, v); column.last = v; }
  }
  let path = "";
  for (const [x, c] of [...columns].sort((a, b) => a[0] - b[0])) {
    path += path ? `L${x} ${y(c.first)}` : `M${x} ${y(c.first)}`;
    if (c.low !== c.high) path += `L${x} ${y(c.low)}L${x} ${y(c.high)}L${x} ${y(c.last)}`;
  }
  return `${path}L${WIDTH} ${y(points.at(-1)[1])}`;
}
