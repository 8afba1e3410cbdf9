/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/top-json.h"

#include "weightctl/output.h"
#include "weightctl/status-json.h"
#include "weightctl/status-names.h"
#include "weightctl/top-sample.h"
#include "weightctl/top-screen.h"

/* Takes object, to which it adds value under key. NULL without memory. */
static json_t *with(json_t *object, const char *key, json_t *value)
{
	if (object && json_object_set_new(object, key, value) == 0)
		return object;
	json_decref(object);
	return NULL;
}

/* Takes array and value. NULL without memory. */
static json_t *with_next(json_t *array, json_t *value)
{
	if (array && json_array_append_new(array, value) == 0)
		return array;
	json_decref(array);
	return NULL;
}

static json_t *known(double rate)
{
	return rate < 0 ? json_null() : json_real(rate);
}

static json_t *device(const struct weights_client_device *d)
{
	const struct weights_client_account *a = &d->account;
	json_t *o = json_pack("{s:o, s:o}", "name", output_name(d->name), "uuid",
		output_name(status_names_uuid(d->uuid).text));

	if (!d->has_account)
		return o;
	return with(o, "account",
		json_pack("{s:I, s:I, s:I, s:I}", "budget_bytes", (json_int_t)a->budget_bytes,
			"weights_bytes", (json_int_t)a->weights_bytes, "reserved_bytes",
			(json_int_t)a->reserved_bytes, "n_waiting", (json_int_t)a->n_waiting));
}

/* What is not there yet, or was never asked for, is null. */
static json_t *weightd(const struct top_sample *s)
{
	const struct weights_client_status *w = &s->weightd;
	json_t *devices = json_array();

	if (!s->has_weightd || !w->build) {
		json_decref(devices);
		return json_null();
	}
	for (uint32_t i = 0; i < w->n_devices; i++)
		devices = with_next(devices, device(&w->devices[i]));
	return json_pack("{s:i, s:o, s:I, s:o}", "pid", w->pid, "version", output_name(w->build),
		"uptime_ns", (json_int_t)w->uptime_ns, "devices", devices);
}

static json_t *worker(const struct top_sample_worker *w, uint64_t now_ns)
{
	uint64_t silent_ns = 0;

	(void)top_sample_is_silent(&w->contact, now_ns, &silent_ns);
	json_t *o = json_pack("{s:i, s:o, s:s, s:I, s:o}", "pid",
		w->has_status && !w->pid ? w->status.pid : w->pid, "socket", output_name(w->socket),
		"state", top_screen_get_word(top_sample_judge(w, now_ns)), "silent_ns",
		(json_int_t)silent_ns, "error", output_name(w->contact.trouble));

	if (!w->has_status)
		return with(o, "status", json_null());
	o = with(o, "rates",
		json_pack("{s:o, s:o, s:o}", "prompt_per_s", known(w->rates.prompt),
			"generated_per_s", known(w->rates.generated), "experts_found",
			known(w->rates.found)));
	o = with(o, "n_generating", json_integer(top_sample_count_generating(&w->status)));
	o = with(o, "n_spills", json_integer((json_int_t)top_sample_count_spills(&w->status)));
	return with(o, "status", status_json_worker(&w->status));
}

json_t *top_json_make(const struct top_sample *s, uint64_t now_ns)
{
	json_t *workers = json_array();
	uint64_t silent_ns = 0;

	(void)top_sample_is_silent(&s->contact, now_ns, &silent_ns);
	for (uint32_t i = 0; i < s->n_workers; i++)
		workers = with_next(workers, worker(s->workers[i], now_ns));
	return json_pack("{s:o, s:I, s:o, s:o}", "weightd", weightd(s), "silent_ns",
		(json_int_t)silent_ns, "error", output_name(s->contact.trouble), "workers",
		workers);
}
