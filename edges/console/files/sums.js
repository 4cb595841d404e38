// Sums of bills.

import { allTokens } from "./format.js";

export const PAGE = 500; // The most sums that the gateway gives in one page, in the order of their keys.

// The dearest sums of a page, and a sentence for a page that does not have all. Equally dear ones by their tokens.
export function dearest(page, most = 20) {
  const sums = [...page.sums].sort((one, other) => other.cost_usd - one.cost_usd || allTokens(other.usage) - allTokens(one.usage)).slice(0, most);
  const note = page.next_page_token ? `More than ${page.sums.length} were billed in this span: the dearest of the oldest ${page.sums.length} are shown. Choose a shorter span to see the others.` : "";
  return { sums, note };
}
