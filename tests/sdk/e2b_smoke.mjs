// The unmodified e2b package of npm against the service that E2B_API_URL names. Prints `ok` at the end.

import assert from 'node:assert/strict'
import { CommandExitError, FilesystemEventType, Sandbox } from 'e2b'

const sandbox = await Sandbox.create({ timeoutMs: 120_000, metadata: { job: 'smoke' }, envs: { FROM_CREATE: '1' } })
assert.equal(await sandbox.isRunning(), true)

const done = await sandbox.commands.run('echo out $FROM_CREATE; echo err >&2')
assert.deepEqual([done.stdout, done.stderr, done.exitCode], ['out 1\n', 'err\n', 0])
await assert.rejects(sandbox.commands.run('exit 3'), CommandExitError)

const cat = await sandbox.commands.run('cat', { background: true, stdin: true })
await sandbox.commands.sendStdin(cat.pid, 'hello\n')
await sandbox.commands.closeStdin(cat.pid)
assert.equal((await cat.wait()).stdout, 'hello\n')
const sleeper = await sandbox.commands.run('sleep 1000', { background: true })
assert.ok((await sandbox.commands.list()).some((process) => process.pid === sleeper.pid))
assert.equal(await sandbox.commands.kill(sleeper.pid), true)
await assert.rejects(sleeper.wait(), CommandExitError)

await sandbox.files.write('notes/a.txt', 'text')
assert.equal(await sandbox.files.read('notes/a.txt'), 'text')
assert.equal(await sandbox.files.exists('notes/b.txt'), false)
assert.deepEqual((await sandbox.files.list('notes')).map((entry) => entry.name), ['a.txt'])

const events = []
const watch = await sandbox.files.watchDir('notes', (event) => events.push(event))
await sandbox.files.write('notes/new.txt', 'x')
for (let i = 0; i < 100 && !events.some((event) => event.name === 'new.txt'); i++) {
  await new Promise((resolve) => setTimeout(resolve, 100))
}
assert.ok(events.some((event) => event.name === 'new.txt' && event.type in { create: 1, rename: 1, write: 1, chmod: 1 }), JSON.stringify(events))
assert.ok(FilesystemEventType)
await watch.stop()

let shown = ''
const terminal = await sandbox.pty.create({ cols: 80, rows: 24, onData: (data) => (shown += Buffer.from(data).toString()) })
await sandbox.pty.sendInput(terminal.pid, Buffer.from('stty size; exit\n'))
await terminal.wait().catch(() => {})
assert.ok(shown.includes('24 80'), shown)

assert.ok(await sandbox.pause())
assert.equal(await sandbox.isRunning(), false)
const again = await Sandbox.connect(sandbox.sandboxId)
assert.equal(await again.isRunning(), true)
assert.equal(await again.files.read('notes/a.txt'), 'text')
assert.equal(await Sandbox.kill(sandbox.sandboxId), true)
assert.equal(await sandbox.isRunning(), false)
console.log('ok')
