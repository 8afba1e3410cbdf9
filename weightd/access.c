/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/access.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "proto/util/err.h"
#include "weightd/policy.h"

enum { ACCESS_MAX_NUMBER_BYTES = 10, ACCESS_MAX_MODE = 0777 };

/* One option's value on its way into the result. */
struct access_field {
	const char *name;
	const char *value;
	struct err *err;
	struct access *access;
};

/* Digits alone, in the base; *ret at most max. */
static int access_parse_number(const struct access_field *f, const char *text, size_t n_text,
	int base, uint32_t min, uint32_t max, uint32_t *ret)
{
	uint64_t value = 0;
	bool is_good = n_text >= 1 && n_text <= ACCESS_MAX_NUMBER_BYTES;

	for (size_t i = 0; i < n_text && is_good; i++) {
		is_good = text[i] >= '0' && text[i] < '0' + base;
		value = value * (uint64_t)base + (uint64_t)(text[i] - '0');
	}
	if (!is_good || value < min || value > max)
		return err_set(f->err, EINVAL,
			base == 8 ? "--listen: %s: expected %o to %o in octal, found \"%.*s\""
				  : "--listen: %s: expected %u to %u, found \"%.*s\"",
			f->name, min, max, (int)(n_text < 80 ? n_text : 80), text);
	*ret = (uint32_t)value;
	return 0;
}

static int access_parse_count(const struct access_field *f, uint32_t max, uint32_t *ret)
{
	return access_parse_number(f, f->value, strlen(f->value), 10, 1, max, ret);
}

/* The next of "A+B+C" and its length; false at the end. */
static bool access_next_part(const char **at, const char **ret_part, size_t *ret_n)
{
	if (!*at)
		return false;
	const char *plus = strchr(*at, '+');
	*ret_part = *at;
	*ret_n = plus ? (size_t)(plus - *at) : strlen(*at);
	*at = plus ? plus + 1 : NULL;
	return true;
}

static int access_parse_ids(const struct access_field *f, uint32_t *ids, uint32_t *n)
{
	const char *at = f->value, *part;
	size_t n_part;

	while (access_next_part(&at, &part, &n_part)) {
		if (*n == ACCESS_MAX_IDS)
			return err_set(f->err, EINVAL, "--listen: %s: expected at most %d", f->name,
				ACCESS_MAX_IDS);
		/* The highest stands for "no id" in the kernel's interfaces. */
		int rc = access_parse_number(f, part, n_part, 10, 0, UINT32_MAX - 1, &ids[*n]);
		if (rc < 0)
			return rc;
		(*n)++;
	}
	return 0;
}

static int access_parse_models(const struct access_field *f)
{
	static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
				      "0123456789._-*?[]!";
	struct access *a = f->access;
	const char *at = f->value, *part;
	size_t n_part;

	while (access_next_part(&at, &part, &n_part)) {
		if (a->n_models == ACCESS_MAX_PATTERNS)
			return err_set(f->err, EINVAL, "--listen: models: expected at most %d",
				ACCESS_MAX_PATTERNS);
		char *model = a->models[a->n_models];
		if (n_part >= 1 && n_part < ACCESS_MAX_PATTERN_BYTES) {
			memcpy(model, part, n_part);
			model[n_part] = '\0';
		}
		if (n_part < 1 || n_part >= ACCESS_MAX_PATTERN_BYTES ||
			strspn(model, allowed) != n_part)
			return err_set(f->err, EINVAL,
				"--listen: models: expected names or patterns of 1 to %d of "
				"[A-Za-z0-9._-*?[]!], found \"%.*s\"",
				ACCESS_MAX_PATTERN_BYTES - 1, (int)(n_part < 80 ? n_part : 80),
				part);
		a->n_models++;
	}
	return 0;
}

static int access_parse_mode(const struct access_field *f)
{
	return access_parse_number(
		f, f->value, strlen(f->value), 8, 0, ACCESS_MAX_MODE, &f->access->mode);
}

static int access_parse_control(const struct access_field *f)
{
	bool is_yes = !strcmp(f->value, "yes");

	if (!is_yes && strcmp(f->value, "no"))
		return err_set(f->err, EINVAL,
			"--listen: control: expected yes or no, found \"%.80s\"", f->value);
	f->access->has_control = is_yes;
	return 0;
}

static int access_parse_uids(const struct access_field *f)
{
	return access_parse_ids(f, f->access->uids, &f->access->n_uids);
}

static int access_parse_gids(const struct access_field *f)
{
	return access_parse_ids(f, f->access->gids, &f->access->n_gids);
}

static int access_parse_leases(const struct access_field *f)
{
	return access_parse_count(f, ACCESS_MAX_LEASES, &f->access->max_leases);
}

static int access_parse_bytes(const struct access_field *f)
{
	return policy_parse_bytes("--listen: bytes", f->value, f->err, &f->access->max_bytes);
}

static int access_parse_requests(const struct access_field *f)
{
	return access_parse_count(f, ACCESS_MAX_REQUESTS, &f->access->max_requests);
}

static int access_parse_connections(const struct access_field *f)
{
	return access_parse_count(f, ACCESS_MAX_CONNECTIONS, &f->access->max_connections);
}

static int access_parse_uid_connections(const struct access_field *f)
{
	return access_parse_count(f, ACCESS_MAX_CONNECTIONS, &f->access->max_uid_connections);
}

