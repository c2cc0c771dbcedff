// What all cages use together, by project and by cage.

import type { Cage } from "./api";
import { h, replace, setText } from "./dom";
import { bytes, count, duration } from "./format";
import { type View, errorLine, sparkline, table } from "./parts";
import { nameOf, store } from "./store";
import { untrusted } from "./text";

type Sums = { cages: number; cpu: number; cpuSeconds: number; memory: number; peak: number | null; pids: number; storage: number; sent: number; received: number };

function add(cages: Cage[]): Sums {
  const sums: Sums = { cages: 0, cpu: 0, cpuSeconds: 0, memory: 0, peak: null, pids: 0, storage: 0, sent: 0, received: 0 };
  for (const cage of cages) {
    if (cage.state !== "ended") sums.cages += 1;
    sums.cpu += cage.state === "running" ? (store.rates(cage.id).cpu ?? 0) : 0;
    sums.cpuSeconds += (cage.usage?.cpu_microseconds ?? 0) / 1e6;
    sums.memory += cage.usage?.memory ?? 0;
    // Not every host counts it.
    if (cage.usage?.memory_peak !== undefined) sums.peak = (sums.peak ?? 0) + cage.usage.memory_peak;
    sums.pids += cage.usage?.pids ?? 0;
    sums.storage += cage.usage?.storage ?? 0;
    sums.sent += cage.network.sent;
    sums.received += cage.network.received;
  }
  return sums;
}

export function usageView(): View {
  const error = errorLine();
  const spark = sparkline();
  const history: number[] = [];
  const names = ["Cages", "CPUs in use", "CPU time", "Memory", "Processes", "Storage", "Received", "Sent"] as const;
  const values = new Map(names.map((name) => [name as string, h("dd", {})]));
  const tiles = h("dl", { class: "tiles" }, ...[...values].map(([name, value]) => h("div", {}, h("dt", {}, name), value)));
  values.get("CPUs in use")!.after(spark.element);
  const columns = ["CPU time", "CPUs", "Memory", "Peak", "Storage", "Received", "Sent"];
  const projects = table(["Project", "Cages", ...columns], "Usage by project");
  const cages = table(["Cage", ...columns], "Usage by cage");
  const note = h("p", { class: "quiet" });
  const element = h("div", {}, h("h1", {}, "Usage"), error.element, tiles, h("h2", {}, "By project"), projects.element, h("h2", {}, "By cage"), cages.element, note);
  const cells = (sums: Sums) => [duration(sums.cpuSeconds), sums.cpu.toFixed(2), bytes(sums.memory), sums.peak === null ? "–" : bytes(sums.peak), bytes(sums.storage), bytes(sums.received), bytes(sums.sent)];
  const update = () => {
    error.set(store.error);
    if (!store.loaded) return;
    const all = add(store.cages);
    history.push(all.cpu);
    if (history.length > 60) history.shift();
    spark.set(history, 1);
    const shown = [String(all.cages), all.cpu.toFixed(2), duration(all.cpuSeconds), bytes(all.memory), String(all.pids), bytes(all.storage), bytes(all.received), bytes(all.sent)];
    names.forEach((name, at) => setText(values.get(name)!, shown[at]!));
    const by = new Map<string, Cage[]>();
    for (const cage of store.cages) by.set(cage.project, [...(by.get(cage.project) ?? []), cage]);
    replace(
      projects.body,
      ...[...by].sort().map(([project, own]) => {
        const sums = add(own);
        return projects.row(untrusted(project), String(sums.cages), ...cells(sums));
      }),
    );
    // Focus stays where it was: rows are made new, links are found again by their cage.
    const held = (document.activeElement as HTMLElement | null)?.dataset["cage"];
    const live = store.cages.filter((cage) => cage.state !== "ended").map((cage) => ({ cage, sums: add([cage]) }));
    live.sort((a, b) => b.sums.cpuSeconds - a.sums.cpuSeconds);
    replace(
      cages.body,
      ...live.map(({ cage, sums }) => cages.row(h("a", { href: `#/cages/${encodeURIComponent(cage.id)}`, data: { nav: "", cage: cage.id } }, untrusted(nameOf(cage))), ...cells(sums))),
    );
    if (held) [...cages.body.querySelectorAll<HTMLElement>("a")].find((link) => link.dataset["cage"] === held)?.focus();
    setText(
      note,
      `Sums of ${count(store.cages.length, "cage")}${store.total > store.cages.length ? ` of ${store.total}` : ""}, each since its start. What a cage used that has ended is in its audit log. Bytes of the network are counted every ten seconds.`,
    );
  };
  const stop = store.listen(update);
  update();
  return { element, dispose: stop };
}
