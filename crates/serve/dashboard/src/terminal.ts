// A terminal of a cage. xterm.js reads what the programs write and keeps the screen; it has no part that
// draws. Drawing happens here, with text nodes and classes only: escape sequences can colour and move
// text, and nothing else. Titles, links, images and the clipboard are not offered to programs.

import { type IBufferCell, Terminal } from "@xterm/headless";
import { type Process, ServiceError, cagePath, events, get, may, post, send } from "./api";
import { h, replace, setText } from "./dom";
import { command, empty, failed, say } from "./parts";
import { code, fill, hasHidden, plain, untrusted } from "./text";

const TAG = "dashboard";
const SHELL = "if command -v bash >/dev/null 2>&1; then exec bash -i; else exec sh -i; fi";

const KEYS: Record<string, string> = {
  Enter: "\r",
  Backspace: "\u007f",
  Tab: "\t",
  Escape: "\u001b",
  Insert: "\u001b[2~",
  Delete: "\u001b[3~",
  PageUp: "\u001b[5~",
  PageDown: "\u001b[6~",
  F1: "\u001bOP",
  F2: "\u001bOQ",
  F3: "\u001bOR",
  F4: "\u001bOS",
  F5: "\u001b[15~",
  F6: "\u001b[17~",
  F7: "\u001b[18~",
  F8: "\u001b[19~",
  F9: "\u001b[20~",
  F10: "\u001b[21~",
  F11: "\u001b[23~",
  F12: "\u001b[24~",
};
const CURSOR: Record<string, string> = { ArrowUp: "A", ArrowDown: "B", ArrowRight: "C", ArrowLeft: "D", Home: "H", End: "F" };

/** What a key writes; nothing where the browser or the input field has it. */
export function bytesOf(event: KeyboardEvent, application: boolean): string | null {
  const { key, ctrlKey, altKey, shiftKey, metaKey } = event;
  if (metaKey || event.isComposing) return null;
  if (key === "Tab" && shiftKey) return "\u001b[Z";
  const cursor = CURSOR[key];
  if (cursor) {
    const modifier = 1 + Number(shiftKey) + 2 * Number(altKey) + 4 * Number(ctrlKey);
    return modifier > 1 ? `\u001b[1;${modifier}${cursor}` : `\u001b${application ? "O" : "["}${cursor}`;
  }
  const known = KEYS[key];
  if (known) return altKey ? `\u001b${known}` : known;
  if (key.length !== 1) return null;
  if (ctrlKey && !altKey) {
    if (key === " ") return "\u0000";
    const at = key.toUpperCase().charCodeAt(0);
    // With Shift it is the browser's: copy, paste, a new window.
    return !shiftKey && at >= 0x40 && at <= 0x5f ? String.fromCharCode(at & 0x1f) : null;
  }
  if (altKey && !ctrlKey) return `\u001b${key}`;
  // Plain text comes through the input field, which knows about dead keys and input methods.
  return null;
}

type Look = { key: string; classes: string; fg: number | null; bg: number | null };

function look(cell: IBufferCell): Look {
  const classes: string[] = [];
  let [fg, bg] = [null as number | null, null as number | null];
  if (cell.isBold()) classes.push("bold");
  if (cell.isDim()) classes.push("dim");
  if (cell.isItalic()) classes.push("italic");
  if (cell.isUnderline()) classes.push("underline");
  if (cell.isStrikethrough()) classes.push("struck");
  if (cell.isInverse()) classes.push("inverse");
  if (cell.isInvisible()) classes.push("invisible");
  const colour = (palette: boolean, rgb: boolean, value: number, prefix: string): number | null => {
    if (palette && value < 16) classes.push(`${prefix}${value}`);
    else if (palette) return fromPalette(value);
    else if (rgb) return value;
    return null;
  };
  fg = colour(cell.isFgPalette(), cell.isFgRGB(), cell.getFgColor(), "fg");
  bg = colour(cell.isBgPalette(), cell.isBgRGB(), cell.getBgColor(), "bg");
  return { key: `${classes.join(" ")}/${fg}/${bg}`, classes: classes.join(" "), fg, bg };
}

