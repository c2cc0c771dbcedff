// Parts that several views have.

import { ServiceError } from "./api";
import { h, replace, svg } from "./dom";
import { fill, plain, untrusted } from "./text";

export interface View {
  element: HTMLElement;
  dispose(): void;
}

export function meter(label: string): { element: HTMLElement; set(share: number | null, text: string): void } {
  const bar = h("span", { class: "bar-fill" });
  const text = h("span", { class: "meter-text" });
  const element = h("span", { class: "meter", role: "img" }, h("span", { class: "bar", aria: { hidden: "true" } }, bar), text);
  return {
    element,
    set(share, shown) {
      const width = share === null ? 0 : Math.min(1, Math.max(0, share));
      bar.style.width = `${(width * 100).toFixed(1)}%`;
      bar.classList.toggle("high", width > 0.9);
      if (text.textContent !== shown) text.textContent = shown;
      element.setAttribute("aria-label", `${label}: ${shown}`);
    },
  };
}

const WIDTH = 120;
const HEIGHT = 26;

export function sparkline(): { element: SVGElement; set(values: number[], most: number): void } {
  const line = svg("polyline", { fill: "none", "stroke-width": 1.5, "vector-effect": "non-scaling-stroke" });
  const element = svg("svg", { class: "sparkline", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" }, line);
  return {
    element,
    set(values, most) {
      const top = Math.max(most, ...values, 0.01);
      const step = WIDTH / 59;
      const from = WIDTH - (values.length - 1) * step;
      line.setAttribute("points", values.map((value, at) => `${(from + at * step).toFixed(1)},${(HEIGHT - 1 - (value / top) * (HEIGHT - 2)).toFixed(1)}`).join(" "));
    },
  };
}

export function stateBadge(): { element: HTMLElement; set(state: string): void } {
  const element = h("span", { class: "state" });
  return {
    element,
    set(state) {
      element.textContent = state;
      element.dataset["state"] = state;
    },
  };
}

/** A command as a shell would take it. */
export function command(argv: string[]): string {
  const shell = argv[0] === "/bin/sh" && argv[1] === "-c" && argv.length === 3;
  if (shell) return argv[2]!;
  return argv.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`)).join(" ");
}

// What just happened, for eyes and for screen readers.
const region = h("div", { class: "notices", role: "status", aria: { live: "polite" } });

export function noticeRegion(): HTMLElement {
  return region;
}

export function notice(text: string, kind: "good" | "bad" = "good"): void {
  const own = h("p", { class: `notice ${kind}` });
  fill(own, text);
  region.append(own);
  while (region.childElementCount > 4) region.firstElementChild?.remove();
  setTimeout(() => own.remove(), 8000);
}

export function say(error: unknown): string {
  const { message, hint } = error as ServiceError;
  return hint ? `${message}. ${hint}` : String(message);
}

export function failed(error: unknown): void {
  notice(say(error), "bad");
}

/** A line that says what is wrong, or nothing. */
export function errorLine(): { element: HTMLElement; set(error: Error | null): void } {
  const element = h("p", { class: "error", role: "alert", hidden: true });
  return {
    element,
    set(error) {
      element.hidden = error === null;
      if (error) fill(element, say(error));
    },
  };
}

/** Asks before something that cannot be taken back. */
export function confirm(question: string, about: string, yes: string): Promise<boolean> {
  return new Promise((resolve) => {
    const answer = (value: boolean) => () => {
      dialog.close();
      dialog.remove();
      resolve(value);
    };
    const dialog = h(
      "dialog",
      { aria: { label: question }, on: { cancel: answer(false) } },
      h("p", {}, question),
      h("p", {}, untrusted(about, "strong")),
      h("p", { class: "actions" }, h("button", { type: "button", class: "danger", on: { click: answer(true) } }, yes), h("button", { type: "button", on: { click: answer(false) } }, "Cancel")),
    );
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** A table whose rows are cards on a narrow page: each cell carries its column's name. */
export function table(columns: string[], label: string): { element: HTMLElement; body: HTMLTableSectionElement; row(...cells: (Node | string)[]): HTMLTableRowElement } {
  const body = h("tbody", {});
  const head = h("tr", {}, ...columns.map((name) => h("th", {}, name)));
  const element = h("table", { aria: { label } }, h("thead", {}, head), body);
  return {
    element,
    body,
    row: (...cells) => h("tr", {}, ...cells.map((cell, at) => h("td", { data: { label: columns[at] ?? "" } }, cell))),
  };
}

export function empty(text: string): HTMLElement {
  return h("p", { class: "empty" }, text);
}

export function relabel(element: Element, label: string): void {
  element.setAttribute("aria-label", plain(label));
}

export { replace };
