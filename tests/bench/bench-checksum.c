/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast weightd sums weights on the device, beside a plain kernel that reads the same bytes in
 * the same run, and on the host. Each row is the median of several rounds with the slowest and
 * fastest.
 *
 *	bench-checksum [MIB]
 *
 * MIB: bytes on the device; default 2048, on a software driver 256.
 */
#include "tests/vulkan/on-device.h"

#include <sys/mman.h>
#include <time.h>

#include "weightd/checksum.h"
#include "weightd/sum-file.h"
#include "weightd/sum.h"

static const uint32_t read_spirv[] =
#include "read.comp.inc"
	;

enum { N_ROUNDS = 9, MAX_GROUPS = 16384, GPU_MIB = 2048, SOFTWARE_MIB = 256, HOST_MIB = 256 };

struct bench {
	struct vk_device *d;
	struct vk_memory *weights;
	uint64_t n_bytes;
	uint32_t n_pieces;
	struct sum_range pieces[CHECKSUM_MAX_PIECES];
	uint64_t sums[CHECKSUM_MAX_PIECES];
	struct sum_key key;
	struct checksum *checksum;
	struct vk_pipeline *read;
	struct vk_memory *read_sums;
	struct vk_command *read_command;
};

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Not zeros: a device may keep those elsewhere. */
static void fill(struct bench *b)
{
	struct vk_command *c = on_device_command(b->d, 0);

	vk_command_begin(c);
	for (uint64_t at = 0; at < b->n_bytes; at += SUM_PIECE_BYTES) {
		const struct vk_slice slice = {
			.memory = b->weights, .offset = at, .n_bytes = SUM_PIECE_BYTES};
		vk_command_fill(c, &slice, 0x9e3779b9u * (uint32_t)(at / SUM_PIECE_BYTES + 1));
	}
	vk_command_release(c, b->weights);
	on_device_run(b->d, c);
	vk_command_free(c);
}

static void init_read(struct bench *b)
{
	struct {
		uint64_t data;
		uint64_t sums;
		uint32_t n;
		uint32_t pad;
	} push = {.data = vk_memory_get_address(b->weights), .n = (uint32_t)(b->n_bytes / 16)};
	struct err e = ERR_NULL;

	b->read = ON_DEVICE_PIPELINE(b->d, read_spirv, sizeof(push));
	b->read_sums = on_device_memory(b->d, VK_MEMORY_SCRATCH, MAX_GROUPS * 32 * 4, false);
	b->read_command = on_device_command(b->d, 0);
	push.sums = vk_memory_get_address(b->read_sums);
	uint32_t n_groups = push.n / (32 * 8);
	vk_command_begin(b->read_command);
	vk_command_dispatch(b->read_command, b->read, &push, sizeof(push),
		n_groups < MAX_GROUPS ? n_groups : MAX_GROUPS, 1, 1);
	on_device_check(vk_command_end(b->read_command, &e), &e, "end");
}

static void init(struct bench *b, uint64_t n_mib)
{
	struct err e = ERR_NULL;

	b->d = on_device_new();
	const struct vk_device_info *info = vk_device_get_info(b->d);
	if (n_mib == 0)
		n_mib = info->is_software ? SOFTWARE_MIB : GPU_MIB;
	if (n_mib > CHECKSUM_MAX_PIECES)
		n_mib = CHECKSUM_MAX_PIECES;
	if (n_mib > info->max_alloc_bytes / SUM_PIECE_BYTES)
		n_mib = info->max_alloc_bytes / SUM_PIECE_BYTES;
	b->n_pieces = (uint32_t)n_mib;
	b->n_bytes = n_mib * SUM_PIECE_BYTES;
	for (uint32_t i = 0; i < b->n_pieces; i++)
		b->pieces[i] = (struct sum_range){
			.offset = (uint64_t)i * SUM_PIECE_BYTES, .n_bytes = SUM_PIECE_BYTES};
	b->weights = on_device_memory(b->d, VK_MEMORY_WEIGHTS, b->n_bytes, true);
	fill(b);
	init_read(b);
	sum_key_init(&b->key, (const uint8_t[SUM_SECRET_BYTES]){1});
	on_device_check(checksum_new(b->d, &b->key, &e, &b->checksum), &e, "checksum");
}

