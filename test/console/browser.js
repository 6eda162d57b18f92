/*
 * A browser that uses the console as an operator does: browser.js STEPS
 *
 * Each check is a line "ok ..." or "not ok ...".  540_console starts it, and says in the environment
 * where the console, the receiver's journal and the server are.
 */
"use strict";

const { chromium } = require("playwright-core");
const { execFileSync } = require("node:child_process");
const fs = require("node:fs");

const BASE = process.env.CONSOLE;
const LIMIT = 1000 * (process.env.PG_TEST_TIMEOUT_DEFAULT || 60);

function check(good, what, got) {
  console.log((good ? "ok " : "not ok ") + what);
  if (!good && got !== undefined) console.log("  it is: " + String(got).slice(0, 600));
}

function sql(text) {
  return execFileSync(process.env.PSQL, ["-XAtq", "-v", "ON_ERROR_STOP=1", "-c", text], { encoding: "utf8" }).trim();
}

/* The requests that the receiver has taken, of an event if one is given. */
function arrived(event) {
  return fs.readFileSync(process.env.JOURNAL, "utf8").split("\n").filter(l => l).map(l => JSON.parse(l))
    .filter(r => r.answer === undefined && (!event || r.id === event));
}

/* Waits for a condition, and never for a time. */
async function until(condition, what) {
  const end = Date.now() + LIMIT;
  for (;;) {
    let value;
    try { value = await condition(); } catch (error) { value = false; }
    if (value || Date.now() > end) { check(Boolean(value), what); return value; }
    await new Promise(done => setTimeout(done, 50));
  }
}

/* What a reader sees of the page. */
function text(page) {
  return page.locator("body").innerText();
}

/* Follows a button to the page that asks, looks at what it says, and agrees. */
async function ask(page, button, says, agree) {
  await page.getByRole("link", { name: button, exact: true }).first().click();
  const said = await page.locator("main").innerText();
  check(says.test(said), `"${button}" says first: ${says.source}`, said);
  await page.getByRole("button", { name: agree, exact: true }).click();
}

const steps = {
  /* A click stops the receiver's requests, another lets them come. */
  async pause(page) {
    await page.goto(BASE);
    check(/All is well/.test(await text(page)), "the overview says that all is well", await text(page));
    await page.getByRole("link", { name: "billing" }).click();
    await ask(page, "Pause", /Nothing more is sent to billing/, "Pause");
    check(/billing is paused/.test(await text(page)), "the page says that it is paused", await text(page));
    await until(() => sql("SELECT state = 'paused' AND processing = 0 FROM outbox.stats") === "t", "it is paused in the database");
    check(sql("SELECT actor FROM outbox.endpoint_audit WHERE action = 'pause'") === "local", "the audit has the operator's name");
    const event = sql("SELECT outbox.emit('order.created', '{\"order\": 1}', key => 'k')");
    await until(() => sql("SELECT pending FROM outbox.stats") === "1", "an event waits");
    check(arrived(event).length === 0, "the receiver has not got it");
    await page.waitForFunction(() => /Waiting\s*1/.test(document.body.innerText), null, { timeout: LIMIT });
    check(true, "the page shows it by itself");
    await ask(page, "Resume", /begins again/, "Resume");
    await until(() => arrived(event).length === 1, "the receiver's journal has the event once it is resumed");
  },
};

(async () => {
  const browser = await chromium.launch({ executablePath: process.env.BROWSER, args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"] });
  try {
    for (const name of process.argv.slice(2)) {
      const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, timezoneId: "Europe/Berlin", locale: "en-GB" });
      context.setDefaultTimeout(LIMIT);
      const page = await context.newPage();
      const errors = [];
      page.on("pageerror", e => errors.push(e.message));
      page.on("console", m => { if (/Content Security Policy|Uncaught/.test(m.text())) errors.push(m.text()); });
      await steps[name](page, context, browser);
      check(errors.length === 0, "no script failed, and nothing broke the policy", errors.join("; "));
      await context.close();
    }
  } finally {
    await browser.close();
  }
})().catch(error => { console.log("not ok no exception\n" + error.stack); process.exitCode = 1; });