function fromPalette(value: number): number {
  if (value >= 232) return (8 + (value - 232) * 10) * 0x010101;
  const level = (part: number) => (part === 0 ? 0 : 55 + part * 40);
  const cube = value - 16;
  return (level(Math.floor(cube / 36)) << 16) | (level(Math.floor(cube / 6) % 6) << 8) | level(cube % 6);
}

const css = (rgb: number) => `rgb(${(rgb >> 16) & 255} ${(rgb >> 8) & 255} ${rgb & 255})`;

class Screen {
  readonly element = h("div", { class: "screen", aria: { hidden: "true" } });
  private rows: { element: HTMLElement; shown: string }[] = [];
  private drawing = false;
  focused = false;

  constructor(private terminal: Terminal) {}

  draw(): void {
    if (this.drawing) return;
    this.drawing = true;
    requestAnimationFrame(() => {
      this.drawing = false;
      this.drawNow();
    });
  }

  /** The text of the screen, for screen readers. */
  text(): string {
    const { active } = this.terminal.buffer;
    const lines = Array.from({ length: this.terminal.rows }, (_, at) => active.getLine(active.viewportY + at)?.translateToString(true) ?? "");
    return plain(lines.join("\u2424")).replaceAll("\u2424", "\n").trimEnd();
  }

  private drawNow(): void {
    const { active } = this.terminal.buffer;
    while (this.rows.length < this.terminal.rows) {
      const element = h("div", { class: "row" });
      this.rows.push({ element, shown: "" });
      this.element.append(element);
    }
    while (this.rows.length > this.terminal.rows) this.rows.pop()!.element.remove();
    const cursorRow = active.baseY + active.cursorY - active.viewportY;
    this.rows.forEach((row, at) => this.drawRow(row, active.viewportY + at, at === cursorRow ? active.cursorX : -1));
  }

  private drawRow(row: { element: HTMLElement; shown: string }, y: number, cursor: number): void {
    const line = this.terminal.buffer.active.getLine(y);
    const parts: { text: string; look: Look; width: number; alone: boolean; cursor: boolean }[] = [];
    for (let x = 0; line && x < this.terminal.cols; x += 1) {
      const cell = line.getCell(x);
      if (!cell || cell.getWidth() === 0) continue;
      const [text, width, own] = [cell.getChars() || " ", cell.getWidth(), look(cell)];
      // Anything but ASCII gets a box of its own, so that no glyph and no direction moves its neighbours.
      const alone = width !== 1 || !/^[\x20-\x7e]$/.test(text);
      const last = parts[parts.length - 1];
      const here = x === cursor;
      if (last && !alone && !last.alone && !here && !last.cursor && last.look.key === own.key) last.text += text;
      else parts.push({ text, look: own, width, alone, cursor: here });
    }
    const signature = JSON.stringify([parts, this.focused && cursor >= 0]);
    if (signature === row.shown) return;
    row.shown = signature;
    replace(
      row.element,
      ...parts.map((part) => {
        const classes = [part.look.classes, part.alone && `alone w${part.width}`, part.cursor && `cursor${this.focused ? " focused" : ""}`].filter(Boolean).join(" ");
        if (!classes && part.look.fg === null && part.look.bg === null) return part.text;
        const element = h("span", { class: classes });
        if (hasHidden(part.text)) {
          // Invisible characters hang on to the one before: it is marked, and shown without them.
          element.classList.add("hidden-character");
          element.title = [...part.text].filter(hasHidden).map(code).join(" ");
          element.textContent = [...part.text].filter((one) => !hasHidden(one)).join("") || "·";
        } else {
          element.textContent = part.text;
        }
        if (part.look.fg !== null) element.style.color = css(part.look.fg);
        if (part.look.bg !== null) element.style.backgroundColor = css(part.look.bg);
        return element;
      }),
    );
  }
}

/** Rows and columns that there is room for. */
function sizeIn(place: HTMLElement): { rows: number; columns: number } {
  const probe = h("span", { class: "probe screen" }, "0".repeat(100));
  place.append(probe);
  const { width, height } = probe.getBoundingClientRect();
  probe.remove();
  // Without the border and the padding of the box.
  const room = place.clientWidth - 18;
  return {
    columns: Math.max(20, Math.min(400, Math.floor(room / (width / 100 || 8)))),
    rows: Math.max(8, Math.min(60, Math.floor((innerHeight * 0.6) / (height || 17)))),
  };
}

