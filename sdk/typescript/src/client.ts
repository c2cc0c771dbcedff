import { errorOf, InvalidArgumentError, IroncageError } from "./errors.js";

/** Where the service is. */
export interface ConnectionOptions {
  /** For example `http://127.0.0.1:7400` [default: IRONCAGE_API_URL, IRONCAGE_URL]. */
  apiUrl?: string | undefined;
  /** [default: IRONCAGE_API_KEY]. */
  apiKey?: string | undefined;
}

export interface Call {
  query?: Record<string, string | number | boolean>;
  json?: unknown;
  body?: Uint8Array;
  headers?: Record<string, string>;
  /** Milliseconds for the answer; `null` waits. */
  timeout?: number | null;
  /** The file that the call is about. */
  path?: string;
  signal?: AbortSignal;
}

const TIMEOUT = 120_000;

/** Requests to one service. It follows no redirect, which would carry the key elsewhere. */
export class Client {
  readonly #url: string;
  readonly #key: string | undefined;

  constructor(options: ConnectionOptions = {}) {
    const url = options.apiUrl ?? process.env["IRONCAGE_API_URL"] ?? process.env["IRONCAGE_URL"];
    if (!url || !/^https?:\/\//.test(url)) {
      throw new InvalidArgumentError(
        url ? `invalid address ${JSON.stringify(url)} of a service: expected http:// or https://` : "no address of a service",
        "invalid_argument",
        { hint: 'set IRONCAGE_API_URL and IRONCAGE_API_KEY, as `eval "$(ironcage serve env)"` does' },
      );
    }
    this.#url = url.replace(/\/+$/, "");
    this.#key = options.apiKey ?? process.env["IRONCAGE_API_KEY"];
  }

  async send(method: string, parts: string[], call: Call = {}): Promise<Response> {
    const url = new URL(`${this.#url}/v1/${parts.map(encodeURIComponent).join("/")}`);
    for (const [name, value] of Object.entries(call.query ?? {})) url.searchParams.set(name, String(value));
    const headers: Record<string, string> = { ...call.headers };
    if (this.#key) headers["authorization"] = `Bearer ${this.#key}`;
    if (call.json !== undefined) headers["content-type"] = "application/json";
    if (call.body !== undefined) headers["content-type"] = "application/octet-stream";
    const signals = [call.signal, call.timeout === null ? undefined : AbortSignal.timeout(call.timeout ?? TIMEOUT)];
    const body = call.json !== undefined ? JSON.stringify(call.json) : call.body;
    let response: Response;
    try {
      response = await fetch(url, {
        method,
        headers,
        redirect: "error",
        signal: AbortSignal.any(signals.filter((signal) => signal !== undefined)),
        ...(body === undefined ? {} : { body: body as NonNullable<RequestInit["body"]> }),
      });
    } catch (cause) {
      if (call.signal?.aborted) throw cause;
      const reason = cause instanceof Error ? (cause.cause instanceof Error ? cause.cause.message : cause.message) : String(cause);
      throw new IroncageError(`cannot reach the service ${this.#url}: ${reason}`, "unreachable", { cause });
    }
    if (!response.ok) throw errorOf(response.status, response.headers, await response.text(), call.path);
    return response;
  }

  async json<T>(method: string, parts: string[], call: Call = {}): Promise<T> {
    const response = await this.send(method, parts, call);
    return (response.status === 204 ? undefined : await response.json()) as T;
  }

  /** The events of a stream, as they arrive. */
  async *events(parts: string[], call: Call): AsyncGenerator<{ id: string; event: string; data: unknown }> {
    const response = await this.send("GET", parts, { ...call, timeout: null });
    if (response.body === null) return;
    const decoder = new TextDecoder();
    let text = "";
    let [id, event, data] = ["", "", ""];
    for await (const piece of response.body) {
      text += decoder.decode(piece, { stream: true });
      const lines = text.split("\n");
      text = lines.pop() ?? "";
      for (const line of lines) {
        if (line === "") {
          if (event) yield { id, event, data: JSON.parse(data) };
          id = event = data = "";
        } else if (line.startsWith("id:")) id = line.slice(3).trim();
        else if (line.startsWith("event:")) event = line.slice(6).trim();
        else if (line.startsWith("data:")) data += line.slice(5).trim();
      }
    }
  }
}
