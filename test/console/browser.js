/*
 * A browser that uses the console as an operator does: browser.js STEPS
 *
 * Each check is a line "ok ..." or "not ok ...".  console/browser_actions starts it, and says in the environment
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

/* The requests that the receiver has got, of an event and at a path if they are given. */
function arrived(event, path) {
  return fs.readFileSync(process.env.JOURNAL, "utf8").split("\n").filter(l => l).map(l => JSON.parse(l))
    .filter(r => r.answer === undefined && (!event || r.id === event) && (!path || r.path.startsWith(path)));
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

/* Has the receiver answer a path as it is told from now on. */
async function behave(path, how) {
  const answer = await fetch(`${process.env.RECEIVER}/control?path=${path}&behave=${encodeURIComponent(how)}`, { method: "POST" });
  if (!answer.ok) throw new Error(`the receiver: ${answer.status}`);
}

function emit(topic, payload, more = "") {
  return sql(`SELECT outbox.emit('${topic}', '${JSON.stringify(payload)}'${more})`);
}

function stat(endpoint, columns) {
  return sql(`SELECT ${columns} FROM outbox.stats WHERE endpoint = '${endpoint}'`);
}

/* What the page says, once it is so. */
async function shows(page, pattern, what) {
  await page.waitForFunction(source => document.body && new RegExp(source).test(document.body.innerText), pattern.source).catch(() => 0);
  const said = await text(page);
  check(pattern.test(said), what || `the page says ${pattern.source}`, said);
}

function server(...words) {
  execFileSync(process.env.PG_CTL, ["-s", "-w", "-D", process.env.DATA, ...words], { stdio: "ignore" });
}

const SCREENS = ["/", "/endpoints", "/endpoint/crm", "/search", "/search?q=customer-1", "/dead", "/tenants", "/tenant?name=acme", "/system",
  "/catalogue", "/do/replay?endpoint=crm", "/do/alter?endpoint=crm", "/do/drop?endpoint=crm", "/event/EVENT", "/delivery/crm/EVENT", "/endpoint/nowhere"];
const PICTURES = { "/": "overview", "/endpoint/crm": "endpoint", "/delivery/crm/EVENT": "delivery", "/dead": "dead", "/search?q=customer-1": "search" };
const VIEWS = [["light", 1120], ["dark", 1120], ["light", 360], ["dark", 360], ["light", 1600]];

const steps = {
  /* Each screen in light and dark, on a phone and on a wide screen: no violation of axe, nothing beside the page. */
  async looks(_, __, browser) {
    const axe = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
    await until(async () => (await (await fetch(BASE)).text()).split('class="chart"').length === 6, "the overview has five charts of the last hours");
    const event = sql("SELECT event_id FROM outbox.dead_letters WHERE endpoint = 'crm' ORDER BY seq LIMIT 1");
    for (const [colorScheme, width] of VIEWS) {
      const context = await browser.newContext({ viewport: { width, height: width < 500 ? 780 : 700 }, colorScheme, locale: "en-GB", timezoneId: "Europe/Berlin" });
      const page = await context.newPage();
      const wrong = [];
      for (const screen of SCREENS) {
        await page.goto(BASE + screen.replace("EVENT", event));
        /* The other views have no colours and no sizes that these have not. */
        if ((width === 1120 && colorScheme === "light") || (width === 360 && colorScheme === "dark")) {
          await page.evaluate(axe);
          const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
          for (const v of found.violations) wrong.push(`${screen}: ${v.id} ${v.nodes[0].html}`);
        }
        const over = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
        if (over > 0) wrong.push(`${screen}: ${over} pixels beside the page`);
        if (process.env.PICTURES && PICTURES[screen])
          await page.screenshot({ path: `${process.env.PICTURES}/${PICTURES[screen]}-${colorScheme}-${width}.png` });
      }
      check(wrong.length === 0, `${SCREENS.length} screens, ${colorScheme}, ${width} pixels: readable, by the rules of axe, and all of it is on the page`, wrong.join("; "));
      await context.close();
    }
  },

  /* Each action, from the click to the receiver's journal or to the database. */
  async actions(page) {
    const at = name => page.goto(`${BASE}/endpoint/${name}`);
    await at("billing");
    await ask(page, "Send a test", /outbox-test: true/, "Send it");
    await shows(page, /Delivered at/, "the test event is shown as delivered");
    await until(() => arrived().some(r => r.headers["outbox-test"] === "true"), "the receiver has the test event");

    const again = emit("order.created", { order: 2 }, ", key => 'again'");
    await until(() => arrived(again).length === 1, "an event arrives");
    await until(() => sql(`SELECT status FROM outbox.deliveries WHERE event_id = '${again}' AND endpoint = 'billing'`) === "delivered", "it is delivered");
    await page.goto(`${BASE}/delivery/billing/${again}`);
    await ask(page, "Send again", /has to bear a repetition/, "Send again");
    await until(() => arrived(again).length === 2, "the receiver has it twice after a resend");

    await at("billing");
    await page.getByRole("link", { name: "Replay", exact: true }).click();
    await page.getByLabel("From (UTC)").fill("2020-01-01 00:00");
    await page.getByLabel("To (UTC)").fill("2040-01-01 00:00");
    await page.getByLabel("Topics").fill("order.*");
    await page.getByRole("button", { name: "Go on" }).click();
    await shows(page, /These are \d+ deliveries|This is 1 delivery/, "the replay says how many first");
    await page.getByRole("button", { name: "Replay" }).click();
    await shows(page, /All had begun/, "the replay shows how far it is, until it has ended");
    await until(() => arrived(again).length === 3, "the receiver has it once more after a replay");

    await until(() => stat("crm", "dead") === "3", "three deliveries have died");
    await behave("/status/422/crm", "/ok");
    await page.goto(BASE + "/dead?endpoint=crm");
    await page.getByLabel("Topics").fill("crm.*");
    await page.getByLabel("Since (UTC)").fill("2020-01-01 00:00");
    await page.getByRole("button", { name: "Retry", exact: true }).click();
    await shows(page, /with the topics crm\.\* since 2020-01-01 00:00 UTC[^]*These are 3 deliveries/, "dead letters by a filter are a plan, too");
    await page.goto(BASE + "/dead");
    const picks = page.locator("input[name=pick]");
    check(await picks.count() === 3, "three dead letters can be chosen", await picks.count());
    const [first, second, third] = await picks.evaluateAll(boxes => boxes.map(b => b.value.split(" ")[1]));
    const before = arrived(first).length;
    await picks.nth(0).check();
    await page.getByRole("button", { name: "Retry the chosen ones" }).click();
    await shows(page, /This is 1 delivery/, "a retry of the chosen ones says how many first");
    await page.getByRole("button", { name: "Send again" }).click();
    await until(() => arrived(first).length > before, "the receiver gets the dead letter that was chosen");
    await until(() => stat("crm", "dead") === "2", "and it is dead no more");
    await page.goto(`${BASE}/delivery/crm/${second}`);
    await ask(page, "Discard", /Given up for good/, "Discard for good");
    await until(() => stat("crm", "dead") === "1", "one is discarded");
    await at("crm");
    await ask(page, "Retry what failed", /This is 1 delivery/, "Send again");
    await until(() => stat("crm", "dead") === "0" && arrived(third).length > 0, "the last one is sent with all that failed");
    await shows(page, /Sending again: all 1 are done/, "a bar shows how far that is");

    await at("billing");
    await ask(page, "Pause", /Nothing more is sent/, "Pause");
    await until(() => stat("billing", "state") === "paused", "billing is paused");
    const taken = emit("order.created", { order: 3 }, ", key => 'taken'"), skipped = emit("order.created", { order: 4 }, ", key => 'skipped'");
    await until(() => stat("billing", "pending") === "2", "two events wait");
    await page.goto(`${BASE}/delivery/billing/${taken}`);
    await ask(page, "Take it back", /cannot be undone/, "Take it back");
    await until(() => sql(`SELECT status FROM outbox.deliveries WHERE event_id = '${taken}' AND endpoint = 'billing'`) === "cancelled", "one is taken back");
    await at("billing");
    await ask(page, "Skip what waits", /skipped, and not sent/, "Skip them");
    await until(() => stat("billing", "pending") === "0", "the other one is skipped");
    await ask(page, "Resume", /begins again/, "Resume");
    const next = emit("order.created", { order: 5 }, ", key => 'next'");
    await until(() => arrived(next).length === 1, "the next event arrives");
    check(arrived(taken).length + arrived(skipped).length === 0, "and neither of the two");
    await at("billing");
    await page.getByRole("link", { name: "Move in the log" }).click();
    await page.getByLabel("To the time (UTC)").fill(sql("SELECT to_char(now() AT TIME ZONE 'UTC' - interval '1 hour', 'YYYY-MM-DD HH24:MI')"));
    await page.getByRole("button", { name: "Go on" }).click();
    await shows(page, /These are \d+ deliveries/, "a move in the log says first to how many");
    await page.getByRole("button", { name: "Move it" }).click();
    await until(() => arrived(skipped).length === 1, "the skipped event arrives when the endpoint is moved back");
    check(sql("SELECT string_agg(DISTINCT action, ' ' ORDER BY action) FROM outbox.endpoint_audit WHERE actor = 'local' AND endpoint IN ('billing', 'crm')")
      === "cancel discard pause replay resend resume retry seek test", "the audit has the operator's name with each of these");

    await at("crm");
    await page.getByRole("link", { name: "Change", exact: true }).click();
    await page.getByLabel("URL").fill(`${process.env.RECEIVER}/ok/moved`);
    await page.getByLabel("Requests per second").fill("500");
    await page.getByLabel("Order", { exact: false }).selectOption("none");
    await page.getByRole("button", { name: "Go on" }).click();
    await shows(page, /URL: .* becomes .*moved/, "a change says what it changes");
    await page.getByRole("button", { name: "Change" }).click();
    const moved = emit("crm.changed", { order: 6 }, ", key => 'moved'");
    await until(() => arrived(moved).some(r => r.path === "/ok/moved"), "the next event arrives at the new URL");
    check(sql("SELECT rate_limit, ordering FROM outbox.endpoints WHERE name = 'crm'") === "500|none", "the other settings are changed, too");
    await at("crm");
    await page.getByRole("link", { name: "Change", exact: true }).click();
    await page.getByLabel("Headers").fill('{"x-token": "t0ken"}');
    await page.getByRole("button", { name: "Go on" }).click();
    await shows(page, /headers become those/, "new headers are a plan first");
    check(!/t0ken/.test(page.url()), "what was entered is not in the address");
    await page.getByRole("button", { name: "Change" }).click();
    await shows(page, /x-token: •••/, "their values are not shown");
    const old = sql("SELECT outbox.endpoint_secret('crm')");
    await at("crm");
    await page.getByRole("link", { name: "Another secret" }).click();
    await page.getByLabel("Grace").selectOption("0");
    await page.getByRole("button", { name: "Go on" }).click();
    await page.getByRole("button", { name: "Change the secret" }).click();
    await ask(page, "Show the secret", /shown on the next page alone/, "Show it");
    const secret = sql("SELECT outbox.endpoint_secret('crm')");
    check(secret !== old && (await text(page)).includes(secret), "the new secret is shown");

    await page.goto(BASE);
    await page.getByRole("link", { name: "New endpoint" }).click();
    await page.getByLabel("Name").fill("archive");
    await page.getByLabel("URL").fill(`${process.env.RECEIVER}/ok/archive`);
    await page.getByLabel("Topics").fill("archive.*");
    await page.getByRole("button", { name: "Go on" }).click();
    await page.getByRole("button", { name: "Create it" }).click();
    await shows(page, /archive is created/, "an endpoint is created");
    const archived = emit("archive.made", { n: 1 });
    await until(() => arrived(archived).some(r => r.path === "/ok/archive"), "and gets its events");
    await at("archive");
    await ask(page, "Drop", /cannot be undone/, "Drop it for good");
    await until(() => sql("SELECT count(*) FROM outbox.endpoints WHERE name = 'archive'") === "0", "it is dropped");
    await page.goto(BASE + "/do/create?name=inside&url=http://10.0.0.1/");
    await page.getByRole("button", { name: "Create it" }).click();
    await shows(page, /Nothing was changed/, "a refusal of the database is said in its words");
    await page.goto(BASE + "/system");
    await page.getByRole("link", { name: "Keep events for another time" }).click();
    await page.getByLabel("Events").fill("5 days");
    await page.getByRole("button", { name: "Go on" }).click();
    await page.getByRole("button", { name: "Change" }).click();
    await until(() => sql("SELECT retention FROM outbox.status") === "5 days", "the retention is changed");
    await page.goto(BASE + "/tenant?name=acme");
    await page.getByRole("link", { name: "Change", exact: true }).click();
    await page.getByLabel("Requests per second").fill("700");
    await page.getByRole("button", { name: "Go on" }).click();
    await page.getByRole("button", { name: "Change" }).click();
    await until(() => sql("SELECT rate_limit FROM outbox.tenant_limits('acme')") === "700", "a tenant has a limit");
    check(sql("SELECT string_agg(action, ' ' ORDER BY change_id) FROM outbox.endpoint_audit WHERE actor = 'local' AND endpoint = ''")
      === "retention limits", "and both are in the audit with the operator's name");
  },

  /* Dead letters of a tenant, of a reason and those that were chosen: what else was sent at their time, and they themselves. */
  async dead(page) {
    const each = name => Promise.all(["one", "two"].map(name));
    await each(n => sql(`SELECT outbox.create_endpoint('lost.${n}', '${process.env.RECEIVER}/ok/lost.${n}', topics => '{lost.*}', tenant => 'lost', max_attempts => 1)`));
    const at = (event, n) => arrived(event, "/ok/lost." + n).length;
    const make = () => emit("lost.made", { n: 1 }, ", tenant => 'lost'");
    const taken = make();
    await until(() => at(taken, "one") + at(taken, "two") === 2 && stat("lost.one", "delivered") + stat("lost.two", "delivered") === "11", "an event arrives at both endpoints of a tenant");
    await each(n => behave("/ok/lost." + n, "/status/422"));
    const died = make();
    await until(() => stat("lost.one", "dead") + stat("lost.two", "dead") === "11", "the next one dies at both");
    await each(n => behave("/ok/lost." + n, "/ok"));
    const asks = async (button, says) => {
      await page.getByRole("button", { name: "Replay their time" })[button]().click();
      await shows(page, says, "the time of a replay comes from the dead letters: " + says.source);
      const from = await page.getByLabel("From (UTC)").inputValue(), to = await page.getByLabel("To (UTC)").inputValue();
      check(sql(`SELECT created_at BETWEEN '${from}Z' AND '${to}Z' FROM outbox.all_events WHERE id = '${died}'`) === "t", "they are in it", `${from} ${to}`);
      await page.getByLabel("From (UTC)").fill("2020-01-01");
      await page.getByRole("button", { name: "Go on" }).click();
    };

    await page.goto(BASE + "/dead?tenant=lost");
    await asks("last", /Replay events to the endpoints of lost[^]*those of the dead letters there/);
    await shows(page, /These are 2 deliveries[^]*left out: 2 of that time/, "a replay to a tenant says how many first, without the dead letters");
    await page.getByRole("button", { name: "Replay" }).click();
    await shows(page, /2 events are asked to be sent again/, "both are asked for");
    await until(() => at(taken, "one") === 2 && at(taken, "two") === 2, "both endpoints get the event once more");
    check(at(died, "one") === 1 && at(died, "two") === 1, "and not the dead letter");

    await page.goto(BASE + "/dead?endpoint=lost.one");
    await page.locator("input[name=pick]").first().check();
    await asks("first", /Replay events to lost\.one[^]*first and the last of these dead letters/);
    await shows(page, /This is 1 delivery[^]*left out: 1 of that time/, "a replay for chosen ones says how many first");
    await page.getByRole("button", { name: "Replay" }).click();
    await shows(page, /1 of 1 begun\. All had begun/, "it shows how far it is");
    await until(() => at(taken, "one") === 3 && at(taken, "two") === 2, "that endpoint gets the event once more");

    await page.goto(BASE + "/dead?endpoint=lost.one");
    await asks("last", /Replay events to lost\.one/);
    await ask(page, "Retry the dead letters instead", /since 2020-01-01[^]*This is 1 delivery/, "Send again");
    await shows(page, /Sending again: all 1 are done/, "its bar counts to the end");
    await until(() => at(died, "one") === 2 && at(died, "two") === 1, "the dead letter arrives from there");
    await page.goto(BASE + "/dead?tenant=lost&reason=max_attempts");
    await page.getByRole("button", { name: "Retry", exact: true }).click();
    await shows(page, /all dead letters of the endpoints of lost with the reason max attempts[^]*This is 1 delivery/, "all of a reason and a tenant are counted first");
    await page.getByRole("button", { name: "Send again" }).click();
    await shows(page, /Sending again: all 1 are done/, "a bar shows how far that is at several endpoints");
    await until(() => at(died, "two") === 2, "and arrive");
    await page.goto(BASE + "/do/retry");
    await shows(page, /Nothing was chosen/, "without a choice nothing is asked for");
  },

  /* A customer says that an event did not arrive: found and repaired from the first page, for each cause. */
  async customer(page) {
    let since, keys, slowest = 0, most = 0;
    await page.exposeFunction("clicked", () => keys.push("click"));
    await page.addInitScript(() => addEventListener("click", () => window.clicked(), true));
    const find = async (key, says, what) => {
      if (since) [slowest, most] = [Math.max(slowest, Date.now() - since), Math.max(most, keys.length)];
      [since, keys] = [Date.now(), []];
      await page.goto(BASE);
      await page.getByRole("searchbox").fill(key);
      await page.getByRole("searchbox").press("Enter");
      await shows(page, says, what);
    };
    const link = name => page.locator("main").getByRole("link", { name, exact: true }).first().click();
    const got = async (key, what) => {
      const event = sql(`SELECT id FROM outbox.all_events WHERE key = '${key}' ORDER BY seq DESC LIMIT 1`);
      await until(() => arrived(event, "/ok").some(r => r.status === 200) || arrived(event).some(r => r.status === 200), what);
    };

    await find("order-4711", /dead at acme.orders/, "the search says what became of the event");
    await link("acme.orders");
    await shows(page, /Dead\. [^]*refused as often[^]*unknown article/, "the delivery says why, with the receiver's own words");
    await behave("/status/422/acme", "/ok");
    await ask(page, "Send again now", /This is 1 delivery/, "Send again");
    await shows(page, /Delivered at/, "the page says by itself that it is delivered");
    await got("order-4711", "and the receiver has taken it");

    await find("order-paused", /pending at paused.hooks/, "an event waits at an endpoint that is paused");
    await link("paused.hooks");
    await ask(page, "Resume paused.hooks", /begins again/, "Resume");
    await got("order-paused", "and arrives when it is resumed from there");

    await find("order-filtered", /not for filtered: why\?[^]*delivered at billing/, "an event that a filter kept is not taken for delivered");
    await link("not for filtered: why?");
    await shows(page, /filter[^]*is false for this payload/, "the event says which filter");
    const address = page.url();
    await link("Change it");
    await page.getByLabel("Filter").fill("$.total > 10");
    await page.getByRole("button", { name: "Go on" }).click();
    await page.getByRole("button", { name: "Change" }).click();
    await page.goto(address);
    await ask(page, "Send it now", /This is 1 delivery/, "Replay");
    await got("order-filtered", "and the event arrives after the filter is changed");

    await find("order-late", /not for late: why\?/, "an event is older than the endpoint of its customer");
    await link("not for late: why?");
    await shows(page, /created after the event/, "the event says so");
    await ask(page, "Send it now", /This is 1 delivery/, "Replay");
    await got("order-late", "and is sent from there");

    await find("order-typo", /not for acmee: why\?/, "an event has a tenant without endpoints");
    await link("not for acmee: why?");
    await shows(page, /No endpoint belongs to acmee[^]*Did the application mean acme\?/, "the event says so, and which one was meant");

    await find("order-held", /retrying at held.hooks[^]*blocked at held.hooks|blocked at held.hooks[^]*retrying at held.hooks/, "an event waits behind another one of its key");
    await page.locator("main").getByRole("row", { name: /blocked/ }).getByRole("link", { name: "held.hooks" }).click();
    await shows(page, /Blocked\.[^]*which is retrying[^]*answered 400/, "its page says which, and why that one waits");
    await behave("/status/400/held", "/ok");
    await ask(page, "Send the one before it now", /This is 1 delivery/, "Send again");
    await got("order-held", "and it arrives when that one is sent from there");

    await find("order-later", /scheduled until/, "an event whose time has not come is found");
    await find("order-expired", /dead at expired.hooks/, "an event has expired");
    await link("expired.hooks");
    await shows(page, /expires_at was reached[^]*emits it again/, "its page says what to do");
    check(await page.locator("main").getByRole("link", { name: "Send again now" }).count() === 0, "and does not offer what has no effect");
    await ask(page, "Discard", /Given up for good/, "Discard for good");
    await until(() => stat("expired.hooks", "dead") === "0", "it is discarded");
    check(most <= 8 && slowest < 120000, "each cause is found and repaired in 8 clicks at most", `${most} clicks, ${slowest} ms`);
    console.log(`# at most ${most} clicks and ${slowest} ms`);
  },

  /* The database away, locked, or read-only: said in words, and over by itself. */
  async failures(page) {
    await page.goto(BASE);
    await shows(page, /endpoint|All is well/);
    server("stop", "-m", "immediate");
    await shows(page, /The database cannot be asked/, "without the database the page says so by itself");
    check(!/Delivered|There is no endpoint/.test(await page.locator("main").innerText()), "and shows nothing that it does not know");
    await page.goto(BASE + "/dead");
    await shows(page, /cannot be asked[^]*(No such file|refused|not exist)/, "and so does any other page, with the reason");
    server("start", "-l", process.env.DATA + "/log");
    await shows(page, /Dead letters[^]*(There are none|One by one)/, "it comes back by itself");

    const lock = require("node:child_process").spawn(process.env.PSQL, ["-XAtq"], { stdio: ["pipe", "pipe", "ignore"] });
    lock.stdin.write("BEGIN; LOCK TABLE outbox.kept_events IN ACCESS EXCLUSIVE MODE; SELECT 'locked';\n");
    await new Promise(done => lock.stdout.once("data", done));
    await page.goto(BASE + "/dead");
    await shows(page, /Not known[^]*locked at present/, "a table that is locked is not an empty one");
    lock.stdin.end("ROLLBACK;\n");
    await new Promise(done => lock.once("exit", done));
    await page.goto(BASE + "/dead");
    check(!/Not known/.test(await text(page)), "and is read again", await text(page));

    sql("REVOKE SELECT ON outbox.dead_letters FROM console");
    await page.goto(BASE + "/dead");
    await shows(page, /Not known[^]*may not see this/, "a view that it may not read is not an empty one");
    sql("SELECT outbox.grant_to('console', 'operate')");
    await page.goto(BASE + "/do/pause?endpoint=billing");
    sql("REVOKE EXECUTE ON FUNCTION outbox.pause_endpoint FROM console");
    await page.getByRole("button", { name: "Pause" }).click();
    await shows(page, /Nothing was changed/, "an action that is refused says that nothing was changed");
    sql("SELECT outbox.grant_to('console', 'operate')");

    /* Live pages, which are not loaded anew. */
    const fails = async (path, well, break_, says, mend) => {
      await page.goto(BASE + path);
      await shows(page, well, `${path} is well`);
      await page.evaluate(() => { window.loaded = "once"; });
      sql(break_);
      await shows(page, says, `${path} says by itself: ${says.source}`);
      sql(mend);
      await page.waitForFunction(source => !new RegExp(source).test(document.body.innerText), says.source).catch(() => 0);
      await shows(page, well, "and is well by itself");
      check(await page.evaluate(() => window.loaded) === "once", "it was not loaded anew");
    };
    await fails("/system", /Set aside\s+Nothing/, `ALTER VIEW outbox.set_aside RENAME TO set_aside_once;
      CREATE VIEW outbox.set_aside AS SELECT o.* FROM outbox.set_aside_once o RIGHT JOIN pg_sleep(60) ON true; GRANT SELECT ON outbox.set_aside TO console`,
      /Not known\.[^]*longer than the console waits[^]*nothing about whether there are rows/, "DROP VIEW outbox.set_aside; ALTER VIEW outbox.set_aside_once RENAME TO set_aside");
    await fails("/", /Waiting[^]*Delivered/, "ALTER FUNCTION outbox.metrics RENAME TO metrics_once; UPDATE pg_extension SET extversion = '0.9' WHERE extname = 'outbox'",
      /It is not known whether events are delivered[^]*another version than the console: 0\.9/, "ALTER FUNCTION outbox.metrics_once RENAME TO metrics; UPDATE pg_extension SET extversion = '1.0' WHERE extname = 'outbox'");
    await fails("/", /Waiting[^]*Delivered/, "DROP EXTENSION outbox CASCADE", /It is not known whether events are delivered[^]*has no extension outbox/,
      "CREATE EXTENSION outbox; SELECT outbox.grant_to('console', 'operate')");
    await shows(page, /There is no endpoint yet/, "a new extension has no endpoint, and the page says so");
  },

  /* A standby that is read from, restarts, and is promoted. */
  async standby(page) {
    const setting = (name, value) => fs.appendFileSync(process.env.DATA + "/postgresql.conf", `\n${name} = ${value}\n`);
    await page.goto(BASE);
    await shows(page, /This server is a standby: it sends nothing/, "the first page says that this is a standby");
    await page.evaluate(() => { window.loaded = "once"; });
    server("stop", "-m", "fast");
    await shows(page, /The database cannot be asked/, "while it restarts, the page says by itself that it cannot be asked");
    setting("hot_standby", "off");
    server("start", "-l", process.env.DATA + "/log");
    await shows(page, /cannot be asked[^]*(not (yet )?accepting connections|starting up)/, "and while it lets no session in, with its words");
    server("stop", "-m", "fast");
    setting("hot_standby", "on");
    server("start", "-l", process.env.DATA + "/log");
    await shows(page, /This server is a standby: it sends nothing/, "it comes back by itself");
    const other = await page.context().newPage();
    await other.goto(BASE + "/do/pause?endpoint=billing");
    await other.getByRole("button", { name: "Pause" }).click();
    await shows(other, /Nothing was changed\.[^]*standby/, "an action is refused there, in words");
    await other.close();
    server("promote");
    await shows(page, /Events are delivered|All is well|Nothing is sent/, "once it is promoted, the page says by itself how it is");
    check(!/standby/.test(await text(page)) && await page.evaluate(() => window.loaded) === "once", "and not that it is a standby, without having been loaded anew");
  },

  /* Without JavaScript all but the live parts works. */
  async plain(_, __, browser) {
    const context = await browser.newContext({ javaScriptEnabled: false, viewport: { width: 1280, height: 800 } });
    context.setDefaultTimeout(LIMIT);
    const page = await context.newPage();
    await page.goto(BASE + "/endpoint/billing");
    check(/UTC/.test(await page.locator("time").first().innerText()), "times are in UTC", await page.locator("time").first().innerText());
    await ask(page, "Pause", /Nothing more is sent/, "Pause");
    check(/billing is paused/.test(await page.locator("main").innerText()), "an endpoint is paused");
    await ask(page, "Resume", /begins again/, "Resume");
    check(/billing is resumed/.test(await page.locator("main").innerText()), "and resumed");
    await context.close();
  },

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
    await page.waitForFunction(() => document.body && /Waiting\s*1/.test(document.body.innerText), null, { timeout: LIMIT });
    check(true, "the page shows it by itself");
    await ask(page, "Resume", /begins again/, "Resume");
    await until(() => arrived(event).length === 1, "the receiver's journal has the event once it is resumed");
    await shows(page, /Sending what waited: all 1 are done/, "and a bar says so");
  },
};

(async () => {
  check(Boolean(await fetch(BASE).catch(() => null)), "the console answers");
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
