/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/stash.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <search.h>
#include <string.h>

#include "proto/util/err.h"
#include "proto/util/log.h"
#include "proto/util/notify-fds.h"
#include "weightd/keeper.h"

_Static_assert((int)STASH_NAME_BYTES == (int)KEEPER_NAME_BYTES, "names fit into packets");
_Static_assert((int)STASH_NAME_BYTES == (int)NOTIFY_FDS_NAME_BYTES, "names fit into variables");

struct kept {
	char name[STASH_NAME_BYTES];
	bool is_wanted;
	bool is_stale; /* came from before and is of no use */
};

struct stash {
	const char *path;
	unsigned n_seconds;
	bool has_store;
	int keeper; /* the connection; -1: there is none */
	bool has_told;
	void *kept; /* tsearch(3) of struct kept */
};

/* ---- names ---- */

void stash_name_print(const struct stash_name *name, char ret_text[STASH_NAME_BYTES])
{
	switch (name->kind) {
	case STASH_MANIFEST:
		snprintf(ret_text, STASH_NAME_BYTES, "g%" PRIu64 ".manifest.%" PRIu32,
			name->generation, name->slot);
		break;
	case STASH_ALLOC:
		snprintf(ret_text, STASH_NAME_BYTES, "g%" PRIu64 ".alloc.%" PRIu32 ".%" PRIu32,
			name->generation, name->slot, name->index);
		break;
	case STASH_OPAQUE:
		snprintf(ret_text, STASH_NAME_BYTES, "g%" PRIu64 ".opaque.%" PRIu32 ".%" PRIu32,
			name->generation, name->slot, name->index);
		break;
	case STASH_MEMFD:
		snprintf(ret_text, STASH_NAME_BYTES, "g%" PRIu64 ".memfd", name->generation);
		break;
	case STASH_FILE:
		snprintf(ret_text, STASH_NAME_BYTES, "g%" PRIu64 ".file", name->generation);
		break;
	}
}

int stash_name_parse(const char *text, struct stash_name *ret_name)
{
	struct stash_name name = {0};
	char again[STASH_NAME_BYTES], kind[16];

	if (strlen(text) >= STASH_NAME_BYTES ||
		sscanf(text, "g%" SCNu64 ".%15[a-z].%" SCNu32 ".%" SCNu32, &name.generation, kind,
			&name.slot, &name.index) < 2)
		return -EINVAL;
	if (!strcmp(kind, "manifest"))
		name.kind = STASH_MANIFEST;
	else if (!strcmp(kind, "alloc"))
		name.kind = STASH_ALLOC;
	else if (!strcmp(kind, "opaque"))
		name.kind = STASH_OPAQUE;
	else if (!strcmp(kind, "memfd"))
		name.kind = STASH_MEMFD;
	else if (!strcmp(kind, "file"))
		name.kind = STASH_FILE;
	else
		return -EINVAL;
	/* Signs, zeros in front, numbers that wrapped, missing and surplus parts. */
	stash_name_print(&name, again);
	if (strcmp(text, again))
		return -EINVAL;
	*ret_name = name;
	return 0;
}

/* ---- what is kept ---- */

static int stash_compare(const void *a, const void *b)
{
	return strcmp(((const struct kept *)a)->name, ((const struct kept *)b)->name);
}

static struct kept *stash_find(struct stash *s, const char *name)
{
	struct kept key;

	snprintf(key.name, sizeof(key.name), "%s", name);
	struct kept **at = tfind(&key, &s->kept, stash_compare);
	return at ? *at : NULL;
}

/* NULL without memory. */
static struct kept *stash_add(struct stash *s, const char *name)
{
	struct kept *k = stash_find(s, name);

	if (k)
		return k;
	k = calloc(1, sizeof(*k));
	if (!k)
		return NULL;
	snprintf(k->name, sizeof(k->name), "%s", name);
	if (!tsearch(k, &s->kept, stash_compare)) {
		free(k);
		return NULL;
	}
	return k;
}

static void stash_remove(struct stash *s, struct kept *k)
{
	tdelete(k, &s->kept, stash_compare);
	free(k);
}

static void stash_forget_names(struct stash *s)
{
	tdestroy(s->kept, free);
	s->kept = NULL;
}

int stash_new(const char *path, unsigned n_seconds, struct stash **ret_stash)
{
	struct stash *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	s->path = path;
	s->n_seconds = n_seconds;
	s->keeper = -1;
	s->has_store = notify_fds_has_store();
	*ret_stash = s;
	return 0;
}

struct stash *stash_free(struct stash *s)
{
	if (!s)
		return NULL;
	stash_forget_names(s);
	cleanup_close(&s->keeper);
	free(s);
	return NULL;
}

/* ---- taking ---- */

struct taking {
	struct stash *stash;
	bool is_kept; /* by who holds it from here on */
	stash_fn fn;
	void *userdata;
};

static void stash_take_one(const char *text, int fd, void *userdata)
{
	struct taking *t = userdata;
	struct stash_name name;
	bool is_used = false;

	if (stash_name_parse(text, &name) == 0)
		is_used = t->fn(&name, fd, t->userdata);
	else
		close(fd);
	struct kept *k = t->is_kept ? stash_add(t->stash, text) : NULL;
	if (k && !is_used)
		k->is_stale = true;
}

/* ---- bringing what is kept up to date ---- */

static void stash_lose_keeper(struct stash *s)
{
	cleanup_close(&s->keeper);
	stash_forget_names(s);
}

/* It may stand still: when it goes on, it is to make room for the next. */
static void stash_dismiss_keeper(struct stash *s)
{
	stash_lose_keeper(s);
	keeper_dismiss(s->path);
}

