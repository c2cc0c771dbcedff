// The page: who is signed in, which view is shown, and keys.

import "./style.css";
import { onSignedOut, session, signIn, signOut } from "./api";
import { TABS, type TabName, cageView } from "./cage";
import { h, replace, setText } from "./dom";
import { listView } from "./list";
import { type View, errorLine, failed, noticeRegion } from "./parts";
import { store } from "./store";
import { plain } from "./text";
import { usageView } from "./usage";

const main = h("main", { id: "main", tabindex: -1 });
const badge = h("span", { class: "badge", hidden: true });
const links = { cages: h("a", { href: "#/" }, "Cages ", badge), usage: h("a", { href: "#/usage" }, "Usage") };
const who = h("span", { class: "quiet who" });
const out = h("button", { type: "button", on: { click: () => void signOut().catch(failed) } }, "Sign out");
const help = h("button", { type: "button", title: "Keys (?)", aria: { label: "Keys" }, on: { click: () => showHelp() } }, "?");
const theme = h("button", { type: "button", title: "Dark or light", aria: { label: "Dark or light" }, on: { click: () => switchTheme() } }, "◐");
const header = h("header", { class: "top", hidden: true }, h("a", { href: "#/", class: "brand" }, "Ironcage"), h("nav", { aria: { label: "Pages" } }, links.cages, links.usage), h("span", { class: "actions" }, who, theme, help, out));
const skip = h("a", { href: "#main", class: "skip", on: { click: (event) => (event.preventDefault(), main.focus()) } }, "Skip to the content");

let view: (View & { show?(tab: TabName): void }) | null = null;
let shown = "";

function switchTheme(): void {
  const dark = document.documentElement.dataset["theme"] ? document.documentElement.dataset["theme"] === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset["theme"] = dark ? "light" : "dark";
  localStorage.setItem("ironcage-theme", dark ? "light" : "dark");
}

function route(): void {
  if (takeLink()) {
    void enter();
    return;
  }
  if (!session) return;
  const [page = "", id = "", tab = ""] = location.hash
    .replace(/^#\/?/, "")
    .split("/")
    .map((part) => {
      try {
        return decodeURIComponent(part);
      } catch {
        return "";
      }
    });
  const tabName = TABS.find(([name]) => name === tab)?.[0] ?? "processes";
  const name = page === "cages" && id ? `cages/${id}` : page === "usage" ? "usage" : "";
  links.cages.toggleAttribute("aria-current", name !== "usage");
  links.usage.toggleAttribute("aria-current", name === "usage");
  if (view && shown === name) {
    view.show?.(tabName);
    return;
  }
  view?.dispose();
  shown = name;
  view = name === "usage" ? usageView() : name ? cageView(id, tabName) : listView();
  replace(main, view.element);
  scrollTo(0, 0);
  main.focus({ preventScroll: true });
}

let link: string | undefined;

/** Takes a link out of the address, and out of the history of the browser. */
function takeLink(): boolean {
  if (!location.hash.startsWith("#link=")) return false;
  link = location.hash;
  history.replaceState(null, "", `${location.pathname}#/`);
  return true;
}

async function enter(): Promise<void> {
  const own = link;
  link = undefined;
  try {
    if (await signIn(own)) return begin();
    signInPage(null);
  } catch (error) {
    signInPage(error as Error);
  }
}

function begin(): void {
  header.hidden = false;
  setText(who, session!.scopes.includes("admin") ? "all projects" : `project ${plain(session!.project)}`);
  who.title = `Scopes: ${session!.scopes.join(", ")}${session!.expires_at ? `. Signed in until ${new Date(session!.expires_at).toLocaleString()}` : ""}`;
  view?.dispose();
  view = null;
  store.start();
  route();
}

function signInPage(error: Error | null): void {
  store.stop();
  view?.dispose();
  view = null;
  header.hidden = true;
  const line = errorLine();
  line.set(error);
  const field = h("input", { type: "password", id: "key", autocomplete: "off", aria: { label: "Link or API key" } });
  const form = h(
    "div",
    { class: "sign-in" },
    h("h1", {}, "Ironcage"),
    h("p", {}, "Run ", h("code", {}, "ironcage serve dashboard"), " on the machine of the service, and open the link that it prints."),
    line.element,
    h("p", {}, h("label", { for: "key" }, "Or paste the link, or an API key:")),
    h("p", { class: "actions" }, field, h("button", { type: "button", class: "approve", on: { click: () => void submit() } }, "Sign in")),
  );
  const submit = async () => {
    if (!field.value.trim()) return;
    link = field.value;
    await enter();
  };
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") void submit();
  });
  replace(main, form);
  field.focus();
}

