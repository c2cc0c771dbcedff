// The packed package against `ironcage serve`. IRONCAGE_BINARY names the program.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";

import * as ironcage from "ironcage";

const { Sandbox } = ironcage;
const program = process.env.IRONCAGE_BINARY ?? "ironcage";
const connection = {};
let service, home, sandbox;

before(async () => {
  home = mkdtempSync(join(tmpdir(), "ironcage-ts."));
  mkdirSync(join(home, "run"), { mode: 0o700 });
  const env = { ...process.env, HOME: home, XDG_RUNTIME_DIR: join(home, "run") };
  for (const name of ["XDG_STATE_HOME", "XDG_CONFIG_HOME"]) delete env[name];
  service = spawn(program, ["serve", "--listen", "127.0.0.1:0"], { env, stdio: ["ignore", "pipe", "inherit"] });
  for await (const line of createInterface(service.stdout)) {
    connection.apiUrl = line.split(" ").pop();
    break;
  }
  connection.apiKey = /IRONCAGE_API_KEY='([^']+)'/.exec(execFileSync(program, ["serve", "env"], { env, encoding: "utf8" }))[1];
  sandbox = await Sandbox.create({ ...connection, timeout: 600, env: { FROM_CREATE: "1" }, metadata: { of: "suite" } });
});

after(async () => {
  await sandbox?.close();
  const ended = new Promise((resolve) => service.on("exit", resolve));
  service.kill();
  await ended;
  rmSync(home, { recursive: true, force: true });
});

test("a command has streams, status, input and a timeout", async () => {
  const ran = await sandbox.commands.run("echo out$FROM_CREATE$A; echo err >&2; exit 42", { env: { A: "2" } });
  assert.deepEqual([ran.stdout, ran.stderr, ran.exitCode], ["out12\n", "err\n", 42]);
  const bytes = new Uint8Array([0, 255]);
  assert.deepEqual([...(await sandbox.commands.run(["cat"], { input: bytes })).stdoutBytes], [...bytes]);
  assert.equal((await sandbox.commands.run("kill -KILL $$")).signal, 9);
  assert.equal((await sandbox.commands.run(["no-such-program"])).exitCode, 127);
  const late = await sandbox.commands.run("echo begun; sleep 600", { timeout: 5 }).catch((error) => error);
  assert.ok(late instanceof ironcage.CommandTimeoutError);
  assert.equal(late.stdout, "begun\n");
  await assert.rejects(sandbox.commands.run([]), ironcage.InvalidArgumentError);
});

test("a process is fed, followed and killed", async () => {
  const cat = await sandbox.commands.start("read line; echo got $line; cat; exit 5");
  await cat.write("hello\n");
  await cat.write("more\n");
  await cat.closeInput();
  const ran = await cat.wait();
  assert.deepEqual([ran.exitCode, ran.stdout], [5, "got hello\nmore\n"]);
  const sleeper = await sandbox.commands.start("echo up; sleep 600");
  for await (const { data } of sleeper.output()) {
    assert.equal(new TextDecoder().decode(data), "up\n");
    await sleeper.kill();
  }
  assert.equal((await sleeper.wait()).signal, 9);
  const timed = await sandbox.commands.start("sleep 600", { timeout: 1 });
  await assert.rejects(timed.wait(), ironcage.CommandTimeoutError);
});

test("a terminal has a size and is typed at", async () => {
  const pty = await sandbox.pty.create({ command: "stty size; read line; stty size; echo got $line", rows: 30, columns: 100 });
  let seen = "";
  let resized = false;
  for await (const { data } of pty.output()) {
    seen += new TextDecoder().decode(data);
    if (!resized && seen.includes("30 100")) {
      resized = true;
      await pty.resize(40, 120);
      await pty.write("word\n");
    }
  }
  assert.match(seen, /40 120/);
  assert.match(seen, /got word/);
});

test("files are binary-safe, and their errors have codes", async () => {
  const content = new Uint8Array(3 << 20).map((_, i) => i * 7);
  await sandbox.files.write("d/large", content);
  assert.equal(Buffer.compare(await sandbox.files.read("d/large"), content), 0);
  await sandbox.files.write("d/name ü?&#%", "text");
  assert.equal(await sandbox.files.readText("d/name ü?&#%"), "text");
  const names = (await sandbox.files.list("d")).map((entry) => entry.name).sort();
  assert.deepEqual(names, ["large", "name ü?&#%"]);
  await sandbox.files.rename("d/large", "d/other");
  assert.ok(await sandbox.files.exists("d/other"));
  assert.ok(!(await sandbox.files.exists("d/large")));
  await sandbox.files.makeDir("d/e/f");
  assert.equal((await sandbox.files.info("d/e")).kind, "directory");
  for (const [code, act] of [
    ["not_found", () => sandbox.files.read("none")],
    ["is_a_directory", () => sandbox.files.read("d")],
    ["not_empty", () => sandbox.files.remove("d")],
    ["permission_denied", () => sandbox.files.write("/usr/x", "x")],
  ]) {
    const error = await act().catch((error) => error);
    assert.ok(error instanceof ironcage.FileError, String(error));
    assert.equal(error.code, code);
  }
  await sandbox.files.remove("d", { recursive: true });
  assert.ok(!(await sandbox.files.exists("d")));
});

