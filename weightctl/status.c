/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/commands.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "proto/weights-client.h"
#include "proto/worker-client.h"
#include "weightctl/figure.h"
#include "weightctl/options.h"
#include "weightctl/output.h"
#include "weightctl/sharing.h"
#include "weightctl/status-json.h"
#include "weightctl/status-memory.h"
#include "weightctl/status-names.h"

static void print_device(const struct weights_client_device *d)
{
	printf("device ");
	output_clean(d->name);
	printf("%s, %s\n", d->software ? " (software)" : "", status_names_uuid(d->uuid).text);
	for (uint32_t i = 0; i < d->n_heaps; i++) {
		const struct weights_client_heap *h = &d->heaps[i];

		printf("  heap %" PRIu32 ": %s%s, weights %s", i, figure_bytes(h->n_bytes).text,
			h->device_local ? " device-local" : "",
			figure_bytes(h->weights_bytes).text);
		if (h->budget_bytes)
			printf(", budget %s, used by weightd %s",
				figure_bytes(h->budget_bytes).text,
				figure_bytes(h->usage_bytes).text);
		putchar('\n');
	}
	if (d->has_account)
		printf("  account: weights %s, reserved by workers %s, of %s; %" PRIu32 " wait\n",
			figure_bytes(d->account.weights_bytes).text,
			figure_bytes(d->account.reserved_bytes).text,
			figure_bytes(d->account.budget_bytes).text, d->account.n_waiting);
}

/* The probe's questions, a row each; with the driver's words where the answer is no. */
static void print_abilities(const struct weights_client_device *d)
{
	if (d->n_abilities == 0)
		puts("  not probed");
	for (uint32_t i = 0; i < d->n_abilities; i++) {
		const struct weights_client_ability *a = &d->abilities[i];

		printf("  ");
		output_clean(a->kind);
		printf("%*s %-4s", (int)(strlen(a->kind) < 20 ? 20 - strlen(a->kind) : 0), "",
			a->ok ? "yes" : "no");
		output_clean(a->reason);
		putchar('\n');
	}
}

static void print_devices(const struct weights_client_status *s)
{
	for (uint32_t i = 0; i < s->n_devices; i++) {
		print_device(&s->devices[i]);
		print_abilities(&s->devices[i]);
	}
}

/* " for device 2" where weightd serves several; "" else. */
static void print_resident(const struct weights_client_status *s, uint32_t device)
{
	if (device == 0)
		printf(", for devices of others");
	else if (s->n_devices > 1)
		printf(", for device %" PRIu32, device - 1);
}

static void print_generation(const struct weights_client_status *s, const char *model,
	const struct weights_client_generation *g)
{
	printf("model ");
	output_clean(model);
	printf(", generation %" PRIu64 ": %s, %s, ", g->id, g->state, g->origin);
	output_clean(g->architecture);
	printf(" %s, %s parameters, %s in %" PRIu32 " tensors, %" PRIu32 " lease%s\n", g->format,
		figure_count(g->n_parameters).text,
		figure_bytes(g->weights_bytes + g->paged_bytes).text, g->n_tensors, g->n_leases,
		g->n_leases == 1 ? "" : "s");
	if (g->has_identity)
		printf("  identity %.12s, found right %s ago\n",
			status_names_identity(g->has_identity, g->identity).text,
			figure_time(g->verified_ns).text);
	if (g->pinned || g->n_holds || g->idle_ns) {
		printf("  %s", g->pinned ? "pinned" : "not pinned");
		if (g->n_holds)
			printf(", held by %" PRIu32 " process%s without a lease", g->n_holds,
				g->n_holds == 1 ? "" : "es");
		if (g->idle_ns)
			printf(", unused for %s", figure_time(g->idle_ns).text);
		putchar('\n');
	}
	printf("  file ");
	output_clean(g->path);
	printf(", %s", figure_bytes(g->file_bytes).text);
	if (g->load_ns)
		printf(", loaded in %s\n", figure_time(g->load_ns).text);
	else if (g->loaded_bytes)
		printf(", %s loaded\n", figure_bytes(g->loaded_bytes).text);
	else
		putchar('\n');
	for (uint32_t i = 0; i < g->n_allocs; i++) {
		const struct weights_client_alloc *a = &g->allocs[i];

		printf("  allocation %" PRIu32 ": %s %s, %s", a->index,
			figure_bytes(a->n_bytes).text, status_names_placement(a->placement),
			status_names_handle(a->handle_type));
		if (a->handle_type == WEIGHTS_CLIENT_MEMFD || a->handle_type == WEIGHTS_CLIENT_FILE)
			printf(" from %" PRIu64, a->file_offset);
		else
			printf(" of memory type %" PRIu32, a->memory_type_index);
		printf(", inode %" PRIu64, a->inode);
		print_resident(s, a->device);
		putchar('\n');
	}
	if (g->paged_bytes)
		printf("  %s stay in the file: every worker reads them for itself\n",
			figure_bytes(g->paged_bytes).text);
	if (g->unmet_bytes)
		printf("  %s have no place that the device reads: every worker copies them\n",
			figure_bytes(g->unmet_bytes).text);
}

