/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/top-sample.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

void top_sample_fini(struct top_sample *s)
{
	for (uint32_t i = 0; i < s->n_workers; i++)
		top_sample_free_worker(s->workers[i]);
	free(s->workers);
	weights_client_status_fini(&s->weightd);
	*s = (struct top_sample){0};
}

struct top_sample_worker *top_sample_free_worker(struct top_sample_worker *w)
{
	if (w)
		free(w->socket);
	free(w);
	return NULL;
}

static struct top_sample_worker *new_worker(int32_t pid, const char *socket)
{
	struct top_sample_worker *w = calloc(1, sizeof(*w));

	if (!w)
		return NULL;
	w->pid = pid;
	w->socket = socket ? strdup(socket) : NULL;
	if (socket && !w->socket)
		return top_sample_free_worker(w);
	return w;
}

int top_sample_add(struct top_sample *s, int32_t pid, const char *socket)
{
	struct top_sample_worker **workers =
		reallocarray(s->workers, (size_t)s->n_workers + 1, sizeof(*workers));
	struct top_sample_worker *w;

	if (!workers)
		return -ENOMEM;
	s->workers = workers;
	w = new_worker(pid, socket);
	if (!w)
		return -ENOMEM;
	s->workers[s->n_workers++] = w;
	return 0;
}

static bool is_worker(const struct weights_client_peer *p)
{
	return p->role == WEIGHTS_CLIENT_WORKER && !p->is_gone;
}

static const char *get_socket(const struct weights_client_peer *p)
{
	return p->has_report && p->report.socket ? p->report.socket : "";
}

/* Takes it out of list, where it is; NULL: it is not. */
static struct top_sample_worker *take_known(
	struct top_sample_worker **list, uint32_t n, int32_t pid, const char *socket)
{
	for (uint32_t i = 0; i < n; i++) {
		struct top_sample_worker *w = list[i];

		/* One without a socket becomes another worker with it: it is to be asked then. */
		if (w && w->pid == pid && w->socket && strcmp(w->socket, socket) == 0) {
			list[i] = NULL;
			return w;
		}
	}
	return NULL;
}

/* New ones for the peers that are not known; the caller frees what there is on failure. */
static int must_check make_unknown(struct top_sample *s, const struct weights_client_status *status,
	struct top_sample_worker **old, struct top_sample_worker **workers)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < status->n_peers; i++) {
		const struct weights_client_peer *p = &status->peers[i];

		if (!is_worker(p))
			continue;
		if (!take_known(old, s->n_workers, p->pid, get_socket(p))) {
			workers[n] = new_worker(p->pid, get_socket(p));
			if (!workers[n])
				return -ENOMEM;
		}
		n++;
	}
	return 0;
}

static void take_status(struct top_sample *s, struct weights_client_status *status)
{
	weights_client_status_fini(&s->weightd);
	s->weightd = *status;
	*status = (struct weights_client_status){0};
}

/*
 * Those that workers has no new one for come from s; what is left there is moved to old, which is
 * as long. Returns how many workers there are.
 */
static uint32_t move_known(struct top_sample *s, const struct weights_client_status *status,
	struct top_sample_worker **workers, struct top_sample_worker **old, uint32_t *ret_n_gone)
{
	uint32_t n = 0;
	uint32_t n_gone = 0;

	for (uint32_t i = 0; i < status->n_peers; i++) {
		const struct weights_client_peer *p = &status->peers[i];

		if (!is_worker(p))
			continue;
		if (!workers[n])
			workers[n] = take_known(s->workers, s->n_workers, p->pid, get_socket(p));
		n++;
	}
	for (uint32_t i = 0; i < s->n_workers; i++)
		if (s->workers[i])
			old[n_gone++] = s->workers[i];
	*ret_n_gone = n_gone;
	return n;
}

int top_sample_set_weightd(struct top_sample *s, struct weights_client_status *status,
	struct top_sample_worker ***ret_gone, uint32_t *ret_n_gone)
{
	uint32_t n_room = status->n_peers + 1;
	struct top_sample_worker **workers = calloc(n_room, sizeof(*workers));
	struct top_sample_worker **old = calloc((size_t)s->n_workers + 1, sizeof(*old));
	int r = workers && old ? 0 : -ENOMEM;

