/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/synthetic.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "proto/util/err.h"
#include "proto/util/fnv.h"
#include "weightctl/synthetic-block.h"
#include "weightctl/synthetic-header.h"
#include "weightctl/synthetic-shape.h"

/*
 * Random blocks are made once for each format and row length and written over and over: making all
 * of them would take longer than loading them. A prime number of blocks: rows of a matrix would be
 * copies of each other only if their length in blocks were a multiple of it.
 */
enum { POOL_BYTES = 16 << 20, MIN_POOL_BLOCKS = 257, MAX_POOLS = 16 };

/* What a thread writes at a time. */
enum { JOB_BYTES = 16 << 20, MAX_THREADS = 16 };

struct pool {
	uint32_t dtype;
	uint64_t n_row;
	uint64_t n_bytes;
	uint64_t seed;
	uint8_t *data;
};

struct job {
	const struct synthetic_tensor *tensor;
	uint64_t at; /* in the tensor */
	uint64_t n_bytes;
};

struct maker {
	const struct synthetic_shape *shape;
	uint64_t seed;
	int fd;
	uint64_t data_at; /* in the file */
	struct synthetic_tensor *tensors;
	uint32_t n_tensors;
	uint32_t n_pools;
	struct pool pools[MAX_POOLS];
	atomic_uint n_pools_begun;
	struct job *jobs;
	uint32_t n_jobs;
	atomic_uint n_jobs_begun;
	atomic_int error; /* the first one, -errno */
};

static void note_error(struct maker *m, int r)
{
	int none = 0;

	atomic_compare_exchange_strong(&m->error, &none, r);
}

static bool is_prime(uint64_t n)
{
	for (uint64_t k = 3; k * k <= n; k += 2)
		if (n % k == 0)
			return false;
	return n % 2 == 1;
}

static uint64_t find_prime(uint64_t n)
{
	while (!is_prime(n))
		n++;
	return n;
}

static struct pool *find_pool(struct maker *m, const struct synthetic_tensor *t)
{
	for (uint32_t i = 0; i < m->n_pools; i++)
		if (m->pools[i].dtype == t->dtype && m->pools[i].n_row == t->ne[0])
			return &m->pools[i];
	return NULL;
}

/* Large enough for the largest tensor, where that is small. */
static void plan_pool(struct maker *m, const struct synthetic_tensor *t)
{
	const struct synthetic_block *block = synthetic_block_find(t->dtype);
	struct pool *p = find_pool(m, t);
	uint64_t n_bytes = t->n_bytes < POOL_BYTES ? t->n_bytes : POOL_BYTES;
	uint64_t n = n_bytes / block->n_bytes;

	n = find_prime(n < MIN_POOL_BLOCKS ? MIN_POOL_BLOCKS : n) * block->n_bytes;
	if (!p) {
		p = &m->pools[m->n_pools++];
		*p = (struct pool){.dtype = t->dtype,
			.n_row = t->ne[0],
			.seed = m->seed ^ ((uint64_t)t->dtype << 48 | t->ne[0])};
	}
	if (n > p->n_bytes)
		p->n_bytes = n;
}

static int plan_jobs(struct maker *m)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < m->n_tensors; i++) {
		n += m->tensors[i].n_bytes / JOB_BYTES + 1;
		if (m->tensors[i].fill != SYNTHETIC_WEIGHTS)
			continue;
		if (m->n_pools == MAX_POOLS && !find_pool(m, &m->tensors[i]))
			return -ENOSPC;
		plan_pool(m, &m->tensors[i]);
	}
	m->jobs = calloc(n, sizeof(*m->jobs));
	if (!m->jobs)
		return -ENOMEM;
	for (uint32_t i = 0; i < m->n_tensors; i++) {
		const struct synthetic_tensor *t = &m->tensors[i];

		for (uint64_t at = 0; at < t->n_bytes; at += JOB_BYTES)
			m->jobs[m->n_jobs++] = (struct job){.tensor = t,
				.at = at,
				.n_bytes =
					t->n_bytes - at < JOB_BYTES ? t->n_bytes - at : JOB_BYTES};
	}
	return 0;
}

static int fill_pool(struct pool *p)
{
	const struct synthetic_block *block = synthetic_block_find(p->dtype);
	float sigma = 1 / sqrtf((float)p->n_row);
	uint64_t rng = p->seed;

	p->data = malloc(p->n_bytes);
	if (!p->data)
		return -ENOMEM;
	for (uint64_t at = 0; at < p->n_bytes; at += block->n_bytes)
		block->fill(&rng, sigma, p->data + at);
	return 0;
}

static int write_all(struct maker *m, uint64_t at, const uint8_t *data, uint64_t n_bytes)
{
	while (n_bytes > 0) {
		ssize_t n = pwrite(m->fd, data, n_bytes, (off_t)(m->data_at + at));

		if (n < 0 && errno != EINTR)
			return -errno;
		if (n > 0) {
			data += n;
			at += (uint64_t)n;
			n_bytes -= (uint64_t)n;
		}
	}
	return 0;
}

/* Where in the pool a tensor begins: at a block that its name and the seed choose. */
static int write_weights(struct maker *m, const struct job *job)
{
	const struct synthetic_tensor *t = job->tensor;
	const struct pool *p = find_pool(m, t);
	uint64_t n_block_bytes = synthetic_block_find(t->dtype)->n_bytes;
	uint64_t rng = m->seed ^ fnv_hash(t->name, strlen(t->name));
	uint64_t first = synthetic_block_draw(&rng) % (p->n_bytes / n_block_bytes);
	uint64_t from = (first * n_block_bytes + job->at) % p->n_bytes;
	uint64_t at = t->offset + job->at, n_left = job->n_bytes;

	while (n_left > 0) {
		uint64_t n = p->n_bytes - from < n_left ? p->n_bytes - from : n_left;
		int r = write_all(m, at, p->data + from, n);

		if (r)
			return r;
		at += n;
		n_left -= n;
		from = 0;
	}
	return 0;
}

