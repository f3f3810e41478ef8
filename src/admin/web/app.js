// The operator's page. No framework: one state object, one render function a view. Lists of devices are windowed, so
// that thousands cost no more than what is on the screen.
"use strict";

const $ = (id) => document.getElementById(id);
const state = { status: null, devices: [], shown: [], picked: null, detail: null, metric: null, view: "overview" };
const ROW = 33; // height of a device row, px

// ---- small helpers -------------------------------------------------------------------------------------------------

function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (key === "class") node.className = value;
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value);
  }
  for (const child of children.flat()) node.append(child ?? "");
  return node;
}
const cell = (text, kind) => el("td", kind ? { class: kind } : {}, text === null || text === undefined ? "–" : String(text));
const count = (n) => (n ?? 0).toLocaleString("en");
const size = (n) => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) { n /= 1024; i += 1; }
  return `${i ? n.toFixed(1) : n} ${units[i]}`;
};
const span = (s) => {
  if (s === null || s === undefined) return "–";
  if (s < 60) return `${Math.round(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
};
const ago = (ms) => (ms ? `${span(Math.max(0, (Date.now() - ms) / 1000))} ago` : "–");
const nameOf = (d) => [d.group, d.node, d.device].filter((x) => x !== undefined && x !== null).join("/");
const pathOf = (d) => [d.group, d.node, d.device].filter((x) => x !== undefined && x !== null).map(encodeURIComponent).join("/");

function toast(text, bad) {
  $("toast").textContent = text;
  $("toast").className = bad ? "bad" : "good";
}

async function get(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).error || answer.statusText);
  return answer.json();
}

async function post(path, body) {
  const token = $("token").value;
  const headers = { "content-type": "application/json" };
  if (token) headers.authorization = `Bearer ${token}`;
  const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
  const json = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(json.error || answer.statusText);
  return json;
}

async function act(what, work) {
  try {
    const done = await work();
    const status = done && done.status;
    toast(status ? `${what}: ${status}${done.reason ? ` (${done.reason})` : ""}` : `${what}: done`, status && status !== "confirmed" && status !== "requested");
    refresh();
  } catch (error) {
    toast(`${what}: ${error.message}`, true);
  }
}

function pairs(list, entries) {
  list.replaceChildren(...entries.flatMap(([name, value, kind]) => [el("dt", {}, name), el("dd", kind ? { class: kind } : {}, value)]));
}

// ---- overview ------------------------------------------------------------------------------------------------------

function tile(name, value, small, kind, share) {
  return el("div", { class: "tile" }, el("span", {}, name), el("b", kind ? { class: kind } : {}, value), small ? el("small", {}, small) : "",
    share === undefined ? "" : el("div", { class: "bar" }, (() => { const i = el("i"); i.style.width = `${Math.min(100, share * 100)}%`; return i; })()));
}

function renderOverview() {
  const s = state.status;
  if (!s) return;
  const up = s.uplink;
  const upKind = up.state === "ok" ? "good" : up.state === "none" ? "soft" : "warn";
  $("tiles").replaceChildren(
    tile("received", count(s.received), `${count(s.metrics)} metrics`),
    tile("devices online", `${count(s.host.devices_online)} / ${count(s.host.devices)}`, `${count(s.host.nodes_online)} of ${count(s.host.nodes)} nodes`,
      s.host.devices_online < s.host.devices ? "warn" : "good"),
    tile("unacknowledged alarms", count(s.alarms.unacknowledged), `${count(s.alarms.active)} active`, s.alarms.unacknowledged ? "bad" : "good"),
    tile("decision p99", `${Math.round(s.decision_us.p99)} µs`, `p50 ${Math.round(s.decision_us.p50)} µs, ${count(s.decision_us.count)} measured`),
    tile("uplink", up.state, up.state === "none" ? "no bridge is configured" : `since ${ago(up.since)}`, upKind),
    tile("waiting for the cloud", count(s.pending), up.oldest_pending_s === null ? "nothing waits" : `oldest ${span(up.oldest_pending_s)}, gone in ${up.drain_eta_s === null ? "…" : span(up.drain_eta_s)}`,
      s.pending > 10000 ? "warn" : undefined),
    tile("journal on disk", size(s.buffer.warm_bytes), `of ${size(s.buffer.warm_max_bytes)}, disk ${s.buffer.disk}`, s.buffer.disk === "ok" ? undefined : "bad", s.buffer.warm_bytes / s.buffer.warm_max_bytes),
    tile("rule matches", count(s.matches), `${count(s.rule_errors)} evaluation errors`, s.rule_errors ? "warn" : undefined),
    tile("model results", count(s.inferences), `${s.models.length} models`),
    tile("local writes", count(s.commands.sent), `${count(s.commands.confirmed)} confirmed, ${count(s.commands.timeout)} timed out`),
    tile("MQTT clients", count(s.mqtt.connections), `${s.mqtt.engine} engine, ${count(s.mqtt.sessions)} sessions`),
  );
  const words = (map) => Object.entries(map).map(([k, v]) => `${k} ${count(v)}`).join(", ") || "none";
  const lost = Object.keys(s.dropped).length;
  pairs($("reasons"), [
    ["dropped", words(s.dropped), lost ? "bad" : "good"], ["refused (invalid)", words(s.invalid), Object.keys(s.invalid).length ? "warn" : undefined],
    ["without effect", words(s.ignored)], ["rebirth requests", words(s.rebirths)], ["windows without verdict", words(s.no_verdict)],
    ["broker dropped", words(s.mqtt.dropped)], ["broker refused", words(s.mqtt.refused)],
    ["two clients, one identity", count(s.duplicate_identities), s.duplicate_identities ? "bad" : undefined],
  ]);
  pairs($("identity"), [["version", s.version], ["configuration", s.config_hash.slice(0, 16)], ["up", span(s.uptime_s)]]);
  $("gateway").textContent = s.gateway;
  const badge = $("alarm-badge");
  badge.hidden = !s.alarms.unacknowledged;
  badge.textContent = s.alarms.unacknowledged;
}

// ---- devices -------------------------------------------------------------------------------------------------------

function filterDevices() {
  const text = $("device-filter").value.trim().toLowerCase();
  const offline = $("device-offline").checked;
  state.shown = state.devices.filter((d) => (!offline || !d.online) && (!text || nameOf(d).toLowerCase().includes(text)));
  $("device-count").textContent = `${count(state.shown.length)} of ${count(state.devices.length)}`;
  renderDeviceRows();
}

// Only the rows on the screen exist; two spacers stand for the others.
function renderDeviceRows() {
  const box = $("device-scroll");
  const first = Math.max(0, Math.floor(box.scrollTop / ROW) - 10);
  const last = Math.min(state.shown.length, first + Math.ceil(box.clientHeight / ROW) + 20);
  const spacer = (rows) => { const td = el("td", { colspan: 4 }); td.style.height = `${rows * ROW}px`; return el("tr", { class: "spacer", "aria-hidden": "true" }, td); };
  const rows = state.shown.slice(first, last).map((d) => {
    const name = nameOf(d);
    const pick = () => choose(d);
    return el("tr", { class: "pick", tabindex: 0, "aria-selected": state.picked === name ? "true" : "false", onclick: pick,
      onkeydown: (e) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); pick(); } } },
      el("td", {}, d.device === undefined ? el("b", {}, name) : `  ${name}`),
      cell(d.online ? (d.stale_metrics ? "stale" : "online") : "offline", d.online ? (d.stale_metrics ? "warn" : "good") : "bad"),
      cell(ago(d.since), "soft"), cell(d.births, "n"));
  });
  $("device-rows").replaceChildren(spacer(first), ...rows, spacer(state.shown.length - last));
}

async function choose(d) {
  state.picked = nameOf(d);
  state.metric = null;
  renderDeviceRows();
  await loadDetail(d);
}

async function loadDetail(d) {
  try {
    state.detail = await get(`/api/devices/${pathOf(d)}`);
    renderDetail();
  } catch (error) {
    $("device-detail").replaceChildren(el("p", { class: "bad" }, error.message));
  }
}

function renderDetail() {
  const d = state.detail;
  if (!d) return;
  const focused = document.activeElement && document.activeElement.id === "write-value";
  if (focused) return; // never take the field away from under somebody who types
  const rows = d.metrics.map((m) => el("tr", { class: "pick", tabindex: 0, "aria-selected": state.metric === m.name ? "true" : "false",
    onclick: () => trend(m.name), onkeydown: (e) => { if (e.key === "Enter") trend(m.name); } },
    cell(m.name), cell(typeof m.value === "object" && m.value !== null ? JSON.stringify(m.value) : m.value, m.stale ? "warn" : undefined), cell(m.type, "soft"), cell(m.stale ? `stale, ${ago(m.timestamp)}` : ago(m.timestamp), "soft")));
  const facts = el("dl", { class: "pairs" });
  pairs(facts, [["state", d.online ? "online" : "offline", d.online ? "good" : "bad"], ["since", ago(d.since)],
    ["births, deaths", `${d.births}, ${d.deaths}`], ["bdSeq, last seq", `${d.bdseq ?? "–"}, ${d.last_seq ?? "–"}`],
    ["last rebirth cause", d.last_rebirth_cause ?? "none"], ["latency", d.latency_ms === null ? "–" : `${d.latency_ms} ms`], ["schema version", d.schema],
    ["client id", d.client ?? "–"]]);
  const buttons = d.device === undefined
    ? el("p", { class: "tools" }, el("button", { onclick: () => act("rebirth", () => post(`/api/devices/${pathOf(d)}/rebirth`, {})) }, "Ask for rebirth"))
    : "";
  const write = el("form", { class: "tools", onsubmit: (e) => {
    e.preventDefault();
    const raw = $("write-value").value;
    let value = raw;
    try { value = JSON.parse(raw); } catch { /* a text */ }
    $("write-value").blur();
    act(`write ${state.metric}`, () => post(`/api/devices/${pathOf(d)}/write`, { metrics: [{ name: state.metric, value }] }));
  } }, el("label", {}, "Write ", el("b", {}, state.metric ?? "(choose a metric) "), " = ", el("input", { id: "write-value", type: "text", size: 12, autocomplete: "off" })),
  el("button", state.metric ? { type: "submit" } : { type: "submit", disabled: "" }, "Send"));
  $("device-detail").replaceChildren(el("h3", {}, nameOf(d)), facts, buttons, el("div", { id: "trend" }), write,
    el("table", {}, el("thead", {}, el("tr", {}, ["Metric", "Value", "Type", "Age"].map((t) => el("th", { scope: "col" }, t)))), el("tbody", {}, rows)));
  if (state.metric) drawTrend();
}

async function trend(metric) {
  state.metric = metric;
  renderDetail();
}

async function drawTrend() {
  const d = state.detail;
  const to = Date.now() + 1000;
  const query = new URLSearchParams({ device: [d.group, d.node, d.device].filter((x) => x !== undefined && x !== null).map(encodeURIComponent).join("/"), metric: state.metric, from: to - 15 * 60 * 1000, to });
  let points;
  try { points = (await get(`/api/history?${query}`)).filter((p) => typeof p[1] === "number" || typeof p[1] === "boolean").map(([t, v]) => [t, Number(v)]); } catch { return; }
  const box = $("trend");
  if (!box) return;
  if (points.length < 2) { box.replaceChildren(el("p", { class: "hint" }, "No trend: fewer than two numbers in 15 minutes.")); return; }
  const xs = points.map((p) => p[0]); const ys = points.map((p) => p[1]);
  const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const at = ([x, y]) => `${(((x - x0) / (x1 - x0 || 1)) * 1000).toFixed(1)} ${(95 - ((y - y0) / (y1 - y0 || 1)) * 90).toFixed(1)}`;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "trend"); svg.setAttribute("viewBox", "0 0 1000 100"); svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img"); svg.setAttribute("aria-label", `${state.metric}: ${points.length} points from ${y0} to ${y1}`);
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", `M${points.map(at).join("L")}`);
  svg.append(path);
  box.replaceChildren(el("p", { class: "hint" }, `${state.metric}: ${y0} … ${y1}, ${points.length} points in ${span((x1 - x0) / 1000)}`), svg);
}

// ---- the other views -----------------------------------------------------------------------------------------------

const ORDER = ["unack", "latched-unack", "rtn-unack", "ack", "latched-ack", "shelved", "suppressed", "out-of-service", "normal"];

async function renderAlarms() {
  const alarms = await get("/api/alarms");
  alarms.sort((a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || b.timestamp - a.timestamp);
  const button = (alarm, text, action, body) => el("button", { onclick: () => act(`${text} ${alarm.message}`, () => post(`/api/alarms/${encodeURIComponent(alarm.id)}/${action}`, body ?? {})) }, text);
  $("alarm-rows").replaceChildren(...(alarms.length ? alarms.map((a) => el("tr", {},
    cell(a.state + (a.stale ? " (source stale)" : ""), a.state.includes("unack") ? "bad" : "soft"), cell(a.priority), cell(a.message), cell(nameOf(a)), cell(ago(a.timestamp), "soft"),
    el("td", { class: "tools" }, a.state.includes("unack") ? button(a, "Acknowledge", "ack") : "",
      a.state === "shelved" ? button(a, "Unshelve", "unshelve") : button(a, "Shelve 30 min", "shelve", { for_ms: 1800000 }),
      a.state.startsWith("latched") ? button(a, "Reset", "reset") : ""))) : [el("tr", {}, el("td", { colspan: 6, class: "hint" }, "No alarm is active or waits for acknowledgement."))]));
}

async function renderRules() {
  const rules = await get("/api/rules");
  $("rule-rows").replaceChildren(...rules.map((r) => el("tr", {},
    el("td", {}, el("button", { onclick: async () => { const plan = await get(`/api/rules/${encodeURIComponent(r.id)}`); $("rule-plan").hidden = false; $("rule-plan").textContent = plan.plan; } }, r.id)),
    cell(`${r.pack} ${r.version}`), cell(r.kind), cell(r.enabled ? (r.dry_run ? "dry run" : "live") : "disabled", r.enabled && !r.dry_run ? "good" : "warn"), cell(count(r.fires), "n"), cell(count(r.errors), r.errors ? "n warn" : "n"),
    el("td", {}, el("button", { onclick: () => act(`${r.enabled ? "disable" : "enable"} ${r.id}`, () => post(`/api/rules/${encodeURIComponent(r.id)}/${r.enabled ? "disable" : "enable"}`, {})) }, r.enabled ? "Disable" : "Enable")))));
}

async function renderModels() {
  const models = await get("/api/models");
  $("model-rows").replaceChildren(...(models.length ? models.map((m) => el("tr", {}, cell(`${m.model}${m.demonstration ? " (demonstration)" : ""}`), cell(m.version), cell(m.backend ?? "none", m.backend ? undefined : "bad"), cell(count(m.runs), "n"), cell(`${m.p95_us} µs`, m.p95_us > m.objective_us ? "n bad" : "n"), cell(`${m.objective_us} µs`, "n"), cell(m.fallback_active ? m.lighter : "–", m.fallback_active ? "warn" : "soft"),
    cell((m.passed_over || []).map((p) => p.backend ?? p).join(", ") || "–", "soft"))) : [el("tr", {}, el("td", { colspan: 8, class: "hint" }, "No model is configured."))]));
}

async function renderCommands() {
  const commands = (await get("/api/commands")).reverse().slice(0, 200);
  const kind = { confirmed: "good", sent: "soft", undone: "warn" };
  $("command-rows").replaceChildren(...(commands.length ? commands.map((c) => el("tr", {}, cell(c.status, kind[c.status] ?? "bad"), cell(nameOf(c.target)), cell(c.metric), cell(JSON.stringify(c.value)), cell(c.by), cell(ago(c.timestamp), "soft"), cell(c.reason ?? "")))
    : [el("tr", {}, el("td", { colspan: 7, class: "hint" }, "Nothing was written yet."))]));
}

async function renderBuffer() {
  const b = await get("/api/buffer");
  const lane = (name) => { const l = b.lanes[name]; return `${count(l.pending)} records wait (${size(l.pending_bytes)}), oldest ${l.oldest_pending_ms ? ago(l.oldest_pending_ms) : "–"}`; };
  const read = b.served_hot + b.served_warm;
  pairs($("buffer-pairs"), [["hot (memory)", `${size(b.hot_bytes)}, ${count(b.hot_records)} records`], ["warm (disk)", `${size(b.warm_bytes)} of ${size(b.warm_max_bytes)}, ${b.segments} segments`],
    ["disk", b.disk_state, b.disk_state === "ok" ? "good" : "bad"], ["data lane", lane("data")], ["alarms lane", lane("alarms")], ["oldest record kept", ago(b.oldest_ms)],
    ["written a byte received", b.bytes_in ? (b.bytes_written / b.bytes_in).toFixed(2) : "–"], ["last fsync", `${(b.last_fsync_us / 1000).toFixed(1)} ms, ${count(b.fsyncs)} in all`],
    ["read from memory", read ? `${((b.served_hot / read) * 100).toFixed(1)} %` : "–"]]);
}

// ---- life ----------------------------------------------------------------------------------------------------------

async function refresh() {
  try {
    if (state.view === "devices") {
      state.devices = await get("/api/devices");
      filterDevices();
      const picked = state.devices.find((d) => nameOf(d) === state.picked);
      if (picked) await loadDetail(picked);
    }
    if (state.view === "alarms") await renderAlarms();
    if (state.view === "rules") await renderRules();
    if (state.view === "models") await renderModels();
    if (state.view === "commands") await renderCommands();
    if (state.view === "buffer") await renderBuffer();
  } catch (error) {
    $("link").textContent = `no answer: ${error.message}`;
  }
}

function show() {
  const wanted = location.hash.slice(1) || "overview";
  state.view = $(`view-${wanted}`) ? wanted : "overview";
  for (const section of document.querySelectorAll("main > section")) section.hidden = section.id !== `view-${state.view}`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${state.view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  refresh();
}

function listen() {
  const events = new EventSource("/api/events");
  events.addEventListener("open", () => { $("link").textContent = "live"; });
  events.addEventListener("error", () => { $("link").textContent = "connection lost, trying again…"; });
  events.addEventListener("status", (e) => { state.status = JSON.parse(e.data); renderOverview(); });
  for (const kind of ["alarm", "command"]) events.addEventListener(kind, () => soon());
}

let waiting = null;
// Many alarms in a second cost one refresh.
function soon() {
  waiting ??= setTimeout(() => { waiting = null; if (state.view === "alarms" || state.view === "commands") refresh(); }, 500);
}

$("device-filter").addEventListener("input", filterDevices);
$("device-offline").addEventListener("change", filterDevices);
$("device-scroll").addEventListener("scroll", () => requestAnimationFrame(renderDeviceRows));
window.addEventListener("hashchange", show);
setInterval(() => { if (!document.hidden && state.view !== "overview") refresh(); }, 3000);
get("/api/status").then((s) => { state.status = s; renderOverview(); }).catch(() => {});
listen();
show();
