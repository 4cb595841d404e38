"""Computes the price of model calls and decides reservations of tokens and money.

Use never exceeds a cap, because a reservation is granted only from the part of the cap that neither settled use nor
other reservations have taken, under the lock of the budget's row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final, NamedTuple

from tenure.domain.states import Reason, TaskState

# Prices. All money is a whole number of nano USD (10^-9 US dollar), never a float, so sums are exact.

NANO_USD: Final = 10**9
"""Nano USD per dollar."""

RATE_TOKENS: Final = 10**6
"""The number of tokens that a rate prices."""

MAX_NANO_USD: Final = 10**15
"""$1,000,000: the highest cap, and the upper bound of one call's cost. Sums of it stay inside an int64."""

MAX_TOKENS: Final = 10**12
"""The highest cap in tokens, the most that one grant adds, and the most that one call uses. Sums of it stay inside an
int64.
"""


SIMULATED_REQUEST_PREFIX: Final = "req_sim_"
"""The prefix of the request ids in the simulator's answers. A bill contains the request id of its answer."""
SIMULATED_MODEL_PREFIX: Final = "sim-"
"""The prefix of models that only the simulator has. It identifies a call whose answer, and so the request id, was lost.
"""


@dataclass(frozen=True, slots=True)
class Rates:
    """Prices per million tokens of each kind, in nano USD."""

    input: int
    output: int
    cache_creation_input: int
    cache_read_input: int


@dataclass(frozen=True, slots=True)
class Tier:
    """The rates of all tokens of a call whose input, cached or not, exceeds `above_input_tokens`."""

    above_input_tokens: int
    rates: Rates


@dataclass(frozen=True, slots=True)
class Prices:
    """The prices of one model, by the length of the input.

    The first tier has `above_input_tokens` 0 and also applies to a call without input.
    """

    tiers: tuple[Tier, ...]

    @classmethod
    def flat(cls, rates: Rates) -> Prices:
        """Returns prices that are equal for every length of the input."""
        return cls((Tier(0, rates),))

    def rates(self, input_tokens: int) -> Rates:
        """Returns the rates of a call with `input_tokens` of input."""
        reached = [tier for tier in self.tiers if tier.above_input_tokens < input_tokens]
        return (reached[-1] if reached else self.tiers[0]).rates


def cost(prices: Prices | None, usage: TokenUsage) -> int:
    """Returns what the model provider charges, in nano USD, rounded up; 0 without prices."""
    if prices is None:
        return 0
    rates = prices.rates(usage.total - usage.output_tokens)
    charged = _rounded_up(
        usage.input_tokens * rates.input
        + usage.output_tokens * rates.output
        + usage.cache_creation_input_tokens * rates.cache_creation_input
        + usage.cache_read_input_tokens * rates.cache_read_input
    )
    return min(charged, MAX_NANO_USD)


def most_cost(prices: Prices | None, input_tokens: int, output_tokens: int) -> int:
    """Returns an upper bound of `cost` for a call of at most these tokens, whatever part of its input is cached."""
    if prices is None:
        return 0
    highest = _highest_rates(prices, input_tokens)
    return _rounded_up(input_tokens * highest.input + output_tokens * highest.output)


def affordable_output(prices: Prices | None, input_tokens: int, nano_usd: int) -> int | None:
    """Returns the most output tokens for which `most_cost` is at most `nano_usd`; None: any number.

    Below 0: the money does not cover the input.
    """
    if prices is None:
        return None
    highest = _highest_rates(prices, input_tokens)
    left = nano_usd * RATE_TOKENS - input_tokens * highest.input
    if left < 0:
        return -1
    return left // highest.output if highest.output else None


def usd(nano_usd: int) -> str:
    """Returns the exact amount for people, such as "$0.50" and "$0.0123": cents, and more digits where it has them."""
    whole, fraction = divmod(abs(nano_usd), NANO_USD)
    digits = f"{fraction:09d}".rstrip("0").ljust(2, "0")
    return f"{'-' if nano_usd < 0 else ''}${whole:,}.{digits}"


def money_text(nano_usd: int) -> str:
    """Returns a rounded amount as people write it: `$12.35`, `$0.05`, `less than $0.01`. `usd` is exact."""
    if 0 < nano_usd < NANO_USD // 100:
        return "less than $0.01"
    dollars = round(Decimal(nano_usd) / NANO_USD, 2)
    return f"{'-' if dollars < 0 else ''}${abs(dollars):,.2f}"