	if (old && s->n_workers)
		memcpy(old, s->workers, s->n_workers * sizeof(*old));
	if (!r && !s->is_fixed)
		r = make_unknown(s, status, old, workers);
	if (r) {
		for (uint32_t i = 0; workers && i < n_room; i++)
			top_sample_free_worker(workers[i]);
		free(workers);
		free(old);
		return r;
	}
	*ret_n_gone = 0;
	if (s->is_fixed) {
		free(workers);
	} else {
		uint32_t n = move_known(s, status, workers, old, ret_n_gone);

		free(s->workers);
		s->workers = workers;
		s->n_workers = n;
	}
	take_status(s, status);
	*ret_gone = old;
	return 0;
}

/* Counters and clocks only go back where the process is another one. */
static bool is_same_process(
	const struct worker_client_status *before, const struct worker_client_status *now)
{
	return before->pid == now->pid && before->uptime_ns < now->uptime_ns &&
	       before->prompt_tokens <= now->prompt_tokens &&
	       before->generated_tokens <= now->generated_tokens;
}

static double per_second(uint64_t before, uint64_t now, uint64_t ns)
{
	return now < before ? -1 : (double)(now - before) * 1e9 / (double)ns;
}

/* The cache is another one after the worker was parked: its counters begin anew. */
static double get_found_share(
	const struct worker_client_experts *before, const struct worker_client_experts *now)
{
	if (!now->n_slots || now->n_found < before->n_found || now->n_fetched < before->n_fetched ||
		now->n_direct < before->n_direct)
		return -1;
	double found = (double)(now->n_found - before->n_found);
	double wanted = found + (double)(now->n_fetched - before->n_fetched) +
			(double)(now->n_direct - before->n_direct);
	return wanted > 0 ? found / wanted : -1;
}

struct top_sample_rates top_sample_get_rates(
	const struct worker_client_status *before, const struct worker_client_status *now)
{
	if (!is_same_process(before, now))
		return (struct top_sample_rates){.prompt = -1, .generated = -1, .found = -1};
	uint64_t ns = now->uptime_ns - before->uptime_ns;
	return (struct top_sample_rates){
		.prompt = per_second(before->prompt_tokens, now->prompt_tokens, ns),
		.generated = per_second(before->generated_tokens, now->generated_tokens, ns),
		.found = get_found_share(&before->experts, &now->experts),
	};
}

void top_sample_set_status(struct top_sample_worker *w, const struct worker_client_status *status)
{
	w->rates = (struct top_sample_rates){.prompt = -1, .generated = -1, .found = -1};
	if (w->has_status)
		w->rates = top_sample_get_rates(&w->status, status);
	w->status = *status;
	w->has_status = true;
}

void top_sample_ask(struct top_sample_contact *c, uint64_t now_ns)
{
	if (!c->asked_ns)
		c->asked_ns = now_ns;
}

void top_sample_hear(struct top_sample_contact *c, int r, const char *text)
{
	if (r == -ETIMEDOUT)
		return;
	c->asked_ns = 0;
	snprintf(c->trouble, sizeof(c->trouble), "%s", r == 0 ? "" : text[0] ? text : strerror(-r));
}

bool top_sample_is_silent(
	const struct top_sample_contact *c, uint64_t now_ns, uint64_t *ret_silent_ns)
{
	if (!c->asked_ns || now_ns < c->asked_ns ||
		now_ns - c->asked_ns < TOP_SAMPLE_SILENT_MS * UINT64_C(1000000))
		return false;
	*ret_silent_ns = now_ns - c->asked_ns;
	return true;
}

enum top_sample_state top_sample_judge(const struct top_sample_worker *w, uint64_t now_ns)
{
	uint64_t silent_ns;

	if (w->socket && !w->socket[0])
		return TOP_SAMPLE_NEW;
	if (top_sample_is_silent(&w->contact, now_ns, &silent_ns))
		return TOP_SAMPLE_SILENT;
	if (w->contact.trouble[0])
		return TOP_SAMPLE_FAILED;
	if (!w->has_status)
		return TOP_SAMPLE_ASKED;
	return w->status.is_parked ? TOP_SAMPLE_PARKED : TOP_SAMPLE_READY;
}

uint32_t top_sample_count_generating(const struct worker_client_status *status)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < status->n_sessions_listed; i++)
		n += status->sessions[i].state != WORKER_CLIENT_IDLE;
	return n;
}

uint64_t top_sample_count_spills(const struct worker_client_status *status)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < status->n_roles; i++)
		n += status->roles[i].n_spills;
	return n;
}