static bool stash_is_keeper_gone(const struct stash *s)
{
	struct pollfd p = {.fd = s->keeper, .events = POLLIN};

	/* It says nothing by itself: what there is to read is its end. */
	return s->keeper >= 0 && poll(&p, 1, 0) > 0;
}

static void stash_unwant(const void *node, VISIT which, int depth)
{
	(void)depth;
	if (which == preorder || which == leaf)
		(*(struct kept *const *)node)->is_wanted = false;
}

void stash_begin(struct stash *s)
{
	if (stash_is_keeper_gone(s)) {
		log_warn("the keeper is gone");
		stash_lose_keeper(s);
	}
	twalk(s->kept, stash_unwant);
}

/* False: there is nobody to keep it. */
static bool stash_open_keeper(struct stash *s)
{
	struct err err = ERR_NULL;

	if (s->keeper >= 0)
		return true;
	if (s->n_seconds == 0)
		return false;
	if (keeper_start(s->path, s->n_seconds, &err, &s->keeper) == 0)
		return true;
	if (!s->has_told)
		log_warn("%s: without a keeper only workers can bring memory back", err.text);
	s->has_told = true;
	return false;
}

static int stash_put(struct stash *s, const char *name, int fd)
{
	if (s->has_store)
		return notify_fds_put(name, fd);
	return stash_open_keeper(s) ? keeper_put(s->keeper, name, fd) : -ENOTCONN;
}

static int stash_drop(struct stash *s, const char *name)
{
	if (s->has_store)
		return notify_fds_drop(name);
	return s->keeper >= 0 ? keeper_drop(s->keeper, name) : 0;
}

void stash_want(struct stash *s, const struct stash_name *name, int fd)
{
	char text[STASH_NAME_BYTES];

	if (fd < 0)
		return;
	stash_name_print(name, text);
	struct kept *k = stash_find(s, text);
	if (k) {
		k->is_wanted = true;
		return;
	}
	int rc = stash_put(s, text, fd);
	if (rc == 0 && (k = stash_add(s, text)))
		k->is_wanted = true;
	if (rc < 0 && rc != -ENOTCONN && !s->has_told)
		log_warn("descriptors cannot be kept: %s", strerror(-rc));
	s->has_told = s->has_told || (rc < 0 && rc != -ENOTCONN);
	if (rc < 0 && !s->has_store && s->keeper >= 0)
		stash_dismiss_keeper(s);
}

/* ---- dropping ---- */

struct dropping {
	bool (*is_one)(const struct kept *k, uint64_t generation);
	uint64_t generation;
	struct kept *one;
};

static bool stash_is_unwanted(const struct kept *k, uint64_t generation)
{
	(void)generation;
	return !k->is_wanted;
}

static bool stash_is_stale(const struct kept *k, uint64_t generation)
{
	(void)generation;
	return k->is_stale;
}

static bool stash_is_of_generation(const struct kept *k, uint64_t generation)
{
	struct stash_name name;

	return stash_name_parse(k->name, &name) == 0 && name.generation == generation;
}

static void stash_find_one(const void *node, VISIT which, void *userdata)
{
	struct dropping *d = userdata;
	struct kept *k = *(struct kept *const *)node;

	if ((which == preorder || which == leaf) && d->is_one(k, d->generation))
		d->one = k;
}

static void stash_drop_those(
	struct stash *s, bool (*is_one)(const struct kept *, uint64_t), uint64_t generation)
{
	for (;;) {
		struct dropping d = {.is_one = is_one, .generation = generation};
		twalk_r(s->kept, stash_find_one, &d);
		if (!d.one)
			return;
		/* A keeper that is gone keeps nothing; a manager that is, is told at the next
		 * start. */
		int rc = stash_drop(s, d.one->name);
		if (rc < 0)
			log_debug("drop of %s: %s", d.one->name, strerror(-rc));
		stash_remove(s, d.one);
	}
}

void stash_end(struct stash *s)
{
	stash_drop_those(s, stash_is_unwanted, 0);
	if (s->kept || s->keeper < 0)
		return;
	keeper_end(s->keeper);
	cleanup_close(&s->keeper);
}

void stash_drop_generation(struct stash *s, uint64_t generation)
{
	stash_drop_those(s, stash_is_of_generation, generation);
}

void stash_take_all(struct stash *s, stash_fn fn, void *userdata)
{
	struct taking t = {.stash = s, .is_kept = s->has_store, .fn = fn, .userdata = userdata};
	struct err err = ERR_NULL;

	notify_fds_take(stash_take_one, &t);
	int rc = keeper_connect(s->path, &err, &s->keeper);
	if (rc < 0) {
		if (rc != -ENOENT && rc != -ECONNREFUSED)
			log_warn("%s", err.text);
		stash_drop_those(s, stash_is_stale, 0);
		return;
	}
	t.is_kept = !s->has_store;
	rc = keeper_take(s->keeper, stash_take_one, &t, &err);
	if (rc < 0)
		log_warn("%s", err.text);
	/* One that this weightd would not start has no more to do. */
	if (rc == 0 && (s->has_store || s->n_seconds == 0))
		keeper_end(s->keeper);
	if (s->has_store || s->n_seconds == 0)
		cleanup_close(&s->keeper);
	if (rc < 0) {
		cleanup_close(&s->keeper);
		keeper_dismiss(s->path);
	}
	stash_drop_those(s, stash_is_stale, 0);
}

int stash_get_fd(const struct stash *s)
{
	return s->keeper;
}

void stash_forget_all(struct stash *s)
{
	stash_begin(s);
	stash_end(s);
}
