import { Client, type ConnectionOptions } from "./client.js";
import { CommandTimeoutError, FileError, InvalidArgumentError, IroncageError, SandboxNotFoundError } from "./errors.js";
import { Changes, follow, Network, type StreamEvent } from "./supervision.js";
import { type CommandResult, type Exit, Process, result } from "./process.js";

export * from "./errors.js";
export * from "./supervision.js";
export { type ConnectionOptions } from "./client.js";
export { type CommandResult, type Exit, type Output, Process } from "./process.js";

/** A cage to create. Without a directory or an image it has the service's system and an empty workspace. */
export interface CreateOptions extends ConnectionOptions {
  profile?: string;
  /** Text of a policy file, in place of a profile. The key needs the scope `host`. */
  policy?: string;
  /** Directory of the service's host that becomes the workspace. The key needs the scope `host`. */
  directory?: string;
  workspaceMode?: "cow" | "leased" | "direct" | "read-only" | "scratch";
  image?: string;
  template?: string;
  metadata?: Record<string, string>;
  env?: Record<string, string>;
  /** Seconds until the cage ends [default: 3600]. */
  timeout?: number;
  limits?: { memory?: string; cpus?: string; pids?: number; disk?: string };
  network?: { mode?: "off" | "listed" | "live" | "open"; allow?: string[]; deny?: string[] };
}

export interface SandboxInfo {
  id: string;
  state: "running" | "paused" | "ended";
  metadata: Record<string, string>;
  created_at: string;
  ends_at: string;
  home: string;
  workspace: string;
}

export interface FileInfo {
  name: string;
  path: string;
  kind: "file" | "directory" | "symlink" | "other";
  size: number;
  mode: number;
  modified_at: string;
  target?: string | null;
}

/** A string is a line for the shell of the cage; an array is executed as it is. */
export type Command = string | string[];

export interface StartOptions {
  env?: Record<string, string>;
  cwd?: string;
  /** Seconds after which it is killed with its process group. */
  timeout?: number;
}

export interface RunOptions extends StartOptions {
  input?: string | Uint8Array;
  /** Bytes of each stream that are kept [default: 16 MiB, at most 64 MiB]. */
  maxOutput?: number;
}

const words = (command: Command): string[] => {
  const argv = typeof command === "string" ? ["/bin/sh", "-c", command] : command;
  if (argv.length === 0) throw new InvalidArgumentError("cannot run an empty command", "invalid_argument");
  return argv;
};

const LONGEST_RUN = 86_400;

/** A running cage of a service. */
export class Sandbox implements AsyncDisposable {
  readonly id: string;
  /** Where commands start, and what relative paths are relative to. */
  readonly directory: string;
  readonly commands: Commands;
  readonly files: Files;
  readonly pty: Ptys;
  readonly changes: Changes;
  readonly network: Network;
  readonly #client: Client;

  private constructor(client: Client, info: SandboxInfo) {
    this.#client = client;
    this.id = info.id;
    this.directory = info.workspace;
    this.commands = new Commands(client, info.id);
    this.files = new Files(client, info.id);
    this.pty = new Ptys(client, info.id);
    this.changes = new Changes(client, info.id);
    this.network = new Network(client, info.id);
  }

  static async create(options: CreateOptions = {}): Promise<Sandbox> {
    const { apiUrl, apiKey, workspaceMode, timeout, ...rest } = options;
    const client = new Client({ apiUrl, apiKey });
    const body = { ...rest, timeout: timeout ?? 3600, ...(workspaceMode && { workspace_mode: workspaceMode }) };
    return new Sandbox(client, await client.json("POST", ["cages"], { json: body, timeout: 600_000 }));
  }

  /** A cage that runs already. */
  static async connect(id: string, options: ConnectionOptions = {}): Promise<Sandbox> {
    const client = new Client(options);
    const info = await client.json<SandboxInfo>("GET", ["cages", id]);
    if (info.state === "ended") throw new SandboxNotFoundError(`the cage ${id} has ended`, "cage_ended");
    return new Sandbox(client, info);
  }

  /** The running and paused cages, all pages of them. */
  static async *list(options: ConnectionOptions & { metadata?: Record<string, string> } = {}): AsyncGenerator<SandboxInfo> {
    const client = new Client(options);
    const query: Record<string, string> = {};
    if (options.metadata) query["metadata"] = new URLSearchParams(options.metadata).toString();
    for (;;) {
      const page = await client.json<{ cages: SandboxInfo[]; next_cursor?: string | null }>("GET", ["cages"], { query });
      yield* page.cages;
      if (!page.next_cursor) return;
      query["cursor"] = page.next_cursor;
    }
  }

  /** What becomes of the cages of the key's project, from now on or after an event. `reset` says that some were missed. */
  static events(options: ConnectionOptions & { after?: string; signal?: AbortSignal } = {}): AsyncGenerator<StreamEvent> {
    return follow(new Client(options), ["events"], options.after, options.signal);
  }

