// Drives the operator's page in headless Chromium against a running gateway with a token and a fleet, and fails on
// the first thing an operator could not do. `run.sh` beside it starts all of that.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { chromium } from "playwright-core";

const [url, tokenFile, shots, reload] = process.argv.slice(2);
assert(url && tokenFile, "usage: node drive.mjs http://127.0.0.1:8780 TOKEN_FILE [FOLDER_FOR_SCREENSHOTS] [COMMAND_THAT_RELOADS_ANOTHER_CONFIGURATION]");
const token = readFileSync(tokenFile, "utf8").trim();

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
const faults = []; // what the console or an exception says
const allowed = (text) => text.includes("401 (Unauthorized)");

async function open(hash, options = {}, before = async () => {}) {
  const page = await (await browser.newContext({ viewport: { width: 1200, height: 900 }, ...options })).newPage();
  page.on("console", (m) => { if (["error", "warning"].includes(m.type()) && !allowed(m.text())) faults.push(m.text()); });
  page.on("pageerror", (error) => faults.push(error.stack));
  await before(page);
  await page.goto(`${url}/${hash}`);
  return page;
}
const shot = async (page, name) => shots && page.screenshot({ path: `${shots}/${name}.png` });
const told = (page, pattern) => page.waitForFunction((p) => new RegExp(p).test(document.getElementById("toast").textContent), pattern, { timeout: 20000 });
const step = async (name, work) => { await work(); console.log(`ok  ${name}`); };

