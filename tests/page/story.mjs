// The operator's page, driven as a person would. usage: node story.mjs URL TOKEN CHROMIUM OUT-FOLDER
import { chromium } from "playwright-core";
const [url, token, executablePath, out] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
let failed = 0;
async function step(name, work) {
  try { const said = await work(); console.log(`ok      ${name}${said ? `: ${said}` : ""}`); }
  catch (error) { failed = 1; console.log(`FAILED  ${name}: ${error.message.split("\n")[0]}`); }
}
const must = (truth, what) => { if (!truth) throw new Error(what); };
const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
const complaints = [];
page.on("console", (m) => m.type() === "error" && complaints.push(m.text()));
page.on("pageerror", (e) => complaints.push(e.message));
const foreign = [];
page.on("request", (r) => r.url().startsWith(url) || r.url().startsWith("data:") || foreign.push(r.url()));
await page.goto(url);
await step("overview is live", async () => { await page.getByText("live", { exact: true }).waitFor(); await page.getByText("Devices online").waitFor(); });
await page.screenshot({ path: `${out}/overview.png` });
const all = (await (await fetch(`${url}/api/devices`)).json());
await step("tree", async () => {
  await page.locator("nav").getByText("Devices").click();
  await page.getByRole("treeitem").first().waitFor();
  return `${all.length} nodes and devices, ${await page.getByRole("treeitem").count()} rows in the document`;
});
await step("the tree answers while thousands of devices report", async () => {
  // The longest time in which the page's thread did nothing else.
  const longest = await page.evaluate(() => new Promise((done) => {
    let last = performance.now(), longest = 0;
    const end = last + 8000;
    const box = document.getElementById("device-tree");
    const frame = () => {
      const now = performance.now();
      longest = Math.max(longest, now - last);
      last = now;
      box.scrollTop = (box.scrollTop + 400) % Math.max(1, box.scrollHeight);
      if (now < end) requestAnimationFrame(frame); else done(longest);
    };
    requestAnimationFrame(frame);
  }));
  must(longest < 2000, `${Math.round(longest)} ms without a frame`);
  return `longest pause ${Math.round(longest)} ms`;
});
const device = all.find((d) => d.device && d.online);
await step("find and choose by keyboard", async () => {
  await page.getByLabel("Find").fill(`${device.group}/${device.node}/${device.device}`);
  await page.locator("#device-tree").focus();
  await page.keyboard.press("End");
  await page.keyboard.press("Enter");
  await page.locator("#device-detail table").first().waitFor();
});
await step("values change by themselves", async () => {
  const text = () => page.locator("#device-detail table").first().innerText();
  const before = await text();
  await page.waitForFunction((before) => document.querySelector("#device-detail table").innerText !== before, before, { timeout: 15000 });
});
await step("a trend from history", async () => { await page.locator("#device-detail").getByRole("button", { name: "Temperature", exact: true }).click(); await page.locator("#device-detail svg path").first().waitFor({ timeout: 15000 }); });
await page.waitForTimeout(4000);
await page.screenshot({ path: `${out}/device.png` });
await page.getByLabel("Token for writes").fill(token);
await step("write with confirmation", async () => {
  await page.getByRole("button", { name: "Write Cooling/Enable" }).click();
  await page.locator("#dialog-yes").waitFor();
  await page.screenshot({ path: `${out}/write.png` });
  const field = page.locator("#dialog-body input, #dialog-body select").first();
  if ((await field.evaluate((f) => f.tagName)) === "SELECT") await field.selectOption("true");
  else if ((await field.getAttribute("type")) === "checkbox") await field.check();
  else await field.fill("true");
  await page.locator("#dialog-yes").click();
  await page.waitForFunction(() => /: (confirmed|timeout|rejected|undone|expired)/.test(document.getElementById("toast").textContent), null, { timeout: 30000 });
  const said = await page.locator("#toast").innerText();
  must(/: confirmed/.test(said), said);
  return said;
});
await step("alarms: acknowledge and shelve", async () => {
  await page.locator("nav").getByText("Alarms").click();
  await page.locator("#alarm-rows").getByRole("button", { name: /^Acknowledge/ }).first().waitFor({ timeout: 60000 });
  await page.screenshot({ path: `${out}/alarms.png` });
  const open = await page.locator("#alarm-rows").getByRole("button", { name: /^Acknowledge/ }).first().getAttribute("aria-label");
  await page.locator("#alarm-rows").getByRole("button", { name: /^Acknowledge/ }).first().click();
  await page.locator("#dialog input").fill("seen");
  await page.locator("#dialog-yes").click();
  await page.waitForFunction(() => /^acknowledge.*: (ack|normal|latched-ack|shelved)/.test(document.getElementById("toast").textContent), null, { timeout: 10000 });
  await page.locator("#alarm-rows").getByRole("button", { name: /^Shelve/ }).first().click();
  await page.locator("#dialog-yes").click();
  await page.waitForFunction(() => /^shelve.*: shelved/.test(document.getElementById("toast").textContent), null, { timeout: 10000 });
  return open;
});
await step("rules show their plan", async () => {
  await page.locator("nav").getByText("Rules").click();
  await page.locator("#rule-rows button").first().click();
  await page.locator("#rule-plan").waitFor();
});
for (const view of ["models", "commands", "buffer", "log"]) {
  await step(view, async () => { await page.goto(`${url}/#${view}`); await page.locator(`#view-${view} h2`).waitFor(); await page.waitForTimeout(1500); await page.screenshot({ path: `${out}/${view}.png` }); });
}
await step("a support bundle", async () => {
  await page.goto(`${url}/#overview`);
  const [download] = await Promise.all([page.waitForEvent("download"), page.locator("#bundle").click()]);
  const { readFileSync } = await import("node:fs");
  const bundle = JSON.parse(readFileSync(await download.path()));
  must(bundle.log.length > 0 && bundle.status.version && !JSON.stringify(bundle).includes(token), "incomplete, or holds the token");
  return `${Object.keys(bundle).join(" ")}`;
});
await step("nothing from elsewhere, no complaint", async () => must(!foreign.length && !complaints.length, [...foreign, ...complaints].join("; ")));
const dark = await browser.newPage({ viewport: { width: 1280, height: 800 }, colorScheme: "dark" });
await step("dark", async () => { await dark.goto(url); await dark.getByText("Devices online").waitFor(); const c = await dark.evaluate(() => getComputedStyle(document.body).backgroundColor); await dark.screenshot({ path: `${out}/dark.png` }); return c; });
const phone = await browser.newPage({ viewport: { width: 360, height: 740 } });
await step("phone width", async () => {
  for (const view of ["overview", "devices", "alarms", "rules", "models", "commands", "buffer", "log"]) {
    await phone.goto(`${url}/#${view}`); await phone.waitForTimeout(700);
    const over = await phone.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    must(over <= 0, `${view} is ${over} px too wide`);
  }
  await phone.goto(`${url}/#alarms`); await phone.waitForTimeout(1000); await phone.screenshot({ path: `${out}/phone.png` });
});
await browser.close();
process.exit(failed);
