"""Which refusals of an upstream are about its key, for upstreams without a code that says so.

The words of a refusal are read where its status has several meanings, and without what it quotes: an upstream may quote
the request, and nobody must be able to put keys to rest by what he writes in one.
"""

import re
from collections.abc import Collection
from typing import Final

from proxy.kit.rests import KeyCause

_BAD_REQUEST, _UNAUTHORIZED, _PAYMENT_REQUIRED, _FORBIDDEN, _TOO_MANY = 400, 401, 402, 403, 429
# The codes and types of OpenAI, Anthropic, DeepSeek, OpenRouter and servers like them.
_NO_CREDIT: Final = frozenset({
    "insufficient_quota", "insufficient_balance", "insufficient_credits", "insufficient_user_quota",
    "billing_hard_limit_reached", "billing_not_active", "billing_error", "arrearage", "no_more_credits",
})  # fmt: skip
_KEY_REFUSED: Final = frozenset({"invalid_api_key", "authentication_error", "account_deactivated", "account_suspended"})
_WINDOW: Final = frozenset({"usage_limit_reached", "usage_limit_exceeded", "quota_exceeded", "daily_limit_exceeded"})
_OVERLOADED: Final = frozenset({"overloaded_error", "engine_overloaded_error", "overloaded", "server_overloaded"})

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")
_NO_CREDIT_WORDS = re.compile(
    r"credit balance is too low|(?:insufficient|not enough|out of|no|exceeded your) (?:account )?(?:credits?|balance"
    r"|funds)\b|account (?:is )?in arrears|overdue payment|余额不足|欠费|无可用资源包",
    re.IGNORECASE,
)
_INVALID_KEY_WORDS = re.compile(
    r"\b(?:invalid|incorrect|wrong|bad|expired|revoked|unknown|missing) (?:api[ _-]?key|(?:access|auth\w*) token)\b"
    r"|\b(?:api[ _-]?key|(?:access|auth\w*) token) (?:(?:is|was|has|been) )*(?:not (?:valid|found|active)|invalid"
    r"|incorrect|wrong|expired|revoked|disabled|missing)",
    re.IGNORECASE,
)
_WINDOW_WORDS = re.compile(
    r"usage limit|limit will reset|\b(?:hour|hourly|daily|weekly|monthly|session) (?:\w+ ){0,2}(?:limit|quota)"
    r"|\b(?:limit|quota) (?:for|per|of) (?:this |the |a )?(?:\w+ ){0,2}(?:hour|day|week|month)|使用上限|限额|额度已用",
    re.IGNORECASE,
)
_OVERLOADED_WORDS = re.compile(r"overloaded|at capacity|过载|繁忙", re.IGNORECASE)
# What a 403 may be about beside the key.
_REQUEST_WORDS = re.compile(
    r"moderat|flagged|content|safety|polic(?:y|ies)|harmful|unsafe|inappropriate|prompt|\binput\b|敏感|违规",
    re.IGNORECASE,
)
_LOCKED_WORDS = re.compile(
    r"api[ _-]?key|\baccount\b.*\b(?:suspended|disabled|banned|deactivated|locked|blocked)|unauthori[sz]ed"
    r"|密钥|账号|账户",
    re.IGNORECASE,
)
_KEY_WORDS = re.compile(
    r"\b(?:keys?|tokens?|credentials?|accounts?|organi[sz]ations?|projects?|subscriptions?|plans?|billing|permissions?"
    r"|authenticat\w+|authori[sz]\w+|access denied|no access|not allowed|suspended|banned|deactivated)\b|权限|套餐",
    re.IGNORECASE,
)
_PLAN = r"\b(?:access|permissions?|plans?|subscriptions?|tier|entitled|allowed|available|included?)\b"
_MODEL_WORDS = re.compile(rf"\bmodels?\b.*{_PLAN}|{_PLAN}.*\bmodels?\b", re.IGNORECASE)
_MOST_CHARACTERS = 2000


def cause_of(status: int, codes: Collection[str], message: str) -> KeyCause | None:
    """Why an upstream refuses a key; None: the refusal is about the request, or about the upstream itself."""
    if status not in (_BAD_REQUEST, _UNAUTHORIZED, _PAYMENT_REQUIRED, _FORBIDDEN, _TOO_MANY):
        return None
    words = _QUOTED.sub("", message[:_MOST_CHARACTERS])
    if status == _PAYMENT_REQUIRED or not _NO_CREDIT.isdisjoint(codes) or _NO_CREDIT_WORDS.search(words):
        return "credit"
    if status == _UNAUTHORIZED or not _KEY_REFUSED.isdisjoint(codes) or _INVALID_KEY_WORDS.search(words):
        return "refused"
    if status == _FORBIDDEN:
        return _cause_of_403(words)
    return _cause_of_429(codes, words) if status == _TOO_MANY else None


def _cause_of_403(words: str) -> KeyCause | None:
    if is_about_request(words):
        return None
    if _MODEL_WORDS.search(words):
        return "model"
    return "refused" if _KEY_WORDS.search(words) or _LOCKED_WORDS.search(words) else None


def _cause_of_429(codes: Collection[str], words: str) -> KeyCause | None:
    if not _OVERLOADED.isdisjoint(codes) or _OVERLOADED_WORDS.search(words):
        return None
    return "window" if not _WINDOW.isdisjoint(codes) or _WINDOW_WORDS.search(words) else "rate"


def is_about_request(message: str) -> bool:
    """Whether a 403 is about what the request says, and not about who sends it."""
    return _REQUEST_WORDS.search(message) is not None and _LOCKED_WORDS.search(message) is None
