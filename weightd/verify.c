/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/verify.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "weightd/check.h"
#include "weightd/corrupt.h"
#include "weightd/export.h"
#include "weightd/loader.h"
#include "weightd/service-internal.h"

/*
 * One request. Those for a generation that is being checked wait until that ends, and then share
 * one check: whoever asks, and however often, loaders have one of a generation to do.
 */
struct verify {
	uint64_t tag;  /* of its checks; 0: not begun */
	uint64_t peer; /* 0: nobody waits any more, but loaders still work on it */
	uint64_t request;
	uint64_t generation;
	uint32_t n_left;
	struct check_report report; /* of all so far; elapsed_ns: from start_ns */
	uint64_t start_ns;
	int code; /* of the first that failed */
	struct err err;
	TAILQ_ENTRY(verify) entry;
};

static const struct registry_generation *verify_find_ready(
	const struct service *s, const char *model, struct err *ret_err)
{
	for (uint32_t i = registry_count(s->registry); i > 0; i--) {
		const struct registry_generation *g = registry_at(s->registry, i - 1);
		if (g->state == REGISTRY_READY && !strcmp(g->model, model))
			return g;
	}
	err_set(ret_err, ENOENT, "model %.64s: no generation of it is ready", model);
	return NULL;
}

static void verify_free(struct service *s, struct verify *v)
{
	TAILQ_REMOVE(&s->verifies, v, entry);
	free(v);
}

/* Checks that were begun go on with a tag that nobody has. */
static int verify_check(
	struct service *s, uint64_t generation, uint64_t tag, struct err *ret_err, uint32_t *ret_n)
{
	const struct registry_generation *g = registry_find(s->registry, generation);
	uint32_t n = 0;

	if (!g || g->state != REGISTRY_READY)
		return err_set(ret_err, ENOENT, "generation %llu is not ready any more",
			(unsigned long long)generation);
	const struct service_generation *data = g->data;
	for (uint32_t i = 0; i <= service_get_foreign_slot(s); i++) {
		struct export *e = data->residencies[i].export;
		if (!e)
			continue;
		int rc =
			loader_check(s->params->loaders[i % s->params->n_loaders], e, tag, ret_err);
		if (rc < 0)
			return rc;
		n++;
	}
	*ret_n = n;
	return 0;
}

static void verify_answer(struct service *s, struct verify *v)
{
	struct peer *p = peer_find(s->params->peers, v->peer);

	v->report.elapsed_ns = clock_now_ns() - v->start_ns;
	if (p)
		p->n_pending--;
	if (p && v->code < 0)
		rpc_reply_error(p, v->request, v->code, &v->err);
	else if (p)
		rpc_reply_verified(p, v->request, v->generation, &v->report);
	verify_free(s, v);
}

/* All requests for the generation that wait, unless one is under way. */
static void verify_start(struct service *s, uint64_t generation)
{
	uint64_t tag = ++s->last_verify;
	struct err err = ERR_NULL;
	struct verify *v, *next;
	bool is_wanted = false;
	uint32_t n = 0;

	TAILQ_FOREACH(v, &s->verifies, entry)
	{
		if (v->generation == generation && v->tag)
			return;
		is_wanted |= v->generation == generation;
	}
	if (!is_wanted)
		return;
	int rc = verify_check(s, generation, tag, &err, &n);
	for (v = TAILQ_FIRST(&s->verifies); v; v = next) {
		next = TAILQ_NEXT(v, entry);
		if (v->generation != generation)
			continue;
		v->tag = tag;
		v->n_left = n;
		v->start_ns = clock_now_ns();
		v->code = rc;
		v->err = err;
		if (rc < 0)
			verify_answer(s, v);
	}
}

int verify_begin(
	struct service *s, struct peer *p, uint64_t request, const char *model, struct err *ret_err)
{
	const struct registry_generation *g = verify_find_ready(s, model, ret_err);
	int rc = g ? service_check_pending(p, ret_err) : -ENOENT;

	if (rc < 0)
		return rc;
	struct verify *v = calloc(1, sizeof(*v));
	if (!v)
		return err_set(ret_err, ENOMEM, "model %s: out of memory", model);
	v->peer = p->id;
	v->request = request;
	v->generation = g->id;
	TAILQ_INSERT_TAIL(&s->verifies, v, entry);
	p->n_pending++;
	verify_start(s, g->id);
	return 0;
}

static void verify_add(struct verify *v, const struct loader_result *r)
{
	const struct check_report *from = r->report;

	v->report.n_bytes += from->n_bytes;
	v->report.n_tensors += from->n_tensors;
	for (uint32_t i = 0; i < from->n_differences; i++)
		if (v->report.n_differences < CHECK_MAX_DIFFERENCES)
			v->report.differences[v->report.n_differences++] = from->differences[i];
	if (r->code < 0 && v->code == 0) {
		v->code = r->code;
		v->err = r->err;
	}
}

/* A check has ended; those who wait for the next one have it begun. */
static void verify_end(struct service *s, const struct loader_result *r)
{
	struct verify *v, *next;
	bool is_over = false;

	for (v = TAILQ_FIRST(&s->verifies); v; v = next) {
		next = TAILQ_NEXT(v, entry);
		if (v->tag != r->tag)
			continue;
		verify_add(v, r);
		if (--v->n_left > 0)
			continue;
		verify_answer(s, v);
		is_over = true;
	}
	if (is_over)
		verify_start(s, r->generation);
}

/* For the next weightd: it is to know the sums that this check has made. */
static void verify_keep_sums(struct service *s, uint32_t slot, const struct loader_result *r)
{
	const struct registry_generation *g = registry_find(s->registry, r->generation);
	const struct service_generation *data = g ? g->data : NULL;
	struct export *e = data ? data->residencies[slot].export : NULL;

	/* Whatever takes its place comes by a later result: the same pointer is the same export. */
	if (!e || e != r->checked ||
		(e->n_sums_bytes == r->n_sums_bytes &&
			!memcmp(e->sums, r->sums, r->n_sums_bytes))) {
		free(r->sums);
		return;
	}
	free(e->sums);
	e->sums = r->sums;
	e->n_sums_bytes = r->n_sums_bytes;
	uint8_t identity[IDENTITY_BYTES];
	if (check_get_identity(e->check, identity))
		service_tell_holders(s, g->id,
			&(struct rpc_reply_event){.kind = RPC_REPLY_IDENTIFIED,
				.model = g->model,
				.generation = g->id,
				.export = e});
}

void verify_take(struct service *s, uint32_t slot, const struct loader_result *r)
{
	if (r->code < 0 && r->code != -ECANCELED)
		log_warn("generation %llu: %s", (unsigned long long)r->generation, r->err.text);
	if (r->tag)
		log_debug("generation %llu: checked %llu bytes in %.3f ms",
			(unsigned long long)r->generation, (unsigned long long)r->report->n_bytes,
			(double)r->report->elapsed_ns / 1e6);
	if (r->sums)
		verify_keep_sums(s, slot, r);
	/* Who reads the answer finds it done. */
	if (r->report->n_tensors > 0)
		corrupt_found(s, r->generation, slot, r->report);
	if (r->tag)
		verify_end(s, r);
	free(r->report);
}

void verify_forget(struct service *s, const struct peer *p)
{
	struct verify *v = TAILQ_FIRST(&s->verifies);

	while (v) {
		struct verify *next = TAILQ_NEXT(v, entry);
		if (!p || (v->peer == p->id && !v->tag))
			verify_free(s, v);
		else if (v->peer == p->id)
			v->peer = 0;
		v = next;
	}
}
