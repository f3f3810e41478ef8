// The operator's page: views, live events, refreshing. No framework: each view is a function from the gateway's answer
// to the document, and `patch` changes what differs.

import { afterwards, get } from "./api.js";
import { live, onPick, picked, refreshDevices, startDevices } from "./devices.js";
import { $, setNow, toast } from "./dom.js";
import * as views from "./views.js";

const PERIOD = 3000; // ms between two readings of a view
const DEVICES_A_SECOND = 250; // of a listing, on average: 5,000 devices are read every 20 s

let view = "overview";

const readers = {
  overview: null, // comes by events
  devices: refreshDevices, alarms: views.alarms, rules: views.rules, models: views.models, commands: views.commands, audit: views.audit, buffer: views.buffer, log: views.log,
};

// ---- refreshing ----------------------------------------------------------------------------------------------------

let next = null; // timer of the next reading
let reading = false;
let again = false; // something changed while a reading was under way
let trouble = false; // the last reading failed

async function refresh() {
  clearTimeout(next);
  if (reading) { again = true; return; }
  reading = true;
  let pause = PERIOD;
  try {
    const listed = document.hidden ? 0 : await readers[view]?.();
    pause = Math.max(PERIOD, ((listed ?? 0) / DEVICES_A_SECOND) * 1000);
    if (trouble) toast("", "");
    trouble = false;
  } catch (error) {
    toast(`${view}: ${error.message}`, "bad");
    trouble = true;
  }
  reading = false;
  if (again) { again = false; pause = 0; }
  next = setTimeout(refresh, pause);
}

let waiting = null;
// Many alarms in a second cost one reading.
function soon() {
  waiting ??= setTimeout(() => { waiting = null; if (["alarms", "commands", "audit"].includes(view)) refresh(); }, 500);
}

function show() {
  const wanted = location.hash.slice(1);
  view = wanted in readers ? wanted : "overview";
  for (const section of document.querySelectorAll("main > section")) section.hidden = section.id !== `view-${view}`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  refresh();
}

// ---- live ----------------------------------------------------------------------------------------------------------

let events = null;

function status(s) {
  setNow(s.time ?? Date.now());
  views.overview(s);
}

function connection(text, lost) {
  if ($("link").textContent !== text) $("link").textContent = text;
  $("link").className = lost ? "bad" : "good";
  document.body.classList.toggle("lost", lost);
}

// One stream a page; it names the picked device, so that only that one's values travel.
function listen() {
  events?.close();
  const device = picked();
  events = new EventSource(device ? `/api/events?${new URLSearchParams({ device })}` : "/api/events");
  const own = events;
  events.addEventListener("open", () => connection("live", false));
  events.addEventListener("error", () => {
    connection("no connection: what you see is old, trying again…", true);
    // A browser gives up for good on an answer that is no stream, such as a proxy's error.
    if (own.readyState === EventSource.CLOSED) setTimeout(() => { if (events === own) listen(); }, 3000);
  });
  events.addEventListener("status", (e) => status(JSON.parse(e.data)));
  events.addEventListener("data", (e) => live(JSON.parse(e.data)));
  for (const kind of ["alarm", "command"]) events.addEventListener(kind, soon);
}

startDevices();
onPick(listen);
afterwards(refresh);
$("bundle").addEventListener("click", () => views.bundle().catch((error) => toast(`support bundle: ${error.message}`, "bad")));
$("audit-check").addEventListener("click", () => views.checkAudit().catch((error) => toast(`audit: ${error.message}`, "bad")));
$("log-warnings").addEventListener("change", refresh);
window.addEventListener("hashchange", () => { show(); $("main").focus({ preventScroll: true }); window.scrollTo(0, 0); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
get("/api/status").then(status).catch(() => {});
listen();
show();