def nano_usd_of(dollars: Decimal) -> int | None:
    """Returns an amount in nano USD, or None if it is not a whole number of them or exceeds MAX_NANO_USD."""
    if not dollars.is_finite() or dollars.copy_abs() > MAX_NANO_USD:
        return None
    nano = dollars * NANO_USD
    return int(nano) if nano == nano.to_integral_value() else None


def _highest_rates(prices: Prices, input_tokens: int) -> Rates:
    """Returns the highest rates that a call with at most this input can meet.

    Every kind of input gets the highest input rate.
    """
    reached = [tier.rates for tier in prices.tiers if tier.above_input_tokens < input_tokens]
    possible = reached or [prices.tiers[0].rates]
    highest_input = max(max(rates.input, rates.cache_creation_input, rates.cache_read_input) for rates in possible)
    return Rates(highest_input, max(rates.output for rates in possible), highest_input, highest_input)


def _rounded_up(rate_tokens: int) -> int:
    return -(-rate_tokens // RATE_TOKENS)


WARNING_PERCENT: Final = 80


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens as the model provider bills them. A budget counts `total`."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0

    @classmethod
    def of_whole_input(
        cls, input_tokens: int, output_tokens: int, total_tokens: int = 0, *, written: int = 0, read: int = 0
    ) -> TokenUsage:
        """Returns a usage of an API that counts cached input within its input, as those of OpenAI do.

        Some servers count reasoning in the total only. `written`, `read`: the input that caches took and gave.
        """
        uncached = max(0, input_tokens - written - read)
        return cls(uncached, max(output_tokens, total_tokens - input_tokens), written, read)

    @property
    def total(self) -> int:
        return self.input_tokens + self.output_tokens + self.cache_creation_input_tokens + self.cache_read_input_tokens

    @property
    def is_possible(self) -> bool:
        """Whether each count is 0 to MAX_TOKENS."""
        least = min(
            self.input_tokens, self.output_tokens, self.cache_creation_input_tokens, self.cache_read_input_tokens
        )
        most = max(
            self.input_tokens, self.output_tokens, self.cache_creation_input_tokens, self.cache_read_input_tokens
        )
        return least >= 0 and most <= MAX_TOKENS

    def __add__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_creation_input_tokens + other.cache_creation_input_tokens,
            self.cache_read_input_tokens + other.cache_read_input_tokens,
        )


@dataclass(frozen=True, slots=True)
class Budget:
    """The caps, the use and the reservations of a root's tree or of a single task, in tokens and in nano USD.

    A cap of 0 means no cap. `unpriced_calls` counts calls whose price is unknown, so that `used_nano_usd` lacks them.
    """

    max_tokens: int
    used_tokens: int
    reserved_tokens: int
    max_nano_usd: int = 0
    used_nano_usd: int = 0
    reserved_nano_usd: int = 0
    unpriced_calls: int = 0

    @property
    def is_capped_in_money(self) -> bool:
        return bool(self.max_nano_usd)

    @property
    def free_tokens(self) -> int | None:
        """The tokens that are neither used nor reserved; None without a cap."""
        return self.max_tokens - self.used_tokens - self.reserved_tokens if self.max_tokens else None

    @property
    def free_nano_usd(self) -> int | None:
        """The money that is neither used nor reserved; None without a cap."""
        return self.max_nano_usd - self.used_nano_usd - self.reserved_nano_usd if self.max_nano_usd else None

    def raised(self, tokens: int, nano_usd: int) -> Budget:
        """Returns the budget with raised caps. A cap that does not exist stays absent."""
        return replace(
            self,
            max_tokens=self.max_tokens + tokens if self.max_tokens else 0,
            max_nano_usd=self.max_nano_usd + nano_usd if self.max_nano_usd else 0,
        )


@dataclass(frozen=True, slots=True)
class ReserveRequest:
    """The reservation that a model call needs: its step and attempt, and token counts.

    `input_tokens` is an upper bound. The call wants `max_output_tokens` and accepts at least `min_output_tokens`.
    `outlives_worker`: see tenure.domain.entries.ModelAttempt.
    """

    step: int
    attempt_number: int
    model: str
    input_tokens: int
    max_output_tokens: int
    min_output_tokens: int
    summary_through_step: int = 0
    outlives_worker: bool = False


@dataclass(frozen=True, slots=True)
class Granted:
    """A granted reservation. `prices`: the prices that settle the call; None: unknown."""

    max_output_tokens: int
    reserved_tokens: int
    reserved_nano_usd: int = 0
    prices: Prices | None = None


