"""Several keys of one provider: which key a call uses, and how long a key rests that the provider has refused.

cooldowns    when a key rests, and for how long; pure
pool         the keys of one provider, and the key of a conversation
attempts     one call's way through the keys
refusals     the refusals of an upstream that are about its key
reset_times  the times at which a provider says that a key works again
"""