const HELP: [string, string][] = [
  ["j, k", "next and previous cage, request, lease or event"],
  ["Enter", "open it"],
  ["r", "the first permission request that waits"],
  ["a, d", "approve or deny the request that has the focus"],
  ["g c, g u", "cages, usage"],
  ["/", "find a cage"],
  ["1 to 6", "views of a cage"],
  ["Esc", "back to the list, out of a field"],
  ["Ctrl+]", "out of the terminal"],
  ["?", "these keys"],
];

function showHelp(): void {
  if (document.querySelector("dialog[open]")) return;
  const close = h("button", { type: "button", on: { click: () => dialog.close() } }, "Close");
  const dialog = h("dialog", { aria: { label: "Keys" }, on: { close: () => dialog.remove() } }, h("h2", {}, "Keys"), h("dl", { class: "fields" }, ...HELP.flatMap(([keys, text]) => [h("dt", {}, h("kbd", {}, keys)), h("dd", {}, text)])), h("p", { class: "actions" }, close));
  document.body.append(dialog);
  dialog.showModal();
}

let waitsForSecond = false;

function move(step: number): void {
  const all = [...main.querySelectorAll<HTMLElement>("[data-nav]")].filter((one) => one.checkVisibility());
  const places = all.map((one) => (one instanceof HTMLDetailsElement ? one.querySelector("summary")! : one));
  if (places.length === 0) return;
  const active = document.activeElement;
  const at = places.findIndex((one) => one === active || one.contains(active));
  const next = places[at < 0 ? (step > 0 ? 0 : places.length - 1) : Math.min(places.length - 1, Math.max(0, at + step))]!;
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

function onKey(event: KeyboardEvent): void {
  if (!session || event.ctrlKey || event.altKey || event.metaKey || event.defaultPrevented) return;
  const target = event.target as HTMLElement;
  const typing = target instanceof HTMLInputElement || target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement;
  if (event.key === "Escape" && typing && !(target instanceof HTMLTextAreaElement)) {
    main.focus();
    return;
  }
  if (typing || document.querySelector("dialog[open]")) return;
  const second = waitsForSecond;
  waitsForSecond = false;
  const act = (work: () => void) => {
    event.preventDefault();
    work();
  };
  if (second && event.key === "c") return act(() => (location.hash = "#/"));
  if (second && event.key === "u") return act(() => (location.hash = "#/usage"));
  switch (event.key) {
    case "j":
    case "ArrowDown":
      if (event.key === "j" || target.dataset["nav"] !== undefined) act(() => move(1));
      break;
    case "k":
    case "ArrowUp":
      if (event.key === "k" || target.dataset["nav"] !== undefined) act(() => move(-1));
      break;
    case "g":
      waitsForSecond = true;
      break;
    case "r":
      act(() => main.querySelector<HTMLElement>(".request")?.focus());
      break;
    case "/":
      act(() => document.getElementById("search")?.focus());
      break;
    case "?":
      act(showHelp);
      break;
    case "Escape":
      if (location.hash !== "#/" && location.hash !== "") act(() => (location.hash = "#/"));
      break;
    default: {
      const tab = /^[1-6]$/.test(event.key) ? TABS[Number(event.key) - 1] : undefined;
      if (tab && view?.show) act(() => document.getElementById(`tab-${tab[0]}`)?.click());
    }
  }
}

const chosen = localStorage.getItem("ironcage-theme");
if (chosen === "dark" || chosen === "light") document.documentElement.dataset["theme"] = chosen;
document.body.append(skip, header, main, noticeRegion());
document.addEventListener("keydown", onKey);
addEventListener("hashchange", route);
onSignedOut(() => signInPage(null));
store.listen(() => {
  const waiting = store.waiting().length;
  badge.hidden = waiting === 0;
  setText(badge, waiting ? String(waiting) : "");
  document.title = waiting ? `(${waiting}) Ironcage` : "Ironcage";
});
takeLink();
void enter();