static const struct {
	const char *name;
	int (*parse)(const struct access_field *f);
} access_options[] = {
	{"models", access_parse_models},
	{"uids", access_parse_uids},
	{"gids", access_parse_gids},
	{"leases", access_parse_leases},
	{"bytes", access_parse_bytes},
	{"requests", access_parse_requests},
	{"connections", access_parse_connections},
	{"uid-connections", access_parse_uid_connections},
	{"control", access_parse_control},
	{"mode", access_parse_mode},
};

/* text: "NAME=VALUE", changed. seen: a bit an option. */
static int access_parse_option(
	char *text, uint32_t *seen, struct err *ret_err, struct access *ret_access)
{
	char *equals = strchr(text, '=');

	if (equals)
		*equals = '\0';
	for (unsigned i = 0; i < ARRAY_SIZE(access_options) && equals; i++) {
		const struct access_field f = {.name = access_options[i].name,
			.value = equals + 1,
			.err = ret_err,
			.access = ret_access};
		if (strcmp(f.name, text))
			continue;
		if (*seen >> i & 1)
			return err_set(ret_err, EINVAL, "--listen: %s: expected once, found again",
				f.name);
		*seen |= 1u << i;
		return access_options[i].parse(&f);
	}
	return err_set(ret_err, EINVAL,
		"--listen: expected PATH,OPTION=VALUE..., found the option \"%.80s\"", text);
}

int access_parse(const char *text, struct err *ret_err, struct access *ret_access)
{
	struct access a = {.mode = ACCESS_MODE};
	_cleanup_(cleanup_free)
	char *copy = strdup(text);
	uint32_t seen = 0;
	char *rest = copy;

	if (!copy)
		return err_set(ret_err, ENOMEM, "--listen: out of memory");
	const char *path = strsep(&rest, ",");
	if (!*path || strlen(path) >= sizeof(a.path))
		return err_set(ret_err, EINVAL,
			"--listen: path: expected 1 to %zu bytes without a comma, found \"%.120s\"",
			sizeof(a.path) - 1, path);
	strcpy(a.path, path);
	for (char *option; (option = strsep(&rest, ","));) {
		int rc = access_parse_option(option, &seen, ret_err, &a);
		if (rc < 0)
			return rc;
	}
	*ret_access = a;
	return 0;
}

void access_init_owner(struct access *a, const char *path, uint32_t mode)
{
	*a = (struct access){.is_owner = true, .has_control = true, .mode = mode};
	snprintf(a->path, sizeof(a->path), "%s", path);
}

void access_share(struct access *a, uint32_t n, uint32_t n_sockets)
{
	uint32_t share = n / (n_sockets ? n_sockets : 1);

	if (!a->max_connections)
		a->max_connections = share ? share : 1;
	if (!a->max_uid_connections)
		a->max_uid_connections = (share + 1) / 2 ? (share + 1) / 2 : 1;
}

/* ---- judgements ---- */

bool access_hides(const struct access *a)
{
	return a && !a->is_owner && a->n_models > 0;
}

bool access_shows(const struct access *a, const char *model)
{
	if (!access_hides(a))
		return true;
	for (uint32_t i = 0; i < a->n_models; i++)
		if (fnmatch(a->models[i], model, 0) == 0)
			return true;
	return false;
}

int access_check_control(const struct access *a, const char *what, struct err *ret_err)
{
	if (!a || a->has_control)
		return 0;
	return err_set(ret_err, EPERM,
		"%s: not allowed on this socket, which was made without control=yes", what);
}

int access_check_name(
	const struct access *a, const char *what, const char *model, struct err *ret_err)
{
	if (access_shows(a, model))
		return 0;
	return err_set(ret_err, EPERM, "%s: expected a name that this socket shows, found %.64s",
		what, model);
}

static bool access_has_id(const uint32_t *ids, uint32_t n, uint32_t id)
{
	for (uint32_t i = 0; i < n; i++)
		if (ids[i] == id)
			return true;
	return false;
}

int access_check_peer(const struct access *a, uint32_t uid, const uint32_t *gids, uint32_t n_gids,
	struct err *ret_err)
{
	if (a->n_uids == 0 && a->n_gids == 0)
		return 0;
	if (access_has_id(a->uids, a->n_uids, uid))
		return 0;
	for (uint32_t i = 0; i < n_gids; i++)
		if (access_has_id(a->gids, a->n_gids, gids[i]))
			return 0;
	return err_set(ret_err, EACCES, "this socket is not for uid %u and its groups", uid);
}

int access_check_crowd(
	const struct access *a, uint32_t uid, const struct access_crowd *crowd, struct err *ret_err)
{
	if (crowd->n_all >= crowd->max_all ||
		(!a->is_owner && crowd->n_listened >= crowd->max_listened))
		return err_set(ret_err, EAGAIN, "too many connections are open");
	if (a->max_connections && crowd->n_here >= a->max_connections)
		return err_set(ret_err, EAGAIN, "%u connections of this socket are open, the most",
			crowd->n_here);
	if (a->max_uid_connections && crowd->n_uid >= a->max_uid_connections)
		return err_set(ret_err, EAGAIN,
			"%u connections of uid %u are open on this socket, the most of one uid",
			crowd->n_uid, uid);
	return 0;
}
