/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/policy.h"

#include <errno.h>
#include <fnmatch.h>
#include <string.h>

#include "proto/manifest.h"
#include "proto/util/err.h"
#include "proto/util/size.h"

int policy_parse_bytes(
	const char *option, const char *text, struct err *ret_err, uint64_t *ret_bytes)
{
	return size_parse(option, text, ret_err, ret_bytes);
}

static int policy_parse_or_nothing(const char *option, const char *text, uint64_t nothing,
	struct err *ret_err, uint64_t *ret_bytes)
{
	if (strcmp(text, "0"))
		return size_parse(option, text, ret_err, ret_bytes);
	*ret_bytes = nothing;
	return 0;
}

int policy_parse_budget(
	const char *option, const char *text, struct err *ret_err, uint64_t *ret_bytes)
{
	return policy_parse_or_nothing(option, text, 1, ret_err, ret_bytes);
}

int policy_parse_reserve(
	const char *option, const char *text, struct err *ret_err, uint64_t *ret_bytes)
{
	return policy_parse_or_nothing(option, text, 0, ret_err, ret_bytes);
}

int policy_parse_experts(const char *text, struct err *ret_err, enum policy_experts *ret_experts)
{
	static const char *const names[] = {"auto", "device", "host"};

	for (unsigned i = 0; i < ARRAY_SIZE(names); i++) {
		if (strcmp(text, names[i]))
			continue;
		*ret_experts = (enum policy_experts)i;
		return 0;
	}
	return err_set(
		ret_err, EINVAL, "--experts: expected auto, device or host, found \"%s\"", text);
}

int policy_add_rule(struct policy *p, const char *text, struct err *ret_err)
{
	static const char *const names[] = {
		[MANIFEST_PLACEMENT_DEVICE] = "device",
		[MANIFEST_PLACEMENT_PINNED] = "pinned",
		[MANIFEST_PLACEMENT_STAGED] = "staged",
		[MANIFEST_PLACEMENT_PAGED] = "paged",
	};
	const char *equals = strrchr(text, '=');
	size_t n = equals ? (size_t)(equals - text) : 0;
	struct policy_rule rule = {.placement = 0};

	if (n == 0 || !equals[1])
		return err_set(
			ret_err, EINVAL, "--place: expected PATTERN=PLACEMENT, found \"%s\"", text);
	for (uint32_t i = MANIFEST_PLACEMENT_DEVICE; i < ARRAY_SIZE(names); i++)
		if (!strcmp(equals + 1, names[i]))
			rule.placement = i;
	if (!rule.placement)
		return err_set(ret_err, EINVAL,
			"--place: placement: expected device, pinned, staged or paged, found "
			"\"%s\"",
			equals + 1);
	if (n >= sizeof(rule.pattern))
		return err_set(ret_err, EINVAL, "--place: pattern: expected at most %zu bytes",
			sizeof(rule.pattern) - 1);
	if (p->n_rules == POLICY_MAX_RULES)
		return err_set(ret_err, E2BIG, "--place: expected at most %d", POLICY_MAX_RULES);
	memcpy(rule.pattern, text, n);
	p->rules[p->n_rules++] = rule;
	return 0;
}

bool policy_names(const struct policy *p, uint32_t rule, const char *tensor)
{
	return fnmatch(p->rules[rule].pattern, tensor, 0) == 0;
}

uint32_t policy_find(const struct policy *p, const char *tensor)
{
	for (uint32_t i = p->n_rules; i > 0; i--)
		if (policy_names(p, i - 1, tensor))
			return p->rules[i - 1].placement;
	return 0;
}
