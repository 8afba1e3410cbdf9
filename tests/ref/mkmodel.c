/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a qwen3 model of about a given size, or with --experts a qwen3moe one, or a llama one,
 * with random weights: for speed, memory and failures, not for meaning. Equal arguments give equal
 * files.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "proto/dtype.h"
#include "proto/util/cleanup.h"
#include "tests/ref/gguf-build.h"

static const char usage[] =
	"usage: mkmodel FILE [--bytes N[K|M|G]] [--type TYPE] [--layers N] [--embd N]\n"
	"               [--ff N] [--heads N] [--kv-heads N] [--head-dim N] [--vocab N] [--ctx N]\n"
	"               [--experts N [--experts-used N] [--expert-ff N]] [--untied] [--seed N]\n"
	"               [--arch qwen3|llama] [--rot N] [--rope-factors]\n"
	"--bytes chooses what the other options leave open: embd, layers, ff (of an expert).\n"
	"TYPE is f32, f16, bf16, q8_0 (the default), q6_k, q5_k, q4_k, q4_0, q2_0, tq2_0, q1_0 or\n"
	"q4_k_m: q4_k, but q6_k the output matrix and some of the layers' v and down.\n"
	"--rot and --rope-factors are of llama: rotated numbers of a head, and rope_freqs.weight "
	"as\n"
	"Llama 3.1 has it.\n";

/* Prime numbers of blocks, so that rows of a matrix are not copies of each other. */
enum { POOL_BLOCKS = 250007, POOL_ELEMENTS = 4000037, MAX_POOLS = 8 };

struct pool {
	uint32_t type;
	uint64_t n_row; /* elements */
	uint64_t n_bytes;
	uint8_t *data;
};

struct out {
	int fd;
	uint64_t rng;
	uint32_t n_pools;
	struct pool pools[MAX_POOLS];
};

