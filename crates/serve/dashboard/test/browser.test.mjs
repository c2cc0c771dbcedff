// The dashboard in a real browser, against a service that runs, with real cages.
// IRONCAGE_BINARY names the program, CHROMIUM the browser.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { Readable } from "node:stream";
import { after, afterEach, before, beforeEach, test } from "node:test";
import { chromium } from "playwright-core";

const program = process.env.IRONCAGE_BINARY ?? "ironcage";
const PATIENCE = 60_000;
// Markup, a script's end, an entity, a terminal's title and colour, a link of a terminal, text that turns around,
// and characters that nobody sees.
const HOSTILE = `<img src=x onerror="window.owned=1"><script>window.owned=2</script>&lt;"'\u001b]0;owned\u0007\u001b[31mred\u202egnp.exe\u200b\u2066\u{e0041}`;
const SHOWN = `<img src=x onerror="window.owned=1"><script>window.owned=2</script>&lt;"'\\e]0;owned\\u{7}\\e[31mred\\u{202e}gnp.exe\\u{200b}\\u{2066}\\u{e0041}`;
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2066-\u2069\u{e0000}-\u{e007f}]/u;

let home, data, service, address, key, browser, env;
const problems = [];

async function start(listen) {
  service = spawn(program, ["serve", "--listen", listen], { env, stdio: ["ignore", "pipe", "inherit"] });
  for await (const line of createInterface(service.stdout)) return line.split(" ").pop();
}

async function stop(signal) {
  const ended = new Promise((resolve) => service.on("exit", resolve));
  service.kill(signal);
  await ended;
}

before(async () => {
  home = mkdtempSync(join(tmpdir(), "ironcage-dashboard."));
  mkdirSync(join(home, "run"), { mode: 0o700 });
  data = join(home, "data");
  mkdirSync(data);
  env = { ...process.env, HOME: home, XDG_RUNTIME_DIR: join(home, "run") };
  for (const name of ["XDG_STATE_HOME", "XDG_CONFIG_HOME"]) delete env[name];
  address = await start("127.0.0.1:0");
  key = /IRONCAGE_API_KEY='([^']+)'/.exec(execFileSync(program, ["serve", "env"], { env, encoding: "utf8" }))[1];
  browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", chromiumSandbox: process.getuid() !== 0, env });
});

beforeEach(() => problems.splice(0));

afterEach(async () => {
  for (const context of browser.contexts()) await context.close();
  for (const { id } of (await call("GET", "/v1/cages?state=running,paused,ended&limit=1000")).cages) await call("DELETE", `/v1/cages/${id}`);
});

after(async () => {
  await browser?.close();
  await stop("SIGTERM");
  // Directories of overlays keep even their owner out.
  execFileSync("chmod", ["-R", "u+rwX", home]);
  rmSync(home, { recursive: true, force: true });
});

async function call(method, path, json, status) {
  const response = await fetch(address + path, {
    method,
    headers: { Authorization: `Bearer ${key}`, ...(json && { "Content-Type": "application/json" }) },
    body: json && JSON.stringify(json),
  });
  const text = await response.text();
  if (status) assert.equal(response.status, status, text);
  else assert.ok(response.ok, `${method} ${path}: ${response.status} ${text}`);
  return text ? JSON.parse(text) : undefined;
}

const create = async (spec) => (await call("POST", "/v1/cages", { timeout: 1200, ...spec })).id;
const link = (...flags) => execFileSync(program, ["serve", "dashboard", "--listen", new URL(address).host, ...flags], { env, encoding: "utf8" }).trim();

/** A page that is signed in. What goes wrong in it, or leaves for elsewhere, is kept. */
async function open({ flags = [], ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1200, height: 900 }, ...options });
  context.setDefaultTimeout(PATIENCE);
  const page = await context.newPage();
  page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("request", (request) => {
    const url = new URL(request.url());
    if (url.origin !== address || /ick_|link/.test(url.pathname + url.search)) problems.push(`request of ${request.url()}`);
  });
  await page.goto(link(...flags));
  await page.locator("h1", { hasText: "Cages" }).waitFor();
  return page;
}