export function terminalTab(id: string, wanted?: number): { element: HTMLElement; dispose(): void } {
  const abort = new AbortController();
  const status = h("p", { class: "quiet", role: "status" });
  const place = h("div", {});
  const element = h("div", { class: "terminal-tab" }, place, status);
  let stop = () => {};

  const start = async () => {
    try {
      const { rows, columns } = sizeIn(place);
      const process = await post<Process>(cagePath(id, "/processes"), {
        command: SHELL,
        env: { TERM: "xterm-256color" },
        pty: { rows, columns },
        tag: TAG,
      });
      attach(process);
    } catch (error) {
      failed(error);
    }
  };

  const choose = async () => {
    stop();
    try {
      const { processes } = await get<{ processes: Process[] }>(cagePath(id, "/processes"), abort.signal);
      const open = processes.filter((process) => process.pty && process.exit === undefined);
      const found = open.find((process) => process.pid === wanted);
      wanted = undefined;
      if (found) return attach(found);
      const button = h("button", { type: "button", class: "approve", disabled: !may("cages"), on: { click: () => void start() } }, "Start a shell");
      replace(
        place,
        h("p", {}, button, " in the cage, as the agent."),
        open.length > 0 && h("p", { class: "quiet" }, "Terminals that run already:"),
        h(
          "ul",
          { class: "plain" },
          ...open.map((process) => h("li", {}, h("button", { type: "button", disabled: !may("cages"), on: { click: () => attach(process) } }, "Attach"), " ", `${process.pid} `, process.tag === TAG ? "shell of the dashboard" : untrusted(command(process.argv), "code"))),
        ),
      );
      setText(status, "");
      button.focus();
    } catch (error) {
      if (!abort.signal.aborted) replace(place, empty(""), h("p", { class: "error" }, untrusted(say(error))));
    }
  };

  const attach = (process: Process) => {
    stop();
    const own = new AbortController();
    let known = { rows: 24, cols: 80 };
    const terminal = new Terminal({ ...known, scrollback: 2000, allowProposedApi: true });
    const screen = new Screen(terminal);
    const input = h("textarea", { class: "terminal-input", aria: { label: `Terminal of process ${process.pid}. Ctrl+] leaves it.` }, autocomplete: "off" });
    for (const [name, value] of [["autocapitalize", "off"], ["autocorrect", "off"], ["spellcheck", "false"], ["rows", "1"]] as const) input.setAttribute(name, value);
    const spoken = h("div", { class: "visually-hidden", role: "log", aria: { label: "Text of the terminal" } });
    const leave = h("button", { type: "button", on: { click: () => void choose() } }, "Detach");
    const box = h("div", { class: "terminal", on: { mousedown: () => setTimeout(() => getSelection()?.isCollapsed !== false && input.focus({ preventScroll: true })) } }, screen.element, input);
    replace(place, box, spoken, h("p", { class: "actions" }, leave, h("span", { class: "quiet" }, "Ctrl+] leaves the terminal, Shift+Page Up scrolls back.")));

    // What is typed goes out in its order, one request after the other.
    let queue = "";
    let sending = false;
    const path = cagePath(id, `/processes/${process.pid}`);
    const flush = async () => {
      if (sending) return;
      sending = true;
      try {
        while (queue) {
          const text = queue;
          queue = "";
          await send(`${path}/stdin`, { method: "POST", body: new Blob([text], { type: "application/octet-stream" }), signal: own.signal });
        }
      } catch (error) {
        if (!own.signal.aborted) failed(error);
      }
      sending = false;
    };
    const write = (text: string) => {
      terminal.scrollToBottom();
      queue += text;
      void flush();
    };

    // Answers to questions that programs ask the terminal.
    terminal.onData(write);
    terminal.onBell(() => {
      box.classList.add("bell");
      setTimeout(() => box.classList.remove("bell"), 150);
    });

    input.addEventListener("keydown", (event) => {
      if (event.ctrlKey && !event.altKey && !event.shiftKey && event.key === "]") {
        event.preventDefault();
        leave.focus();
        return;
      }
      if (event.shiftKey && (event.key === "PageUp" || event.key === "PageDown")) {
        event.preventDefault();
        terminal.scrollPages(event.key === "PageUp" ? -1 : 1);
        screen.draw();
        return;
      }
      // What is selected is copied; without a selection it is an interrupt.
      if (event.ctrlKey && event.key === "c" && getSelection()?.isCollapsed === false) return;
      if (event.ctrlKey && event.key === "v") return;
      const text = bytesOf(event, terminal.modes.applicationCursorKeysMode);
      if (text !== null) {
        event.preventDefault();
        write(text);
      }
    });
    input.addEventListener("input", (event) => {
      if ((event as InputEvent).isComposing) return;
      write(input.value.replace(/\r?\n/g, "\r"));
      input.value = "";
    });
    input.addEventListener("compositionend", () => {
      write(input.value);
      input.value = "";
    });
    input.addEventListener("paste", (event) => {
      event.preventDefault();
      const text = (event.clipboardData?.getData("text/plain") ?? "").replace(/\r?\n/g, "\r");
      // The end of a bracketed paste must come from here, not from what is pasted.
      write(terminal.modes.bracketedPasteMode ? `\u001b[200~${text.replaceAll("\u001b", "")}\u001b[201~` : text);
    });
    for (const [name, focused] of [["focus", true], ["blur", false]] as const) {
      input.addEventListener(name, () => {
        screen.focused = focused;
        box.classList.toggle("focused", focused);
        screen.draw();
      });
    }
    box.addEventListener(
      "wheel",
      (event) => {
        if (!event.deltaY) return;
        event.preventDefault();
        terminal.scrollLines(Math.sign(event.deltaY) * 3);
        screen.draw();
      },
      { passive: false },
    );

    let resizing: ReturnType<typeof setTimeout> | undefined;
    const fit = () => {
      const { rows, columns } = sizeIn(place);
      if (known.rows === rows && known.cols === columns) return;
      known = { rows, cols: columns };
      terminal.resize(columns, rows);
      screen.draw();
      clearTimeout(resizing);
      resizing = setTimeout(() => {
        post(`${path}/resize`, { rows, columns }).catch((error: ServiceError) => {
          if (!own.signal.aborted && error.code !== "not_found") failed(error);
        });
      }, 100);
    };
    const observer = new ResizeObserver(fit);
    observer.observe(place);

    let speaking: ReturnType<typeof setTimeout> | undefined;
    const follow = async () => {
      let from = process.output_from;
      for (;;) {
        try {
          for await (const { event, data } of events(`${path}/output?from=${from}`, own.signal)) {
            if (event === "output") {
              const { offset, data: encoded } = data as { offset: number; data: string };
              const bytes = Uint8Array.from(atob(encoded), (character) => character.charCodeAt(0));
              from = offset + bytes.length;
              terminal.write(bytes, () => screen.draw());
              clearTimeout(speaking);
              speaking = setTimeout(() => setText(spoken, screen.text()), 300);
            } else if (event === "exit") {
              const { code: exitCode, signal } = data as { code?: number; signal?: number };
              fill(status, `The process ended ${signal === undefined ? `with status ${exitCode}` : `by signal ${signal}`}.`);
              leave.textContent = "Back";
              input.disabled = true;
              leave.focus();
              return;
            } else if (event === "error") {
              const { error } = data as { error: { message: string } };
              throw new ServiceError(0, "stream", error.message);
            }
          }
        } catch (error) {
          if (own.signal.aborted) return;
          fill(status, `${say(error)} Connecting again…`);
          if ((error as ServiceError).status === 404 || (error as ServiceError).code === "cage_ended") return;
        }
        // The service was restarted: the process and its output are still there.
        await new Promise((resolve) => setTimeout(resolve, 1000));
        if (own.signal.aborted) return;
        setText(status, "");
      }
    };

    setText(status, "");
    fit();
    input.focus();
    void follow();
    stop = () => {
      own.abort();
      observer.disconnect();
      clearTimeout(resizing);
      clearTimeout(speaking);
      terminal.dispose();
      stop = () => {};
    };
  };

  void choose();
  return {
    element,
    dispose() {
      abort.abort();
      stop();
    },
  };
}