static void die(const char *what)
{
	fprintf(stderr, "mkmodel: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void refuse(const char *option, const char *text)
{
	fprintf(stderr, "mkmodel: --%s: cannot use \"%s\"\n", option, text);
	exit(2);
}

static void write_all(int fd, const uint8_t *data, uint64_t n_bytes)
{
	while (n_bytes > 0) {
		ssize_t n = write(fd, data, n_bytes);
		if (n < 0 && errno != EINTR)
			die("write");
		if (n > 0) {
			data += n;
			n_bytes -= (uint64_t)n;
		}
	}
}

static const struct pool *get_pool(struct out *out, uint32_t type, uint64_t n_row)
{
	const struct dtype *dtype = dtype_find(type);

	for (uint32_t i = 0; i < out->n_pools; i++)
		if (out->pools[i].type == type && out->pools[i].n_row == n_row)
			return &out->pools[i];
	struct pool *p = &out->pools[out->n_pools++];
	uint64_t n_blocks = dtype->n_block > 1 ? POOL_BLOCKS : POOL_ELEMENTS;
	*p = (struct pool){.type = type, .n_row = n_row, .n_bytes = n_blocks * dtype->n_bytes};
	p->data = malloc(p->n_bytes);
	if (!p->data)
		die("malloc");
	gguf_build_fill(type, 0, 1 / sqrtf((float)n_row), n_blocks, &out->rng, p->data);
	return p;
}

static void write_tensor(
	struct out *out, const struct gguf_build *b, const struct gguf_build_tensor *t)
{
	const struct dtype *dtype = dtype_find(t->type);
	uint64_t n_left = t->n_bytes;

	if (t->n_dims == 1) {
		uint8_t *norm = malloc(t->n_bytes);
		if (!norm)
			die("malloc");
		if (!gguf_build_fill_rope_factors(b, t, norm))
			gguf_build_fill(
				t->type, 1, 0.05f, t->n_bytes / dtype->n_bytes, &out->rng, norm);
		write_all(out->fd, norm, t->n_bytes);
		free(norm);
		return;
	}
	const struct pool *p = get_pool(out, t->type, t->ne[0]);
	uint64_t at = (t->offset * 2654435761u / dtype->n_bytes * dtype->n_bytes) % p->n_bytes;
	at -= at % dtype->n_bytes;
	while (n_left > 0) {
		uint64_t n = p->n_bytes - at < n_left ? p->n_bytes - at : n_left;
		write_all(out->fd, p->data + at, n);
		n_left -= n;
		at = 0;
	}
}

static uint64_t write_model(const struct gguf_build *b, const char *path)
{
	static const uint8_t zeroes[64];
	struct out out = {.rng = b->seed | 1};
	uint64_t n_metadata, at = 0;
	uint8_t *metadata = gguf_build_metadata(b, &n_metadata);

	out.fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (out.fd < 0)
		die(path);
	write_all(out.fd, metadata, n_metadata);
	free(metadata);
	for (uint32_t i = 0; i < b->n_tensors; i++) {
		const struct gguf_build_tensor *t = &b->tensors[i];
		write_all(out.fd, zeroes, t->offset - at);
		write_tensor(&out, b, t);
		at = t->offset + t->n_bytes;
	}
	if (close(out.fd) < 0)
		die(path);
	for (uint32_t i = 0; i < out.n_pools; i++)
		free(out.pools[i].data);
	return n_metadata + at;
}

static double get_row_bytes(uint32_t type, double n_elements)
{
	const struct dtype *dtype = dtype_find(type);

	return n_elements / dtype->n_block * dtype->n_bytes;
}

/* Elements of a layer's matrices for one of its ff, and of all of them. */
static double count_ff(const struct gguf_build_shape *s)
{
	return 3.0 * s->n_embd * (s->n_expert ? s->n_expert : 1);
}

static double count_layer(const struct gguf_build_shape *s)
{
	double n_q = (double)s->n_head * s->head_dim, n_kv = (double)s->n_head_kv * s->head_dim;

	return s->n_embd * (2 * n_q + 2 * n_kv) +
	       count_ff(s) * (s->n_expert ? s->n_ff_expert : s->n_ff);
}

/* What a row's length is a multiple of, in all formats of the shape. */
static uint32_t get_step(const struct gguf_build_shape *s)
{
	uint32_t n_block = dtype_find(s->type)->n_block;

	return n_block < 32 ? 32 : n_block;
}

/* What the options left open at this row length, with the usual proportions. */
static struct gguf_build_shape complete(const struct gguf_build_shape *given, uint32_t n_embd)
{
	struct gguf_build_shape s = *given;
	uint32_t n_step = get_step(given);

	s.n_embd = s.n_embd ? s.n_embd : n_embd;
	s.head_dim = s.head_dim ? s.head_dim : (s.n_embd >= 1024 ? 128 : 64);
	s.n_head = s.n_head ? s.n_head : (s.n_embd + s.head_dim - 1) / s.head_dim;
	s.n_head_kv = s.n_head_kv ? s.n_head_kv : (s.n_head % 2 ? s.n_head : s.n_head / 2);
	s.n_ff = s.n_ff ? s.n_ff : 3 * s.n_embd;
	if (s.n_expert) {
		s.n_expert_used = s.n_expert_used ? s.n_expert_used : (s.n_expert + 15) / 16;
		s.n_ff_expert = s.n_ff_expert ? s.n_ff_expert
					      : (s.n_embd + 2 * n_step - 1) / (2 * n_step) * n_step;
	}
	s.n_vocab = s.n_vocab ? s.n_vocab : 4096;
	s.n_ctx = s.n_ctx ? s.n_ctx : 4096;
	return s;
}

/* The smallest row length that needs at most 32 layers; then ff takes up what is left over. */
static struct gguf_build_shape fit(const struct gguf_build_shape *given, uint64_t n_bytes)
{
	struct gguf_build_shape s = complete(given, 256);

	for (uint32_t n_embd = 256; n_bytes > 0 && n_embd <= 8192; n_embd *= 2) {
		s = complete(given, n_embd);
		double fixed =
			get_row_bytes(s.type, (double)s.n_embd * s.n_vocab) * (s.untied ? 2 : 1);
		double left = (double)n_bytes > fixed ? (double)n_bytes - fixed : 0;
		double layers = left / get_row_bytes(s.type, count_layer(&s));

		if (!given->n_layers)
			s.n_layers = layers < 1 ? 1 : (layers > 512 ? 512 : (uint32_t)layers);
		if (s.n_expert ? !given->n_ff_expert : !given->n_ff) {
			uint32_t *size = s.n_expert ? &s.n_ff_expert : &s.n_ff;
			double spare = left - get_row_bytes(s.type, count_layer(&s)) * s.n_layers;
			double per_ff = get_row_bytes(s.type, count_ff(&s)) * s.n_layers;
			double n_ff = *size + spare / per_ff;
			uint32_t n_step = get_step(&s);
			*size = n_ff < n_step ? n_step : (uint32_t)(n_ff / n_step) * n_step;
		}
		if (given->n_embd || s.n_layers <= 32)
			break;
	}
	s.n_layers = s.n_layers ? s.n_layers : 4;
	return s;
}

static uint64_t parse_number(const char *option, const char *text, uint64_t max)
{
	char *end;

	errno = 0;
	uint64_t v = strtoull(text, &end, 10);
	uint32_t shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
	if (end == text || errno || end[shift ? 1 : 0] || v == 0 || v > max >> shift)
		refuse(option, text);
	return v << shift;
}

static void parse_type(const char *text, struct gguf_build_shape *s)
{
	bool is_mix = strcasecmp(text, "q4_k_m") == 0;

	for (uint32_t id = 0; id < 256; id++) {
		const struct dtype *t = dtype_find(id);
		if (t && t->is_supported && strcasecmp(is_mix ? "q4_k" : text, t->name) == 0) {
			s->type = id;
			s->type_more = is_mix ? DTYPE_Q6_K : 0;
			return;
		}
	}
	refuse("type", text);
}

static bool parse_arch(const char *text)
{
	bool is_llama = strcmp(text, "llama") == 0;

	if (!is_llama && strcmp(text, "qwen3") != 0)
		refuse("arch", text);
	return is_llama;
}

static void parse_options(int argc, char **argv, struct gguf_build_shape *s, bool *ret_is_llama,
	uint64_t *ret_n_bytes)
{
	enum {
		BYTES = 'b',
		TYPE = 't',
		UNTIED = 'u',
		SEED = 's',
		HELP = 'h',
		ARCH = 'a',
		ROPE_FACTORS = 'r',
		NUMBER = 256
	};
	uint32_t *const numbers[] = {&s->n_layers, &s->n_embd, &s->n_ff, &s->n_head, &s->n_head_kv,
		&s->head_dim, &s->n_vocab, &s->n_ctx, &s->n_expert, &s->n_expert_used,
		&s->n_ff_expert, &s->n_rot};
	static const struct option options[] = {
		{"layers", required_argument, NULL, NUMBER + 0},
		{"embd", required_argument, NULL, NUMBER + 1},
		{"ff", required_argument, NULL, NUMBER + 2},
		{"heads", required_argument, NULL, NUMBER + 3},
		{"kv-heads", required_argument, NULL, NUMBER + 4},
		{"head-dim", required_argument, NULL, NUMBER + 5},
		{"vocab", required_argument, NULL, NUMBER + 6},
		{"ctx", required_argument, NULL, NUMBER + 7},
		{"experts", required_argument, NULL, NUMBER + 8},
		{"experts-used", required_argument, NULL, NUMBER + 9},
		{"expert-ff", required_argument, NULL, NUMBER + 10},
		{"rot", required_argument, NULL, NUMBER + 11},
		{"arch", required_argument, NULL, ARCH},
		{"rope-factors", no_argument, NULL, ROPE_FACTORS},
		{"bytes", required_argument, NULL, BYTES},
		{"type", required_argument, NULL, TYPE},
		{"untied", no_argument, NULL, UNTIED},
		{"seed", required_argument, NULL, SEED},
		{"help", no_argument, NULL, HELP},
		{NULL, 0, NULL, 0},
	};
	int c, index = 0;

	while ((c = getopt_long(argc, argv, "", options, &index)) != -1) {
		if (c >= NUMBER)
			*numbers[c - NUMBER] =
				(uint32_t)parse_number(options[index].name, optarg, 1 << 24);
		else if (c == BYTES)
			*ret_n_bytes = parse_number("bytes", optarg, (uint64_t)1 << 44);
		else if (c == TYPE)
			parse_type(optarg, s);
		else if (c == UNTIED)
			s->untied = true;
		else if (c == ARCH)
			*ret_is_llama = parse_arch(optarg);
		else if (c == ROPE_FACTORS)
			s->has_rope_factors = true;
		else if (c == SEED)
			s->seed = parse_number("seed", optarg, UINT64_MAX);
		else {
			fputs(usage, c == HELP ? stdout : stderr);
			exit(c == HELP ? 0 : 2);
		}
	}
}

static void check_shape(const struct gguf_build_shape *s, bool is_llama)
{
	uint32_t n_block = dtype_find(s->type)->n_block;
	bool whole = s->n_embd % n_block == 0 && s->n_ff % n_block == 0 &&
		     ((uint64_t)s->n_head * s->head_dim) % n_block == 0;

	if (s->n_expert && (s->n_ff_expert % n_block != 0 || s->n_expert_used > s->n_expert)) {
		fprintf(stderr,
			"mkmodel: expected expert-ff in multiples of %" PRIu32
			", experts-used of at most experts\n",
			n_block);
		exit(2);
	}
	if (is_llama ? s->n_expert || s->n_rot % 2 || s->n_rot > s->head_dim
		     : s->n_rot || s->has_rope_factors) {
		fprintf(stderr, "mkmodel: expected rot and rope-factors with arch llama alone, rot "
				"even and "
				"at most head-dim, no experts there\n");
		exit(2);
	}
	if (!whole || s->n_head % s->n_head_kv != 0 || s->n_vocab < 259u + is_llama) {
		fprintf(stderr,
			"mkmodel: expected embd, ff and heads * head-dim in multiples of "
			"%" PRIu32
			", heads in one of kv-heads, vocab of at least 259 (llama: 260)\n",
			n_block);
		exit(2);
	}
}

int main(int argc, char **argv)
{
	struct gguf_build_shape given = {.type = DTYPE_Q8_0, .seed = 1};
	struct timespec start, end;
	uint64_t n_bytes = 0;
	bool is_llama = false;

	parse_options(argc, argv, &given, &is_llama, &n_bytes);
	if (optind + 1 != argc) {
		fputs(usage, stderr);
		return 2;
	}
	struct gguf_build_shape s = fit(&given, n_bytes);
	check_shape(&s, is_llama);
	clock_gettime(CLOCK_MONOTONIC, &start);
	struct gguf_build *b = is_llama ? gguf_build_new_llama(&s) : gguf_build_new_qwen3(&s);
	uint64_t n_written = write_model(b, argv[optind]);
	gguf_build_free(b);
	clock_gettime(CLOCK_MONOTONIC, &end);
	double seconds =
		(double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
	printf("%s: %" PRIu64 " bytes, %" PRIu32 " layers, embd %" PRIu32 ", ff %" PRIu32
	       ", experts %" PRIu32 "/%" PRIu32 " of %" PRIu32 ", heads %" PRIu32 "/%" PRIu32
	       " of %" PRIu32 ", vocab %" PRIu32 "; %.2f s, %.0f MB/s\n",
		argv[optind], n_written, s.n_layers, s.n_embd, s.n_ff, s.n_expert_used, s.n_expert,
		s.n_ff_expert, s.n_head, s.n_head_kv, s.head_dim, s.n_vocab, seconds,
		(double)n_written / 1e6 / seconds);
	return 0;
}
