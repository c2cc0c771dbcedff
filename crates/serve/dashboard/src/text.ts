// Text of an agent: names, commands, paths, reasons, hosts. It is shown as it is, but characters that
// have no look of their own, or change the look of others, are shown by their code.

import { h } from "./dom";

// C0 and C1 controls, soft hyphen, Arabic letter mark, Hangul fillers, Mongolian and other invisible
// separators, zero-width characters, directional controls, line separators, variation selectors'
// relatives, tags, private use and unpaired surrogates.
const HIDDEN =
  /[\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}\p{Co}\p{Cs}]/gu;

const SHORT: Record<string, string> = { "\n": "\\n", "\r": "\\r", "\t": "\\t", "\u001b": "\\e", "\u0000": "\\0" };

export function code(character: string): string {
  return SHORT[character] ?? `\\u{${(character.codePointAt(0) ?? 0).toString(16)}}`;
}

export function hasHidden(text: string): boolean {
  HIDDEN.lastIndex = 0;
  return HIDDEN.test(text);
}

// The same as plain text, for titles and labels.
export function plain(text: string): string {
  return text.replace(HIDDEN, code);
}

// An element that shows it. Its direction is its own: it does not turn around what stands beside it.
export function untrusted(text: string, className = ""): HTMLElement {
  const element = h("bdi", { class: `agent ${className}`.trim() });
  fill(element, text);
  return element;
}

const shown = new WeakMap<HTMLElement, string>();

export function fill(element: HTMLElement, text: string): void {
  if (shown.get(element) === text) return;
  shown.set(element, text);
  element.replaceChildren();
  let from = 0;
  for (const found of text.matchAll(HIDDEN)) {
    if (found.index > from) element.append(document.createTextNode(text.slice(from, found.index)));
    element.append(h("span", { class: "hidden-character" }, code(found[0])));
    from = found.index + found[0].length;
  }
  if (from < text.length) element.append(document.createTextNode(text.slice(from)));
}
