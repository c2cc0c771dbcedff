// The page of one cage.

import { type Cage, type Diff, type Lease, type Process, ServiceError, cagePath, get, may, post, send } from "./api";
import { diffFiles } from "./diff";
import { Keyed, h, replace, setText, svg } from "./dom";
import { bytes, clock, count, duration, percent } from "./format";
import { AuditLog, type Connections, type LeaseSpan, connections, fields, leases } from "./log";
import { type View, command, confirm, empty, errorLine, failed, meter, notice, relabel, sparkline, stateBadge, table } from "./parts";
import { requestList } from "./requests";
import { nameOf, store } from "./store";
import { fill, untrusted } from "./text";

export const TABS = [
  ["processes", "Processes"],
  ["network", "Network"],
  ["leases", "Leases"],
  ["change", "Change"],
  ["audit", "Audit log"],
  ["terminal", "Terminal"],
] as const;
export type TabName = (typeof TABS)[number][0];

interface Tab {
  element: HTMLElement;
  /** Called every two seconds while the tab is shown. */
  refresh(signal: AbortSignal, cage: Cage): Promise<void>;
  dispose?(): void;
}

type Context = { id: string; log: AuditLog; open(tab: TabName, pid?: number): void };

function processesTab({ id, open }: Context): Tab {
  const { element: list, body } = table(["PID", "Command", "Directory", "Started", "Output", "State", ""], "Processes");
  const none = empty("No process was started by the API yet.");
  const others = h("p", { class: "quiet" });
  const signal = async (pid: number, name: string) => {
    try {
      await post(cagePath(id, `/processes/${pid}/signal`), { signal: name });
      notice(`${name} sent to process ${pid} and its children`);
    } catch (error) {
      failed(error);
    }
  };
  const rows = new Keyed<Process, HTMLElement>(
    body,
    (process) => `${process.pid}/${process.started_at}`,
    (process) => {
      const output = h("span", {});
      const state = h("span", {});
      const buttons = h(
        "span",
        { class: "actions" },
        process.pty && h("button", { type: "button", disabled: !may("cages"), on: { click: () => open("terminal", process.pid) } }, "Attach"),
        h("button", { type: "button", disabled: !may("cages"), on: { click: () => void signal(process.pid, "SIGTERM") } }, "Stop"),
        h("button", { type: "button", class: "deny", disabled: !may("cages"), on: { click: () => void signal(process.pid, "SIGKILL") } }, "Kill"),
      );
      const cells = [String(process.pid), untrusted(command(process.argv), "code"), untrusted(process.cwd, "code"), clock(Date.parse(process.started_at)), output, state, buttons];
      const labels = ["PID", "Command", "Directory", "Started", "Output", "State", ""];
      const element = h("tr", {}, ...cells.map((cell, at) => h("td", { data: { label: labels[at]! } }, cell)));
      return {
        element,
        update({ output: written, exit }: Process) {
          setText(output, bytes(written));
          setText(state, exit === undefined ? "running" : exit.signal !== undefined ? `signal ${exit.signal}` : `exit ${exit.code}`);
          buttons.hidden = exit !== undefined;
          element.classList.toggle("ended", exit !== undefined);
        },
      };
    },
  );
  return {
    element: h("div", {}, list, none, others),
    async refresh(abort, cage) {
      const { processes } = await get<{ processes: Process[] }>(cagePath(id, "/processes"), abort);
      processes.sort((a, b) => Number(a.exit !== undefined) - Number(b.exit !== undefined) || b.started_at.localeCompare(a.started_at));
      rows.set(processes);
      none.hidden = processes.length > 0;
      list.hidden = !none.hidden;
      const { pids, pids_limit } = cage.usage ?? {};
      setText(others, pids === undefined ? "" : `The cage has ${count(pids, "process or thread", "processes and threads")}, of ${pids_limit} that it may have. The list has those that the API started, and the last 64 of them that ended.`);
    },
  };
}