test("a cage is found, listed, paused and ended", async () => {
  const other = await Sandbox.connect(sandbox.id, connection);
  assert.equal(other.directory, sandbox.directory);
  const found = [];
  for await (const info of Sandbox.list({ ...connection, metadata: { of: "suite" } })) found.push(info.id);
  assert.deepEqual(found, [sandbox.id]);
  await sandbox.pause();
  assert.equal((await sandbox.info()).state, "paused");
  await sandbox.resume();
  assert.equal((await sandbox.commands.run("echo on")).stdout, "on\n");
  const short = await Sandbox.create({ ...connection, timeout: 60 });
  assert.equal(await short.close(), true);
  assert.ok(!(await short.isRunning()));
  await assert.rejects(short.commands.run("true"), ironcage.SandboxNotFoundError);
  await assert.rejects(Sandbox.connect("c0000000000000", connection), ironcage.SandboxNotFoundError);
});

test("a change is shown, applied and discarded", async () => {
  const work = mkdtempSync(join(tmpdir(), "ironcage-ts-work."));
  writeFileSync(join(work, "kept"), "before\n");
  const changing = await Sandbox.create({ ...connection, timeout: 120, directory: work });
  await changing.commands.run("echo after > kept; echo new > other; echo x > third");
  const change = await changing.changes.diff();
  assert.deepEqual(change.files.map((file) => [file.path, file.status]).sort(), [["kept", "modified"], ["other", "added"], ["third", "added"]]);
  assert.match(await changing.changes.text("kept"), /\+after/);
  assert.equal((await changing.changes.apply(["kept"])).applied, 1);
  assert.equal(readFileSync(join(work, "kept"), "utf8"), "after\n");
  const refused = await changing.changes.discard().catch((error) => error);
  assert.equal(refused.code, "conflict");
  await changing.close();
  await changing.changes.discard(["third"]);
  assert.equal((await changing.changes.apply()).finished, true);
  assert.equal(readFileSync(join(work, "other"), "utf8"), "new\n");
  await assert.rejects(sandbox.changes.diff(), ironcage.UnsupportedError);
  rmSync(work, { recursive: true });
});

test("rules and ports of the network change while the cage runs", async () => {
  const live = await Sandbox.create({ ...connection, timeout: 120, network: { mode: "live", allow: ["a.example"] } });
  const added = await live.network.allow({ host: "b.example" });
  await live.network.deny("a.example");
  const state = await live.network.state();
  assert.deepEqual(state.live.map(({ verdict, rule }) => [verdict, rule]), [["allow", "b.example"], ["deny", "a.example:*"]]);
  await live.network.remove(added.numbers[0]);
  assert.equal((await live.network.state()).live.length, 1);
  assert.equal((await live.network.limit({ connections: 7 })).connections, 7);
  const port = await live.network.publish(3000);
  assert.deepEqual(await live.network.ports(), [port]);
  await live.network.unpublish(port.host_port);
  assert.deepEqual(await live.network.ports(), []);
  await assert.rejects(live.network.allow({ host: "no host" }), (error) => error.code === "invalid_request");
  await live.close();
});

test("events are followed to the end of a cage", async () => {
  const short = await Sandbox.create({ ...connection, timeout: 60 });
  const stop = new AbortController();
  const cages = Sandbox.events({ ...connection, signal: stop.signal });
  const first = cages.next();
  const seen = [];
  for await (const { id, data } of short.events()) {
    seen.push([id, data.event]);
    if (data.event === "start") await short.close();
  }
  assert.deepEqual(seen[0], ["1", "start"]);
  assert.equal(seen.at(-1)[1], "exit");
  assert.equal((await first).value.data.cage, short.id);
  stop.abort();
  assert.equal((await cages.next()).done, true);
});

test("a wrong key and a service that is not there have their own errors", async () => {
  await assert.rejects(Sandbox.create({ ...connection, apiKey: "wrong" }), ironcage.AuthenticationError);
  const error = await Sandbox.create({ apiUrl: "http://127.0.0.1:1" }).catch((error) => error);
  assert.equal(error.code, "unreachable");
  await assert.rejects(Sandbox.create({ apiUrl: "ftp://x" }), ironcage.InvalidArgumentError);
});
