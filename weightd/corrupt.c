/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/corrupt.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "weightd/check.h"
#include "weightd/export.h"
#include "weightd/service-internal.h"
#include "weightd/source.h"

/* As many names and pids as a line has room for. */
enum { CORRUPT_MAX_NAMES = 16, CORRUPT_MAX_PIDS = 32 };

struct corrupt_text {
	char text[2048];
	size_t n;
};

static void __attribute__((format(printf, 2, 3)))
corrupt_print(struct corrupt_text *t, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	int n = vsnprintf(t->text + t->n, sizeof(t->text) - t->n, format, args);
	va_end(args);
	t->n += n < 0 ? 0 : (size_t)n;
	if (t->n >= sizeof(t->text))
		t->n = sizeof(t->text) - 1;
}

static void corrupt_print_tensors(struct corrupt_text *t, const struct check_report *r)
{
	uint32_t n = r->n_differences < CORRUPT_MAX_NAMES ? r->n_differences : CORRUPT_MAX_NAMES;

	corrupt_print(t, "tensor%s ", r->n_tensors > 1 ? "s" : "");
	for (uint32_t i = 0; i < n; i++)
		corrupt_print(t, "%s%s", i > 0 ? ", " : "", r->differences[i].tensor);
	if (r->n_tensors > n)
		corrupt_print(t, " and %u more", r->n_tensors - n);
	corrupt_print(t, " changed in memory, within %llu bytes",
		(unsigned long long)r->n_differing_bytes);
}

/* Any of those who have it could have written there. */
static void corrupt_print_holders(const struct service *s, uint64_t id, struct corrupt_text *t)
{
	uint32_t n = 0, n_others = 0;

	for (uint32_t i = 0; i < registry_count_leases(s->registry); i++) {
		const struct registry_lease *l = registry_lease_at(s->registry, i);
		if (l->generation != id)
			continue;
		const struct peer *p = l->is_hold ? NULL : peer_find(s->params->peers, l->peer);
		if (!p || p->pid == 0 || n == CORRUPT_MAX_PIDS)
			n_others++;
		else
			corrupt_print(t, "%s%d", n++ == 0 ? "; held by pid " : ", ", (int)p->pid);
	}
	if (n_others > 0)
		corrupt_print(t, "%s%u process%s without a connection or a pid that is visible",
			n > 0 ? " and " : "; held by ", n_others, n_others > 1 ? "es" : "");
}

/* From the file while that is what was loaded; else from what the memfd has of it, which may be
 * what is damaged: the load finds out. */
static bool corrupt_reload(struct service *s, const struct registry_generation *g, bool is_in_file,
	struct err *ret_err)
{
	const struct service_generation *data = g->data;
	struct err why = ERR_NULL;
	char model[REGISTRY_NAME_MAX + 1];

	if (g->state != REGISTRY_READY) {
		err_set(ret_err, 0, "%s", "it was not the newest generation");
		return false;
	}
	if (is_in_file)
		err_set(&why, 0, "%s", "the bytes are those of the model file itself");
	else if (source_check(data->source, &why) == 0)
		return service_reload(s, g, ret_err) == 0;
	snprintf(model, sizeof(model), "%s", g->model);
	if (service_recover(s, g, ret_err) < 0) {
		err_prefix(ret_err, "%.200s", why.text);
		return false;
	}
	log_warn("model %s: %s: it is loaded anew from its copy in host memory", model, why.text);
	return true;
}

static uint64_t corrupt_get_clean_ns(const struct service_generation *data, uint32_t slot)
{
	const struct export *e = data->residencies[slot].export;
	uint64_t clean_ns = e && e->check ? check_get_clean_ns(e->check) : 0;

	return clean_ns ? clean_ns : data->started_ns;
}

/* why and text with the holders; clean_ns: CLOCK_MONOTONIC. */
static void corrupt_tell(struct service *s, const struct registry_generation *g, const char *why,
	const char *text, uint64_t n_bytes, uint64_t clean_ns)
{
	struct service_generation *data = g->data;

	data->is_corrupt = true;
	data->clean_ns = clean_ns;
	log_error("model %s: generation %llu: %s", g->model, (unsigned long long)g->id, text);
	service_tell(s, &(struct rpc_reply_event){.kind = RPC_REPLY_CORRUPT,
				.model = g->model,
				.generation = g->id,
				.total_bytes = n_bytes,
				.text = text,
				.discreet_text = why,
				.since_ns = clock_now_ns() - clean_ns,
				.export = service_get_export(s, data)});
}

void corrupt_found(
	struct service *s, uint64_t generation, uint32_t slot, const struct check_report *report)
{
	const struct registry_generation *g = registry_find(s->registry, generation);
	struct corrupt_text why = {0}, text;
	struct err err = ERR_NULL;
	char model[REGISTRY_NAME_MAX + 1];

	if (!g || g->is_filling || !registry_is_legal(g->state, REGISTRY_LOSE))
		return;
	snprintf(model, sizeof(model), "%s", g->model); /* a load may move g */
	corrupt_print_tensors(&why, report);
	text = why;
	corrupt_print_holders(s, generation, &text);
	corrupt_tell(
		s, g, why.text, text.text, report->n_bytes, corrupt_get_clean_ns(g->data, slot));
	/* Before it is lost: who asks for the model in between waits for what comes. */
	if (!corrupt_reload(s, g, report->is_in_file, &err))
		log_error("model %s: it is not loaded anew: %s", model, err.text);
	service_lose(s, generation, why.text);
}

void corrupt_returned(struct service *s, uint64_t generation, const struct err *why,
	const struct err *holders, uint64_t clean_ns, bool reloads)
{
	const struct registry_generation *g = registry_find(s->registry, generation);
	char model[REGISTRY_NAME_MAX + 1];
	struct err err = ERR_NULL;

	snprintf(model, sizeof(model), "%s", g->model);
	/* Where it is not known, it may have been at any time of this boot. */
	corrupt_tell(s, g, why->text, holders->text, 0, clean_ns);
	if (reloads && !corrupt_reload(s, g, false, &err))
		log_error("model %s: it is not loaded anew: %s", model, err.text);
	service_lose(s, generation, why->text);
}
