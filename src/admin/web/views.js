// Every view but the devices': one function each, from the gateway's answer to the document.

import { act, get, nameOf, post, text } from "./api.js";
import { $, ago, ask, cell, count, el, lasting, micros, now, pairs, patch, rows, size, span, toast } from "./dom.js";

const MOST_ROWS = 200; // of a table

// ---- overview ------------------------------------------------------------------------------------------------------

let before = null; // the status a moment ago, for rates

function rateOf(s) {
  const earlier = before && before.started === s.started ? before : null;
  const seconds = earlier ? (s.uptime_s - earlier.uptime_s) : 0;
  if (!earlier || seconds >= 2) before = s;
  return seconds > 0 ? `${count(Math.round((s.messages - earlier.messages) / seconds))} messages/s` : `${count(s.messages)} messages`;
}

function tile(name, value, small, kind, share) {
  return el("div", { class: "tile" }, el("span", {}, name), el("b", { class: kind }, value), el("small", {}, small),
    share === undefined ? "" : el("progress", { max: 1, value: Math.min(1, share).toFixed(3), "aria-label": `${name}, ${Math.round(share * 100)} %` }));
}

// "oldest 3 h, gone in 2 min"
function backlog(s) {
  const up = s.uplink;
  if (!s.pending) return "nothing waits";
  if (up.state === "none") return "no bridge: kept until it ages out";
  return `oldest ${span(up.oldest_pending_s)}, ${up.drain_eta_s === null ? "not draining" : `gone in ${span(up.drain_eta_s)}`}`;
}

const words = (map) => Object.entries(map).map(([k, v]) => `${k} ${count(v)}`).join(", ") || "none";
const any = (map, kind) => (Object.keys(map).length ? kind : undefined);

export function overview(s) {
  const up = s.uplink;
  const full = s.buffer.warm_bytes / s.buffer.warm_max_bytes;
  const offline = s.host.devices - s.host.devices_online;
  const failed = ["timeout", "rejected", "expired", "undone"].reduce((n, k) => n + (s.commands[k] ?? 0), 0);
  const fallen = s.models.filter((m) => m.fallback_active).length;
  patch($("tiles"),
    tile("Devices online", `${count(s.host.devices_online)} of ${count(s.host.devices)}`, `${count(s.host.nodes_online)} of ${count(s.host.nodes)} nodes`, offline || s.host.nodes_online < s.host.nodes ? "warn" : "good"),
    tile("Alarms to acknowledge", count(s.alarms.unacknowledged), `${count(s.alarms.active)} active`, s.alarms.unacknowledged ? "bad" : "good"),
    tile("Uplink", up.state === "none" ? "no bridge" : up.state.replaceAll("_", " "), up.state === "none" ? "nothing leaves this box" : [`for ${lasting(up.since)}`, up.state === "ok" ? "" : up.lanes?.data.detail].filter(Boolean).join(", "), up.state === "ok" ? "good" : up.state === "none" ? "soft" : "warn"),
    tile("Waiting for the cloud", count(s.pending), backlog(s), up.state !== "none" && up.state !== "ok" && s.pending ? "warn" : undefined),
    tile("Journal on disk", `${Math.round(full * 100)} %`, `${size(s.buffer.warm_bytes)} of ${size(s.buffer.warm_max_bytes)}, disk ${s.buffer.disk}`, s.buffer.disk !== "ok" ? "bad" : full > 0.9 ? "warn" : undefined, full),
    tile("Memory buffer", size(s.buffer.hot_bytes), "the newest records"),
    tile("Received", count(s.received), rateOf(s)),
    tile("Decision p99", s.decision_us.count ? micros(s.decision_us.p99) : "–", s.decision_us.count ? `p50 ${micros(s.decision_us.p50)}, ${count(s.decision_us.count)} measured` : "no rule has written yet"),
    tile("Rule matches", count(s.matches), `${count(s.rules)} rules, ${count(s.rule_errors)} evaluation errors`, s.rule_errors ? "warn" : undefined),
    tile("Writes confirmed", count(s.commands.confirmed), `${count(s.commands.sent)} sent, ${count(failed)} failed or undone`, failed ? "warn" : undefined),
    tile("Model results", count(s.inferences), fallen ? `${fallen} of ${s.models.length} models on the lighter one` : `${s.models.length} models`, fallen ? "warn" : undefined),
    tile("MQTT clients", count(s.mqtt.connections), `${count(s.mqtt.sessions)} sessions, ${s.mqtt.engine} engine`));
  pairs($("reasons"), [
    ["dropped", words(s.dropped), any(s.dropped, "bad") ?? "good"], ["refused as invalid", words(s.invalid), any(s.invalid, "warn")],
    ["without effect", words(s.ignored)], ["rebirth requests", words(s.rebirths)], ["writes withheld", count(s.withheld)],
    ["windows without verdict", words(s.no_verdict)], ["broker dropped", words(s.mqtt.dropped), any(s.mqtt.dropped, "warn")],
    ["broker refused", words(s.mqtt.refused), any(s.mqtt.refused, "warn")],
    ["decision by stage, p50 / p99", s.decision_us.count ? Object.entries(s.decision_us.stages).map(([stage, q]) => `${stage} ${micros(q.p50)} / ${micros(q.p99)}`).join(", ") : "none yet"],
    ["two clients, one identity", count(s.duplicate_identities), s.duplicate_identities ? "bad" : undefined],
  ]);
  pairs($("identity"), [["gateway", s.gateway], ["version", s.version], ["configuration in force", `${s.config_hash.slice(0, 16)}, files read ${ago(s.configured.at)}`], ...reloaded(s.configured), ["running for", span(s.uptime_s)], ["its clock", new Date(now()).toISOString().slice(0, 19).replace("T", " ") + " UTC"]]);
  pairs($("certificates"), s.certificates.length ? s.certificates.map(certificate) : [["none", "no TLS is configured", "soft"]]);
  $("gateway").textContent = s.gateway;
  const badge = $("alarm-badge");
  badge.hidden = !s.alarms.unacknowledged;
  patch(badge, count(s.alarms.unacknowledged), el("span", { class: "sr" }, " to acknowledge"));
  document.title = `${s.alarms.unacknowledged ? `(${count(s.alarms.unacknowledged)}) ` : ""}${s.gateway} – sparkgate`;
}

