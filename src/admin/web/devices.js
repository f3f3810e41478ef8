// The tree of groups, nodes and devices, and one of them in detail: facts, live values, a trend, writes.
// The tree is windowed: thousands of devices cost no more than the rows on the screen.

import { act, get, nameOf, partsOf, pathOf, post } from "./api.js";
import { $, ago, ask, cell, count, el, lasting, pairs, patch, rows, shown, toast } from "./dom.js";
import { Trend } from "./trend.js";

const ROW = 32; // height of a row as in style.css, px
const ALL_OPEN = 400; // a longer tree starts with its nodes closed

const tree = { devices: [], toggled: new Set(), rows: [], at: 0, picked: null };
const detail = { device: null, metric: null, trend: new Trend(), dirty: false };
let listening = () => {};
// Calls `work` with `group/node[/device]` whenever another device's live values are wanted.
export const onPick = (work) => { listening = work; };
export const picked = () => tree.picked;

// ---- tree ----------------------------------------------------------------------------------------------------------

export async function refreshDevices() {
  tree.devices = await get("/api/devices");
  grow();
  if (tree.picked) await loadDetail();
  return tree.devices.length;
}

const stateOf = (d) => (d.online ? (d.stale_metrics ? [`${d.stale_metrics} stale`, "warn"] : ["online", "good"]) : ["offline", "bad"]);

// The rows that are open and wanted, in order. Group and node rows say how many below them are online.
function grow() {
  const find = $("device-filter").value.trim().toLowerCase();
  const offline = $("device-offline").checked;
  const wanted = tree.devices.filter((d) => (!offline || !d.online || d.stale_metrics > 0) && (!find || nameOf(d).toLowerCase().includes(find)));
  const searching = find !== "" || offline;
  const owns = new Map(tree.devices.filter((d) => d.device === undefined).map((d) => [nameOf(d), d])); // a node's state stands above what was found
  const groups = new Map();
  for (const d of wanted) {
    if (!groups.has(d.group)) groups.set(d.group, { nodes: new Map(), all: 0, online: 0 });
    const group = groups.get(d.group);
    if (!group.nodes.has(d.node)) group.nodes.set(d.node, { own: owns.get(`${d.group}/${d.node}`) ?? null, devices: [], online: 0 });
    if (d.device === undefined) continue;
    const node = group.nodes.get(d.node);
    node.devices.push(d);
    node.online += d.online ? 1 : 0;
    group.all += 1;
    group.online += d.online ? 1 : 0;
  }
  const nodesOpen = searching || tree.devices.length <= ALL_OPEN;
  const open = (key, normally) => tree.toggled.has(key) !== normally;
  const order = (a, b) => a[0].localeCompare(b[0], "en", { numeric: true });
  const key = tree.rows[tree.at]?.key;
  tree.rows = [];
  for (const [name, group] of [...groups].sort(order)) {
    const groupOpen = open(name, true);
    tree.rows.push({ key: name, level: 1, name, open: groupOpen, sum: [group.online, group.all] });
    if (!groupOpen) continue;
    for (const [nodeName, node] of [...group.nodes].sort(order)) {
      const nodeKey = `${name}/${nodeName}`;
      const nodeOpen = open(nodeKey, nodesOpen);
      tree.rows.push({ key: nodeKey, level: 2, name: nodeName, device: node.own ?? { group: name, node: nodeName }, known: node.own !== null,
        open: node.devices.length ? nodeOpen : undefined, sum: node.devices.length ? [node.online, node.devices.length] : null });
      if (!nodeOpen) continue;
      for (const d of node.devices.sort((a, b) => order([a.device], [b.device]))) tree.rows.push({ key: nameOf(d), level: 3, name: d.device, device: d, known: true });
    }
  }
  tree.at = Math.max(0, tree.rows.findIndex((row) => row.key === key));
  const text = `${count(wanted.length)} of ${count(tree.devices.length)}`;
  if ($("device-count").textContent !== text) $("device-count").textContent = text;
  drawTree();
}

// Only the rows on the screen exist; two spacers stand for the others.
function drawTree() {
  const box = $("device-tree");
  const first = Math.max(0, Math.min(Math.floor(box.scrollTop / ROW), tree.rows.length) - 8);
  const last = Math.min(tree.rows.length, first + Math.ceil(box.clientHeight / ROW) + 16);
  $("tree-above").style.height = `${first * ROW}px`;
  $("tree-below").style.height = `${(tree.rows.length - last) * ROW}px`;
  patch($("device-rows"), tree.rows.length
    ? tree.rows.slice(first, last).map((row, i) => treeRow(row, first + i))
    : el("p", { class: "hint" }, tree.devices.length ? "Nothing matches." : "No node has sent a birth yet."));
  const active = tree.rows[tree.at];
  if (active && tree.at >= first && tree.at < last) box.setAttribute("aria-activedescendant", `row-${tree.at}`);
  else box.removeAttribute("aria-activedescendant");
}