const page = await open("");
await step("every view shows live data", async () => {
  await page.waitForSelector(".tile b");
  for (const view of ["devices", "alarms", "rules", "commands", "audit", "buffer", "log", "models", "overview"]) {
    await page.click(`nav a[href="#${view}"]`);
    await page.waitForFunction((v) => document.querySelector(`#view-${v} :is(.tile, tbody tr, dd, .row)`), view);
  }
});
await step("the tree is worked by keys, a device shows live values and a trend", async () => {
  await page.click('nav a[href="#devices"]');
  await page.waitForSelector(".row.level-3");
  await page.focus("#device-tree");
  for (const key of ["Home", "ArrowDown", "ArrowDown", "Enter"]) await page.keyboard.press(key);
  await page.getByRole("button", { name: "Temperature", exact: true }).click();
  const value = () => page.locator('#device-detail tr[data-key="Temperature"] td').nth(1).textContent();
  const first = await value();
  await page.waitForFunction((was) => document.querySelector('#device-detail tr[data-key="Temperature"] td:nth-child(2)').textContent !== was, first, { timeout: 20000 });
  await page.waitForSelector("svg.trend path", { timeout: 30000 });
  await shot(page, "devices");
});
await step("a change without a token is refused and says what is needed", async () => {
  await page.locator('[data-key="Cooling/Enable"] button', { hasText: "Write" }).click();
  await page.click("#dialog-yes");
  await told(page, "a token is needed");
});
await step("a write asks, and tells the device's confirmation", async () => {
  await page.fill("#token", token);
  await page.locator('[data-key="Cooling/Enable"] button', { hasText: "Write" }).click();
  await page.click("#dialog-yes");
  await told(page, "write Cooling/Enable.*confirmed");
});
await step("a value of the wrong type never leaves", async () => {
  await page.locator('[data-key="Temperature"] button', { hasText: "Write" }).click();
  await page.fill("#dialog input", "hot");
  await page.keyboard.press("Enter");
  await told(page, "takes a number");
});
await step("alarms are acknowledged and shelved", async () => {
  await page.click('nav a[href="#alarms"]');
  await page.getByRole("button", { name: /^Acknowledge: / }).first().click({ timeout: 60000 });
  await page.fill('#dialog input[name="note"]', "seen");
  await page.keyboard.press("Enter");
  await told(page, "acknowledge: .*: (ack|latched-ack|normal)$");
  await page.getByRole("button", { name: /^Shelve/ }).first().click({ timeout: 60000 });
  await page.click("#dialog-yes");
  await told(page, "shelve: .*: shelved$");
  await page.getByRole("button", { name: /^Unshelve/ }).first().click();
  await told(page, "unshelve: .*: (?!$)");
});
await step("a family of alarms is shown alone, and acknowledged as one", async () => {
  // Without a text model there are no families: the answer of one is given.
  const alarm = (i, family, message) => ({ id: `a${i}`, rule: "overheat", version: "1", group: "plantA", node: "edge-1", device: `press-${i}`, state: "unack", priority: "high", message, timestamp: Date.now() - i * 1000, stale: false, active: true, by: null, note: null, values: {}, family, neighbours: [] });
  const flood = [...Array.from({ length: 40 }, (_, i) => alarm(i, "f1", `press-${i} overheated: 9${i % 10} °C`)), ...Array.from({ length: 3 }, (_, i) => alarm(50 + i, "f2", "bearing noise")), alarm(60, null, "no pressure value")];
  const acknowledged = [];
  const other = await open("#alarms", {}, async (p) => {
    await p.route("**/api/alarms", (route) => route.fulfill({ json: flood }));
    await p.route("**/api/alarms/*/ack", (route) => { acknowledged.push(route.request().url().split("/").at(-2)); return route.fulfill({ json: { state: "ack" } }); });
  });
  await other.waitForFunction(() => document.querySelectorAll("#family-rows tr").length === 2);
  assert.match(await other.locator("#family-rows tr").first().textContent(), /overheated.*40.*40.*40/);
  await shot(other, "families");
  await other.getByRole("button", { name: /^Show only: bearing noise/ }).click();
  await other.waitForFunction(() => document.querySelectorAll("#alarm-rows tr").length === 3);
  await other.getByRole("button", { name: /^Show all/ }).click();
  await other.waitForFunction(() => document.querySelectorAll("#alarm-rows tr").length === 44);
  await other.getByRole("button", { name: /^Acknowledge all: bearing noise/ }).click();
  await other.click("#dialog-yes");
  await told(other, "acknowledge 3 alarms: done");
  assert.deepEqual(acknowledged, ["a50", "a51", "a52"]);
  await other.close();
});
await step("the audit log names who did what, and its chain is whole", async () => {
  await page.click('nav a[href="#audit"]');
  await page.waitForFunction(() => /anna.*acknowledged/.test([...document.querySelectorAll("#audit-rows tr")].map((row) => row.textContent).join(" ")), null, { timeout: 20000 });
  await page.click("#audit-check");
  await page.waitForFunction(() => /^whole: \d/.test(document.getElementById("audit-report").textContent), null, { timeout: 20000 });
  await shot(page, "audit");
});
if (reload) await step("a reload tells what it changed and what waits for a restart", async () => {
  execFileSync("bash", ["-c", reload], { stdio: "inherit" });
  await page.click('nav a[href="#overview"]');
  await page.waitForFunction(() => /waits for a restart.*buffer.hot.ttl/s.test(document.getElementById("identity").textContent), null, { timeout: 30000 });
  assert.match(await page.locator("#identity").textContent(), /last reload changed.*writes.max_per_second: 20 → 21/s);
  await shot(page, "overview");
});
await step("Escape leaves everything as it was", async () => {
  await page.click('nav a[href="#alarms"]');
  await page.getByRole("button", { name: /^Shelve/ }).first().click({ timeout: 60000 });
  await page.keyboard.press("Escape");
  assert.equal(await page.evaluate(() => document.getElementById("dialog").open), false);
});
await step("dark", async () => {
  const dark = await open("", { colorScheme: "dark" });
  await dark.waitForSelector(".tile b");
  const ground = await dark.evaluate(() => getComputedStyle(document.body).backgroundColor);
  assert(ground.match(/\d+/g).every((part) => Number(part) < 64), ground);
  await shot(dark, "dark");
});
await step("nothing is wider than a phone", async () => {
  const phone = await open("", { viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true });
  for (const view of ["overview", "devices", "alarms", "rules", "models", "commands", "audit", "buffer", "log"]) {
    await phone.tap(`nav a[href="#${view}"]`);
    await phone.waitForFunction((v) => document.querySelector(`#view-${v} :is(.tile, tbody tr, dd, .row)`), view);
    assert.equal(await phone.evaluate(() => document.documentElement.scrollWidth), 390, view);
    await shot(phone, `phone-${view}`);
  }
});
await step("5,000 devices: few elements, no freeze", async () => {
  const fleet = [];
  for (let n = 0; n < 500; n += 1) {
    const node = { group: `plant${n % 7}`, node: `edge-${n}`, online: true, since: Date.now(), births: 1, deaths: 0, stale_metrics: 0 };
    fleet.push(node);
    for (let d = 0; d < 9; d += 1) fleet.push({ ...node, device: `press-${d}`, online: (n + d) % 50 !== 0 });
  }
  const many = await open("#devices", {}, (p) => p.route("**/api/devices", (route) => route.fulfill({ json: fleet })));
  await many.waitForFunction(() => document.getElementById("device-count").textContent === "5,000 of 5,000");
  await many.fill("#device-filter", "press"); // opens every node
  assert((await many.locator(".row").count()) < 100);
  const worst = await many.evaluate(() => new Promise((done) => {
    const box = document.getElementById("device-tree");
    let [last, slowest, frames] = [performance.now(), 0, 0];
    const frame = (t) => {
      slowest = Math.max(slowest, t - last);
      last = t;
      box.scrollTop += 900;
      frames += 1;
      if (frames < 150) requestAnimationFrame(frame); else done(slowest);
    };
    requestAnimationFrame(frame);
  }));
  console.log(`    slowest frame while scrolling: ${worst.toFixed(0)} ms`);
  assert(worst < 1000);
});
assert.deepEqual(faults, []);
console.log("ok  nothing in the console, no policy violated");
await browser.close();
