// Every public method of the unmodified e2b package of npm that e2b_smoke.mjs does not have. Prints `ok`.

import assert from 'node:assert/strict'
import { randomBytes, randomUUID } from 'node:crypto'
import {
  AuthenticationError, CommandExitError, FileNotFoundError, FileType, InvalidArgumentError, NotFoundError, Sandbox,
  SandboxError, SandboxNotFoundError, TimeoutError,
} from 'e2b'

const until = async (condition) => {
  for (let i = 0; i < 400; i++) {
    const found = await condition()
    if (found) return found
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
  throw new Error(`did not come true: ${condition}`)
}
const job = randomUUID()
const sandbox = await Sandbox.create({ timeoutMs: 300_000, metadata: { job, odd: 'a&b=c d/ü' }, envs: { A: '1' } })
const { files, commands, pty } = sandbox

// Creation, lists, what is not there.
await assert.rejects(Sandbox.create({ apiKey: 'e2b_' + '0'.repeat(40) }), AuthenticationError)
await assert.rejects(Sandbox.create('no-such-template'), SandboxError)
await assert.rejects(Sandbox.getInfo('cnosuchsandbox'), SandboxNotFoundError)
await assert.rejects(Sandbox.connect('cnosuchsandbox'), SandboxNotFoundError)
assert.equal(await Sandbox.kill('cnosuchsandbox'), false)
const info = await sandbox.getInfo()
assert.equal(info.metadata.odd, 'a&b=c d/ü')
assert.equal(info.state, 'running')
assert.ok(info.startedAt <= new Date() && info.endAt > new Date())
const others = await Promise.all([0, 1, 2].map((n) => Sandbox.create({ timeoutMs: 120_000, metadata: { job, n: `${n}` } })))
const paginator = Sandbox.list({ query: { metadata: { job } }, limit: 3 })
const listed = []
while (paginator.hasNext) listed.push(...(await paginator.nextItems()))
assert.deepEqual(new Set(listed.map((one) => one.sandboxId)), new Set([sandbox, ...others].map((one) => one.sandboxId)))
assert.equal(await others[0].pause(), true)
const paused = await Sandbox.list({ query: { metadata: { job }, state: ['paused'] } }).nextItems()
assert.deepEqual(paused.map((one) => one.sandboxId), [others[0].sandboxId])
assert.deepEqual((await Sandbox.list({ query: { metadata: { odd: 'a&b=c d/ü', job } } }).nextItems()).map((one) => one.sandboxId), [sandbox.sandboxId])
const running = await others[1].commands.run('sleep 1000', { background: true })
await others[1].kill()
await assert.rejects(running.wait(), TimeoutError)
await assert.rejects(others[1].commands.run('true'), SandboxNotFoundError)
await Promise.all(others.map((one) => one.kill()))
await sandbox.setTimeout(600_000)
await Sandbox.setTimeout(sandbox.sandboxId, 600_000)
assert.ok((await sandbox.getInfo()).endAt - new Date() > 500_000)
const [metric] = await sandbox.getMetrics()
assert.ok(metric.cpuCount >= 1 && metric.memTotal > 0 && metric.timestamp instanceof Date)

// Commands.
const there = await commands.run('pwd; printf %s "$V$A"', { cwd: '/tmp', envs: { V: 'ü $x "' } })
assert.equal(there.stdout, '/tmp\nü $x "1')
await assert.rejects(commands.run('true', { cwd: '/no/such' }), InvalidArgumentError)
await assert.rejects(commands.run('sleep 60', { timeoutMs: 300 }), TimeoutError)
await assert.rejects(commands.run('id', { user: 'root' }), SandboxError)
const failed = await commands.run('echo out; echo err >&2; exit 7').catch((error) => error)
assert.ok(failed instanceof CommandExitError)
assert.deepEqual([failed.exitCode, failed.stdout, failed.stderr], [7, 'out\n', 'err\n'])
const out = [], err = []
const long = await commands.run('seq 1 200000; printf b >&2', { onStdout: (text) => out.push(text), onStderr: (text) => err.push(text) })
assert.equal(out.join(''), long.stdout)
assert.ok(long.stdout.endsWith('200000\n'))
assert.equal(err.join(''), 'b')
const many = await Promise.all([...Array(20).keys()].map((n) => commands.run(`sleep 0.1; echo ${n}`)))
assert.deepEqual(many.map((one) => one.stdout), [...Array(20).keys()].map((n) => `${n}\n`))
const reader = await commands.run('cat', { background: true, stdin: true })
await commands.sendStdin(reader.pid, 'ü€\n')
const joined = await commands.connect(reader.pid)
await joined.sendStdin('more\n')
await joined.closeStdin()
assert.equal((await reader.wait()).stdout, 'ü€\nmore\n')
await assert.rejects(commands.sendStdin(reader.pid, 'x'), NotFoundError)
await assert.rejects(commands.connect(999999), NotFoundError)
assert.equal(await commands.kill(999999), false)

// Files.
for (const name of ['empty', 'ü€ 😀', 'a b', 'per%20cent', 'q?u&e=r+y#f', "quote's \"", 'new\nline']) {
  const text = name === 'empty' ? '' : name
  assert.equal((await files.write(`names/${name}`, text)).name, name)
  assert.equal(await files.read(`names/${name}`), text)
}
const big = randomBytes(5 << 20)
await files.write('big', big.buffer.slice(big.byteOffset, big.byteOffset + big.length))
assert.ok(Buffer.from(await files.read('big', { format: 'bytes' })).equals(big))
assert.ok(Buffer.from(await (await files.read('big', { format: 'blob' })).arrayBuffer()).equals(big))
const chunks = []
for await (const chunk of await files.read('big', { format: 'stream' })) chunks.push(chunk)
assert.ok(Buffer.concat(chunks).equals(big))
await files.write('blob', new Blob(['blob']))
await files.write('stream', new Blob(['stream']).stream())
assert.deepEqual([await files.read('blob'), await files.read('stream')], ['blob', 'stream'])
const written = await files.writeFiles([1, 2, 3].map((n) => ({ path: `m/${n}/f`, data: `${n}` })))
assert.equal(written.length, 3)
assert.deepEqual((await files.list('m')).map((entry) => [entry.name, entry.type]), ['1', '2', '3'].map((n) => [n, FileType.DIR]))
assert.equal((await files.list('m', { depth: 2 })).length, 6)
const entry = await files.getInfo('m/1/f')
assert.deepEqual([entry.type, entry.size, entry.permissions], [FileType.FILE, 1, '-rw-r--r--'])
assert.equal(await files.makeDir('d/e'), true)
assert.equal(await files.makeDir('d/e'), false)
await files.rename('m/1/f', 'd/e/moved')
assert.equal(await files.read('d/e/moved'), '1')
await files.remove('d')
assert.equal(await files.exists('d'), false)
await assert.rejects(files.read('none'), FileNotFoundError)
await assert.rejects(files.list('none'), FileNotFoundError)
await assert.rejects(files.list('big'), InvalidArgumentError)
await assert.rejects(files.read('m'), InvalidArgumentError)
await assert.rejects(files.watchDir('none', () => {}), NotFoundError)
const events = []
const watch = await files.watchDir('m', (event) => events.push(event), { recursive: true })
await files.write('m/new/deep', 'x')
await until(() => events.some((event) => event.name === 'new/deep'))
await watch.stop()

// Signed URLs.
const own = { 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': '49983' }
const url = await sandbox.downloadUrl('m/2/f', { useSignatureExpiration: 60 })
assert.equal(await (await fetch(url, { headers: own })).text(), '2')
assert.equal((await fetch(url.replace('v1_', 'v1_x'), { headers: own })).status, 401)
const form = new FormData()
form.append('file', new Blob(['up']), 'up')
const up = await fetch(await sandbox.uploadUrl('up'), { method: 'POST', body: form, headers: own })
assert.equal(up.status, 200, await up.text())
assert.equal(await files.read('up'), 'up')

// Terminals.
let shown = ''
const terminal = await pty.create({ cols: 80, rows: 24, envs: { P: '1' }, cwd: '/tmp', onData: (data) => (shown += Buffer.from(data)) })
await pty.resize(terminal.pid, { cols: 101, rows: 33 })
await pty.sendInput(terminal.pid, Buffer.from('stty size; echo $P-$((40+2)); pwd\n'))
await until(() => shown.includes('33 101') && shown.includes('1-42'))
assert.equal(await pty.kill(terminal.pid), true)
assert.equal(await pty.kill(terminal.pid), false)

// Ports, the network, snapshots, a pause with automatic resume.
assert.equal(sandbox.getHost(3000), `3000-${sandbox.sandboxId}.${sandbox.sandboxDomain}`)
await sandbox.updateNetwork({ allowOut: ['api.example.test'] })
assert.deepEqual((await sandbox.getInfo()).network.allowOut, ['api.example.test'])
const snapshot = await sandbox.createSnapshot()
const copy = await Sandbox.create(snapshot.snapshotId, { timeoutMs: 60_000 })
assert.equal(await copy.files.read('up'), 'up')
await copy.kill()
assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), true)
const resting = await Sandbox.create({ timeoutMs: 2_000, lifecycle: { onTimeout: 'pause', autoResume: true } })
await resting.files.write('kept', '1')
await until(async () => (await resting.getInfo()).state === 'paused')
assert.equal(await resting.files.read('kept'), '1')
await resting.kill()
assert.equal(await sandbox.kill(), true)
await assert.rejects(sandbox.getInfo(), SandboxNotFoundError)
console.log('ok')