// What the last reload changed, and what waits for a restart.
function reloaded({ mistakes, changed, restart }) {
  const list = (changes) => el("ul", {}, changes.slice(0, MOST_ROWS).map((c) => el("li", {}, `${c.key}: ${c.from ?? "nothing"} → ${c.to ?? "nothing"}`)));
  const keys = (changes, what) => `${count(changes.length)} ${what}${changes.length === 1 ? "" : "s"}`;
  const out = [];
  if (mistakes) out.push(["last reload", `refused, ${keys({ length: mistakes }, "mistake")}: see the log; what ran before stays in force`, "bad"]);
  if (changed.length) out.push(["last reload changed", el("details", {}, el("summary", {}, keys(changed, "change")), list(changed))]);
  if (restart.length) out.push(["waits for a restart", el("details", { open: true }, el("summary", {}, keys(restart, "key")), list(restart)), "warn"]);
  return out;
}

const DAY = 86400000; // ms

// Warns at 30 and at 7 days, as `docs/alerts.yml` does.
function certificate(c) {
  if (c.not_after === null) return [c.name, c.error, "bad"];
  const left = c.not_after - now();
  const day = new Date(c.not_after).toISOString().slice(0, 10);
  return [c.name, left < 0 ? `ended on ${day}` : `until ${day}, ${span(left / 1000)} left`, left < 7 * DAY ? "bad" : left < 30 * DAY ? "warn" : "good"];
}

