// The service: requests with the key of this tab.

export type Usage = { memory?: number; memory_limit: number; memory_peak?: number; cpu_microseconds?: number; pids?: number; pids_limit: number; storage?: number };
export type Request = { number: number; resource: string; reason: string; asked: number; milliseconds_left: number };
export type Traffic = { connections: number; denied: number; sent: number; received: number };
export type Cage = {
  id: string;
  state: "running" | "paused" | "ended";
  profile?: string;
  directory?: string;
  image?: string;
  template?: string;
  metadata: Record<string, string>;
  created_at: string;
  ends_at: string;
  on_timeout: string;
  ending?: string;
  workspace: string;
  project: string;
  usage?: Usage;
  requests: Request[];
  network: Traffic;
};
export type Overview = { cages: Cage[]; total: number; time: number };
export type Session = { key?: string; project: string; scopes: string[]; expires_at?: string; version: string };
export type Exit = { code?: number; signal?: number };
export type Process = { pid: number; argv: string[]; cwd: string; tag?: string; pty: boolean; started_at: string; output: number; output_from: number; exit?: Exit };
export type Lease = { number: number; resource: string; state: string; reason: string; milliseconds_left?: number; uses_left?: number };
export type LeaseResult = { outcome: "granted" | "unneeded" | "pending" | "denied"; reason?: string; lease?: number };
export type AuditEvent = { seq: number; time: number; event: string } & Record<string, unknown>;
export type Diff = { change?: string; text: string; truncated: boolean };

// Below the page itself, so that it works behind a proxy that puts the service below a path.
const base = new URL(".", location.href.split("#")[0]);
const KEY = "ironcage-key";

export class ServiceError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly hint?: string,
  ) {
    super(message);
  }
}

export let session: Session | null = null;

// Kept for this tab only: another tab, and the next visit, sign in for themselves.
const key = () => sessionStorage.getItem(KEY);
let signedOut: () => void = () => {};

export function onSignedOut(listener: () => void): void {
  signedOut = listener;
}

export function may(scope: string): boolean {
  return session?.scopes.includes(scope) ?? false;
}

async function failure(response: Response): Promise<ServiceError> {
  try {
    const { error } = await response.json();
    return new ServiceError(response.status, String(error.code), String(error.message), error.hint === undefined ? undefined : String(error.hint));
  } catch {
    return new ServiceError(response.status, "unknown", `the service answered ${response.status}`);
  }
}

type Options = { method?: string; json?: unknown; body?: BodyInit; signal?: AbortSignal | undefined };

export async function send(path: string, { method = "GET", json, body, signal }: Options = {}): Promise<Response> {
  const headers: Record<string, string> = {};
  const own = key();
  if (own) headers["Authorization"] = `Bearer ${own}`;
  if (json !== undefined) headers["Content-Type"] = "application/json";
  let response: Response;
  try {
    response = await fetch(new URL(path, base), {
      method,
      headers,
      body: json !== undefined ? JSON.stringify(json) : body,
      credentials: "omit",
      cache: "no-store",
      redirect: "error",
      ...(signal ? { signal } : {}),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ServiceError(0, "unreachable", "the service does not answer", "is `ironcage serve` running?");
  }
  if (response.ok) return response;
  const error = await failure(response);
  if (response.status === 401 && own) {
    forget();
    signedOut();
  }
  throw error;
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await send(path, { signal })).json();
}

export async function post<T>(path: string, json: unknown = {}): Promise<T> {
  const response = await send(path, { method: "POST", json });
  return response.status === 204 ? (undefined as T) : response.json();
}

export const cagePath = (id: string, rest = "") => `v1/cages/${encodeURIComponent(id)}${rest}`;

// Sign in with the link of the address, a pasted link or key, or the key that this tab has.
export async function signIn(text?: string): Promise<boolean> {
  const link = text?.trim().replace(/^.*#link=/, "");
  if (link) {
    forget();
    const pasted = text!.includes("#link=");
    if (!pasted) {
      sessionStorage.setItem(KEY, link);
      try {
        session = await get<Session>("dashboard/session");
        return true;
      } catch (error) {
        forget();
        throw error;
      }
    }
    const opened = await post<Session>("dashboard/session", { link });
    sessionStorage.setItem(KEY, opened.key ?? "");
    delete opened.key;
    session = opened;
    return true;
  }
  if (!key()) return false;
  session = await get<Session>("dashboard/session");
  return true;
}

function forget(): void {
  sessionStorage.removeItem(KEY);
  session = null;
}

export async function signOut(): Promise<void> {
  try {
    await send("dashboard/session", { method: "DELETE" });
  } finally {
    forget();
    signedOut();
  }
}

export type ServerEvent = { event: string; data: unknown };

// Server-sent events by fetch: EventSource cannot send a key but in the address.
export async function* events(path: string, signal: AbortSignal): AsyncGenerator<ServerEvent> {
  const response = await send(path, { signal });
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    buffer += value;
    let end: number;
    while ((end = buffer.indexOf("\n\n")) >= 0) {
      const block = buffer.slice(0, end);
      buffer = buffer.slice(end + 2);
      let event = "message";
      let data = "";
      for (const line of block.split("\n")) {
        if (line.startsWith("event: ")) event = line.slice(7);
        else if (line.startsWith("data: ")) data += line.slice(6);
      }
      if (data) yield { event, data: JSON.parse(data) };
    }
  }
}
