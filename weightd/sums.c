/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/sums.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/util/err.h"
#include "weightd/sha256.h"
#include "weightd/sum.h"

enum { SUMS_HEAD_BYTES = 24, SUMS_TENSOR_BYTES = 16, SUMS_VALUE_BYTES = 8 };

static void sums_cleanup(struct sums **s)
{
	sums_free(*s);
}

/* Tables of zeros. */
static int sums_allocate(uint32_t n_tensors, uint64_t n_pieces, struct sums **ret_sums)
{
	_cleanup_(sums_cleanup)
	struct sums *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	s->n_tensors = n_tensors;
	s->n_pieces = n_pieces;
	s->tensors = calloc(n_tensors ? n_tensors : 1, sizeof(*s->tensors));
	s->values = calloc(n_pieces ? n_pieces : 1, sizeof(*s->values));
	if (!s->tensors || !s->values)
		return -ENOMEM;
	*ret_sums = TAKE_PTR(s);
	return 0;
}

int sums_new(uint32_t n_tensors, const uint64_t *n_bytes, struct sums **ret_sums)
{
	struct sums *s = NULL;
	uint64_t n_pieces = 0;

	if (n_tensors > SUMS_MAX_TENSORS)
		return -E2BIG;
	for (uint32_t i = 0; i < n_tensors; i++) {
		uint64_t n = sum_count_pieces(n_bytes[i]);
		if (n > SUMS_MAX_PIECES - n_pieces)
			return -E2BIG;
		n_pieces += n;
	}
	int rc = sums_allocate(n_tensors, n_pieces, &s);
	if (rc < 0)
		return rc;
	n_pieces = 0;
	for (uint32_t i = 0; i < n_tensors; i++) {
		s->tensors[i] = (struct sums_tensor){.n_bytes = n_bytes[i], .first = n_pieces};
		n_pieces += sum_count_pieces(n_bytes[i]);
	}
	*ret_sums = s;
	return 0;
}

int sums_copy(const struct sums *from, struct sums **ret_sums)
{
	struct sums *s = NULL;
	int rc = sums_allocate(from->n_tensors, from->n_pieces, &s);

	if (rc < 0)
		return rc;
	memcpy(s->tensors, from->tensors, s->n_tensors * sizeof(*s->tensors));
	memcpy(s->values, from->values, s->n_pieces * sizeof(*s->values));
	*ret_sums = s;
	return 0;
}

struct sums *sums_free(struct sums *s)
{
	if (!s)
		return NULL;
	free(s->tensors);
	free(s->values);
	free(s);
	return NULL;
}

bool sums_put(struct sums *s, uint32_t tensor, uint64_t piece, uint64_t value)
{
	struct sums_tensor *t = &s->tensors[tensor];

	assert(piece <= t->n_known && piece < sum_count_pieces(t->n_bytes));
	if (piece < t->n_known)
		return s->values[t->first + piece] == value;
	s->values[t->first + piece] = value;
	t->n_known++;
	return true;
}

bool sums_is_complete(const struct sums *s)
{
	for (uint32_t i = 0; i < s->n_tensors; i++)
		if (s->tensors[i].n_known < sum_count_pieces(s->tensors[i].n_bytes))
			return false;
	return true;
}

/* ---- as bytes ---- */

static uint64_t sums_count_packed(uint32_t n_tensors, uint64_t n_pieces)
{
	return SUMS_HEAD_BYTES + (uint64_t)n_tensors * SUMS_TENSOR_BYTES +
	       n_pieces * SUMS_VALUE_BYTES + SHA256_BYTES;
}

static uint64_t sums_get_u64(const uint8_t *data)
{
	uint64_t v;

	memcpy(&v, data, sizeof(v));
	return v;
}

static void sums_digest(const uint8_t *data, uint64_t n_bytes, uint8_t ret_digest[SHA256_BYTES])
{
	struct sha256 h;

	sha256_init(&h);
	sha256_add(&h, data, n_bytes);
	sha256_end(&h, ret_digest);
}

int sums_pack(const struct sums *s, uint8_t **ret_data, uint64_t *ret_n_bytes)
{
	uint64_t n_bytes = sums_count_packed(s->n_tensors, s->n_pieces);
	uint64_t head[] = {SUMS_MAGIC, s->n_tensors, s->n_pieces};
	uint8_t *data = malloc(n_bytes);
	uint8_t *at = data;

	static_assert(sizeof(head) == SUMS_HEAD_BYTES, "the head is three words");
	if (!data)
		return -ENOMEM;
	at = mempcpy(at, head, sizeof(head));
	for (uint32_t i = 0; i < s->n_tensors; i++) {
		at = mempcpy(at, &s->tensors[i].n_bytes, 8);
		at = mempcpy(at, &s->tensors[i].n_known, 8);
	}
	at = mempcpy(at, s->values, s->n_pieces * SUMS_VALUE_BYTES);
	sums_digest(data, (uint64_t)(at - data), at);
	*ret_data = data;
	*ret_n_bytes = n_bytes;
	return 0;
}