  /** The audit events of the cage, from the first or after one, until it ends. */
  events(options: { after?: string; signal?: AbortSignal } = {}): AsyncGenerator<StreamEvent> {
    return follow(this.#client, ["cages", this.id, "events"], options.after, options.signal);
  }

  async info(): Promise<SandboxInfo> {
    return this.#client.json("GET", ["cages", this.id]);
  }

  async isRunning(): Promise<boolean> {
    try {
      return (await this.info()).state !== "ended";
    } catch (error) {
      if (error instanceof SandboxNotFoundError) return false;
      throw error;
    }
  }

  /** Sets the seconds from now until the cage ends. */
  async setTimeout(seconds: number): Promise<void> {
    await this.#client.json("PATCH", ["cages", this.id], { json: { timeout: seconds } });
  }

  /** Stops every process; `resume` lets them go on. */
  async pause(): Promise<void> {
    await this.#client.json("POST", ["cages", this.id, "pause"]);
  }

  async resume(): Promise<void> {
    await this.#client.json("POST", ["cages", this.id, "resume"]);
  }

  /** Ends the cage. False if it had ended before. */
  async close(): Promise<boolean> {
    try {
      await this.#client.send("DELETE", ["cages", this.id]);
      return true;
    } catch (error) {
      if (error instanceof SandboxNotFoundError) return false;
      throw error;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

/** Commands in a cage. */
export class Commands {
  readonly #client: Client;
  readonly #cage: string;

  constructor(client: Client, cage: string) {
    this.#client = client;
    this.#cage = cage;
  }

  /** Runs a command to its end. */
  async run(command: Command, options: RunOptions = {}): Promise<CommandResult> {
    const timeout = Math.ceil(options.timeout ?? LONGEST_RUN);
    const json = {
      argv: words(command),
      encoding: "base64",
      timeout,
      max_output: options.maxOutput ?? 16 * 1024 * 1024,
      ...(options.env && { env: options.env }),
      ...(options.cwd && { cwd: options.cwd }),
      ...(options.input !== undefined && { stdin: Buffer.from(options.input).toString("base64") }),
    };
    interface Ran {
      exit: Exit;
      stdout: string;
      stderr: string;
      truncated: boolean;
      timed_out: boolean;
    }
    let ran: Ran;
    try {
      ran = await this.#client.json<Ran>("POST", ["cages", this.#cage, "run"], { json, timeout: (timeout + 60) * 1000 });
    } catch (error) {
      // As a shell answers.
      if (!(error instanceof IroncageError && error.code === "not_executed")) throw error;
      return result({ code: 127 }, new Uint8Array(), new TextEncoder().encode(`${error.message}\n`), false);
    }
    const [stdout, stderr] = [Buffer.from(ran.stdout, "base64"), Buffer.from(ran.stderr, "base64")];
    if (ran.timed_out) {
      const error = new CommandTimeoutError(`the command ran into its timeout of ${timeout} s and was killed`, "timeout");
      error.stdout = stdout.toString();
      error.stderr = stderr.toString();
      throw error;
    }
    return result(ran.exit, stdout, stderr, ran.truncated);
  }

  /** Starts a command and returns at once. */
  async start(command: Command, options: StartOptions = {}): Promise<Process> {
    const { timeout, ...rest } = options;
    const json = { argv: words(command), stdin: true, ...rest };
    const { pid } = await this.#client.json<{ pid: number }>("POST", ["cages", this.#cage, "processes"], { json });
    return new Process(this.#client, this.#cage, pid, timeout);
  }
}

/** Files in a cage. Relative paths are relative to the workspace. */
export class Files {
  readonly #client: Client;
  readonly #cage: string;

  constructor(client: Client, cage: string) {
    this.#client = client;
    this.#cage = cage;
  }

  #parts(...rest: string[]): string[] {
    return ["cages", this.#cage, "files", ...rest];
  }

  async read(path: string): Promise<Uint8Array> {
    const response = await this.#client.send("GET", this.#parts("content"), { query: { path }, path, timeout: 600_000 });
    return new Uint8Array(await response.arrayBuffer());
  }

  async readText(path: string): Promise<string> {
    return new TextDecoder().decode(await this.read(path));
  }

  /** Writes a file, and makes the directories above it. */
  async write(path: string, content: string | Uint8Array): Promise<void> {
    const body = typeof content === "string" ? new TextEncoder().encode(content) : content;
    await this.#client.send("PUT", this.#parts("content"), { query: { path }, path, body, timeout: 600_000 });
  }

  async list(path = ".", options: { depth?: number } = {}): Promise<FileInfo[]> {
    const query = { path, depth: options.depth ?? 1 };
    return (await this.#client.json<{ entries: FileInfo[] }>("GET", this.#parts(), { query, path })).entries;
  }

  async info(path: string): Promise<FileInfo> {
    return this.#client.json("GET", this.#parts("entry"), { query: { path }, path });
  }

  async exists(path: string): Promise<boolean> {
    try {
      await this.info(path);
      return true;
    } catch (error) {
      if (error instanceof FileError && (error.code === "not_found" || error.code === "not_a_directory")) return false;
      throw error;
    }
  }

  async remove(path: string, options: { recursive?: boolean } = {}): Promise<void> {
    await this.#client.send("DELETE", this.#parts(), { query: { path, ...(options.recursive && { recursive: true }) }, path });
  }

  async rename(from: string, to: string): Promise<void> {
    await this.#client.json("POST", this.#parts("move"), { json: { from, to }, path: from });
  }

  async makeDir(path: string): Promise<void> {
    await this.#client.json("POST", this.#parts("directories"), { json: { path }, path });
  }
}

/** Terminals in a cage. Their output has whatever escape sequences the agent writes. */
export class Ptys {
  readonly #client: Client;
  readonly #cage: string;

  constructor(client: Client, cage: string) {
    this.#client = client;
    this.#cage = cage;
  }

  async create(options: StartOptions & { command?: Command; rows?: number; columns?: number } = {}): Promise<Process> {
    const { command, rows = 24, columns = 80, timeout, env, ...rest } = options;
    const json = { argv: words(command ?? ["/bin/sh"]), pty: { rows, columns }, env: { TERM: "xterm-256color", ...env }, ...rest };
    const { pid } = await this.#client.json<{ pid: number }>("POST", ["cages", this.#cage, "processes"], { json });
    return new Process(this.#client, this.#cage, pid, timeout);
  }
}
