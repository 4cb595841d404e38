"""Checks the requests of TenantService, at the checkpoint service and at the gateway, and the quotas of settings."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from tenure.domain.access import TENANT_NAME
from tenure.domain.email_addresses import MAX_EMAIL_ADDRESSES
from tenure.v1 import tenant_service_pb2 as tenants
from tenure.validators.common import Check, check_moment
from tenure.validators.rules import Violations

_MOST: Final = {
    tenants.QUOTA_KIND_RUNNING_TASKS: 10**6,
    tenants.QUOTA_KIND_SUBMITS_PER_MINUTE: 10**5,
    tenants.QUOTA_KIND_TOKENS_PER_HOUR: 10**15,
    tenants.QUOTA_KIND_MONEY_PER_DAY: 10**15,
    tenants.QUOTA_KIND_EMAILS_PER_HOUR: 10**6,
}
_MAX_SECONDS: Final = 366 * 86_400
_KEYS: Final[dict[int, re.Pattern[str]]] = {
    tenants.USAGE_GROUPING_ROOT: re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    tenants.USAGE_GROUPING_MODEL: re.compile(r"[^\0]+"),
    tenants.USAGE_GROUPING_DAY: re.compile(r"[0-9]{4,6}-[0-9]{2}-[0-9]{2}"),
}
_MAX_KEY: Final = 512


def check_quota(quota: tenants.Quota, v: Violations, prefix: str) -> None:
    """Checks a quota of a request or of the defaults file."""
    most = _MOST.get(quota.kind)
    v.require(most is not None, f"{prefix}kind", "must be a kind of quota")
    if most is not None:
        v.between(f"{prefix}most", quota.most, 0, most)
    v.require(not (quota.no_limit and quota.most), f"{prefix}most", "must be 0 with no_limit")
    names = ", ".join(tenants.QuotaPolicy.keys())
    v.require(quota.policy in tenants.QuotaPolicy.values(), f"{prefix}policy", f"must be one of {names}")
    if quota.kind == tenants.QUOTA_KIND_EMAILS_PER_HOUR:
        least = f"must be 0 or at least {MAX_EMAIL_ADDRESSES}, the most recipients of one e-mail"
        v.require(not 0 < quota.most < MAX_EMAIL_ADDRESSES, f"{prefix}most", least)
        is_delay = quota.policy != tenants.QUOTA_POLICY_REFUSE
        v.require(is_delay, f"{prefix}policy", "must be DELAY: e-mail beyond the cap waits")


def _update(request: tenants.UpdateTenantLimitsRequest, v: Violations) -> None:
    for index, quota in enumerate(request.quotas):
        check_quota(quota, v, f"quotas[{index}].")
    for index, kind in enumerate(request.follow_defaults):
        v.require(kind in _MOST, f"follow_defaults[{index}]", "must be a kind of quota")
    counts = Counter([*(quota.kind for quota in request.quotas), *request.follow_defaults])
    v.require(bool(counts), "quotas", "must not be empty without follow_defaults")
    v.require(all(count == 1 for count in counts.values()), "quotas", "must not name a kind twice")


def _usage_token(request: tenants.GetTenantUsageRequest, v: Violations) -> None:
    """Checks that the token can be a key of the grouping. A model may have any name."""
    form = _KEYS.get(request.group_by, TENANT_NAME)
    is_key = len(request.page_token) <= _MAX_KEY and bool(form.fullmatch(request.page_token))
    v.require(not request.page_token or is_key, "page_token", "must be the next_page_token of an earlier answer")
    if request.dearest_first:
        v.require(not request.page_token, "page_token", "must be empty: the dearest sums are one page")


def _usage(request: tenants.GetTenantUsageRequest, v: Violations) -> None:
    _usage_token(request, v)
    given = [name for name in ("begin_time", "end_time") if request.HasField(name)]
    for name in given:
        check_moment(name, getattr(request, name), v)
    if request.root_task_id:
        v.require(not given, "root_task_id", "must not be set together with begin_time or end_time")
    if len(given) == 2:
        seconds = request.end_time.seconds - request.begin_time.seconds
        v.require(0 <= seconds <= _MAX_SECONDS, "end_time", "must be 0 to 366 days after begin_time")


CHECKS: Final[dict[type, Check]] = {
    tenants.UpdateTenantLimitsRequest: _update,
    tenants.GetTenantUsageRequest: _usage,
}
