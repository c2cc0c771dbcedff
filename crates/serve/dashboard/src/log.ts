// The audit log of a cage, read on from where it was, and what it says of connections and leases.

import { type AuditEvent, cagePath, get } from "./api";

const MOST = 20_000;

export class AuditLog {
  events: AuditEvent[] = [];
  /** Events that are no longer kept here. */
  dropped = 0;
  private next = 1;

  constructor(private id: string) {}

  /** Reads what is new; says whether there was anything. */
  async read(signal: AbortSignal): Promise<boolean> {
    let any = false;
    for (;;) {
      const { events } = await get<{ events: AuditEvent[] }>(cagePath(this.id, `/audit?from=${this.next}`), signal);
      const last = events[events.length - 1];
      if (!last) return any;
      any = true;
      this.next = last.seq + 1;
      this.events.push(...events);
      if (this.events.length > MOST) {
        this.dropped += this.events.length - MOST;
        this.events.splice(0, this.events.length - MOST);
      }
    }
  }
}

const text = (value: unknown): string => (typeof value === "string" ? value : value === undefined || value === null ? "" : JSON.stringify(value));
const number = (value: unknown): number => (typeof value === "number" ? value : 0);

export type Connections = { key: string; denied: boolean; destination: string; protocol: string; rule: string; reason: string; connections: number; sent: number; received: number; last: number };

export function connections(log: AuditLog): Connections[] {
  const sums = new Map<string, Connections>();
  for (const event of log.events) {
    if (event.event !== "network") continue;
    const request = event["request"] ? ` ${text(event["request"])}${event["status"] ? ` → ${text(event["status"])}` : ""}` : "";
    const parts = { denied: event["verdict"] === "denied", destination: `${text(event["host"])}:${text(event["port"])}${request}`, protocol: text(event["protocol"]), rule: text(event["rule"]), reason: text(event["reason"]) };
    const key = JSON.stringify(parts);
    const known = sums.get(key) ?? { key, ...parts, connections: 0, sent: 0, received: 0, last: 0 };
    sums.set(key, known);
    known.connections += number(event["connections"]);
    known.sent += number(event["sent"]);
    known.received += number(event["received"]);
    known.last = event.time;
  }
  return [...sums.values()].sort((a, b) => b.last - a.last);
}

export type LeaseSpan = { number: number; resource: string; reason: string; approver: string; from: number; to: number | null; end: string };

/** A resource as the log has it: its kind and its values. */
export function resource(value: unknown): string {
  if (typeof value !== "object" || value === null) return text(value);
  const { kind, ...rest } = value as Record<string, unknown>;
  const inner = Object.values(rest).map((part) => (typeof part === "object" && part !== null ? Object.values(part).map(text).join(" ") : text(part)));
  return [text(kind), ...inner].join(" ");
}

export function leases(log: AuditLog): LeaseSpan[] {
  const spans = new Map<number, LeaseSpan>();
  for (const event of log.events) {
    const own = number(event["number"]);
    if (event.event === "lease") {
      spans.set(own, { number: own, resource: resource(event["resource"]), reason: text(event["reason"]), approver: text(event["approver"]), from: event.time, to: null, end: "" });
    } else if (event.event === "lease-end") {
      const span = spans.get(own);
      if (span) {
        span.to = event.time;
        span.end = [text(event["end"]), text(event["cause"])].filter(Boolean).join(": ");
      }
    } else if (event.event === "exit") {
      for (const span of spans.values()) span.to ??= event.time;
    }
  }
  return [...spans.values()].sort((a, b) => b.number - a.number);
}

const OF_EVERY_LINE = new Set(["seq", "prev", "hash", "time", "cage", "event"]);

/** The fields of an event that other events do not have. */
export function fields(event: AuditEvent): [string, string][] {
  return Object.entries(event)
    .filter(([name]) => !OF_EVERY_LINE.has(name))
    .map(([name, value]) => [name, name === "resource" ? resource(value) : text(value)]);
}
