// A diff as `ironcage diff` prints it, one part for each file. Its lines come escaped, and what they
// begin with says what they are: text of a file always has a sign before it.

import { h } from "./dom";
import { untrusted } from "./text";

const MOST_LINES = 20_000;
/** Files that are open from the start. */
const OPEN_LINES = 400;

type File = { name: string; lines: string[]; added: number; removed: number };

export function parse(text: string): { files: File[]; notes: string[] } {
  const files: File[] = [];
  const notes: string[] = [];
  let file: File | null = null;
  // Lines that the hunk still has, of the old and the new file: what it says itself, so that what comes
  // after it is not taken for a line of the file.
  let [old, now] = [0, 0];
  for (const line of text.split("\n")) {
    const hunk = /^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@/.exec(line);
    if (file && (old > 0 || now > 0) && /^[-+ ]/.test(line)) {
      if (line[0] !== "+") old -= 1;
      if (line[0] !== "-") now -= 1;
      if (line[0] === "+") file.added += 1;
      if (line[0] === "-") file.removed += 1;
      file.lines.push(line);
    } else if (file && hunk) {
      [old, now] = [Number(hunk[1] ?? 1), Number(hunk[2] ?? 1)];
      file.lines.push(line);
    } else if (line.startsWith("diff --git ")) {
      file = { name: line.slice("diff --git ".length), lines: [], added: 0, removed: 0 };
      files.push(file);
    } else if (file && (line.startsWith("\\ ") || HEADER.test(line))) {
      file.lines.push(line);
    } else if (line) {
      file = null;
      notes.push(line);
    }
  }
  return { files, notes };
}

const HEADER = /^(--- |\+\+\+ |new file mode |deleted file mode |old mode |new mode |similarity index |rename from |rename to |Binary files |Files .* are too large|Cannot read it: )/;

/** `a/NAME b/NAME` as one name, where both are the same. */
function shortName(name: string): string {
  const half = (name.length - 1) / 2;
  const [a, b] = [name.slice(0, half), name.slice(half + 1)];
  if (name[half] === " " && a.replace(/^("?)a\//, "$1") === b.replace(/^("?)b\//, "$1")) return b.replace(/^("?)b\//, "$1");
  return name;
}

export function diffFiles(text: string): HTMLElement[] {
  const { files, notes } = parse(text);
  let left = MOST_LINES;
  const shown: HTMLElement[] = files.map((file) => {
    const lines = file.lines.slice(0, Math.max(0, left));
    left -= lines.length;
    const code = h("div", { class: "diff", role: "group" });
    let inHunk = false;
    for (const line of lines) {
      const place = line.startsWith("@@");
      inHunk ||= place;
      const kind = place ? "place" : !inHunk ? "head" : line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : "same";
      const element = untrusted("", `line ${kind}`);
      // A tab in a file is a tab.
      element.append(...untrustedLine(line));
      code.append(element);
    }
    if (lines.length < file.lines.length) code.append(h("p", { class: "quiet" }, `${file.lines.length - lines.length} more lines are not shown`));
    const details = h("details", { class: "file", data: { nav: "" } }, h("summary", {}, untrusted(shortName(file.name), "code"), h("span", { class: "added-count" }, ` +${file.added}`), h("span", { class: "removed-count" }, ` −${file.removed}`)), code);
    details.open = file.lines.length <= OPEN_LINES && files.length <= 30;
    return details;
  });
  if (notes.length > 0) shown.unshift(h("div", { class: "notes" }, ...notes.map((note) => h("p", {}, untrusted(note)))));
  if (files.length === 0 && notes.length === 0) shown.push(h("p", { class: "empty" }, "Nothing differs from the real files."));
  return shown;
}

function untrustedLine(line: string): Node[] {
  return line.split("\t").flatMap((part, at) => (at === 0 ? [untrusted(part, "part")] : [document.createTextNode("\t"), untrusted(part, "part")]));
}