function clean() {
  assert.deepEqual(problems.splice(0), []);
}

async function has(page, text) {
  await page.waitForFunction((wanted) => document.querySelector("main").innerText.includes(wanted), text, { timeout: PATIENCE });
}

/** Nothing of an agent became an element, ran, or stayed invisible. */
async function inert(page) {
  const found = await page.evaluate(() => ({
    owned: window.owned,
    elements: [...document.querySelectorAll("img, iframe, object, embed, style, [onerror], [onclick], main script, main link")].map((one) => one.outerHTML),
    title: document.title,
    text: document.documentElement.textContent,
    attributes: [...document.querySelectorAll("*")].flatMap((one) => [...one.attributes].map((attribute) => attribute.value)).join("\n"),
    outside: [...document.querySelectorAll("a")].map((one) => one.getAttribute("href")).filter((href) => !href.startsWith("#")),
  }));
  assert.equal(found.owned, undefined);
  assert.deepEqual(found.elements, []);
  assert.deepEqual(found.outside, []);
  assert.match(found.title, /^(\(\d+\) )?Ironcage$/);
  assert.doesNotMatch(found.text, HIDDEN);
  assert.doesNotMatch(found.attributes, HIDDEN);
}

/** Waits for something that no event tells of. */
async function until(holds) {
  for (const end = Date.now() + PATIENCE; !(await holds()); await new Promise((resolve) => setTimeout(resolve, 200))) assert.ok(Date.now() < end, `${holds} does not come true`);
}

// Against the width of the screen: a phone's own `innerWidth` grows with what is too wide.
const PHONE = 360;
const fits = (page) => page.evaluate((width) => document.documentElement.scrollWidth <= width, PHONE);