function networkTab({ id, log }: Context): Tab {
  const columns = ["Destination", "Verdict", "Protocol", "Rule or reason", "Connections", "Received", "Sent", "Last"];
  const { element: list, body } = table(columns, "Connections");
  const none = empty("No connections.");
  const rows = new Keyed<Connections, HTMLElement>(
    body,
    (one) => one.key,
    (one) => {
      const numbers = [h("span", {}), h("span", {}), h("span", {}), h("span", {})];
      const verdict = h("span", { class: "state", data: { state: one.denied ? "denied" : "allowed" } }, one.denied ? "denied" : "allowed");
      const cells = [untrusted(one.destination, "code"), verdict, untrusted(one.protocol), untrusted(one.reason || one.rule), ...numbers];
      return {
        element: h("tr", {}, ...cells.map((cell, at) => h("td", { data: { label: columns[at]! } }, cell))),
        update(now: Connections) {
          [String(now.connections), bytes(now.received), bytes(now.sent), clock(now.last / 1000)].forEach((text, at) => setText(numbers[at]!, text));
        },
      };
    },
  );
  void id;
  return {
    element: h("div", {}, list, none, h("p", { class: "quiet" }, "From the audit log. The first connection of a kind is there at once, bytes and further ones every ten seconds.")),
    async refresh() {
      const all = connections(log).slice(0, 500);
      rows.set(all);
      none.hidden = all.length > 0;
      list.hidden = !none.hidden;
    },
  };
}

function leasesTab({ id, log }: Context): Tab {
  const list = h("div", { class: "timeline" });
  const none = empty("No leases. A cage gets one when a request is approved, or when you grant one.");
  const axis = h("p", { class: "quiet numbers" });
  let open = new Map<number, Lease>();
  let [begin, now] = [0, 1];
  const revoke = async (span: LeaseSpan) => {
    try {
      await send(cagePath(id, `/leases/${span.number}`), { method: "DELETE" });
      notice(`revoked: lease ${span.number}`);
    } catch (error) {
      failed(error);
    }
  };
  const rows = new Keyed<LeaseSpan, HTMLElement>(
    list,
    (span) => String(span.number),
    (first) => {
      const bar = svg("rect", { y: 2, height: 10, rx: 2 });
      const picture = svg("svg", { class: "span", height: 14, width: "100%", role: "img" }, svg("line", { x1: "0%", x2: "100%", y1: 7, y2: 7 }), bar);
      const name = untrusted(first.resource, "code");
      const when = h("span", { class: "quiet numbers" });
      const button = h("button", { type: "button", class: "deny", disabled: !may("permissions"), on: { click: () => void revoke(first) } }, "Revoke");
      const element = h(
        "article",
        { class: "lease", tabindex: 0, data: { nav: "" } },
        h("header", {}, h("span", { class: "quiet" }, `${first.number} `), name, " ", when, button),
        picture as unknown as HTMLElement,
        h("p", { class: "reason" }, untrusted(first.reason), first.approver && h("span", { class: "quiet" }, " approved by "), first.approver && untrusted(first.approver)),
      );
      return {
        element,
        update(span: LeaseSpan) {
          const lease = open.get(span.number);
          const length = Math.max(1, now - begin);
          const from = ((span.from - begin) / length) * 100;
          const to = (((span.to ?? now) - begin) / length) * 100;
          bar.setAttribute("x", `${from.toFixed(2)}%`);
          bar.setAttribute("width", `${Math.max(0.5, to - from).toFixed(2)}%`);
          element.dataset["state"] = span.to === null ? (lease?.state ?? "open") : "ended";
          const lived = duration(((span.to ?? now) - span.from) / 1e6);
          const left = lease?.milliseconds_left === undefined ? "until it is revoked" : `${duration(lease.milliseconds_left / 1000)} left`;
          setText(when, span.to === null ? `since ${clock(span.from / 1000)}, ${left}` : `${clock(span.from / 1000)}, for ${lived}, ${span.end}`);
          button.hidden = span.to !== null;
          relabel(element, `Lease ${span.number}: ${span.resource}, ${when.textContent}`);
        },
      };
    },
  );
  return {
    element: h("div", {}, axis, list, none),
    async refresh(abort, cage) {
      const spans = leases(log).slice(0, 500);
      if (cage.state !== "ended") {
        const answer = await get<{ leases: Lease[] }>(cagePath(id, "/leases"), abort);
        open = new Map(answer.leases.map((lease) => [lease.number, lease]));
      }
      begin = Date.parse(cage.created_at) * 1000;
      const last = log.events[log.events.length - 1];
      now = cage.state === "ended" && last ? last.time : Date.now() * 1000;
      setText(axis, `${clock(begin / 1000)} to ${cage.state === "ended" ? clock(now / 1000) : "now"}`);
      rows.set(spans);
      none.hidden = spans.length > 0;
      axis.hidden = !none.hidden;
    },
  };
}

