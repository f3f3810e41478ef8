// Building and updating the document, and putting numbers into words. Nothing here knows the gateway.

export const $ = (id) => document.getElementById(id);

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "path", "line"]);

// An element with properties, event handlers (`onclick`) and children. Handlers are properties and not listeners, so
// that `patch` can carry them over.
export function el(tag, props = {}, ...children) {
  const node = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node[key] = value;
    else node.setAttribute(key === "key" ? "data-key" : key, value === true ? "" : value);
  }
  node.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

const HANDLERS = ["onclick", "onkeydown", "onsubmit", "onchange", "oninput"];

// Makes the children of `parent` look like `wanted` and touches only what differs. Focus, selection, scroll positions
// and half-typed input survive, and a click that began before an update still ends on the element it began on.
// Children with a `data-key` are matched by it, others by their place.
export function patch(parent, ...wanted) {
  const nodes = wanted.flat(2).filter((child) => child !== null && child !== undefined && child !== "")
    .map((child) => (child instanceof Node ? child : document.createTextNode(child)));
  const keyed = new Map();
  for (const child of parent.children) if (child.dataset.key !== undefined) keyed.set(child.dataset.key, child);
  const focused = document.activeElement;
  let here = parent.firstChild;
  for (const node of nodes) {
    const key = node.dataset?.key;
    let known = key === undefined ? here : keyed.get(key);
    if (key === undefined) while (known?.dataset?.key !== undefined) known = known.nextSibling;
    if (known && known.nodeName === node.nodeName) {
      if (known !== here) parent.insertBefore(known, here);
      adopt(known, node);
      here = known.nextSibling;
    } else {
      parent.insertBefore(node, here);
    }
  }
  while (here) {
    const next = here.nextSibling;
    here.remove();
    here = next;
  }
  if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
}

function adopt(known, node) {
  if (known.nodeType !== Node.ELEMENT_NODE) {
    if (known.nodeValue !== node.nodeValue) known.nodeValue = node.nodeValue;
    return;
  }
  for (const { name } of [...known.attributes]) if (!node.hasAttribute(name) && name !== "style") known.removeAttribute(name);
  for (const { name, value } of node.attributes) if (known.getAttribute(name) !== value) known.setAttribute(name, value);
  for (const handler of HANDLERS) if (known[handler] !== node[handler]) known[handler] = node[handler];
  patch(known, ...node.childNodes);
}

export const cell = (text, kind) => el("td", { class: kind }, text === null || text === undefined ? "–" : String(text));

// A table body's rows, or one row that says why there are none. On a phone a row is a card, and each cell says by
// itself what it is.
export function rows(body, list, columns, empty) {
  const heads = [...(body.parentElement?.tHead?.rows[0].cells ?? [])].map((th) => th.textContent);
  for (const row of list) heads.forEach((head, i) => row.cells[i]?.setAttribute("data-label", head));
  patch(body, list.length ? list : el("tr", {}, el("td", { colspan: columns, class: "hint" }, empty)));
}

export function pairs(list, entries) {
  patch(list, entries.map(([name, value, kind]) => [el("dt", {}, name), el("dd", { class: kind }, value)]));
}

// Asks before something is done. `fields` are labelled inputs; resolves to their values by name, or to null.
export function ask(title, text, button, fields = []) {
  const dialog = $("dialog");
  patch($("dialog-body"), el("h2", { id: "dialog-title" }, title), el("p", {}, text), fields.map((f) => el("p", { key: f.name }, el("label", {}, f.label, " ", f.input()))));
  $("dialog-yes").textContent = button;
  dialog.returnValue = "";
  dialog.showModal();
  ($("dialog-body").querySelector("input, select") ?? $("dialog-yes")).focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      const given = Object.fromEntries(fields.map((f) => [f.name, $("dialog-body").querySelector(`[name="${f.name}"]`).value]));
      patch($("dialog-body"));
      resolve(dialog.returnValue === "yes" ? given : null);
    }, { once: true });
  });
}

export function toast(text, kind) {
  $("toast").textContent = text;
  $("toast").className = kind;
}

// ---- words ---------------------------------------------------------------------------------------------------------

export const count = (n) => (n ?? 0).toLocaleString("en");

export function size(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) { n /= 1024; i += 1; }
  return `${i ? n.toFixed(1) : n} ${units[i]}`;
}

export function span(s) {
  if (s === null || s === undefined) return "–";
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export function micros(us) {
  if (us === null || us === undefined) return "–";
  return us < 1000 ? `${Math.round(us)} µs` : us < 1e6 ? `${(us / 1000).toFixed(us < 1e4 ? 1 : 0)} ms` : `${(us / 1e6).toFixed(1)} s`;
}

// Ages are told by the gateway's clock: a phone's may be minutes off.
let skew = 0;
export const setNow = (ms) => { skew = ms - Date.now(); };
export const now = () => Date.now() + skew;
export const lasting = (ms) => (ms ? span(Math.max(0, (now() - ms) / 1000)) : "–");
export const ago = (ms) => (ms ? `${lasting(ms)} ago` : "–");

// A measured value as people read it: six digits of a fraction, the full text of everything else.
export function shown(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number" && !Number.isInteger(value)) return String(Number(value.toPrecision(6)));
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