static void print_holder(const struct weights_client_peer *p)
{
	printf("process %" PRId32 ", uid %" PRIu32 ", still holds", p->pid, p->uid);
	for (uint32_t i = 0; i < p->n_leases; i++) {
		printf("%s ", i ? "," : "");
		output_clean(p->leases[i].model);
		printf(" generation %" PRIu64, p->leases[i].generation);
	}
	putchar('\n');
}

static void print_peer(const struct weights_client_peer *p)
{
	const struct weights_client_report *r = &p->report;

	printf("worker %" PRId32 ", uid %" PRIu32 ":", p->pid, p->uid);
	for (uint32_t i = 0; i < p->n_leases; i++) {
		printf("%s ", i ? "," : "");
		output_clean(p->leases[i].model);
		printf(" generation %" PRIu64 " for %s", p->leases[i].generation,
			figure_time(p->leases[i].age_ns).text);
	}
	printf("%s; reserved %s\n", p->n_leases ? "" : " no lease",
		figure_bytes(p->reserved_bytes).text);
	if (!p->has_report)
		return;
	printf("  kv %s, scratch %s, io %s; %" PRIu32 " session%s; attached in %s; ",
		figure_bytes(r->kv_bytes).text, figure_bytes(r->scratch_bytes).text,
		figure_bytes(r->io_bytes).text, r->n_sessions, r->n_sessions == 1 ? "" : "s",
		figure_time(r->attach_ns).text);
	output_clean(r->socket);
	putchar('\n');
}

static void print_sharing(const struct sharing *s)
{
	printf("weights resident once: %s", figure_bytes(s->resident_bytes).text);
	if (s->n_workers)
		printf("; private per worker: %s (kv+scratch+io); %" PRIu32
		       " separate %s would cost %s",
			figure_bytes(s->private_bytes / s->n_workers).text, s->n_leases,
			s->n_leases == 1 ? "copy" : "copies", figure_bytes(s->separate_bytes).text);
	putchar('\n');
}

static void print_weightd(const struct weights_client_status *s)
{
	struct sharing sharing = sharing_count(s);

	printf("weightd ");
	output_clean(s->build);
	printf(", pid %" PRId32 ", up %s\n", s->pid, figure_time(s->uptime_ns).text);
	if (s->n_devices == 0)
		print_device(&s->device);
	for (uint32_t i = 0; i < s->n_devices; i++)
		print_device(&s->devices[i]);
	for (uint32_t i = 0; i < s->n_models; i++)
		for (uint32_t k = 0; k < s->models[i].n_generations; k++)
			print_generation(s, s->models[i].name, &s->models[i].generations[k]);
	for (uint32_t i = 0; i < s->n_peers; i++)
		if (s->peers[i].is_gone)
			print_holder(&s->peers[i]);
		else if (s->peers[i].role == WEIGHTS_CLIENT_WORKER)
			print_peer(&s->peers[i]);
	print_sharing(&sharing);
}

static void print_experts(const struct worker_client_experts *e)
{
	double n_wanted = (double)e->n_found + (double)e->n_fetched + (double)e->n_direct;

	if (e->n_slots == 0)
		return;
	printf("  experts: %" PRIu64 " slots, %s, ", e->n_slots, figure_bytes(e->n_bytes).text);
	if (n_wanted > 0)
		printf("%.1f%% found\n", 100 * (double)e->n_found / n_wanted);
	else
		puts("none wanted yet");
}

