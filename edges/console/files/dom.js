// Builds elements. Every text becomes a text node: nothing in the console parses HTML. Text of tasks is hostile.

// Control characters, and those that end lines or change the direction of text; line ends and tabs stay.
// As HARMFUL in tenure/cli/formatting.py.
const HARMFUL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;

// Returns the text with harmful characters escaped, so that it reads as what it is.
export function harmless(text) {
  return String(text)
    .replaceAll("\r\n", "\n")
    .replace(HARMFUL, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

// Characters that show nothing or reorder what is shown, also those that belong into some texts, such as joiners and
// variation selectors; line ends stay. As in tenure/domain/texts.py.
const UNSEEN = /[\p{C}\p{Zl}\p{Zp}]|[^\P{Zs} ]|[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\u{e0100}-\u{e01ef}]/gu;

// Returns a text that a person decides on, with every character that they could not see escaped. In JSON it is the same
// value still.
export function visible(text) {
  return String(text).replaceAll("\r\n", "\n").replace(UNSEEN, (char) => (char === "\n" ? char : escaped(char)));
}

const escaped = (char) => char.split("").map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`).join("");

// Returns an element: h("a.name", {href: "#/tasks"}, "text", child, …). null, undefined and false are left out.
export function h(selector, ...rest) {
  const [tag, ...classes] = selector.split(".");
  const element = document.createElement(tag || "div");
  if (classes.length > 0) element.className = classes.join(" ");
  const [first] = rest;
  const hasAttributes = first !== null && typeof first === "object" && !(first instanceof Node) && !Array.isArray(first);
  if (hasAttributes) setAttributes(element, rest.shift());
  append(element, rest);
  return element;
}

export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(harmless(child)));
  }
  return element;
}

// Replaces the children.
export function fill(element, ...children) {
  element.replaceChildren();
  return append(element, children);
}

// Sets the text only if it differs, so that a selection and a screen reader are left alone.
export function setText(element, text) {
  const shown = harmless(text);
  if (element.textContent !== shown) element.textContent = shown;
}

function setAttributes(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) {
      element.addEventListener(name.slice(2), value);
    } else if (name === "value" || name === "checked") {
      element[name] = value;
    } else if (name === "href" && !/^(#|\/(?!\/))/.test(value)) {
      throw new Error(`the console links to its own pages only, not to ${value}`);
    } else {
      element.setAttribute(name, value === true ? "" : harmless(value));
    }
  }
}

// Keeps the children of `parent` equal to `items`: an element stays as long as its key does, and keeps its focus.
// make(item) → element; update(element, item) is called for each of them.
export function keyed(parent, items, keyOf, make, update) {
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  const keys = new Set(items.map((item) => String(keyOf(item))));
  const old = new Map();
  for (const child of [...parent.children]) {
    if (keys.has(child.dataset.key)) old.set(child.dataset.key, child);
    else child.remove();
  }
  let at = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let element = old.get(key);
    if (element === undefined) {
      element = make(item);
      element.dataset.key = key;
    }
    update?.(element, item);
    if (element === at) at = at.nextElementSibling;
    else parent.insertBefore(element, at);
  }
  if (focused?.isConnected && document.activeElement !== focused) focused.focus({ preventScroll: true });
}
