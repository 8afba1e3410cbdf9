/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/bpe.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "proto/manifest.h"
#include "proto/util/err.h"
#include "workerd/tokenizer.h"

enum {
	SCAN_BYTES = 48,        /* words up to here are merged by scanning: cheaper than a heap */
	KEEP_NODES = 16 * 1024, /* of room that survives bpe_trim */
	NOWHERE = UINT32_MAX,
};

/* A token of the word and the pair it makes with the next one. */
struct node {
	uint32_t id;
	uint32_t prev, next; /* NOWHERE at the ends */
	uint32_t rank;       /* of the pair; MANIFEST_NONE where it does not merge */
	uint32_t result;
};

struct bpe {
	const struct manifest *m;
	struct node *nodes;
	uint64_t n_node_room;
	uint64_t *heap; /* rank << 32 | node: the smallest is the lowest rank, then the leftmost */
	uint64_t n_heap, n_heap_room;
};

int bpe_new(const struct manifest *m, struct bpe **ret_bpe)
{
	struct bpe *b = calloc(1, sizeof(*b));

	if (!b)
		return -ENOMEM;
	b->m = m;
	*ret_bpe = b;
	return 0;
}

struct bpe *bpe_free(struct bpe *b)
{
	if (b) {
		free(b->nodes);
		free(b->heap);
		free(b);
	}
	return NULL;
}

void bpe_trim(struct bpe *b)
{
	if (b->n_node_room <= KEEP_NODES)
		return;
	free(b->nodes);
	free(b->heap);
	b->nodes = NULL;
	b->heap = NULL;
	b->n_node_room = 0;
	b->n_heap_room = 0;
}

/* The token of a single byte. */
static int find_byte(const struct bpe *b, uint8_t byte, struct err *ret_err, uint32_t *ret_id)
{
	uint32_t id = b->m->byte_tokens[byte];

	if (id == MANIFEST_NONE)
		return err_set(
			ret_err, EINVAL, "text: the vocabulary has no token for byte 0x%02x", byte);
	*ret_id = id;
	return 0;
}

static void find_pair(const struct bpe *b, uint32_t left, uint32_t right, uint32_t *ret_rank,
	uint32_t *ret_result)
{
	const struct manifest_merge *merge = manifest_find_merge(b->m, left, right);

	*ret_rank = merge ? merge->rank : MANIFEST_NONE;
	*ret_result = merge ? merge->result : MANIFEST_NONE;
}

/* n <= SCAN_BYTES: looks for the best pair from the left each time. */
static int encode_short(struct bpe *b, const uint8_t *word, uint32_t n, struct err *ret_err,
	struct tokenizer_ids *ids)
{
	/* [n]; a pair is index i with i + 1 */
	uint32_t id[SCAN_BYTES], rank[SCAN_BYTES], result[SCAN_BYTES];
	int r;

	for (uint32_t i = 0; i < n; i++) {
		r = find_byte(b, word[i], ret_err, &id[i]);
		if (r < 0)
			return r;
	}
	for (uint32_t i = 0; i + 1 < n; i++)
		find_pair(b, id[i], id[i + 1], &rank[i], &result[i]);
	for (;;) {
		uint32_t best = 0;

		for (uint32_t i = 1; i + 1 < n; i++)
			if (rank[i] < rank[best])
				best = i;
		if (n < 2 || rank[best] == MANIFEST_NONE)
			break;
		id[best] = result[best];
		n--;
		uint32_t n_behind = n - best - 1;
		memmove(id + best + 1, id + best + 2, n_behind * sizeof(*id));
		if (n_behind) { /* the pair of the swallowed token is the best one's now */
			memmove(rank + best, rank + best + 1, n_behind * sizeof(*rank));
			memmove(result + best, result + best + 1, n_behind * sizeof(*result));
			find_pair(b, id[best], id[best + 1], &rank[best], &result[best]);
		}
		if (best)
			find_pair(b, id[best - 1], id[best], &rank[best - 1], &result[best - 1]);
	}
	for (uint32_t i = 0; i < n; i++) {
		r = tokenizer_ids_append(ids, id[i]);
		if (r < 0)
			return r;
	}
	return 0;
}

