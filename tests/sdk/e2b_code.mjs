// The unmodified @e2b/code-interpreter package against a service with a code interpreter. Prints `ok`.

import assert from 'node:assert/strict'
import { Sandbox } from '@e2b/code-interpreter'

const sandbox = await Sandbox.create({ timeoutMs: 300_000 })
const first = await sandbox.runCode('x = 1\nprint("out")\nx + 1')
assert.deepEqual([first.text, first.logs.stdout, first.error], ['2', ['out\n'], undefined])
assert.equal((await sandbox.runCode('x')).text, '1')
const failed = await sandbox.runCode('1 / 0')
assert.equal(failed.error.name, 'ZeroDivisionError')
const chart = await sandbox.runCode('import matplotlib.pyplot as plt\nplt.plot([1, 3, 2])\nplt.show()')
assert.equal(Buffer.from(chart.results[0].png, 'base64').subarray(1, 4).toString(), 'PNG')

const seen = []
await sandbox.runCode('for i in range(3): print(i, flush=True)', { onStdout: (message) => seen.push(message.line) })
assert.equal(seen.join(''), '0\n1\n2\n')

await assert.rejects(sandbox.runCode('import time; time.sleep(3600)', { timeoutMs: 2_000 }))
assert.equal((await sandbox.runCode('x')).text, '1')

const context = await sandbox.createCodeContext({ language: 'python' })
assert.equal((await sandbox.runCode('x', { context })).error.name, 'NameError')
assert.equal((await sandbox.listCodeContexts()).length, 2)
await sandbox.restartCodeContext(context)
await sandbox.removeCodeContext(context)
await assert.rejects(sandbox.runCode('1', { context }))
assert.equal(await sandbox.kill(), true)
console.log('ok')
