// Grants of budget.

// The body that grants these amounts. The suggested ones are not named: to name amounts needs TENANT_ADMIN.
export function grantOf(need, tokens, usd) {
  const isSuggested = tokens === Number(need?.suggested_tokens ?? 0) && usd === Number(need?.suggested_cost_usd ?? 0);
  if (isSuggested) return { decision: "approve" };
  return { decision: "approve", ...(tokens ? { extra_tokens: tokens } : {}), ...(usd ? { extra_cost: usd } : {}) };
}