static void push(struct bpe *b, uint32_t node)
{
	uint64_t key = (uint64_t)b->nodes[node].rank << 32 | node;
	uint64_t at = b->n_heap++;

	for (; at && b->heap[(at - 1) / 2] > key; at = (at - 1) / 2)
		b->heap[at] = b->heap[(at - 1) / 2];
	b->heap[at] = key;
}

static uint64_t pop(struct bpe *b)
{
	uint64_t top = b->heap[0], key = b->heap[--b->n_heap], at = 0;

	for (;;) {
		uint64_t child = 2 * at + 1;

		if (child + 1 < b->n_heap && b->heap[child + 1] < b->heap[child])
			child++;
		if (child >= b->n_heap || b->heap[child] >= key)
			break;
		b->heap[at] = b->heap[child];
		at = child;
	}
	b->heap[at] = key;
	return top;
}

/* A word of n bytes has n - 1 pairs, and each of at most n - 1 merges makes two more. */
static int reserve(struct bpe *b, uint32_t n)
{
	uint64_t n_heap = 3 * (uint64_t)n;

	if (n > b->n_node_room) {
		struct node *nodes = realloc(b->nodes, n * sizeof(*nodes));
		if (!nodes)
			return -ENOMEM;
		b->nodes = nodes;
		b->n_node_room = n;
	}
	if (n_heap > b->n_heap_room) {
		uint64_t *heap = realloc(b->heap, n_heap * sizeof(*heap));
		if (!heap)
			return -ENOMEM;
		b->heap = heap;
		b->n_heap_room = n_heap;
	}
	return 0;
}

/* Looks up the pair that a node makes with its next, and queues it when it merges. */
static void queue_pair(struct bpe *b, uint32_t at)
{
	struct node *node = &b->nodes[at];

	node->rank = MANIFEST_NONE;
	if (node->next == NOWHERE)
		return;
	find_pair(b, node->id, b->nodes[node->next].id, &node->rank, &node->result);
	if (node->rank != MANIFEST_NONE)
		push(b, at);
}

static int encode_long(struct bpe *b, const uint8_t *word, uint32_t n, struct err *ret_err,
	struct tokenizer_ids *ids)
{
	int r = reserve(b, n);

	if (r < 0)
		return r;
	b->n_heap = 0;
	for (uint32_t i = 0; i < n; i++) {
		b->nodes[i].prev = i ? i - 1 : NOWHERE;
		b->nodes[i].next = i + 1 < n ? i + 1 : NOWHERE;
		r = find_byte(b, word[i], ret_err, &b->nodes[i].id);
		if (r < 0)
			return r;
	}
	for (uint32_t i = 0; i < n; i++)
		queue_pair(b, i);
	while (b->n_heap) {
		uint64_t key = pop(b);
		uint32_t at = (uint32_t)key;
		struct node *node = &b->nodes[at];

		/* A pair that a neighbour's merge changed meanwhile was queued again. */
		if (node->rank != key >> 32)
			continue;
		struct node *gone = &b->nodes[node->next];
		node->id = node->result;
		node->next = gone->next;
		gone->rank = MANIFEST_NONE;
		if (node->next != NOWHERE)
			b->nodes[node->next].prev = at;
		queue_pair(b, at);
		if (node->prev != NOWHERE)
			queue_pair(b, node->prev);
	}
	for (uint32_t at = 0; at != NOWHERE; at = b->nodes[at].next) {
		r = tokenizer_ids_append(ids, b->nodes[at].id);
		if (r < 0)
			return r;
	}
	return 0;
}

int bpe_encode(struct bpe *b, const uint8_t *word, uint32_t n_bytes, struct err *ret_err,
	struct tokenizer_ids *ids)
{
	if (n_bytes <= SCAN_BYTES)
		return encode_short(b, word, n_bytes, ret_err, ids);
	return encode_long(b, word, n_bytes, ret_err, ids);
}
