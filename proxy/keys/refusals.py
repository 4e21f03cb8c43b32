"""Which refusals of an upstream are about its key, for upstreams without a code that says so.

Codes count with any status. Words count beside 401, 402, 403 and 429 alone, without what they quote and only where the
request does not contain them: an upstream may quote the request, and nobody must be able to put keys to rest by what he
writes in one.
"""

import re
from collections.abc import Collection
from itertools import islice
from typing import Final

from proxy.keys.cooldowns import KeyCause
from proxy.kit.sent import Sent

_UNAUTHORIZED, _PAYMENT_REQUIRED, _FORBIDDEN, _TOO_MANY = 401, 402, 403, 429
WORDS_COUNT: Final = frozenset({_UNAUTHORIZED, _PAYMENT_REQUIRED, _FORBIDDEN, _TOO_MANY})
"""The statuses beside which the words of a refusal say whether it is about the key."""

# The codes and types of OpenAI, Anthropic, DeepSeek, OpenRouter and servers like them.
_NO_CREDIT: Final = frozenset({
    "insufficient_quota", "insufficient_balance", "insufficient_credits", "insufficient_user_quota",
    "billing_hard_limit_reached", "billing_not_active", "billing_error", "arrearage", "no_more_credits",
})  # fmt: skip
_KEY_REFUSED: Final = frozenset({"invalid_api_key", "authentication_error", "account_deactivated", "account_suspended"})
_WINDOW: Final = frozenset({"usage_limit_reached", "usage_limit_exceeded", "quota_exceeded", "daily_limit_exceeded"})
_OVERLOADED: Final = frozenset({"overloaded_error", "engine_overloaded_error", "overloaded", "server_overloaded"})

# From the first opening mark to the last closing one, because what is quoted may hold marks of its own; to the end, if
# the quotation is cut. An apostrophe within a word is none.
_MARKS = r"""["`\u201c-\u201f\u2039\u203a«»「」『』《》〈〉\uff02\uff07]|&(?:quot|apos|\#3[49]);"""
_QUOTED = re.compile(rf"(?:(?<!\w)'|[\u2018\u201a]|{_MARKS})(?:.*(?:'(?!\w)|\u2019(?!\w)|{_MARKS})|.*\Z)", re.DOTALL)
_BLANKS = re.compile(r"\s+")
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
    r"api[ _-]?key|\b(account)\b.*\b(suspended|disabled|banned|deactivated|locked|blocked)|unauthori[sz]ed"
    r"|密钥|账号|账户",
    re.IGNORECASE,
)
_KEY_WORDS = re.compile(
    r"\b(?:keys?|tokens?|credentials?|accounts?|organi[sz]ations?|projects?|subscriptions?|plans?|billing|permissions?"
    r"|authenticat\w+|authori[sz]\w+|access denied|no access|not allowed|suspended|banned|deactivated)\b|权限|套餐",
    re.IGNORECASE,
)
_PLAN = r"\b(access|permissions?|plans?|subscriptions?|tier|entitled|allowed|available|included?)\b"
_MODEL_WORDS = re.compile(rf"\b(models?)\b.*{_PLAN}|{_PLAN}.*\b(models?)\b", re.IGNORECASE)
_MOST_CHARACTERS = 2000
_MOST_FOUND = 16  # of a pattern; each is looked for in the request

# "Limit 30000, Requested 50000": what one request asks for is more than the limit allows at all.
_TOO_LARGE = re.compile(r"request too large", re.IGNORECASE)
_LIMIT, _REQUESTED = (
    re.compile(rf"\b{word}:? ?([0-9][0-9,]{{0,15}})", re.IGNORECASE) for word in ("limit", "requested")
)


def cause_of(status: int, codes: Collection[str], message: str, sent: Sent | None) -> tuple[KeyCause | None, bool]:
    """Why an upstream refuses a key, and whether that is certain.

    Without a cause the refusal is about the request, or about the upstream itself. A cause is not certain if the words
    from which it follows stand in the request too: then another key may be tried, and none is put to rest.

    Args:
        status: the HTTP status.
        codes: the code and the type of the error, in lower case.
        message: its words.
        sent: the request; None: it is not known, and no words count.
    """
    words = _Words(message, sent) if status in WORDS_COUNT else _Words("", None)
    cause = _certain_cause(status, codes, words, message)
    if cause is None and status == _FORBIDDEN and words.may_be_quoted and not is_about_request(words.unquoted):
        return "refused", False
    return cause, True


def _certain_cause(status: int, codes: Collection[str], words: "_Words", message: str) -> KeyCause | None:
    if not _NO_CREDIT.isdisjoint(codes) or words.hold(_NO_CREDIT_WORDS):
        return "credit"
    if status == _PAYMENT_REQUIRED:
        return "window" if words.hold(_WINDOW_WORDS) else "credit"
    if status == _UNAUTHORIZED or not _KEY_REFUSED.isdisjoint(codes) or words.hold(_INVALID_KEY_WORDS):
        return "refused"
    if status == _FORBIDDEN:
        return _cause_of_403(words)
    return _cause_of_429(codes, words, message) if status == _TOO_MANY else None


class _Words:
    """The words of a refusal that are the upstream's own."""

    def __init__(self, message: str, sent: Sent | None) -> None:
        self.unquoted = _BLANKS.sub(" ", _QUOTED.sub(" ", message[:_MOST_CHARACTERS]))
        self._sent = sent
        self.may_be_quoted = False  # some were found that the request says too

    def hold(self, pattern: re.Pattern[str]) -> bool:
        """Whether the pattern is found in words of which the request says none.

        The groups of a pattern are the words that matter, if others may stand between them.
        """
        sent = self._sent
        if sent is None:
            return False
        found = ([*filter(None, match.groups())] or [match[0]] for match in pattern.finditer(self.unquoted))
        for parts in islice(found, _MOST_FOUND):
            if not any(map(sent.says, parts)):
                return True
            self.may_be_quoted = True
        return False


def _cause_of_403(words: _Words) -> KeyCause | None:
    if words.hold(_WINDOW_WORDS):
        return "window"
    if is_about_request(words.unquoted):
        return None
    if words.hold(_MODEL_WORDS):
        return "model"
    return "refused" if words.hold(_KEY_WORDS) or words.hold(_LOCKED_WORDS) else None


def _cause_of_429(codes: Collection[str], words: _Words, message: str) -> KeyCause | None:
    if is_too_large(message) or not _OVERLOADED.isdisjoint(codes) or _OVERLOADED_WORDS.search(words.unquoted):
        return None
    return "window" if not _WINDOW.isdisjoint(codes) or words.hold(_WINDOW_WORDS) else "rate"


def is_too_large(message: str) -> bool:
    """Whether a 429 is about the size of this one request, which would be refused at any time."""
    limit, requested = _LIMIT.search(message), _REQUESTED.search(message)
    is_above = limit is not None and requested is not None and _number(requested[1]) > _number(limit[1])
    return is_above or _TOO_LARGE.search(message) is not None


def _number(digits: str) -> int:
    return int(digits.replace(",", ""))


def is_about_request(message: str) -> bool:
    """Whether a 403 is about what the request says, and not about who sends it."""
    return _REQUEST_WORDS.search(message) is not None and _LOCKED_WORDS.search(message) is None