function changeTab({ id }: Context): Tab {
  const status = h("p", { class: "quiet grow" });
  const error = errorLine();
  const files = h("div", {});
  const button = h("button", { type: "button", on: { click: () => void load() } }, "Read again");
  const abort = new AbortController();
  let loaded = false;
  const load = async () => {
    loaded = true;
    button.disabled = true;
    setText(status, "Reading the change…");
    try {
      const diff = await get<Diff>(`dashboard/cages/${encodeURIComponent(id)}/diff`, abort.signal);
      error.set(null);
      if (diff.change === undefined) {
        setText(status, "This cage has no pending change: it has no directory, or writes it directly.");
        replace(files);
      } else {
        const shown = diffFiles(diff.text);
        replace(
          status,
          `Change ${diff.change}${diff.truncated ? ", of which the first 2 MiB are shown" : ""}. `,
          h("code", {}, `ironcage apply ${diff.change}`),
          " keeps it, ",
          h("code", {}, `ironcage discard ${diff.change}`),
          " drops it.",
        );
        replace(files, ...shown);
      }
    } catch (wrong) {
      if (abort.signal.aborted) return;
      setText(status, "");
      error.set(wrong as Error);
    }
    button.disabled = false;
  };
  return {
    element: h("div", {}, h("div", { class: "title-row" }, status, button), error.element, files),
    async refresh() {
      // The agent goes on writing; what is read on the screen stays until it is asked for again.
      if (!loaded) await load();
    },
    dispose: () => abort.abort(),
  };
}

const PAGE = 200;

function auditTab({ log }: Context): Tab {
  const kind = h("select", { aria: { label: "Events" } }, h("option", { value: "" }, "all events"));
  const list = h("div", { class: "audit" });
  const more = h("button", { type: "button", on: { click: () => ((most += PAGE), show()) } }, "Show earlier events");
  let most = PAGE;
  const rows = new Keyed<AuditLog["events"][number], HTMLElement>(
    list,
    (event) => String(event.seq),
    (event) => {
      const own = fields(event);
      const line = own.map(([name, value]) => `${name}: ${value}`).join("  ");
      const details = h(
        "details",
        { data: { nav: "" } },
        h("summary", {}, h("span", { class: "quiet numbers" }, `${event.seq}  ${clock(event.time / 1000)} `), h("strong", {}, untrusted(String(event.event))), " ", untrusted(line.slice(0, 400), "one-line")),
        h("dl", { class: "fields" }, ...own.flatMap(([name, value]) => [h("dt", {}, untrusted(name)), h("dd", {}, untrusted(value, "code"))])),
      );
      return { element: details, update: () => {} };
    },
  );
  const show = () => {
    const names = [...new Set(log.events.map((event) => String(event.event)))].sort();
    for (const name of names) {
      if (![...kind.options].some((option) => option.value === name)) kind.append(h("option", { value: name }, name));
    }
    const chosen = log.events.filter((event) => !kind.value || event.event === kind.value);
    rows.set(chosen.slice(-most).reverse());
    more.hidden = chosen.length <= most;
  };
  kind.addEventListener("change", show);
  return {
    element: h("div", {}, h("div", { class: "title-row" }, kind), list, more),
    async refresh() {
      show();
    },
  };
}