static void print_sessions(const struct worker_client_status *s)
{
	static const char *const states[] = {"", "idle", "in its prompt", "decoding"};

	if (s->kv_pages)
		printf("  kv pages: %" PRIu32 " of %" PRIu32 " used, %" PRIu32
		       " by several sessions; %" PRIu32 " kept for who begins the same\n",
			s->kv_used_pages, s->kv_pages, s->kv_shared_pages, s->kv_cached_pages);
	for (uint32_t i = 0; i < s->n_sessions_listed; i++) {
		const struct worker_client_session *session = &s->sessions[i];

		printf("  session %" PRIu64 " of client %" PRIu64 ": %" PRIu32 " tokens, %" PRIu32
		       " computed, %s",
			session->session, session->client, session->n_tokens, session->n_cached,
			states[session->state]);
		if (session->tokens_per_second > 0)
			printf(", %.1f tokens/s", (double)session->tokens_per_second);
		putchar('\n');
	}
}

static void print_worker(const struct worker_client_status *s)
{
	printf("worker %" PRId32 ", up %s: ", s->pid, figure_time(s->uptime_ns).text);
	output_clean(s->model);
	printf(" generation %" PRIu64 " on ", s->generation);
	output_clean(s->device);
	printf("%s, weightd %s%s\n", s->software ? " (software)" : "",
		s->weightd_connected ? "connected" : "gone", s->is_parked ? ", parked" : "");
	printf("  attached in %s, ready after %s", figure_time(s->attach_ns).text,
		figure_time(s->ready_ns).text);
	if (s->first_token_ns)
		printf(", first token %s after its request", figure_time(s->first_token_ns).text);
	printf("\n  %" PRIu32 " of %" PRIu32 " sessions of %" PRIu32 " tokens; %" PRIu64
	       " prompt and %" PRIu64 " generated tokens; %" PRIu32 " dispatches a step\n",
		s->n_sessions, s->max_sessions, s->n_ctx, s->prompt_tokens, s->generated_tokens,
		s->n_dispatches);
	print_sessions(s);
	if (s->n_prefixes)
		printf("  %" PRIu32 " shared prefixes of %s\n", s->n_prefixes,
			figure_bytes(s->prefix_bytes).text);
	printf("  weights %s, shared:", figure_bytes(s->weights_bytes).text);
	for (uint32_t i = 0; i < s->n_placed_weights; i++) {
		printf("%s %s ", i ? "," : "", figure_bytes(s->placed_weights[i].n_bytes).text);
		output_clean(s->placed_weights[i].placement);
	}
	putchar('\n');
	if (s->stream_rows)
		printf("  steps of %" PRIu32 " tokens and more copy weights ahead: %" PRIu64
		       " steps, %s in %s, %s of them by the processor\n",
			s->stream_rows, s->stream_steps,
			figure_bytes(s->stream_bytes + s->paged_bytes).text,
			figure_time(s->stream_ns).text, figure_bytes(s->paged_bytes).text);
	print_experts(&s->experts);
	status_memory_print(s);
}

static int ask_weightd(
	const struct options *o, struct err *ret_err, struct weights_client_status *ret_status)
{
	struct weights_client *c = NULL;
	int r = weights_client_new(o->weightd, WEIGHTS_CLIENT_CONTROL, ret_err, &c);

	if (r == 0)
		r = weights_client_status(c, ret_err, ret_status);
	weights_client_free(c);
	return r;
}

static int ask_worker(
	const struct options *o, struct err *ret_err, struct worker_client_status *ret_status)
{
	struct worker_client *c = NULL;
	int r = worker_client_new(o->worker, ret_err, &c);

	if (r == 0)
		r = worker_client_status(c, ret_err, ret_status);
	worker_client_free(c);
	return r;
}

/* weightd's; the worker's behind it when one is named; the worker's alone when weightd is not. */
int status_run(const struct options *o, struct err *ret_err)
{
	_cleanup_(weights_client_status_fini)
	struct weights_client_status weightd = {0};
	struct worker_client_status worker = {0};
	bool asks_weightd = o->weightd || !o->worker;
	int r = 0;

	if (asks_weightd)
		r = ask_weightd(o, ret_err, &weightd);
	if (r == 0 && o->worker)
		r = ask_worker(o, ret_err, &worker);
	if (r < 0)
		return r;
	if (o->json) {
		json_t *object = asks_weightd ? status_json_weightd(&weightd) : json_object();

		if (o->worker &&
			json_object_set_new(object, "worker", status_json_worker(&worker)) < 0) {
			json_decref(object);
			return -ENOMEM;
		}
		return output_json(object);
	}
	if (asks_weightd && o->devices)
		print_devices(&weightd);
	else if (asks_weightd)
		print_weightd(&weightd);
	if (o->worker)
		print_worker(&worker);
	return 0;
}