static void fini(struct bench *b)
{
	checksum_free(b->checksum);
	vk_command_free(b->read_command);
	vk_memory_free(b->read_sums);
	vk_pipeline_free(b->read);
	vk_memory_free(b->weights);
	vk_device_free(b->d);
}

static double time_read(struct bench *b)
{
	struct err e = ERR_NULL;
	uint64_t ticket = 0;
	double start = now();

	on_device_check(vk_submit(b->d, &b->read_command, 1, &e, &ticket), &e, "submit");
	on_device_check(vk_submit_wait(b->d, ticket, UINT64_MAX), &e, "wait");
	return now() - start;
}

static double time_sums(struct bench *b)
{
	struct err e = ERR_NULL;
	double start = now();

	on_device_check(checksum_run(b->checksum, b->weights, b->pieces, b->n_pieces, &e, b->sums),
		&e, "sums");
	return now() - start;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double print_row(const char *what, double seconds[N_ROUNDS], uint64_t n_bytes, double read)
{
	qsort(seconds, N_ROUNDS, sizeof(seconds[0]), compare);
	double median = seconds[N_ROUNDS / 2];

	printf("%-24s %10.3f ms (%.3f to %.3f) %8.2f GB/s", what, median * 1e3, seconds[0] * 1e3,
		seconds[N_ROUNDS - 1] * 1e3, (double)n_bytes / median * 1e-9);
	if (read > 0)
		printf(" %5.1f %% of reading", 100 * read / median);
	putchar('\n');
	return median;
}

/* The bytes in a memfd, as staged weights are. */
static void bench_host(struct bench *b)
{
	uint32_t n = b->n_pieces < HOST_MIB ? b->n_pieces : HOST_MIB;
	uint64_t n_bytes = (uint64_t)n * SUM_PIECE_BYTES;
	int fd = memfd_create("bench", MFD_CLOEXEC);
	double one[N_ROUNDS], all[N_ROUNDS];
	struct err e = ERR_NULL;

	assert_true(fd >= 0 && ftruncate(fd, (off_t)n_bytes) == 0);
	uint8_t *map = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(map != MAP_FAILED);
	for (uint64_t i = 0; i < n_bytes; i++)
		map[i] = (uint8_t)(i * 0x9e3779b9u >> 13);
	for (int i = 0; i < N_ROUNDS; i++) {
		double start = now();
		for (uint32_t k = 0; k < n; k++)
			b->sums[k] = sum_piece(
				&b->key, map + (uint64_t)k * SUM_PIECE_BYTES, SUM_PIECE_BYTES);
		one[i] = now() - start;
		uint64_t first = b->sums[0], last = b->sums[n - 1];
		start = now();
		on_device_check(
			sum_file_run(&b->key, fd, b->pieces, n, &e, b->sums), &e, "file sums");
		all[i] = now() - start;
		assert_true(b->sums[0] == first && b->sums[n - 1] == last);
	}
	print_row("host memory, one thread", one, n_bytes, 0);
	print_row("a memfd, all threads", all, n_bytes, 0);
	munmap(map, n_bytes);
	close(fd);
}

int main(int argc, char **argv)
{
	static struct bench b;
	double read[N_ROUNDS], sums[N_ROUNDS];

	on_device_warm_up();
	init(&b, argc > 1 ? strtoull(argv[1], NULL, 10) : 0);
	const struct vk_device_info *info = vk_device_get_info(b.d);
	printf("%s, %s\n%u pieces of 1 MiB; %d rounds: median (fastest to slowest)\n", info->name,
		info->driver, b.n_pieces, N_ROUNDS);
	/* Drivers compile at the first use. */
	(void)time_read(&b);
	(void)time_sums(&b);
	for (int i = 0; i < N_ROUNDS; i++) {
		read[i] = time_read(&b);
		sums[i] = time_sums(&b);
	}
	double r = print_row("plain read", read, b.n_bytes, 0);
	print_row("checksums", sums, b.n_bytes, r);
	bench_host(&b);
	fini(&b);
	return 0;
}