/* The head, and whether the size is what it says. */
static int sums_unpack_head(const uint8_t *data, uint64_t n_bytes, struct err *ret_err,
	uint32_t *ret_n_tensors, uint64_t *ret_n_pieces)
{
	if (n_bytes < SUMS_HEAD_BYTES || sums_get_u64(data) != SUMS_MAGIC)
		return err_set(ret_err, EINVAL, "checksums: expected their magic, found %llu bytes",
			(unsigned long long)n_bytes);
	uint64_t n_tensors = sums_get_u64(data + 8), n_pieces = sums_get_u64(data + 16);
	if (n_tensors > SUMS_MAX_TENSORS || n_pieces > SUMS_MAX_PIECES)
		return err_set(ret_err, EINVAL,
			"checksums: expected at most %d tensors and %llu pieces, found %llu and "
			"%llu",
			SUMS_MAX_TENSORS, (unsigned long long)SUMS_MAX_PIECES,
			(unsigned long long)n_tensors, (unsigned long long)n_pieces);
	uint64_t expected = sums_count_packed((uint32_t)n_tensors, n_pieces);
	if (n_bytes != expected)
		return err_set(ret_err, EINVAL, "checksums: expected %llu bytes, found %llu",
			(unsigned long long)expected, (unsigned long long)n_bytes);
	*ret_n_tensors = (uint32_t)n_tensors;
	*ret_n_pieces = n_pieces;
	return 0;
}

static int sums_unpack_tensors(
	const uint8_t *data, uint64_t n_pieces, struct err *ret_err, struct sums *s)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < s->n_tensors; i++, data += SUMS_TENSOR_BYTES) {
		struct sums_tensor *t = &s->tensors[i];
		*t = (struct sums_tensor){.n_bytes = sums_get_u64(data),
			.first = n,
			.n_known = sums_get_u64(data + 8)};
		uint64_t count = sum_count_pieces(t->n_bytes);
		if (t->n_known > count || count > n_pieces - n)
			return err_set(ret_err, EINVAL,
				"checksums: tensor %u: expected at most %llu pieces, found %llu, "
				"%llu of them known",
				i, (unsigned long long)(n_pieces - n), (unsigned long long)count,
				(unsigned long long)t->n_known);
		n += count;
	}
	if (n != n_pieces)
		return err_set(ret_err, EINVAL, "checksums: expected %llu pieces, found %llu",
			(unsigned long long)n_pieces, (unsigned long long)n);
	return 0;
}

static int sums_unpack_values(const uint8_t *data, struct err *ret_err, struct sums *s)
{
	memcpy(s->values, data, s->n_pieces * SUMS_VALUE_BYTES);
	for (uint32_t i = 0; i < s->n_tensors; i++) {
		const struct sums_tensor *t = &s->tensors[i];
		uint64_t count = sum_count_pieces(t->n_bytes);
		for (uint64_t k = t->n_known; k < count; k++)
			if (s->values[t->first + k])
				return err_set(ret_err, EINVAL,
					"checksums: tensor %u: piece %llu: expected no sum, found "
					"one",
					i, (unsigned long long)k);
	}
	return 0;
}

int sums_unpack(const uint8_t *data, uint64_t n_bytes, struct err *ret_err, struct sums **ret_sums)
{
	_cleanup_(sums_cleanup)
	struct sums *s = NULL;
	uint8_t digest[SHA256_BYTES];
	uint32_t n_tensors = 0;
	uint64_t n_pieces = 0;
	int rc = sums_unpack_head(data, n_bytes, ret_err, &n_tensors, &n_pieces);

	if (rc < 0)
		return rc;
	sums_digest(data, n_bytes - SHA256_BYTES, digest);
	if (memcmp(digest, data + n_bytes - SHA256_BYTES, SHA256_BYTES) != 0)
		return err_set(ret_err, EINVAL, "%s", "checksums: they are damaged");
	rc = sums_allocate(n_tensors, n_pieces, &s);
	if (rc < 0)
		return err_set(ret_err, -rc, "%s", "checksums: out of memory");
	rc = sums_unpack_tensors(data + SUMS_HEAD_BYTES, n_pieces, ret_err, s);
	if (rc == 0)
		rc = sums_unpack_values(
			data + SUMS_HEAD_BYTES + (uint64_t)n_tensors * SUMS_TENSOR_BYTES, ret_err,
			s);
	if (rc < 0)
		return rc;
	*ret_sums = TAKE_PTR(s);
	return 0;
}
