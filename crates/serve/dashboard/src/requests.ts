// Permission requests that wait, with their answers.

import { type Cage, type LeaseResult, type Request, cagePath, may, post } from "./api";
import { Keyed, h, setText } from "./dom";
import { count, duration } from "./format";
import { failed, notice, relabel } from "./parts";
import { nameOf, store } from "./store";
import { fill, untrusted } from "./text";

type Waiting = { cage: Cage; request: Request };

const TERMS: [string, string][] = [
  ["", "as requested"],
  ["300", "for 5 minutes"],
  ["3600", "for an hour"],
];

// How long a card stands at a place before it can be answered: a key or a click that was meant for what
// was there before must not answer what nobody read.
const SETTLES = 1000;

function outcome(result: LeaseResult, resource: string): [string, "good" | "bad"] {
  switch (result.outcome) {
    case "granted":
      return [`approved: ${resource}`, "good"];
    case "unneeded":
      return [`not needed: ${resource}: ${result.reason ?? ""}`, "good"];
    default:
      return [`not given: ${resource}: ${result.reason ?? result.outcome}`, "bad"];
  }
}

// What to call on a card when the page may have moved it.
const placed = new WeakMap<Element, () => void>();

function card(first: Waiting, showCage: boolean) {
  const { cage, request } = first;
  const path = cagePath(cage.id, `/requests/${request.number}`);
  const meta = h("span", { class: "quiet" });
  const from = untrusted(nameOf(cage));
  const term = h("select", { aria: { label: "How long" } }, ...TERMS.map(([value, text]) => h("option", { value }, text)));
  const reason = h("input", { type: "text", maxlength: 300, placeholder: "Why not (for the requester)", aria: { label: "Reason for denying" }, autocomplete: "off" });
  const approve = h("button", { type: "button", class: "approve", on: { click: () => void answer(true) } }, "Approve");
  const deny = h("button", { type: "button", class: "deny", on: { click: () => void answer(false) } }, "Deny");
  const allowed = may("permissions");
  let settled = false;
  let answering = false;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const enable = () => {
    term.disabled = reason.disabled = !allowed || answering;
    approve.disabled = deny.disabled = term.disabled || !settled;
  };
  const settle = () => {
    clearTimeout(timer);
    settled = false;
    timer = setTimeout(() => {
      settled = true;
      enable();
    }, SETTLES);
    enable();
  };
  settle();
  if (!allowed) approve.title = deny.title = "This key has not the scope `permissions`.";
  const answer = async (yes: boolean) => {
    if (approve.disabled) return;
    answering = true;
    enable();
    try {
      if (yes) {
        const seconds = term.value ? { seconds: Number(term.value) } : {};
        notice(...outcome(await post<LeaseResult>(`${path}/approve`, seconds), request.resource));
      } else {
        await post(`${path}/deny`, { reason: reason.value || "denied in the dashboard" });
        notice(`denied: ${request.resource}`);
      }
    } catch (error) {
      failed(error);
      answering = false;
      enable();
    }
    await store.refresh();
  };
  reason.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.repeat) void answer(false);
  });
  const element = h(
    "article",
    { class: "request", tabindex: 0, data: { nav: "", request: `${cage.id}/${request.number}` } },
    h(
      "header",
      {},
      h("span", { class: "resource" }, untrusted(request.resource)),
      meta,
    ),
    showCage && h("p", { class: "of-cage" }, "Cage ", h("a", { href: `#/cages/${encodeURIComponent(cage.id)}` }, from), " ", h("code", {}, cage.id)),
    h("p", { class: "reason" }, h("span", { class: "quiet" }, "The requester says: "), untrusted(request.reason)),
    h("div", { class: "actions" }, approve, term, deny, reason),
  );
  relabel(element, `Permission request of ${nameOf(cage)}: ${request.resource}`);
  element.addEventListener("keydown", (event) => {
    if (event.target !== element || event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "a" || event.key === "d") {
      event.preventDefault();
      // A key that is held down answers one request.
      if (event.repeat) return;
      if (event.key === "a") void answer(true);
      else void answer(false);
    }
  });
  let place = -1;
  placed.set(element, () => {
    const now = element.offsetTop;
    if (place >= 0 && now !== place) settle();
    place = now;
  });
  return {
    element,
    update({ cage: now, request: { asked, milliseconds_left } }: Waiting) {
      fill(from, nameOf(now));
      const times = asked > 1 ? `asked ${count(asked, "time")}, ` : "";
      setText(meta, `${times}${duration(milliseconds_left / 1000)} left`);
    },
  };
}

export function requestList(showCage: boolean): { element: HTMLElement; set(waiting: Waiting[]): void } {
  const list = h("div", { class: "request-list" });
  const heading = h("h2", { tabindex: -1 });
  const element = h("section", { class: "waiting", aria: { label: "Permission requests" }, hidden: true }, heading, list);
  const keyed = new Keyed<Waiting, HTMLElement>(
    list,
    ({ cage, request }) => `${cage.id}/${request.number}`,
    (first) => card(first, showCage),
  );
  return {
    element,
    set(waiting) {
      const held = list.contains(document.activeElement);
      keyed.set(waiting);
      element.hidden = waiting.length === 0;
      // An answered card takes the focus along. It goes to the heading and not to the next card: the next
      // key would answer that.
      if (held && !list.contains(document.activeElement)) (waiting.length > 0 ? heading : document.getElementById("main"))?.focus();
      for (const one of list.children) placed.get(one)?.();
      setText(heading, `${count(waiting.length, "permission request")} ${waiting.length === 1 ? "waits" : "wait"} for you`);
    },
  };
}