test("a link signs one browser in once, and no address has a key", async () => {
  const once = link();
  assert.match(once, /^http:\/\/127\.0\.0\.1:\d+\/#link=ick_/);
  const [one, other] = await Promise.all([browser.newContext(), browser.newContext()]);
  const page = await one.newPage();
  await page.goto(once);
  await page.locator("h1", { hasText: "Cages" }).waitFor();
  assert.equal(page.url(), `${address}/#/`);
  await page.reload();
  await page.locator("h1", { hasText: "Cages" }).waitFor();
  const second = await other.newPage();
  await second.goto(once);
  await second.locator(".error", { hasText: "was used already" }).waitFor();
  assert.equal(await second.locator("header.top").isVisible(), false);
  // A link is not a key of the API, and a key that signed out is none any more.
  await call("GET", "/v1/cages");
  const session = await page.evaluate(() => sessionStorage.getItem("ironcage-key"));
  const with_ = async (text) => (await fetch(`${address}/v1/cages`, { headers: { Authorization: `Bearer ${text}` } })).status;
  assert.deepEqual([await with_(once.split("=")[1]), await with_(session)], [401, 200]);
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByLabel("Link or API key").waitFor();
  assert.equal(await with_(session), 401);
  // An API key is taken, too.
  await page.getByLabel("Link or API key").fill(key);
  await page.keyboard.press("Enter");
  await page.locator("h1", { hasText: "Cages" }).waitFor();
});

test("the page may run its own files and nothing else", async () => {
  const answer = await fetch(`${address}/`);
  const policy = answer.headers.get("content-security-policy");
  for (const part of ["default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'", "trusted-types 'none'"]) assert.ok(policy.includes(part), policy);
  assert.doesNotMatch(policy, /unsafe|\*|data:/);
  const page = await open();
  const refused = await page.evaluate(() => {
    try {
      document.body.innerHTML = "<b>markup</b>";
      return "taken";
    } catch (error) {
      return error.name;
    }
  });
  assert.equal(refused, "TypeError");
  const handler = await page.evaluate(() => {
    try {
      document.body.setAttribute("onclick", "window.owned = 3");
      document.body.click();
    } catch (error) {
      return error.name;
    }
  });
  assert.deepEqual([handler, await page.evaluate(() => window.owned)], ["TypeError", undefined]);
  assert.ok(problems.length > 0, "the browser reported nothing of what it refused");
});

test("running cages are listed with what they use", async () => {
  const busy = await create({ metadata: { name: "busy", of: "list" } });
  const idle = await create({ metadata: { name: "idle", of: "list" } });
  await call("POST", `/v1/cages/${busy}/processes`, { command: "while :; do :; done" });
  const page = await open();
  const row = (name) => page.locator("table.cages tbody tr", { has: page.getByRole("link", { name, exact: true }) });
  await row("busy").waitFor();
  await row("idle").waitFor();
  assert.equal(await row("busy").locator(".state").innerText(), "running");
  const cpu = async (name) => parseFloat(await row(name).locator("[data-label=CPU] .meter-text").innerText()) || 0;
  await until(async () => (await cpu("busy")) > 10 * ((await cpu("idle")) + 0.1));
  assert.match(await row("idle").locator("[data-label=Memory] .meter-text").innerText(), /[KMG]iB/);
  assert.match(await row("idle").locator("[data-label=Network]").innerText(), /0 B\/s/);
  await page.keyboard.press("/");
  await page.keyboard.type("idle");
  await row("busy").waitFor({ state: "detached" });
  assert.equal(await row("idle").count(), 1);
  // Paused and ended on its page.
  await row("idle").getByRole("link").click();
  await page.getByRole("button", { name: "Pause" }).click();
  await page.locator("h1 .state", { hasText: "paused" }).waitFor();
  assert.equal((await call("GET", `/v1/cages/${idle}`)).state, "paused");
  await page.getByRole("button", { name: "Resume" }).click();
  await page.locator("h1 .state", { hasText: "running" }).waitFor();
  await page.getByRole("button", { name: "End" }).click();
  await page.getByRole("button", { name: "Cancel" }).click();
  await call("GET", `/v1/cages/${idle}`);
  await page.getByRole("button", { name: "End" }).click();
  await page.getByRole("button", { name: "End it" }).click();
  await page.locator("h1", { hasText: "Cages" }).waitFor();
  await call("GET", `/v1/cages/${idle}`, undefined, 404);
  await page.keyboard.press("g");
  await page.keyboard.press("u");
  await page.locator("h1", { hasText: "Usage" }).waitFor();
  await until(async () => parseFloat(await page.locator(".tiles dd").nth(1).innerText()) > 0.2);
  await page.getByRole("table", { name: "Usage by cage" }).getByRole("link", { name: "busy" }).waitFor();
  await page.getByRole("table", { name: "Usage by project" }).getByText("default").waitFor();
  await call("DELETE", `/v1/cages/${busy}`);
  clean();
});

test("requests are approved and denied, by mouse and by keyboard, and the cage gets what was answered", async () => {
  // Two directories: what was denied is denied for a while without asking again.
  const more = join(home, "more");
  mkdirSync(more);
  const policy = `[ceiling.ask.files]\nwrite = ["${data}", "${more}"]\n`;
  const id = await create({ policy, metadata: { name: "asks" } });
  const ask = async (path, reason) => (await call("POST", `/v1/cages/${id}/processes`, { command: `/.ironcage/bin/ironcage ask --write ${path} --reason '${reason}' --wait 100; echo status $?` })).pid;
  const ended = async (pid) => {
    const controller = new AbortController();
    const stream = await fetch(`${address}/v1/cages/${id}/processes/${pid}/output?from=0`, { headers: { Authorization: `Bearer ${key}` }, signal: controller.signal });
    let text = "";
    for await (const line of createInterface({ input: Readable.fromWeb(stream.body) })) {
      if (line.startsWith("data: {\"stream\"")) text += Buffer.from(JSON.parse(line.slice(6)).data, "base64");
      if (line === "event: exit") return text;
    }
    return text;
  };
  const writes = async (path) => (await call("POST", `/v1/cages/${id}/run`, { command: `echo written > ${path}` })).exit.code === 0;
  assert.deepEqual([await writes(`${data}/before`), await writes(`${more}/before`)], [false, false]);

  const page = await open();
  const card = page.locator(".request");
  let pid = await ask(data, "to store");
  await card.waitFor();
  assert.match(await card.innerText(), new RegExp(`write ${data}`));
  assert.match(await card.innerText(), /The requester says: to store/);
  assert.match(await page.title(), /^\(1\)/);
  await card.getByLabel("Reason for denying").fill("not for you");
  await card.getByRole("button", { name: "Deny" }).click();
  assert.match(await ended(pid), /not for you[^]*status 1/);
  assert.equal(await writes(`${data}/denied`), false);
  assert.equal(existsSync(join(data, "denied")), false);
  await card.waitFor({ state: "detached" });

  // On the page of the cage, by keys.
  await page.keyboard.press("Escape");
  await page.goto(`${address}/#/cages/${id}`);
  pid = await ask(more, "once more");
  await card.waitFor();
  await page.locator("#main").focus();
  await page.keyboard.press("r");
  // At once, before anybody can have read it, a key answers nothing.
  await page.keyboard.press("a");
  await card.locator("button.approve:enabled").waitFor();
  assert.equal((await call("GET", `/v1/cages/${id}/requests`)).requests.length, 1);
  await page.keyboard.press("a");
  assert.match(await ended(pid), /status 0/);
  assert.equal(await writes(`${more}/approved`), true);
  assert.equal(readFileSync(join(more, "approved"), "utf8"), "written\n");
  await page.locator(".notice", { hasText: "approved: write" }).waitFor();

  // The lease is on the timeline, and its end is proved there.
  await page.keyboard.press("3");
  const lease = page.locator(".lease");
  await lease.waitFor();
  assert.match(await lease.innerText(), new RegExp(more));
  await page.locator('.lease[data-state="open"]').waitFor();
  await lease.getByRole("button", { name: "Revoke" }).click();
  await page.locator('.lease[data-state="ended"]', { hasText: "revoked" }).waitFor();
  assert.equal(await writes(`${more}/revoked`), false);

  // The audit log has all of it.
  await page.keyboard.press("5");
  for (const event of ["question-end", "lease-end", "lease"]) await page.locator(".audit strong", { hasText: event }).first().waitFor();
  await call("DELETE", `/v1/cages/${id}`);
  clean();
});

test("a key that is held down answers one request, and not the one behind it", async () => {
  const more = join(home, "behind");
  mkdirSync(more);
  const policy = `[ceiling.ask.files]\nwrite = ["${data}", "${more}"]\n`;
  const id = await create({ policy, metadata: { name: "asks" } });
  const page = await open();
  for (const path of [data, more]) await call("POST", `/v1/cages/${id}/processes`, { command: `/.ironcage/bin/ironcage ask --write ${path} --reason r --wait 100` });
  const cards = page.locator(".request");
  await cards.nth(1).waitFor();
  await cards.nth(0).locator("button.approve:enabled").waitFor();
  await cards.nth(1).locator("button.approve:enabled").waitFor();
  await page.locator("#main").focus();
  await page.keyboard.press("r");
  for (let repeats = 0; repeats < 5; repeats++) await page.keyboard.down("a");
  await page.locator(".notice", { hasText: "approved: write" }).waitFor();
  await cards.nth(1).waitFor({ state: "detached" });
  // The heading has the focus, so that nothing is answered by going on; the card that moved cannot be at once.
  assert.match(await page.evaluate(() => document.activeElement.textContent), /1 permission request waits/);
  await page.keyboard.down("a");
  await page.keyboard.up("a");
  await page.keyboard.press("a");
  await cards.locator("button.approve:enabled").waitFor();
  assert.equal((await call("GET", `/v1/cages/${id}/requests`)).requests.length, 1);
  // Chosen, it is answered.
  await page.keyboard.press("r");
  await page.keyboard.press("a");
  await cards.waitFor({ state: "detached" });
  assert.deepEqual((await call("GET", `/v1/cages/${id}/requests`)).requests, []);
  await call("DELETE", `/v1/cages/${id}`);
  clean();
});

test("a link that only looks cannot answer", async () => {
  const policy = `[ceiling.ask.files]\nwrite = ["${data}"]\n`;
  const id = await create({ policy, metadata: { name: "asks" } });
  await call("POST", `/v1/cages/${id}/processes`, { command: `/.ironcage/bin/ironcage ask --write ${data} --reason r --wait 100` });
  const page = await open({ flags: ["--read-only"] });
  await page.locator(".request").waitFor();
  assert.equal(await page.getByRole("button", { name: "Approve" }).isDisabled(), true);
  await page.keyboard.press("r");
  await page.keyboard.press("a");
  const answer = await page.evaluate(async (cage) => {
    const own = { Authorization: `Bearer ${sessionStorage.getItem("ironcage-key")}`, "Content-Type": "application/json" };
    const send = async (path, body) => (await fetch(path, { method: "POST", headers: own, body })).status;
    return [await send(`v1/cages/${cage}/requests/1/approve`, "{}"), await send(`v1/cages/${cage}/run`, '{"command":"true"}')];
  }, id);
  assert.deepEqual(answer, [403, 403]);
  assert.equal((await call("GET", `/v1/cages/${id}/requests`)).requests.length, 1);
  await call("DELETE", `/v1/cages/${id}`);
});

test("a project's link shows the cages of the project", async () => {
  const id = await create({ metadata: { name: "of the default project" } });
  const page = await open({ flags: ["--project", "other"] });
  await page.locator(".empty", { hasText: "No cages yet" }).waitFor();
  await page.goto(`${address}/#/cages/${id}`);
  await page.locator(".error", { hasText: "there is no such cage" }).waitFor();
  await call("DELETE", `/v1/cages/${id}`);
});

test("the change of a directory is shown as a diff", async () => {
  const directory = join(home, "project");
  mkdirSync(directory);
  writeFileSync(join(directory, "a.txt"), "one\ntwo\nthree\n");
  const id = await create({ directory, metadata: { name: "writes" } });
  await call("POST", `/v1/cages/${id}/run`, { command: "sed -i s/two/2/ a.txt; echo new > b.txt" });
  const page = await open();
  await page.goto(`${address}/#/cages/${id}/change`);
  const lines = (kind) => page.locator(`.diff .line.${kind}`).allInnerTexts();
  await page.locator(".diff").first().waitFor();
  assert.deepEqual((await lines("removed")).map((line) => line.trim()), ["-two"]);
  assert.deepEqual((await lines("added")).map((line) => line.trim()).sort(), ["+2", "+new"]);
  // The agent goes on; the page shows it when it is asked to.
  await call("POST", `/v1/cages/${id}/run`, { command: "echo four >> a.txt" });
  await page.getByRole("button", { name: "Read again" }).click();
  await page.locator(".diff .line.added", { hasText: "+four" }).waitFor();
  assert.equal(readFileSync(join(directory, "a.txt"), "utf8"), "one\ntwo\nthree\n");
  // It is still there when the cage has ended by itself.
  await call("PATCH", `/v1/cages/${id}`, { metadata: { name: "wrote" } });
  execFileSync(program, ["stop", id], { env, stdio: "ignore" });
  await page.locator("h1 .state", { hasText: "ended" }).waitFor();
  await page.getByRole("button", { name: "Read again" }).click();
  await page.locator(".diff .line.added", { hasText: "+four" }).waitFor();
  clean();
});

test("a terminal is typed at, resized, left and joined again", async () => {
  const id = await create({ metadata: { name: "shell" } });
  const page = await open();
  await page.goto(`${address}/#/cages/${id}`);
  await page.locator("#main").focus();
  await page.keyboard.press("6");
  await page.getByRole("button", { name: "Start a shell" }).waitFor();
  await page.keyboard.press("Enter");
  const input = page.getByLabel(/^Terminal of process/);
  await input.waitFor({ state: "attached" });
  const screen = page.locator(".screen");
  await page.keyboard.type("echo $((6 * 7))x; stty size > size\n");
  await screen.getByText("42x").waitFor();
  const size = async () => (await call("POST", `/v1/cages/${id}/run`, { command: "cat size" })).stdout.trim();
  const columns = parseInt((await size()).split(" ")[1]);
  assert.ok(columns > 100, String(columns));
  await page.setViewportSize({ width: 700, height: 900 });
  await until(async () => {
    await page.keyboard.type("stty size > size\n");
    await new Promise((resolve) => setTimeout(resolve, 300));
    return parseInt((await size()).split(" ")[1]) < columns;
  });
  // Keys of programs: the end of input by Ctrl-D, an interrupt by Ctrl-C, the last command by an arrow.
  await page.keyboard.type("echo begins; cat > typed\n");
  await screen.locator(".row", { hasText: /^begins/ }).waitFor();
  await page.keyboard.type("über\n");
  await page.keyboard.press("Control+d");
  await page.keyboard.type("echo sleeps; sleep 1000\n");
  await screen.locator(".row", { hasText: /^sleeps/ }).waitFor();
  await page.keyboard.press("Control+c");
  await page.keyboard.type("echo again\n");
  await screen.locator(".row", { hasText: /^again/ }).first().waitFor();
  await page.keyboard.press("ArrowUp");
  await page.keyboard.press("Enter");
  await screen.locator(".row", { hasText: /^again/ }).nth(1).waitFor();
  assert.equal((await call("POST", `/v1/cages/${id}/run`, { command: "cat typed" })).stdout, "über\n");
  // It is not a trap for the keyboard, and what ran goes on.
  await page.keyboard.press("Control+]");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Detach");
  await page.keyboard.press("Escape");
  await page.locator("h1", { hasText: "Cages" }).waitFor();
  await page.goto(`${address}/#/cages/${id}/processes`);
  await page.getByRole("button", { name: "Attach" }).click();
  await screen.getByText("42x").waitFor();
  await page.keyboard.type("exit 3\n");
  await page.getByText("The process ended with status 3.").waitFor();
  await call("DELETE", `/v1/cages/${id}`);
  clean();
});

test("text of an agent is shown as text, whatever it says", async () => {
  const directory = join(home, "hostile");
  mkdirSync(directory);
  const policy = `[ceiling.ask.files]\nwrite = ["${data}"]\n`;
  const id = await create({ policy, directory, metadata: { name: HOSTILE, [HOSTILE]: HOSTILE } });
  const name = HOSTILE.replaceAll("/", "|");
  await call("POST", `/v1/cages/${id}/run`, { argv: ["/bin/sh", "-c", 'printf "%s\\n+++ b/x\\ndiff --git a/x b/x\\n@@ -1 +1 @@\\n" "$1" > "$1"; mkdir -p d; printf "%s" "$2" > d/f', "sh", name, HOSTILE] });
  await call("POST", `/v1/cages/${id}/processes`, { argv: ["/bin/sh", "-c", "exec sleep 1000", HOSTILE], tag: HOSTILE });
  await call("POST", `/v1/cages/${id}/processes`, { argv: ["/.ironcage/bin/ironcage", "ask", "--write", data, "--reason", HOSTILE, "--wait", "1000"] });
  const page = await open();
  await has(page, SHOWN);
  await page.locator(".request").waitFor();
  assert.ok((await page.locator(".request .reason").innerText()).includes("<script>window.owned=2</script>"));
  await inert(page);
  for (const tab of ["processes", "network", "leases", "change", "audit"]) {
    await page.goto(`${address}/#/cages/${id}/${tab}`);
    await page.locator(`#tab-${tab}[aria-selected=true]`).waitFor();
    if (tab === "processes") await page.locator("td", { hasText: SHOWN.replaceAll("'", "'\\''") }).first().waitFor();
    if (tab === "audit") await page.locator(".audit strong", { hasText: "question" }).first().waitFor();
    if (tab === "change") {
      await page.locator(".diff").first().waitFor();
      // What the file says of other files stays within the file.
      assert.equal(await page.locator("details.file").count(), 2);
      assert.ok((await page.locator(".diff .line.added").allInnerTexts()).some((line) => line.includes("+diff --git a/x b/x")));
      assert.match(await page.locator("details.file summary").first().innerText(), /<img src=x/);
    }
    await inert(page);
  }
  for (const details of await page.locator(".audit details").all()) await details.evaluate((one) => (one.open = true));
  await inert(page);
  await page.goto(`${address}/#/usage`);
  await page.getByRole("table", { name: "Usage by cage" }).getByText("<img src=x").waitFor();
  await inert(page);

  // A program writes it to its terminal, with a title, a link, the clipboard and an image.
  const print = `printf '%s' "$TEXT"; printf '\\033]8;;javascript:window.owned=4\\033\\\\link\\033]8;;\\033\\\\\\033]52;c;b3duZWQ=\\007\\033[31mcoloured\\033[m\\033]2;owned\\007 end\\n'; sleep 1000`;
  const { pid } = await call("POST", `/v1/cages/${id}/processes`, { command: print, env: { TEXT: HOSTILE, TERM: "xterm" }, pty: { rows: 24, columns: 80 } });
  await page.goto(`${address}/#/cages/${id}/processes`);
  const own = page.locator("tr", { has: page.locator("td[data-label=PID]", { hasText: new RegExp(`^${pid}$`) }) });
  await own.getByRole("button", { name: "Attach" }).click();
  await page.locator(".screen").getByText("coloured").waitFor();
  assert.ok((await page.locator(".screen").innerText()).includes("<script>window.owned=2</script>"));
  assert.equal(await page.locator(".screen .fg1", { hasText: "coloured" }).count(), 1);
  await inert(page);
  // Its terminal is attached: a request that it makes while the cage ends fails.
  await page.close();
  await call("DELETE", `/v1/cages/${id}`);
  clean();
});

test("every view fits a phone, in the dark and in the light", async () => {
  const long = "a".repeat(300);
  const directory = join(home, "phone");
  mkdirSync(directory);
  const policy = `[ceiling.ask.files]\nwrite = ["${data}"]\n`;
  const id = await create({ policy, directory, metadata: { name: `long ${long}` } });
  await call("POST", `/v1/cages/${id}/run`, { command: `echo ${long}${long} > ${long.slice(0, 200)}` });
  await call("POST", `/v1/cages/${id}/processes`, { argv: ["/bin/sh", "-c", "exec sleep 1000", long] });
  await call("POST", `/v1/cages/${id}/processes`, { argv: ["/.ironcage/bin/ironcage", "ask", "--write", data, "--reason", long, "--wait", "1000"] });
  for (const colorScheme of ["light", "dark"]) {
    const page = await open({ viewport: { width: PHONE, height: 740 }, isMobile: true, hasTouch: true, colorScheme });
    await page.locator(".request").waitFor();
    assert.ok(await fits(page), "the list");
    for (const tab of ["processes", "network", "leases", "change", "audit", "terminal"]) {
      await page.goto(`${address}/#/cages/${id}/${tab}`);
      await page.locator(`#tab-${tab}[aria-selected=true]`).waitFor();
      if (tab === "change") await page.locator(".diff").first().waitFor();
      if (tab === "audit") await page.locator(".audit details").first().waitFor();
      if (tab === "terminal") {
        await page.getByRole("button", { name: "Start a shell" }).click();
        await page.locator(".screen .row").first().waitFor();
      }
      assert.ok(await fits(page), tab);
    }
    await page.goto(`${address}/#/usage`);
    await page.getByRole("table", { name: "Usage by cage" }).getByRole("link").first().waitFor();
    assert.ok(await fits(page), "usage");
    // Text stands out from its ground as WCAG asks.
    const contrast = await page.evaluate(() => {
      const luminance = (colour) => {
        const parts = colour.match(/[\d.]+/g).slice(0, 3).map((part) => part / 255);
        const [r, g, b] = parts.map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const ground = luminance(getComputedStyle(document.body).backgroundColor);
      return [".quiet", "h1", "td a"].map((selector) => {
        const text = luminance(getComputedStyle(document.querySelector(`main ${selector}`)).color);
        return { ground, ratio: (Math.max(text, ground) + 0.05) / (Math.min(text, ground) + 0.05) };
      });
    });
    for (const { ground, ratio } of contrast) {
      assert.ok(ratio >= 4.5, JSON.stringify(contrast));
      assert.equal(ground < 0.2, colorScheme === "dark");
    }
    // The measure itself: something that is too wide is noticed.
    await page.evaluate(() => {
      const wide = document.createElement("div");
      wide.style.width = "500px";
      wide.textContent = "wide";
      document.querySelector("main").append(wide);
    });
    assert.equal(await fits(page), false);
    }
  await call("DELETE", `/v1/cages/${id}`);
  clean();
});

test("everything is reached by keys", async () => {
  const [first, second] = [await create({ metadata: { name: "first" } }), await create({ metadata: { name: "second" } })];
  const page = await open();
  await page.getByRole("link", { name: "second", exact: true }).waitFor();
  const focused = () => page.evaluate(() => document.activeElement.textContent);
  await page.keyboard.press("j");
  assert.equal(await focused(), "second");
  await page.keyboard.press("j");
  assert.equal(await focused(), "first");
  // A list that is asked for again keeps the focus.
  await page.waitForResponse((answer) => answer.url().includes("/dashboard/cages"));
  assert.equal(await focused(), "first");
  await page.keyboard.press("k");
  await page.keyboard.press("Enter");
  await page.locator("h1", { hasText: "second" }).waitFor();
  assert.ok(page.url().endsWith(`/cages/${second}`));
  for (const [digit, tab] of [["2", "network"], ["5", "audit"], ["1", "processes"]]) {
    await page.keyboard.press(digit);
    await page.locator(`#tab-${tab}[aria-selected=true]`).waitFor();
  }
  await page.locator("#tab-processes").focus();
  await page.keyboard.press("ArrowRight");
  await page.locator("#tab-network[aria-selected=true]").waitFor();
  assert.equal(await focused(), "Network");
  await page.keyboard.press("?");
  await page.getByRole("dialog", { name: "Keys" }).waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("dialog", { name: "Keys" }).waitFor({ state: "detached" });
  await page.keyboard.press("Escape");
  await page.locator("h1", { hasText: "Cages" }).waitFor();
  // With Tab alone, each place shows that it has the focus.
  const seen = new Set();
  for (let step = 0; step < 40; step += 1) {
    await page.keyboard.press("Tab");
    const place = await page.evaluate(() => {
      const active = document.activeElement;
      // After the last place the browser begins again.
      if (active === document.body) return null;
      const { outlineStyle, outlineWidth } = getComputedStyle(active);
      return { name: active.getAttribute("aria-label") ?? active.textContent.trim(), ring: outlineStyle !== "none" && parseFloat(outlineWidth) > 0 };
    });
    if (!place) continue;
    assert.ok(place.ring, JSON.stringify(place));
    seen.add(place.name);
  }
  for (const name of ["Skip to the content", "Cages", "Usage", "Keys", "Sign out", "Find a cage", "first", "second"]) assert.ok(seen.has(name), `${name}: ${[...seen]}`);
  for (const id of [first, second]) await call("DELETE", `/v1/cages/${id}`);
  clean();
});

test("a service that was killed is found again by the page", async () => {
  const id = await create({ metadata: { name: "stays" } });
  const page = await open();
  await page.goto(`${address}/#/cages/${id}/terminal`);
  await page.getByRole("button", { name: "Start a shell" }).click();
  const screen = page.locator(".screen");
  await page.getByLabel(/^Terminal of process/).waitFor({ state: "attached" });
  await page.keyboard.type("echo $((40 + 2))\n");
  await screen.locator(".row", { hasText: /^42/ }).waitFor();
  await stop("SIGKILL");
  await page.getByText("the service does not answer").first().waitFor();
  assert.equal(await start(new URL(address).host), address);
  await page.getByText("the service does not answer").first().waitFor({ state: "hidden" });
  await page.getByLabel(/^Terminal of process/).focus();
  await page.keyboard.type("echo $((40 + 3))\n");
  await screen.locator(".row", { hasText: /^43/ }).waitFor();
  await call("DELETE", `/v1/cages/${id}`);
  // The browser reports connections that were refused.
});