/*
 * What Llama 3's long contexts divide a frequency by: nothing where a turn takes few tokens, the
 * factor where it takes many, and between them what goes over from the one to the other
 * (rope_scaling of its config.json: of 8192 tokens, the first to a quarter).
 */
static float get_rope_divisor(const struct synthetic_shape *s, uint32_t i)
{
	double wave = 2 * M_PI * pow(s->rope_base, 2.0 * i / s->head_dim);
	double smooth = (8192 / wave - 1) / (4 - 1);

	smooth = smooth < 0 ? 0 : smooth > 1 ? 1 : smooth;
	return (float)(1 / ((1 - smooth) / s->rope_factor + smooth));
}

/* Small tensors of f32. */
static int write_numbers(struct maker *m, const struct job *job)
{
	const struct synthetic_tensor *t = job->tensor;
	const struct synthetic_block *block = synthetic_block_find(SYNTHETIC_BLOCK_F32);
	uint64_t rng = m->seed ^ fnv_hash(t->name, strlen(t->name));
	_cleanup_(cleanup_free)
	float *values = calloc(t->ne[0], sizeof(*values));

	if (!values)
		return -ENOMEM;
	for (uint32_t i = 0; i < t->ne[0]; i++) {
		if (t->fill == SYNTHETIC_ROPE) {
			values[i] = get_rope_divisor(m->shape, i);
			continue;
		}
		block->fill(&rng, 0.05f, (uint8_t *)&values[i]);
		values[i] += 1;
	}
	return write_all(m, t->offset, (const uint8_t *)values, t->n_bytes);
}

/* Pools first: nobody writes before all are there. */
static void *fill_pools(void *userdata)
{
	struct maker *m = userdata;
	uint32_t i;

	while ((i = m->n_pools_begun++) < m->n_pools) {
		int r = fill_pool(&m->pools[i]);
		if (r)
			note_error(m, r);
	}
	return NULL;
}

static void *write_jobs(void *userdata)
{
	struct maker *m = userdata;
	uint32_t i;

	while (!m->error && (i = m->n_jobs_begun++) < m->n_jobs) {
		const struct job *job = &m->jobs[i];
		int r = job->tensor->fill == SYNTHETIC_WEIGHTS ? write_weights(m, job)
							       : write_numbers(m, job);
		if (r)
			note_error(m, r);
	}
	return NULL;
}

static uint32_t count_threads(void)
{
	cpu_set_t set;
	int n = sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);

	return n > MAX_THREADS ? MAX_THREADS : (uint32_t)n;
}

/* This thread is one of them; where no other can be had it does all. */
static void run_threads(struct maker *m, void *(*fn)(void *userdata))
{
	pthread_t threads[MAX_THREADS];
	uint32_t n = 0, n_wanted = count_threads();

	while (n + 1 < n_wanted && !pthread_create(&threads[n], NULL, fn, m))
		n++;
	fn(m);
	while (n > 0)
		pthread_join(threads[--n], NULL);
}

static int make(struct maker *m, const struct synthetic_type *type, struct err *ret_err,
	uint64_t *ret_n_bytes)
{
	_cleanup_(cleanup_free)
	uint8_t *header = NULL;
	uint64_t n_data_bytes = 0, n_header_bytes = 0;
	int r = synthetic_shape_list(m->shape, type, SYNTHETIC_ALIGN, ret_err, &m->tensors,
		&m->n_tensors, &n_data_bytes);

	if (!r)
		r = synthetic_header_make(
			m->shape, type, m->tensors, m->n_tensors, &header, &n_header_bytes);
	if (!r)
		r = plan_jobs(m);
	if (!r && ftruncate(m->fd, (off_t)(n_header_bytes + n_data_bytes)) < 0)
		r = -errno;
	if (!r)
		r = write_all(m, 0, header, n_header_bytes);
	m->data_at = n_header_bytes;
	if (!r)
		run_threads(m, fill_pools);
	if (!r && !m->error)
		run_threads(m, write_jobs);
	*ret_n_bytes = n_header_bytes + n_data_bytes;
	return r ? r : m->error;
}

int synthetic_check(const char *name, struct err *ret_err)
{
	const struct synthetic_shape *shape;
	const struct synthetic_type *type;

	return synthetic_shape_find(name, ret_err, &shape, &type);
}

int synthetic_make(
	const char *name, uint64_t seed, struct err *ret_err, int *ret_fd, uint64_t *ret_n_bytes)
{
	const struct synthetic_type *type = NULL;
	struct maker m = {.seed = seed};
	uint64_t n_bytes = 0;
	int r = synthetic_shape_find(name, ret_err, &m.shape, &type);

	if (r)
		return r;
	m.fd = memfd_create("weightctl-synthetic", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	r = m.fd < 0 ? -errno : make(&m, type, ret_err, &n_bytes);
	for (uint32_t i = 0; i < m.n_pools; i++)
		free(m.pools[i].data);
	free(m.jobs);
	free(m.tensors);
	if (r) {
		cleanup_close(&m.fd);
		if (ret_err && !ret_err->text[0])
			(void)err_set(ret_err, -r, "%s: %s", name, strerror(-r));
		return r;
	}
	*ret_fd = m.fd;
	*ret_n_bytes = n_bytes;
	return 0;
}
