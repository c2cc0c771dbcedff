import { type Client } from "./client.js";
import { errorOf, InvalidArgumentError, IroncageError, UnsupportedError } from "./errors.js";

/** A file of a pending change. */
export interface ChangedFile {
  path: string;
  from?: string | null;
  status: "added" | "removed" | "modified" | "type" | "mode" | "touched";
  lines_added?: number | null;
  lines_removed?: number | null;
  bytes?: number | null;
}

export interface ReportedFile {
  path: string;
  why: string;
}

/** What a cage did to a copy-on-write directory, and is not applied yet. */
export interface Change {
  id: string;
  workspace: string;
  files: ChangedFile[];
  /** Applied only when they are named: the host's own tools would execute or trust them. */
  withheld: ReportedFile[];
  flagged: ReportedFile[];
  conflicts: string[];
}

export interface AppliedChange {
  applied: number;
  conflicts: string[];
  /** Whether nothing is pending any more. */
  finished: boolean;
  summary: string;
}

/** The pending change of a cage. Text in it comes from the agent. */
export class Changes {
  readonly #client: Client;
  readonly #cage: string;
  #id: string | undefined;

  constructor(client: Client, cage: string) {
    this.#client = client;
    this.#cage = cage;
  }

  /** The ID of the change, which stays when the cage has ended. */
  async #path(...rest: string[]): Promise<string[]> {
    if (this.#id === undefined) {
      const info = await this.#client.json<{ change?: string }>("GET", ["cages", this.#cage]);
      if (!info.change) throw new UnsupportedError("this cage has no pending change", "not_offered", { hint: "its workspace is not copy-on-write" });
      this.#id = info.change;
    }
    return ["changes", this.#id, ...rest];
  }

  /** The files of the change, or those at one path. */
  async diff(path?: string): Promise<Change> {
    return this.#client.json("GET", await this.#path(), { query: path === undefined ? {} : { path }, timeout: 330_000 });
  }

  /** The change as a unified diff. With `raw`, control characters are as they are. */
  async text(path?: string, options: { raw?: boolean } = {}): Promise<string> {
    const query = { ...(path !== undefined && { path }), ...(options.raw && { raw: true }) };
    return (await this.#client.send("GET", await this.#path("diff"), { query, timeout: 330_000 })).text();
  }

  /** Applies the change, or the named paths, to the real files. */
  async apply(paths: string[] = [], options: { onConflict?: "keep" | "theirs" | "ours" } = {}): Promise<AppliedChange> {
    const json = { paths, on_conflict: options.onConflict ?? "keep" };
    return this.#client.json("POST", await this.#path("apply"), { json, timeout: 330_000 });
  }

  /** Drops the change, or the named paths. Close the sandbox first. */
  async discard(paths: string[] = []): Promise<void> {
    await this.#client.json("POST", await this.#path("discard"), { json: { paths }, timeout: 330_000 });
  }
}

export interface NetworkLimits {
  connections?: number;
  requests_per_second?: number;
  bytes_out_per_host?: number;
  bytes_out?: number;
  new_hosts_per_minute?: number;
  body?: number;
}

export interface NetworkState {
  /** Rules that the cage started with. */
  rules: { verdict: "allow" | "deny"; rule: string }[];
  /** Rules that were added since. */
  live: { number: number; verdict: "allow" | "deny"; rule: string; origin: string }[];
  limits: NetworkLimits;
}

export interface RulesChanged {
  numbers: number[];
  /** Connections that no longer match and were closed. */
  closed: number;
}

/** A port of a cage at 127.0.0.1 of the service's host. */
export interface Port {
  port: number;
  host_port: number;
}

/** The network of a running cage. */
export class Network {
  readonly #client: Client;
  readonly #cage: string;

  constructor(client: Client, cage: string) {
    this.#client = client;
    this.#cage = cage;
  }

  #parts(...rest: string[]): string[] {
    return ["cages", this.#cage, ...rest];
  }

  async state(): Promise<NetworkState> {
    return this.#client.json("GET", this.#parts("network"));
  }

  /** Allows a host, or only some requests to it (`GET,HEAD api.example.com/v1/**`). */
  async allow(what: { host: string } | { requests: string }): Promise<RulesChanged> {
    return this.#client.json("POST", this.#parts("network", "rules"), { json: { verdict: "allow", ...what } });
  }

  /** Denies a host, whatever allows it. */
  async deny(host: string): Promise<RulesChanged> {
    return this.#client.json("POST", this.#parts("network", "rules"), { json: { verdict: "deny", host } });
  }

  async remove(number: number): Promise<RulesChanged> {
    return this.#client.json("DELETE", this.#parts("network", "rules", String(number)));
  }

  /** Sets limits; those that are not named stay. */
  async limit(limits: NetworkLimits): Promise<NetworkLimits> {
    return this.#client.json("PATCH", this.#parts("network", "limits"), { json: limits });
  }

  async ports(): Promise<Port[]> {
    return (await this.#client.json<{ ports: Port[] }>("GET", this.#parts("ports"))).ports;
  }

  /** Publishes a port of the cage's loopback at 127.0.0.1 of the host. */
  async publish(port: number, hostPort = 0): Promise<Port> {
    return this.#client.json("POST", this.#parts("ports"), { json: { port, host_port: hostPort } });
  }

  async unpublish(hostPort: number): Promise<void> {
    await this.#client.json("DELETE", this.#parts("ports", String(hostPort)));
  }
}

/** An event of a stream. */
export interface StreamEvent {
  /** For `after`, to continue behind it. */
  id: string;
  event: string;
  data: unknown;
}

const ATTEMPTS = 5;
const pause = (milliseconds: number) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/** Follows a stream, and takes it up again where it was when the connection or the service breaks. */
export async function* follow(client: Client, parts: string[], after?: string, signal?: AbortSignal): AsyncGenerator<StreamEvent> {
  if (after !== undefined && !/^[\w-]+$/.test(after)) throw new InvalidArgumentError("invalid id of an event", "invalid_argument");
  let last = after;
  for (let attempt = 1; ; attempt++) {
    try {
      const headers: Record<string, string> = last === undefined ? {} : { "last-event-id": last };
      for await (const event of client.events(parts, { headers, ...(signal && { signal }) })) {
        // What came before the end was asked for, and was not read yet, is not wanted any more.
        if (signal?.aborted) return;
        if (event.event === "error") {
          const error = errorOf(408, new Headers(), JSON.stringify(event.data));
          if (error.code !== "too_slow") throw error;
          break;
        }
        if (event.event === "end") return;
        if (event.event === "stopping") break;
        attempt = 0;
        if (event.id) last = event.id;
        yield event;
      }
    } catch (error) {
      if (signal?.aborted) return;
      if (error instanceof IroncageError && error.code !== "unreachable") throw error;
      if (attempt >= ATTEMPTS) throw error;
    }
    if (signal?.aborted) return;
    if (attempt >= ATTEMPTS) throw new IroncageError("the service ends the stream of events again and again", "service_error");
    await pause(200 * attempt);
  }
}
