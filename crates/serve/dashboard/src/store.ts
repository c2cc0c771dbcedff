// What is known of all cages: asked for every two seconds while the page is visible, with rates from
// one answer to the next.

import { type Cage, type Overview, type Request, get } from "./api";

const PACE = 2000;
const KEPT = 60;
// The proxy tells its sums every ten seconds.
const WINDOW = 12_000_000;

export type Rates = {
  /** CPUs in use. */
  cpu: number | null;
  sent: number;
  received: number;
  cpuHistory: number[];
};

type Sample = { time: number; cpu: number | undefined; sent: number; received: number };

class Store {
  cages: Cage[] = [];
  total = 0;
  loaded = false;
  error: Error | null = null;
  find = "";
  private samples = new Map<string, Sample[]>();
  private histories = new Map<string, number[]>();
  private listeners = new Set<() => void>();
  private timer: ReturnType<typeof setTimeout> | undefined;
  private abort: AbortController | undefined;
  private runs = false;

  listen(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  start(): void {
    this.runs = true;
    void this.refresh();
  }

  stop(): void {
    this.runs = false;
    this.abort?.abort();
    clearTimeout(this.timer);
    this.cages = [];
    this.loaded = false;
    this.error = null;
    this.samples.clear();
    this.histories.clear();
  }

  search(text: string): void {
    this.find = text;
    void this.refresh();
  }

  async refresh(): Promise<void> {
    clearTimeout(this.timer);
    this.abort?.abort();
    const abort = (this.abort = new AbortController());
    try {
      if (!document.hidden || !this.loaded) {
        const query = this.find ? `?find=${encodeURIComponent(this.find)}` : "";
        const overview = await get<Overview>(`dashboard/cages${query}`, abort.signal);
        this.take(overview);
        this.error = null;
      }
    } catch (error) {
      if (abort.signal.aborted) return;
      this.error = error as Error;
    }
    if (!this.runs) return;
    this.timer = setTimeout(() => void this.refresh(), PACE);
    for (const listener of [...this.listeners]) listener();
  }

  /** One cage that is not among those of the list: there are too many, or a search hides it. */
  async one(id: string, signal: AbortSignal): Promise<Cage | undefined> {
    const overview = await get<Overview>(`dashboard/cages?id=${encodeURIComponent(id)}`, signal);
    overview.cages.forEach((cage) => this.sample(cage, overview.time));
    return overview.cages[0];
  }

  private take({ cages, total, time }: Overview): void {
    this.cages = cages;
    this.total = total;
    this.loaded = true;
    for (const cage of cages) this.sample(cage, time);
    const ids = new Set(cages.map((cage) => cage.id));
    if (!this.find) {
      for (const id of this.samples.keys()) {
        if (!ids.has(id)) {
          this.samples.delete(id);
          this.histories.delete(id);
        }
      }
    }
  }

  private sample(cage: Cage, time: number): void {
    const samples = this.samples.get(cage.id) ?? [];
    this.samples.set(cage.id, samples);
    samples.push({ time, cpu: cage.usage?.cpu_microseconds, sent: cage.network.sent, received: cage.network.received });
    while (samples.length > 2 && time - samples[1]!.time > WINDOW) samples.shift();
    const history = this.histories.get(cage.id) ?? [];
    this.histories.set(cage.id, history);
    const cpu = this.cpu(samples);
    if (cpu !== null) history.push(cpu);
    if (history.length > KEPT) history.shift();
  }

  private cpu(samples: Sample[]): number | null {
    const [before, now] = samples.slice(-2);
    if (!before || !now || before.cpu === undefined || now.cpu === undefined || now.time <= before.time) return null;
    return Math.max(0, (now.cpu - before.cpu) / (now.time - before.time));
  }

  rates(id: string): Rates {
    const samples = this.samples.get(id) ?? [];
    const [first, last] = [samples[0], samples[samples.length - 1]];
    const seconds = first && last ? (last.time - first.time) / 1e6 : 0;
    const rate = (of: "sent" | "received") => (seconds > 0 ? Math.max(0, last![of] - first![of]) / seconds : 0);
    return { cpu: this.cpu(samples), sent: rate("sent"), received: rate("received"), cpuHistory: this.histories.get(id) ?? [] };
  }

  waiting(): { cage: Cage; request: Request }[] {
    return this.cages.flatMap((cage) => cage.requests.map((request) => ({ cage, request })));
  }
}

export const store = new Store();

/** The name that a person gave a cage in its metadata, or what it was made from. */
export function nameOf(cage: Cage): string {
  const { metadata, directory, template, image, profile } = cage;
  return metadata["name"] || directory?.split("/").pop() || template || image || profile || "cage";
}
