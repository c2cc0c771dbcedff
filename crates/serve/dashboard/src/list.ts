// The list of cages.

import type { Cage } from "./api";
import { Keyed, h, setText } from "./dom";
import { bytes, count, duration, percent } from "./format";
import { type View, empty, errorLine, meter, sparkline, stateBadge } from "./parts";
import { requestList } from "./requests";
import { nameOf, store } from "./store";
import { fill, untrusted } from "./text";

const COLUMNS = ["Cage", "State", "CPU", "Memory", "Network", "Time"];

function row(first: Cage) {
  const name = untrusted(nameOf(first));
  const link = h("a", { href: `#/cages/${encodeURIComponent(first.id)}`, class: "cage-link", data: { nav: "" } }, name);
  const project = untrusted(first.project);
  const badge = h("span", { class: "badge", hidden: true });
  const state = stateBadge();
  const cpu = meter("CPU");
  const spark = sparkline();
  const memory = meter("Memory");
  const network = h("span", { class: "numbers" });
  const time = h("span", { class: "numbers quiet" });
  const cells = [
    h("div", { class: "cage-name" }, link, badge, h("span", { class: "quiet" }, h("code", {}, first.id), " in ", project)),
    state.element,
    h("div", { class: "with-spark" }, cpu.element, spark.element),
    memory.element,
    network,
    time,
  ];
  const element = h("tr", {}, ...cells.map((cell, at) => h("td", { data: { label: COLUMNS[at]! } }, cell)));
  return {
    element,
    update(cage: Cage) {
      fill(name, nameOf(cage));
      state.set(cage.state);
      element.classList.toggle("ended", cage.state === "ended");
      badge.hidden = cage.requests.length === 0;
      setText(badge, count(cage.requests.length, "request"));
      const rates = store.rates(cage.id);
      cpu.set(rates.cpu, rates.cpu === null ? "–" : percent(rates.cpu));
      spark.set(rates.cpuHistory, 1);
      const { usage } = cage;
      memory.set(usage?.memory === undefined ? null : usage.memory / usage.memory_limit, usage?.memory === undefined ? "–" : bytes(usage.memory));
      setText(network, `↓ ${bytes(rates.received)}/s  ↑ ${bytes(rates.sent)}/s`);
      const { denied } = cage.network;
      network.title = `${bytes(cage.network.received)} in, ${bytes(cage.network.sent)} out, ${count(cage.network.connections, "connection")}, ${denied} denied`;
      setText(time, cage.state === "ended" ? "ended" : `${duration((Date.now() - Date.parse(cage.created_at)) / 1000)}, ends in ${duration((Date.parse(cage.ends_at) - Date.now()) / 1000)}`);
    },
  };
}

export function listView(): View {
  const error = errorLine();
  const requests = requestList(true);
  const summary = h("span", { class: "quiet grow" });
  const search = h("input", { type: "search", id: "search", placeholder: "Find a cage", aria: { label: "Find a cage" }, value: store.find, autocomplete: "off" });
  let typing: ReturnType<typeof setTimeout> | undefined;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => store.search(search.value.trim()), 250);
  });
  const body = h("tbody", {});
  const tableElement = h("table", { class: "cages", aria: { label: "Cages" } }, h("thead", {}, h("tr", {}, ...COLUMNS.map((name) => h("th", {}, name)))), body);
  const none = empty("");
  const element = h("div", {}, h("div", { class: "title-row" }, h("h1", {}, "Cages"), summary, search), error.element, requests.element, tableElement, none);
  const rows = new Keyed<Cage, HTMLElement>(body, (cage) => cage.id, row);
  const update = () => {
    error.set(store.error);
    if (!store.loaded) return;
    requests.set(store.waiting());
    rows.set(store.cages);
    const running = store.cages.filter((cage) => cage.state === "running").length;
    setText(summary, store.total > store.cages.length ? `the first ${store.cages.length} of ${store.total}` : `${running} running`);
    none.hidden = store.cages.length > 0;
    tableElement.hidden = !none.hidden;
    setText(none, store.find ? "No cage matches." : "No cages yet. POST /v1/cages creates one.");
  };
  const stop = store.listen(update);
  update();
  return {
    element,
    dispose() {
      stop();
      clearTimeout(typing);
      if (store.find) store.search("");
    },
  };
}