// Everything that somebody far away needs to see what is wrong; no secrets.
export async function bundle() {
  const out = { saved: new Date().toISOString(), browser: navigator.userAgent };
  for (const part of ["status", "devices", "rules", "alarms", "models", "buffer", "commands", "audit", "traces", "log"]) {
    out[part] = await get(`/api/${part}`).catch((error) => ({ error: error.message }));
  }
  out.metrics = await text("/metrics").catch((error) => error.message);
  const url = URL.createObjectURL(new Blob([JSON.stringify(out, null, 1)], { type: "application/json" }));
  el("a", { href: url, download: `sparkgate-${out.status.gateway ?? "unknown"}-${out.saved.slice(0, 19).replaceAll(":", "")}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
  toast("support bundle: saved", "good");
}

// ---- alarms --------------------------------------------------------------------------------------------------------

const ORDER = ["unack", "latched-unack", "rtn-unack", "ack", "latched-ack", "shelved", "suppressed", "out-of-service", "normal"];
const WORDS = { unack: "active", "latched-unack": "latched", "rtn-unack": "over, not acknowledged", ack: "active, acknowledged", "latched-ack": "latched, acknowledged" };
const PRIORITY = ["critical", "high", "medium", "low", "diagnostic"];
const isOpen = (a) => a.state.includes("unack");

const operate = (a, what, action, body = {}) => act(`${what}: ${a.message}`, () => post(`/api/alarms/${encodeURIComponent(a.id)}/${action}`, body));
const noteField = { name: "note", label: "Note", input: () => el("input", { name: "note", type: "text", maxlength: 200, autocomplete: "off" }) };
const shelveField = { name: "for_ms", label: "For", input: () => el("select", { name: "for_ms" }, [[30, "30 minutes"], [60, "1 hour"], [240, "4 hours"], [480, "8 hours"]].map(([m, t]) => el("option", { value: m * 60000 }, t))) };

async function acknowledge(a) {
  const given = await ask("Acknowledge", `${a.message} (${nameOf(a)})`, "Acknowledge", [noteField]);
  if (given) await operate(a, "acknowledge", "ack", { note: given.note });
}

async function shelve(a) {
  const given = await ask("Shelve", `${a.message} (${nameOf(a)}). It is still evaluated, and comes back when the time is over.`, "Shelve", [shelveField, noteField]);
  if (given) await operate(a, "shelve", "shelve", { for_ms: Number(given.for_ms), note: given.note });
}

let family = null; // the one whose alarms are shown alone

function pick(name) {
  family = family === name ? null : name;
  alarms().catch((error) => toast(error.message, "bad"));
}

// A family is one cause seen by many devices: it is acknowledged as one.
async function acknowledgeAll(members) {
  const open = members.filter(isOpen);
  const given = await ask("Acknowledge a family", `${count(open.length)} alarms such as: ${open[0].message} (${nameOf(open[0])})`, `Acknowledge ${count(open.length)}`, [noteField]);
  if (!given) return;
  await act(`acknowledge ${count(open.length)} alarms`, async () => {
    for (const a of open) await post(`/api/alarms/${encodeURIComponent(a.id)}/ack`, { note: given.note });
    return {};
  });
}

// Alarms with one family, the largest first; a family of one says nothing.
function families(list) {
  const found = new Map();
  for (const a of list) if (a.family) found.has(a.family) ? found.get(a.family).push(a) : found.set(a.family, [a]);
  const many = [...found].filter(([, members]) => members.length > 1).sort(([, a], [, b]) => b.length - a.length).slice(0, MOST_ROWS);
  if (!many.some(([name]) => name === family)) family = null;
  $("families").hidden = !many.length;
  rows($("family-rows"), many.map(([name, members]) => {
    const [first, open] = [members[0], members.filter(isOpen).length];
    return el("tr", { key: name, "aria-selected": family === name ? "true" : null },
      el("td", {}, el("button", { class: "link", "aria-pressed": String(family === name), onclick: () => pick(name) }, first.message)),
      cell(count(members.length), "n"), cell(count(open), open ? "n bad" : "n"), cell(count(new Set(members.map(nameOf)).size), "n"),
      el("td", {}, el("span", { class: "acts" }, el("button", { "aria-label": `${family === name ? "Show all alarms" : `Show only: ${first.message}`}`, onclick: () => pick(name) }, family === name ? "Show all" : "Show only these"),
        open ? el("button", { "aria-label": `Acknowledge all: ${first.message}`, onclick: () => acknowledgeAll(members) }, "Acknowledge all…") : "")));
  }), 5, "");
  $("h-alarm-list").textContent = family === null ? "All alarms" : "Alarms of this family";
  return family === null ? list : found.get(family);
}

export async function alarms() {
  const all = await get("/api/alarms");
  const list = families(all);
  list.sort((a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || PRIORITY.indexOf(a.priority) - PRIORITY.indexOf(b.priority) || b.timestamp - a.timestamp);
  const open = all.filter(isOpen).length;
  patch($("alarm-count"), all.length ? `${count(all.length)} in all, ${count(open)} to acknowledge${list.length > MOST_ROWS ? `; the first ${MOST_ROWS} are shown` : ""}` : "");
  const button = (label, a, work) => el("button", { onclick: work, "aria-label": `${label}: ${a.message}, ${nameOf(a)}` }, label);
  rows($("alarm-rows"), list.slice(0, MOST_ROWS).map((a) => el("tr", { key: a.id },
    cell((WORDS[a.state] ?? a.state) + (a.stale ? ", source stale" : ""), a.state === "unack" || a.state === "latched-unack" ? "bad" : isOpen(a) ? "warn" : "soft"),
    cell(a.priority, PRIORITY.indexOf(a.priority) < 2 ? "strong" : undefined), cell(a.message), cell(nameOf(a)), cell(a.rule, "soft"), cell(ago(a.timestamp), "soft"), cell(a.by ?? "", "soft"),
    el("td", {}, el("span", { class: "acts" }, isOpen(a) ? button("Acknowledge", a, () => acknowledge(a)) : "",
      a.state === "shelved" ? button("Unshelve", a, () => operate(a, "unshelve", "unshelve"))
        : a.state === "suppressed" ? button("Unsuppress", a, () => operate(a, "unsuppress", "unsuppress")) : button("Shelve…", a, () => shelve(a)),
      a.state.startsWith("latched") ? button("Reset", a, () => operate(a, "reset", "reset")) : "")))), 8, "No alarm is active or waits for acknowledgement.");
}

// ---- rules ---------------------------------------------------------------------------------------------------------

let explained = null; // id of the rule whose plan is open

async function explain(id) {
  explained = explained === id ? null : id;
  await rules().catch((error) => toast(error.message, "bad"));
  if (explained) $("rule-plan").scrollIntoView({ block: "nearest" });
}

async function switchRule(r) {
  const what = r.enabled ? "disable" : "enable";
  const text = r.enabled ? "It decides and writes nothing until it is enabled again. Its state is kept." : "It decides again, and writes where it is live.";
  if (await ask(`${what} ${r.id}`, text, r.enabled ? "Disable" : "Enable")) await act(`${what} ${r.id}`, () => post(`/api/rules/${encodeURIComponent(r.id)}/${what}`, {}));
}

export async function rules() {
  const list = await get("/api/rules");
  rows($("rule-rows"), list.map((r) => el("tr", { key: r.id },
    el("td", {}, el("button", { class: "link", "aria-expanded": String(explained === r.id), "aria-controls": "rule-plan", onclick: () => explain(r.id) }, r.id)),
    cell(`${r.pack} ${r.version}`), cell(r.kind), cell(r.enabled ? (r.dry_run ? "dry run" : "live") : "disabled", r.enabled && !r.dry_run ? "good" : "warn"),
    cell(count(r.fires), "n"), cell(r.last_fire_ms ? ago(r.last_fire_ms) : "never", "soft"), cell(count(r.errors), r.errors ? "n warn" : "n"),
    el("td", {}, el("button", { "aria-label": `${r.enabled ? "Disable" : "Enable"} ${r.id}`, onclick: () => switchRule(r) }, r.enabled ? "Disable…" : "Enable…")))), 8, "No rule is loaded; [rules] paths or use_shipped names packs.");
  const plan = explained && await get(`/api/rules/${encodeURIComponent(explained)}`);
  $("rule-plan").hidden = !plan;
  if (plan) patch($("rule-plan"), plan.plan);
}

// ---- models, writes, buffer ----------------------------------------------------------------------------------------

export async function models() {
  const list = await get("/api/models");
  rows($("model-rows"), list.map((m) => el("tr", { key: m.model }, cell(`${m.model}${m.demonstration ? " (demonstration)" : ""}`), cell(m.version),
    // A text model loads on first use, and has no objective.
    m.kind === "text" && !m.error ? cell(m.backend ?? "not used yet") : cell(m.backend ?? "none", m.backend ? undefined : "bad"), cell(count(m.runs), "n"),
    cell(m.kind === "text" ? "–" : micros(m.p95_us), m.p95_us > m.objective_us ? "n bad" : "n"), cell(m.kind === "text" ? "–" : micros(m.objective_us), "n"),
    cell(m.fallback_active ? `runs ${m.lighter}` : m.lighter ?? "–", m.fallback_active ? "warn" : "soft"),
    el("td", {}, (m.passed_over ?? []).length ? el("details", {}, el("summary", {}, m.passed_over.map((p) => p.backend ?? p).join(", ")), el("ul", {}, m.passed_over.map((p) => el("li", {}, `${p.backend ?? p}: ${p.reason ?? ""}`)))) : "–"))), 8, "No model is configured.");
}

const OUTCOME = { confirmed: "good", sent: "soft", undone: "warn" };

// One row a write: its last step, and how long that took.
export async function commands() {
  const writes = new Map();
  for (const step of await get("/api/commands")) {
    const key = JSON.stringify([step.id, nameOf(step.target), step.metric]);
    writes.delete(key);
    writes.set(key, step);
  }
  const list = [...writes].reverse().slice(0, MOST_ROWS);
  rows($("command-rows"), list.map(([key, c]) => el("tr", { key }, cell(c.status, OUTCOME[c.status] ?? "bad"), cell(nameOf(c.target)), cell(c.metric),
    cell(`${c.previous === undefined ? "" : `${JSON.stringify(c.previous)} → `}${JSON.stringify(c.value)}`), cell(c.by), cell(c.status === "sent" ? "–" : micros(c.latency_us), "n"), cell(ago(c.timestamp), "soft"), cell(c.reason ?? ""))), 8, "Nothing was written yet.");
}

const VERBS = { ack: "acknowledged", "out-of-service": "taken out of service", "in-service": "put into service", enable_rule: "rule enabled", disable_rule: "rule disabled" };

export async function audit() {
  const list = (await get(`/api/audit?limit=${MOST_ROWS}`)).reverse();
  rows($("audit-rows"), list.map(({ seq, what, body = {} }) => {
    const verb = body.event ?? body.verb;
    const done = body.status ? `write ${body.status}` : VERBS[verb] ?? verb ?? what;
    const of = [body.target ? nameOf(body.target) : body.group ? nameOf(body) : "", body.metric ?? body.rule ?? body.model ?? ""].filter(Boolean).join(" ");
    const change = body.value === undefined ? "" : `${body.previous === undefined ? "" : `${JSON.stringify(body.previous)} → `}${JSON.stringify(body.value)}`;
    return el("tr", { key: String(seq) }, cell(count(seq), "n"), cell(ago(body.timestamp), "soft"), cell(body.by ?? ""), cell(done, OUTCOME[body.status] ?? (body.status ? "bad" : undefined)), cell(of), cell(change), cell(body.reason ?? body.note ?? body.message ?? ""));
  }), 7, "Nothing was written or done yet.");
}

// Reads the whole log on the gateway, which may take seconds.
export async function checkAudit() {
  $("audit-report").className = "soft";
  $("audit-report").textContent = "reading…";
  const report = await get("/api/audit/verify");
  $("audit-report").className = report.whole ? "good" : "bad";
  $("audit-report").textContent = report.whole ? `whole: ${count(report.entries)} entries` : `not whole: ${report.found.join("; ")}`;
}

export async function buffer() {
  const b = await get("/api/buffer");
  const lane = ({ pending, pending_bytes, oldest_pending_ms }) => (pending ? `${count(pending)} records wait (${size(pending_bytes)}), oldest ${lasting(oldest_pending_ms)}` : "nothing waits");
  const read = b.served_hot + b.served_warm;
  pairs($("buffer-pairs"), [["hot (memory)", `${size(b.hot_bytes)}, ${count(b.hot_records)} records`], ["warm (disk)", `${size(b.warm_bytes)} of ${size(b.warm_max_bytes)}, ${count(b.segments)} segments`],
    ["cold (object storage)", b.cold_objects ? `${count(b.cold_objects)} objects` : "not in use"],
    ["disk", b.disk_state + (b.stopped ? ` (${b.stopped})` : ""), b.disk_state === "ok" ? "good" : "bad"], ["data lane", lane(b.lanes.data)], ["alarms lane", lane(b.lanes.alarms)],
    ["oldest record kept", ago(b.oldest_ms)], ["not yet on disk", size(b.unsynced_bytes)], ["written a byte received", b.bytes_in ? (b.bytes_written / b.bytes_in).toFixed(2) : "–"],
    ["last fsync", b.fsyncs ? `${micros(b.last_fsync_us)}, ${count(b.fsyncs)} in all` : "–", b.fsync_in_flight_ms > 1000 ? "warn" : undefined],
    ["bridge read from memory", read ? `${((b.served_hot / read) * 100).toFixed(1)} %` : "–"]]);
}

// ---- log -----------------------------------------------------------------------------------------------------------

const LEVEL = { ERROR: "bad", WARN: "warn" };

export async function log() {
  const [lines, traces] = await Promise.all([get("/api/log"), get("/api/traces")]);
  const wanted = lines.filter((l) => !$("log-warnings").checked || LEVEL[l.level]).reverse().slice(0, MOST_ROWS);
  rows($("log-rows"), wanted.map((l) => el("tr", {}, cell(ago(l.time), "soft"), cell(l.level.toLowerCase(), LEVEL[l.level] ?? "soft"), cell(l.text))), 3, "Nothing was logged.");
  rows($("trace-rows"), traces.reverse().slice(0, 50).map((t) => el("tr", { key: String(t.number) }, cell(ago(t.start_us / 1000), "soft"), cell(t.topic), cell(micros(t.decided_us), "n"), cell(micros(t.written_us), "n"))), 4, "No rule has written yet.");
}