@dataclass(frozen=True, slots=True)
class Denied:
    """A denied reservation. `retry_after_seconds`: when to ask again; None: unknown.

    `request`: what the task asks a person for, if its policy says so; only for TOKEN_LIMIT and MONEY_LIMIT.
    """

    reason: str
    message: str
    retry_after_seconds: float | None = None
    request: BudgetRequest | None = None

    @property
    def ends_as(self) -> TaskState:
        """The terminal state of the task, unless the reason is BUDGET_BUSY. A missing price is not a reached cap."""
        return TaskState.FAILED if self.reason == Reason.MODEL_UNPRICED else TaskState.COST_EXCEEDED


def decide_reserve(
    budgets: Sequence[Budget],
    request: ReserveRequest,
    prices: Prices | None,
    max_steps: int,
    *,
    is_default_cap: bool = False,
) -> Granted | Denied:
    """Grants as much output as all `budgets` leave, or denies when the minimum output does not fit into one of them.

    A denial is final except BUDGET_BUSY: then only open reservations of other calls are in the way, and the task waits.
    `prices` None: the model's price is unknown, so no call can be proved to fit a budget that is capped in money. A cap
    that no submit asked for (`is_default_cap`) does not hold for such a call: it costs nothing here, and the tree is
    warned once.
    """
    if request.step > max_steps:
        return Denied(Reason.STEP_LIMIT, f"the limit of {max_steps} steps is reached")
    if prices is None and not is_default_cap and any(budget.is_capped_in_money for budget in budgets):
        return Denied(Reason.MODEL_UNPRICED, _unpriced(request.model))
    minimum = _Amount.of(request, prices, request.min_output_tokens)
    capped = [budget for budget in budgets if budget.max_tokens or budget.max_nano_usd]
    denials = [denial for budget in capped for denial in _denials(budget, minimum)]
    if denials:
        return min(denials, key=lambda denial: denial.reason == Reason.BUDGET_BUSY)  # a final denial comes first
    output_limits = [limit for budget in capped for limit in _output_limits(budget, request, prices)]
    granted = _Amount.of(request, prices, min([request.max_output_tokens, *output_limits]))
    return Granted(granted.tokens - request.input_tokens, granted.tokens, granted.nano_usd, prices)


class _Amount(NamedTuple):
    """The most that a call may use."""

    tokens: int
    nano_usd: int

    @classmethod
    def of(cls, request: ReserveRequest, prices: Prices | None, output_tokens: int) -> _Amount:
        nano_usd = most_cost(prices, request.input_tokens, output_tokens)
        return cls(request.input_tokens + output_tokens, nano_usd)

    def request(self, limit: str) -> BudgetRequest:
        return BudgetRequest(limit, min(self.tokens, MAX_TOKENS), min(self.nano_usd, MAX_NANO_USD))


def _denials(budget: Budget, minimum: _Amount) -> Iterator[Denied]:
    """Yields a denial for each cap that the minimum does not fit: final, or BUDGET_BUSY until reservations settle."""
    free_tokens, free_nano_usd = budget.free_tokens, budget.free_nano_usd
    if free_tokens is not None and minimum.tokens > free_tokens:
        if budget.used_tokens + minimum.tokens > budget.max_tokens:
            used = f"{budget.used_tokens:,} of {budget.max_tokens:,} tokens are used"
            message = f"{used}, and the next model call needs at least {minimum.tokens:,}"
            yield Denied(Reason.TOKEN_LIMIT, message, request=minimum.request(Reason.TOKEN_LIMIT))
        else:
            yield Denied(
                Reason.BUDGET_BUSY, f"{budget.reserved_tokens:,} tokens are reserved for model calls in flight"
            )
    if free_nano_usd is not None and minimum.nano_usd > free_nano_usd:
        if budget.used_nano_usd + minimum.nano_usd > budget.max_nano_usd:
            used = f"{usd(budget.used_nano_usd)} of {usd(budget.max_nano_usd)} are used"
            message = f"{used}, and the next model call needs at least {usd(minimum.nano_usd)}"
            yield Denied(Reason.MONEY_LIMIT, message, request=minimum.request(Reason.MONEY_LIMIT))
        else:
            reserved = usd(budget.reserved_nano_usd)
            yield Denied(Reason.BUDGET_BUSY, f"{reserved} are reserved for model calls in flight")


def _output_limits(budget: Budget, request: ReserveRequest, prices: Prices | None) -> Iterator[int]:
    """Yields the most output tokens that each cap of the budget leaves."""
    free_tokens, free_nano_usd = budget.free_tokens, budget.free_nano_usd
    if free_tokens is not None:
        yield free_tokens - request.input_tokens
    if free_nano_usd is not None:
        output = affordable_output(prices, request.input_tokens, free_nano_usd)
        if output is not None:
            yield output