function treeRow(row, index) {
  const [word, kind] = row.known ? stateOf(row.device) : ["", ""];
  return el("div", {
    key: row.key, id: `row-${index}`, role: "treeitem", class: `row level-${row.level}${index === tree.at ? " at" : ""}`,
    "aria-level": row.level, "aria-posinset": index + 1, "aria-setsize": tree.rows.length,
    "aria-expanded": row.open === undefined ? null : String(row.open), "aria-selected": String(tree.picked === row.key && row.level > 1),
    onclick: (event) => { tree.at = tree.rows.findIndex((r) => r.key === row.key); if (row.level === 1 || event.target.classList.contains("twist")) toggle(row); else choose(row); },
  },
  el("span", { class: "twist", "aria-hidden": "true" }, row.open === undefined ? "" : row.open ? "▾" : "▸"),
  el("span", { class: "name" }, row.name),
  el("span", { class: row.sum && row.sum[0] < row.sum[1] ? "sum warn" : "sum soft" }, row.sum ? `${row.sum[0]}/${row.sum[1]}` : ""),
  el("span", { class: `state ${kind}` }, word),
  el("span", { class: "since soft" }, row.known ? lasting(row.device.since) : ""));
}

function toggle(row) {
  if (row.open === undefined) return;
  if (tree.toggled.has(row.key)) tree.toggled.delete(row.key);
  else tree.toggled.add(row.key);
  grow();
}

function choose(row) {
  tree.picked = row.key;
  detail.device = null;
  detail.metric = null;
  detail.trend.clear();
  drawTree();
  patch($("device-detail"), el("p", { class: "hint" }, "Loading…"));
  listening(row.key);
  loadDetail().then(() => { if (matchMedia("(max-width: 44rem)").matches) $("device-detail").scrollIntoView({ block: "start" }); });
}

function move(to) {
  tree.at = Math.max(0, Math.min(tree.rows.length - 1, to));
  const box = $("device-tree");
  const top = tree.at * ROW;
  if (top < box.scrollTop) box.scrollTop = top;
  if (top + ROW > box.scrollTop + box.clientHeight) box.scrollTop = top + ROW - box.clientHeight;
  drawTree();
}

