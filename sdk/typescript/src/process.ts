import type { Client } from "./client.js";
import { CommandTimeoutError, errorOf, IroncageError } from "./errors.js";

/** How a command ended, and what it wrote. Its output comes from the agent: do not trust it. */
export interface CommandResult {
  exitCode: number;
  /** The signal that killed it, if one did. */
  signal: number | undefined;
  stdout: string;
  stderr: string;
  stdoutBytes: Uint8Array;
  stderrBytes: Uint8Array;
  /** Whether output is missing. */
  truncated: boolean;
}

export interface Exit {
  code?: number | null;
  signal?: number | null;
}

export function result(exit: Exit, stdout: Uint8Array, stderr: Uint8Array, truncated: boolean): CommandResult {
  const signal = exit.signal ?? undefined;
  const text = new TextDecoder();
  return {
    exitCode: signal === undefined ? (exit.code ?? 0) : 128 + signal,
    signal,
    stdout: text.decode(stdout),
    stderr: text.decode(stderr),
    stdoutBytes: stdout,
    stderrBytes: stderr,
    truncated,
  };
}

export interface Output {
  stream: "stdout" | "stderr" | "pty";
  data: Uint8Array;
}

/** How often a stream that broke is taken up again, where it was, before the process is given up. */
const ATTEMPTS = 5;

const pause = (milliseconds: number) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/** A process that runs in a cage, with or without a terminal. */
export class Process {
  readonly pid: number;
  readonly #client: Client;
  readonly #path: string[];
  readonly #timeout: number | undefined;
  #timedOut = false;

  /** Made by `commands.start` and `pty.create`. */
  constructor(client: Client, cage: string, pid: number, timeout?: number) {
    this.#client = client;
    this.pid = pid;
    this.#path = ["cages", cage, "processes", String(pid)];
    this.#timeout = timeout;
    if (timeout !== undefined) {
      const timer = setTimeout(() => {
        this.#timedOut = true;
        this.kill().catch(() => undefined);
      }, timeout * 1000);
      timer.unref();
    }
  }

  /** Writes to its input, or types at its terminal. */
  async write(data: string | Uint8Array): Promise<void> {
    const body = typeof data === "string" ? new TextEncoder().encode(data) : data;
    await this.#client.send("POST", [...this.#path, "stdin"], { body, timeout: null });
  }

  /** Ends its input. */
  async closeInput(): Promise<void> {
    await this.#client.send("POST", [...this.#path, "stdin"], { query: { close: true }, body: new Uint8Array() });
  }

  async resize(rows: number, columns: number): Promise<void> {
    await this.#client.send("POST", [...this.#path, "resize"], { json: { rows, columns } });
  }

  /** Sends a signal to its process group [default: SIGKILL]. */
  async kill(signal = "SIGKILL"): Promise<void> {
    try {
      await this.#client.send("POST", [...this.#path, "signal"], { json: { signal } });
    } catch (error) {
      // It has just ended.
      if (!(error instanceof IroncageError && error.code === "not_found")) throw error;
    }
  }

  /** Its output from the beginning, as far as the service has kept it (the last MiB), to its end. */
  async *output(): AsyncGenerator<Output, { exit: Exit; truncated: boolean }> {
    let offset = 0;
    let truncated = false;
    for (let attempt = 1; ; attempt++) {
      try {
        for await (const { event, data } of this.#client.events([...this.#path, "output"], { query: { from: offset } })) {
          attempt = 0;
          if (event === "start") {
            const { from } = data as { from: number };
            truncated ||= from > offset;
            offset = from;
          } else if (event === "output") {
            const piece = data as { stream: Output["stream"]; offset: number; data: string };
            const bytes = new Uint8Array(Buffer.from(piece.data, "base64"));
            offset = piece.offset + bytes.length;
            yield { stream: piece.stream, data: bytes };
          } else if (event === "exit") return { exit: data as Exit, truncated };
          else if (event === "error") throw errorOf(500, new Headers(), JSON.stringify(data));
        }
      } catch (error) {
        if (error instanceof IroncageError && error.code !== "unreachable") throw error;
        if (attempt >= ATTEMPTS) throw error;
      }
      if (attempt >= ATTEMPTS) throw new IroncageError(`the output of process ${this.pid} ended before the process did`, "service_error");
      await pause(200 * attempt);
    }
  }

  /** Waits for its end, with its output. Of each stream, `maxOutput` bytes are kept. */
  async wait(maxOutput = 16 * 1024 * 1024): Promise<CommandResult> {
    const kept = { stdout: [] as Uint8Array[], stderr: [] as Uint8Array[] };
    const sizes = { stdout: 0, stderr: 0 };
    let dropped = false;
    const output = this.output();
    for (;;) {
      const next = await output.next();
      if (next.done) {
        const [stdout, stderr] = [Buffer.concat(kept.stdout), Buffer.concat(kept.stderr)];
        if (this.#timedOut) {
          const error = new CommandTimeoutError(`process ${this.pid} ran into its timeout of ${this.#timeout} s and was killed`, "timeout");
          error.stdout = stdout.toString();
          error.stderr = stderr.toString();
          throw error;
        }
        return result(next.value.exit, stdout, stderr, dropped || next.value.truncated);
      }
      const name = next.value.stream === "stderr" ? "stderr" : "stdout";
      const piece = next.value.data.subarray(0, Math.max(0, maxOutput - sizes[name]));
      dropped ||= piece.length < next.value.data.length;
      sizes[name] += piece.length;
      kept[name].push(piece);
    }
  }
}
