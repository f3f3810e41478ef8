// Requests to the gateway. Reading needs nothing; changing something needs the token.

import { $, toast } from "./dom.js";

const LONGEST = 30000; // ms that an answer may take; a write waits for its confirmation

async function answerOf(path, options = {}) {
  const answer = await fetch(path, { ...options, signal: AbortSignal.timeout(LONGEST) });
  if (answer.ok) return answer;
  if (answer.status === 401) throw new Error($("token").value ? "the gateway does not know this token" : "a token is needed; enter it here");
  const told = (await answer.json().catch(() => ({}))).error;
  throw new Error(told || `${answer.status} ${answer.statusText}`);
}

export const get = async (path) => (await answerOf(path)).json();
export const text = async (path) => (await answerOf(path)).text();

// `body` is an object, or JSON text where a number must not pass through a double.
export async function post(path, body) {
  const headers = { "content-type": "application/json" };
  const token = $("token").value.trim();
  if (token) headers.authorization = `Bearer ${token}`;
  return (await answerOf(path, { method: "POST", headers, body: typeof body === "string" ? body : JSON.stringify(body) })).json();
}

const FINE = new Set([undefined, "confirmed", "requested"]);
let after = () => {};
export const afterwards = (work) => { after = work; };

// Carries something out and says what came of it.
export async function act(what, work) {
  toast(`${what} …`, "soft");
  try {
    const { status, state, reason } = await work();
    toast(`${what}: ${status ?? state ?? "done"}${reason ? ` (${reason})` : ""}`, FINE.has(status) ? "good" : "bad");
  } catch (error) {
    toast(`${what}: ${error.message}`, "bad");
    if (/token/i.test(error.message)) $("token").focus();
  }
  after();
}

export const partsOf = (d) => [d.group, d.node, d.device].filter((x) => x !== undefined && x !== null);
export const nameOf = (d) => d.group === null ? "gateway" : partsOf(d).join("/"); // an alarm of the gateway itself
export const pathOf = (d) => partsOf(d).map(encodeURIComponent).join("/");