// The keys of a tree, as screen readers and file managers have them.
function treeKey(event) {
  const row = tree.rows[tree.at];
  const page = Math.max(1, Math.floor($("device-tree").clientHeight / ROW) - 1);
  const parent = () => { for (let i = tree.at; i >= 0; i -= 1) if (tree.rows[i].level < row.level) return i; return tree.at; };
  const keys = {
    ArrowDown: () => move(tree.at + 1), ArrowUp: () => move(tree.at - 1), Home: () => move(0), End: () => move(tree.rows.length - 1),
    PageDown: () => move(tree.at + page), PageUp: () => move(tree.at - page),
    ArrowRight: () => (row.open === false ? toggle(row) : move(tree.at + 1)),
    ArrowLeft: () => (row.open ? toggle(row) : move(parent())),
    Enter: () => (row.level === 1 ? toggle(row) : choose(row)), " ": () => (row.level === 1 ? toggle(row) : choose(row)),
  };
  if (!row || !keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  keys[event.key]();
}

// ---- detail --------------------------------------------------------------------------------------------------------

async function loadDetail() {
  const wanted = tree.picked;
  const row = tree.rows.find((r) => r.key === wanted);
  const path = row?.device ? pathOf(row.device) : wanted.split("/").map(encodeURIComponent).join("/");
  try {
    const device = await get(`/api/devices/${path}`);
    if (tree.picked !== wanted) return; // another one was chosen meanwhile
    detail.device = device;
    drawDetail();
  } catch (error) {
    if (tree.picked === wanted) patch($("device-detail"), el("p", { class: "bad" }, error.message));
  }
}

// Metrics of the picked device as they arrive.
export function live(metrics) {
  if (!detail.device || metrics[0]?.device !== nameOf(detail.device)) return;
  if (metrics.some((m) => m.class !== "data")) { loadDetail(); return; } // a birth: another set of metrics
  const known = new Map(detail.device.metrics.map((m) => [m.name, m]));
  for (const m of metrics) {
    const metric = known.get(m.metric);
    if (metric && !m.historical) Object.assign(metric, { value: m.value, timestamp: m.timestamp ?? m.received_at, stale: false });
    if (m.metric === detail.metric) detail.trend.add(m.timestamp ?? m.received_at, m.value);
  }
  if (detail.dirty) return;
  detail.dirty = true;
  setTimeout(() => { detail.dirty = false; drawDetail(); }, 250); // a fast device costs four drawings a second
}

function drawDetail() {
  const d = detail.device;
  if (!d) return;
  const facts = el("dl", { class: "pairs" });
  const [word, kind] = stateOf(d);
  pairs(facts, [["state", `${word} for ${lasting(d.since)}`, kind], ["births, deaths", `${count(d.births)}, ${count(d.deaths)}`],
    ["last rebirth cause", d.last_rebirth_cause ?? "none"], ["bdSeq, seq", `${d.bdseq ?? "–"}, ${d.last_seq ?? "–"}`],
    ["latency", d.latency_ms === null ? "–" : `${d.latency_ms} ms`], ["schema version", String(d.schema)], ["client id", d.client ?? "–"]]);
  const name = nameOf(d);
  const holdFor = (ms, what) => () => act(`${what} ${name}`, () => post(`/api/devices/${pathOf(d)}/hold`, { for_ms: ms }));
  const buttons = [
    el("button", { key: "hold", onclick: holdFor(30 * 60000, "hold writes to"), title: "Nothing writes to it for 30 minutes: neither rules nor people" }, "Hold writes 30 min"),
    el("button", { key: "release", onclick: holdFor(0, "release") }, "Release"),
    d.device === undefined ? el("button", { key: "rebirth", onclick: () => act(`rebirth of ${name}`, () => post(`/api/devices/${pathOf(d)}/rebirth`, {})) }, "Ask for rebirth") : null,
  ];
  const body = el("tbody");
  rows(body, d.metrics.map((m) => el("tr", { key: m.name },
    el("td", {}, el("button", { class: "link", "aria-pressed": String(detail.metric === m.name), onclick: () => pickMetric(m.name) }, m.name)),
    cell(shown(m.value), m.stale ? "n warn" : "n"), cell(m.type, "soft type"),
    cell(m.stale ? `stale, ${ago(m.timestamp)}` : m.quality === 192 ? ago(m.timestamp) : `quality ${m.quality}, ${ago(m.timestamp)}`, m.stale || m.quality !== 192 ? "warn" : "soft"),
    el("td", {}, el("button", { onclick: () => write(d, m), "aria-label": `Write ${m.name}` }, "Write…")))), 5, "It has no metrics.");
  patch($("device-detail"), el("h3", {}, name), facts, el("p", { class: "tools" }, buttons), el("div", { class: "trend-box" }, detail.metric ? detail.trend.view(detail.metric, pickRange) : el("p", { class: "hint" }, "Choose a metric for its trend.")),
    el("div", { class: "wide" }, el("table", {}, el("thead", {}, el("tr", {}, ["Metric", "Value", "Type", "Age"].map((t) => el("th", { scope: "col", class: { Value: "n", Type: "type" }[t] }, t)), el("th", { scope: "col" }, el("span", { class: "sr" }, "Actions")))), body)));
}

function pickMetric(name) {
  detail.metric = name;
  pickRange(detail.trend.minutes);
}

async function pickRange(minutes) {
  const [d, metric] = [detail.device, detail.metric];
  detail.trend.begin(minutes);
  drawDetail();
  try {
    await detail.trend.load(partsOf(d), metric, () => detail.metric === metric && tree.picked === nameOf(d));
  } catch (error) {
    toast(`trend of ${metric}: ${error.message}`, "bad");
  }
  drawDetail();
}

// The text of a field as the JSON of the metric's type; throws what is wrong with it.
export function jsonOf(type, raw) {
  if (type === "Boolean") return raw;
  if (/^U?Int\d*$|^DateTime$/.test(type)) {
    if (!/^-?\d+$/.test(raw.trim())) throw new Error(`${type} takes a whole number, not “${raw}”`);
    return String(BigInt(raw.trim())); // digit by digit: a double would round 64 bits
  }
  if (type === "Float" || type === "Double") {
    if (raw.trim() === "" || !Number.isFinite(Number(raw))) throw new Error(`${type} takes a number, not “${raw}”`);
    return String(Number(raw));
  }
  return JSON.stringify(raw);
}

async function write(d, metric) {
  const input = metric.type === "Boolean"
    ? () => el("select", { name: "value" }, ["true", "false"].map((v) => el("option", { selected: String(metric.value) !== v }, v)))
    : () => el("input", { name: "value", type: "text", autocomplete: "off", value: metric.value === null ? "" : String(metric.value), inputmode: /Int|Float|Double/.test(metric.type) ? "decimal" : null });
  const given = await ask(`Write ${metric.name}`, `To ${nameOf(d)}, type ${metric.type}, now ${shown(metric.value)}. The device must confirm it.`, "Write", [{ name: "value", label: "New value", input }]);
  if (!given) return;
  await act(`write ${metric.name} = ${given.value}`, async () => {
    const value = jsonOf(metric.type, given.value);
    return post(`/api/devices/${pathOf(d)}/write`, `{"metrics":[{"name":${JSON.stringify(metric.name)},"value":${value}}]}`);
  });
}

export function startDevices() {
  $("device-filter").addEventListener("input", grow);
  $("device-offline").addEventListener("change", grow);
  $("device-tree").addEventListener("keydown", treeKey);
  let drawing = false;
  $("device-tree").addEventListener("scroll", () => {
    if (drawing) return;
    drawing = true;
    requestAnimationFrame(() => { drawing = false; drawTree(); });
  }, { passive: true });
  // Ages and the trend's right edge go on while nothing arrives.
  setInterval(() => { if (detail.device && !document.hidden && !$("view-devices").hidden) drawDetail(); }, 5000);
}
