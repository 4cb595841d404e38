// Markdown as elements. The library only reads it (vendor/marked): every element comes from h(), so no text becomes HTML,
// and a link or an image of an agent is shown as a text with its address, which nothing follows.

import { h } from "./dom.js";
import { longText } from "./ui.js";
import { Lexer } from "./vendor/marked/marked.esm.js";

const MOST = 100_000; // Characters. A longer text is shown as it is.
const INLINE = { strong: "strong", em: "em", del: "del" };

export function markdown(text) {
  if (text.length > MOST) return longText(text, MOST);
  try {
    return h("div.markdown", blocks(new Lexer({ gfm: true }).lex(text)));
  } catch {
    return longText(text, MOST); // Such as a thousand quotes within each other.
  }
}

const blocks = (tokens) => tokens.map(block);

function block(token) {
  switch (token.type) {
    case "heading":
      return h(`h${Math.min(6, token.depth + 2)}`, inlines(token));
    case "paragraph":
      return h("p", inlines(token));
    case "text": // The item of a list.
      return inlines(token);
    case "code":
      return h("pre", token.text);
    case "blockquote":
      return h("blockquote", blocks(token.tokens));
    case "list":
      return h(token.ordered ? "ol" : "ul", { start: token.ordered && token.start !== 1 ? token.start : null }, token.items.map((item) => h("li", blocks(item.tokens))));
    case "checkbox":
      return token.checked ? "☑ " : "☐ ";
    case "table":
      return h("div.table", h("table", h("thead", h("tr", token.header.map((cell) => h("th", inlines(cell))))), h("tbody", token.rows.map((row) => h("tr", row.map((cell) => h("td", inlines(cell))))))));
    case "hr":
      return h("hr");
    case "space":
    case "def":
      return null;
    default:
      return h("p", token.raw); // HTML, for one.
  }
}

const inlines = (token) => (token.tokens ? token.tokens.map(inline) : token.text);

function inline(token) {
  if (token.type === "codespan") return h("code", token.text);
  if (token.type in INLINE) return h(INLINE[token.type], inlines(token));
  switch (token.type) {
    case "br":
      return h("br");
    case "link":
    case "image":
      return token.href === token.text ? h("u", token.href) : [inlines(token), h("span.dim", ` (${token.href})`)];
    case "text":
    case "escape":
      return inlines(token);
    case "checkbox":
      return block(token);
    default:
      return token.raw;
  }
}