async function terminalTab(context: Context, pid?: number): Promise<Tab> {
  const { terminalTab: make } = await import("./terminal");
  const terminal = make(context.id, pid);
  return { element: terminal.element, refresh: async () => {}, dispose: () => terminal.dispose() };
}

export function cageView(id: string, first: TabName): View & { show(tab: TabName): void } {
  const abort = new AbortController();
  const log = new AuditLog(id);
  const error = errorLine();
  const name = untrusted("");
  const state = stateBadge();
  const facts = h("p", { class: "facts quiet" });
  const cpu = meter("CPU");
  const spark = sparkline();
  const memory = meter("Memory");
  const network = h("span", { class: "numbers" });
  const gauges = h("dl", { class: "tiles" }, h("div", {}, h("dt", {}, "CPU"), h("dd", {}, cpu.element), spark.element), h("div", {}, h("dt", {}, "Memory"), h("dd", {}, memory.element)), h("div", {}, h("dt", {}, "Network"), h("dd", {}, network)));
  const requests = requestList(false);
  const act = (action: string) => async () => {
    try {
      await post(cagePath(id, `/${action}`));
    } catch (wrong) {
      failed(wrong);
    }
    await store.refresh();
  };
  const pause = h("button", { type: "button", on: { click: () => void act("pause")() } }, "Pause");
  const resume = h("button", { type: "button", on: { click: () => void act("resume")() } }, "Resume");
  const end = h("button", { type: "button", class: "danger", on: { click: () => void remove() } }, "End");
  const remove = async () => {
    if (!(await confirm("End this cage? Its processes are killed. A pending change stays.", cage ? `${nameOf(cage)} (${id})` : id, "End it"))) return;
    try {
      await send(cagePath(id), { method: "DELETE" });
      location.hash = "#/";
      await store.refresh();
    } catch (wrong) {
      failed(wrong);
    }
  };
  for (const button of [pause, resume, end]) button.disabled = !may("cages");
  const panel = h("div", { class: "panel", id: "panel", role: "tabpanel", tabindex: -1 });
  const buttons = TABS.map(([tab, label], at) =>
    h("a", { role: "tab", id: `tab-${tab}`, href: `#/cages/${encodeURIComponent(id)}/${tab}`, title: `${label} (${at + 1})`, aria: { controls: "panel" } }, label),
  );
  const tabs = h("nav", { class: "tabs", role: "tablist", aria: { label: "Views of the cage" } }, ...buttons);
  tabs.addEventListener("keydown", (event) => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    const at = buttons.indexOf(document.activeElement as HTMLAnchorElement);
    if (!step || at < 0) return;
    event.preventDefault();
    buttons[(at + step + buttons.length) % buttons.length]!.click();
    buttons[(at + step + buttons.length) % buttons.length]!.focus();
  });
  const element = h(
    "div",
    {},
    h("p", { class: "quiet back" }, h("a", { href: "#/" }, "← Cages")),
    h("div", { class: "title-row" }, h("h1", { class: "grow" }, name, " ", state.element), h("span", { class: "actions" }, pause, resume, end)),
    facts,
    error.element,
    requests.element,
    gauges,
    tabs,
    panel,
  );

  let cage: Cage | undefined;
  let tab: Tab | null = null;
  let shown: TabName | null = null;
  let attach: number | undefined;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const context: Context = {
    id,
    log,
    open(wanted, pid) {
      attach = pid;
      location.hash = `#/cages/${encodeURIComponent(id)}/${wanted}`;
    },
  };

  let shownFacts = "";
  const showFacts = () => {
    if (!cage) return;
    const parts: [string, string | undefined][] = [
      ["", cage.id],
      ["project", cage.project],
      ["profile", cage.profile],
      ["directory", cage.directory],
      ["image", cage.image],
      ["template", cage.template],
      ...Object.entries(cage.metadata).filter(([key]) => key !== "name"),
      ["ended", cage.ending],
    ];
    const known = parts.filter(([, value]) => value !== undefined);
    const key = JSON.stringify(known);
    if (shownFacts === key) return;
    shownFacts = key;
    replace(facts, ...known.map(([label, value]) => h("span", { class: "fact" }, label && untrusted(`${label} `), untrusted(value!, "code"))));
  };
  const update = () => {
    error.set(store.error ?? problem);
    if (!cage) return;
    fill(name, nameOf(cage));
    state.set(cage.state);
    showFacts();
    pause.hidden = cage.state !== "running";
    resume.hidden = cage.state !== "paused";
    end.hidden = cage.state === "ended";
    requests.set(cage.requests.map((request) => ({ cage: cage!, request })));
    const rates = store.rates(id);
    cpu.set(rates.cpu, rates.cpu === null ? "–" : percent(rates.cpu));
    spark.set(rates.cpuHistory, 1);
    const { usage } = cage;
    memory.set(usage?.memory === undefined ? null : usage.memory / usage.memory_limit, usage?.memory === undefined ? "–" : `${bytes(usage.memory)} of ${bytes(usage.memory_limit)}`);
    setText(network, `↓ ${bytes(rates.received)}/s  ↑ ${bytes(rates.sent)}/s, ${bytes(cage.network.received)} in, ${bytes(cage.network.sent)} out`);
    gauges.hidden = cage.state === "ended";
  };
  let problem: Error | null = null;
  const refresh = async () => {
    clearTimeout(timer);
    try {
      if (!document.hidden || !cage) {
        const found = store.cages.find((one) => one.id === id) ?? (await store.one(id, abort.signal));
        if (!found) throw new ServiceError(404, "not_found", cage ? "the cage was deleted, or ended more than an hour ago" : "there is no such cage");
        cage = found;
        problem = null;
        update();
        await log.read(abort.signal);
        await tab?.refresh(abort.signal, cage);
      }
    } catch (wrong) {
      if (abort.signal.aborted) return;
      const { code } = wrong as ServiceError;
      // A paused or ended cage has no processes to list; the badge says so already.
      problem = code === "cage_ended" || code === "cage_paused" ? null : (wrong as Error);
      update();
    }
    if (!abort.signal.aborted) timer = setTimeout(() => void refresh(), 2000);
  };
  const show = async (wanted: TabName) => {
    if (shown === wanted && attach === undefined) return;
    shown = wanted;
    tab?.dispose?.();
    tab = null;
    for (const [at, [tabName]] of TABS.entries()) {
      const selected = tabName === wanted;
      buttons[at]!.setAttribute("aria-selected", String(selected));
    }
    panel.setAttribute("aria-labelledby", `tab-${wanted}`);
    panel.replaceChildren();
    const pid = attach;
    attach = undefined;
    const made: Tab =
      wanted === "processes"
        ? processesTab(context)
        : wanted === "network"
          ? networkTab(context)
          : wanted === "leases"
            ? leasesTab(context)
            : wanted === "change"
              ? changeTab(context)
              : wanted === "audit"
                ? auditTab(context)
                : await terminalTab(context, pid);
    if (shown !== wanted || abort.signal.aborted) {
      made.dispose?.();
      return;
    }
    tab = made;
    replace(panel, made.element);
    await refresh();
  };
  const stop = store.listen(() => {
    const found = store.cages.find((one) => one.id === id);
    if (found) cage = found;
    update();
  });
  void show(first);
  return {
    element,
    show: (wanted) => void show(wanted),
    dispose() {
      abort.abort();
      clearTimeout(timer);
      stop();
      tab?.dispose?.();
    },
  };
}
