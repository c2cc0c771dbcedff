// Elements are made here and nowhere else, and text enters them as text only: there is no way to hand
// markup over. The page's policy (Trusted Types) refuses markup from anywhere else, too.

export type Child = Node | string | null | undefined | false;
type Props = {
  class?: string;
  id?: string;
  title?: string;
  href?: string;
  type?: string;
  role?: string;
  for?: string;
  value?: string;
  placeholder?: string;
  name?: string;
  disabled?: boolean;
  hidden?: boolean;
  tabindex?: number;
  autocomplete?: string;
  maxlength?: number;
  data?: Record<string, string>;
  aria?: Record<string, string>;
  on?: { [K in keyof HTMLElementEventMap]?: (event: HTMLElementEventMap[K]) => void };
};

const ATTRIBUTES = ["class", "id", "title", "href", "type", "role", "for", "value", "placeholder", "name", "tabindex", "autocomplete", "maxlength"] as const;

export function h<K extends keyof HTMLElementTagNameMap>(tag: K, props: Props = {}, ...children: Child[]): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const name of ATTRIBUTES) {
    const value = props[name];
    if (value !== undefined) element.setAttribute(name, String(value));
  }
  if (props.disabled) element.setAttribute("disabled", "");
  if (props.hidden) element.hidden = true;
  for (const [name, value] of Object.entries(props.data ?? {})) element.dataset[name] = value;
  for (const [name, value] of Object.entries(props.aria ?? {})) element.setAttribute(`aria-${name}`, value);
  for (const [name, listener] of Object.entries(props.on ?? {})) element.addEventListener(name, listener as EventListener);
  append(element, children);
  return element;
}

export function append(parent: Node, children: Child[]): void {
  for (const child of children) {
    if (child !== null && child !== undefined && child !== false) parent.appendChild(typeof child === "string" ? document.createTextNode(child) : child);
  }
}

export function replace(parent: Element, ...children: Child[]): void {
  parent.replaceChildren();
  append(parent, children);
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag: "svg" | "polyline" | "rect" | "line", attributes: Record<string, string | number>, ...children: Node[]): SVGElement {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

// Children of a list by key: those that stay are the same elements, so focus and selection stay too.
export class Keyed<T, E extends HTMLElement> {
  private known = new Map<string, { element: E; update: (item: T) => void }>();

  constructor(
    private parent: HTMLElement,
    private key: (item: T) => string,
    private make: (item: T) => { element: E; update: (item: T) => void },
  ) {}

  set(items: T[]): void {
    const wanted = new Set(items.map(this.key));
    for (const [key, { element }] of this.known) {
      if (!wanted.has(key)) {
        element.remove();
        this.known.delete(key);
      }
    }
    let before: Element | null = this.parent.firstElementChild;
    for (const item of items) {
      const key = this.key(item);
      let entry = this.known.get(key);
      if (!entry) {
        entry = this.make(item);
        this.known.set(key, entry);
      }
      entry.update(item);
      if (entry.element === before) before = before.nextElementSibling;
      else this.parent.insertBefore(entry.element, before);
    }
  }

  get size(): number {
    return this.known.size;
  }
}

// Sets text that the service itself made, such as numbers, without touching what is the same.
export function setText(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}