def _unpriced(model: str) -> str:
    return (
        f"the ledger has no price for {model}, and a task whose submit sets a cap in money makes no call of unknown "
        "price: submit it with --no-max-cost (no_max_cost) or --allow-unpriced (allow_unpriced), or add the model to "
        "the file of TENURE_CHECKPOINT_PRICES_FILE and requeue the task"
    )


# A task at a cap asks a person for more.

SUGGESTED_PART: Final = 4
"""A suggested grant is what is missing and this part of the cap, so that the task does not ask again at once."""


@dataclass(frozen=True, slots=True)
class BudgetRequest:
    """The request of a task at a cap.

    - limit: TOKEN_LIMIT or MONEY_LIMIT, the reason with which the task ends without a grant
    - needed_*: the smallest reservation that the next model call needs
    - own_cap: the cap is the sub-agent's own, not the root's
    - budget: the caps and the use behind the cap; None until the ledger completes the request
    - suggested_*: a grant with which the task can continue; 0: nothing is missing
    """

    limit: str
    needed_tokens: int
    needed_nano_usd: int
    own_cap: bool = False
    budget: Budget | None = None
    suggested_tokens: int = 0
    suggested_nano_usd: int = 0


def complete_request(root: Budget, own: Budget, request: BudgetRequest) -> BudgetRequest | None:
    """Returns the request with the figures of the budgets as they are now. None: the next call fits into both caps.

    Reservations of other calls do not count: they may come back, and the task waits for them as BUDGET_BUSY.
    """
    missing_tokens = max(missing_of(budget, request)[0] for budget in (root, own))
    missing_nano_usd = max(missing_of(budget, request)[1] for budget in (root, own))
    if not missing_tokens and not missing_nano_usd:
        return None
    own_cap = not any(missing_of(root, request))
    budget = own if own_cap else root
    return replace(
        request,
        limit=Reason.TOKEN_LIMIT if missing_of(budget, request)[0] else Reason.MONEY_LIMIT,
        own_cap=own_cap,
        budget=budget,
        suggested_tokens=_with_room(missing_tokens, budget.max_tokens, MAX_TOKENS),
        suggested_nano_usd=_with_room(missing_nano_usd, budget.max_nano_usd, MAX_NANO_USD),
    )


def missing_of(budget: Budget, request: BudgetRequest) -> tuple[int, int]:
    """Returns the tokens and the nano USD by which the caps are too low for the needed reservation."""
    tokens = budget.used_tokens + request.needed_tokens - budget.max_tokens if budget.max_tokens else 0
    nano_usd = budget.used_nano_usd + request.needed_nano_usd - budget.max_nano_usd if budget.max_nano_usd else 0
    return max(0, tokens), max(0, nano_usd)


def _with_room(missing: int, cap: int, most: int) -> int:
    return min(missing + cap // SUGGESTED_PART, most) if missing else 0


@dataclass(frozen=True, slots=True)
class BudgetWarning:
    """The use of a cap has reached WARNING_PERCENT. `limit`: the reason with which a task ends at this cap; or
    MODEL_UNPRICED: a call without a price was made, for which the cap in money does not hold.

    `budget`: that of the root. `own`: the caps and the use of the sub-agent itself; None: the root's cap is meant.
    """

    limit: str
    budget: Budget
    own: Budget | None = None


def due_warnings(budget: Budget, warned_tokens: int, warned_nano_usd: int) -> list[str]:
    """Returns the caps whose use has reached WARNING_PERCENT, as reasons of tasks that end because of the cap.

    `warned_*`: the caps for which the last warnings were written, 0 for none. A cap that was raised since then gets a
    new warning.
    """
    caps = (
        (Reason.TOKEN_LIMIT, budget.max_tokens, budget.used_tokens, warned_tokens),
        (Reason.MONEY_LIMIT, budget.max_nano_usd, budget.used_nano_usd, warned_nano_usd),
    )
    return [
        reason for reason, cap, used, warned in caps if cap and cap != warned and 100 * used >= WARNING_PERCENT * cap
    ]


def crossed_warnings(before: Budget, after: Budget) -> list[str]:
    """Returns the caps whose use reached WARNING_PERCENT between two states of one budget, as reasons.

    For the own caps of a sub-agent, of which nothing records the last warning.
    """
    crossings = (
        (Reason.TOKEN_LIMIT, after.max_tokens, before.used_tokens, after.used_tokens),
        (Reason.MONEY_LIMIT, after.max_nano_usd, before.used_nano_usd, after.used_nano_usd),
    )
    return [
        reason
        for reason, cap, used_before, used in crossings
        if cap and 100 * used_before < WARNING_PERCENT * cap <= 100 * used
    ]
