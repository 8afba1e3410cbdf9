/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_MATRIX_WIDE_GLSL
#define SHADERS_MATRIX_WIDE_GLSL

/*
 * A tile of a matrix product as in matrix.glsl, with the same functions for and from the kernel, for
 * many rows of x: large tiles of subgroups, and everything under way at once. While a group of 16 of
 * k is multiplied, the operands of the next one come out of shared memory; in the groups of a step
 * but the last the next step is decoded into the other buffer, and the words of the one after it are
 * asked for. One barrier a step, in front of the last group, which is when nothing is left to be read
 * in this buffer.
 *
 * With ORDER shared memory has operands in the order in which a device's subgroups of 32 keep
 * matrices of 16 by 16 in registers, so that a lane loads all its numbers of one at once: lane
 * 4 g + t has rows g and g + 8, of each the numbers 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of k
 * (KERNELS_MATRIX_ORDER finds out). Without, rows lie as in matrix.glsl.
 *
 * Of four neighbours of k the middle ones change places, in both operands: quantized numbers come
 * two apart (matrix-unit.glsl). Included behind matrix-spec.glsl.
 */
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require

const bool HAS_ORDER = ORDER != 0;
const int GROUP = 16;
const int N_GROUPS = BK / GROUP;
#if defined(DTYPE_BLOCKS)
#define U_ELEMENTS 16
#define U_RAW 1
uint unit_magic;
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Quads { uvec4 at[]; };
#else
const bool UNITS_SHARE = BK == 32;
#include "matrix-unit.glsl"
#endif

const int N_K = GROUP / MAT_K;
const int N_I = SM / MAT_M; /* accumulators of a subgroup */
const int N_J = SN / MAT_N;
const uint N_SUBGROUPS = uint((BN / SN) * (BM / SM));
const int N_THREADS = int(LOCAL_SIZE);

/* Shared memory in quads of eight f16: of an order as they are, else with one behind each row. */
const int ROW = BK / 8 + (HAS_ORDER ? 0 : 1);
const int BLOCK = 32; /* quads of 16 rows of a group */
const int W_SIZE = BN * ROW;
const int BUFFER = (BN + BM) * ROW;
/* The results of a subgroup, MAT_M rows at a time, take the same memory when all is summed. */
const int OUT_ROW = SN / 4 + 2;
const int OUT_SIZE = MAT_M * OUT_ROW;
const int N_OUTPUT = int(N_SUBGROUPS) * OUT_SIZE;
shared uvec4 stage[2 * BUFFER > N_OUTPUT ? 2 * BUFFER : N_OUTPUT];

/*
 * An invocation's share of a step: of W units of rows r and r + 8; of x, and of W that lies in
 * blocks, quads of them.
 */
const int W_UNITS = BK / U_ELEMENTS;
#if defined(DTYPE_BLOCKS)
const int W_TASKS = BN * BK / 8;
#else
const int W_TASKS = BN / 2 * W_UNITS;
#endif
const int N_W = (W_TASKS + N_THREADS - 1) / N_THREADS;
const int X_TASKS = BM * BK / 8;
const int N_X = (X_TASKS + N_THREADS - 1) / N_THREADS;

/*
 * Tasks are written out, not counted by loops: arrays that a compiler does not see through in time
 * are memory. There are no more of them: op_matrix_tile_bind.
 */
#define EACH_OF_4(n, f)    \
	{                  \
		if (0 < n) \
			f(0) \
		if (1 < n) \
			f(1) \
		if (2 < n) \
			f(2) \
		if (3 < n) \
			f(3) \
	}
#define EACH_X(f) EACH_OF_4(N_X, f)
#if defined(DTYPE_BLOCKS)
#define EACH_W(f) EACH_OF_4(N_W, f)
#elif U_ELEMENTS == 8
#define EACH_W(f)            \
	{                    \
		f(0)         \
		if (1 < N_W) \
			f(1) \
	}
#else
#define EACH_W(f) f(0)
#endif
const int MAX_TASKS = 4;

#if defined(DTYPE_BLOCKS)
uvec2 w_bases[MAX_TASKS];
uint w_at[MAX_TASKS];
uvec4 w_quads[MAX_TASKS];
#else
/* Of rows r, and of rows r + 8: what is indexed in a loop may end up in memory. */
uvec2 w_rows[MAX_TASKS];
uvec2 w_rows_8[MAX_TASKS];
uint w_raw[MAX_TASKS][U_RAW];
uint w_raw_8[MAX_TASKS][U_RAW];
#endif
uint x_at[MAX_TASKS];
uvec4 x_raw[MAX_TASKS];
coopmat<float, gl_ScopeSubgroup, MAT_M, MAT_N, gl_MatrixUseAccumulator> sums[N_I][N_J];
/* The operands of a group, and those of the next: of an order as words until they are wanted. */
uvec4 w_words[2][N_J];
uvec4 x_words[2][N_I];
coopmat<float16_t, gl_ScopeSubgroup, MAT_K, MAT_N, gl_MatrixUseB> ws[2][N_J][N_K];
coopmat<float16_t, gl_ScopeSubgroup, MAT_M, MAT_K, gl_MatrixUseA> xs[2][N_I][N_K];

/* The kernel's, see matrix.glsl. */
uvec2 w_row(uint matrix, uint j);
uvec2 w_blocks(uint matrix);           /* the address of a matrix in blocks, */
uint w_block(uint matrix, uint j);     /* and which of its 16 rows row j of the tile is among */
uint x_row(uint i);
void store_output(uint i, uint j, float v);

/* Of W: a task's first row in the tile, its unit, group, and first of four pieces in it. */
struct task {
	uint row;
	uint unit;
	uint group;
	uint piece;
};

task get_task(int i)
{
	uint at = gl_LocalInvocationID.x + i * N_THREADS;
	uint pair = at / W_UNITS, unit = at % W_UNITS;

	return task(pair / 8 * 16 + pair % 8, unit, unit * U_ELEMENTS / GROUP,
		unit * U_ELEMENTS / 4 % 4);
}

bool has_w(int i)
{
	return W_TASKS % N_THREADS == 0 || gl_LocalInvocationID.x + i * N_THREADS < W_TASKS;
}

bool has_x(int i)
{
	return X_TASKS % N_THREADS == 0 || gl_LocalInvocationID.x + i * N_THREADS < X_TASKS;
}

/*
 * By which its quads of a block change places, so that eight lanes that write at once, or read, meet
 * in no bank.
 */
uint turn_w(uint row, uint group)
{
#if defined(DTYPE_BLOCKS)
	return 0;
#else
	if (U_ELEMENTS == 8)
		return group & 1;
	return N_GROUPS == 2 ? group << 1 & 2 | row >> 1 & 1 : group & 3;
#endif
}

/* The subgroup's first row of W and of x in the tile. */
uint first_n()
{
	return gl_SubgroupID % (BN / SN) * SN;
}

uint first_m()
{
	return gl_SubgroupID / (BN / SN) * SM;
}

/* Quad `at` of the blocks of a step that are of 16 rows: where it is in all blocks of k numbers. */
uint get_block_quad(uint at, uint rows, uint k)
{
	return rows * (k / GROUP) * BLOCK + at % (N_GROUPS * BLOCK);
}

#if !defined(DTYPE_BLOCKS)
/* Row r of a tile of W. */
uvec2 find_row(uint r)
{
	if (IS_SWIGLU)
		return w_row(r % SN / SN_OUT, r / SN * SN_OUT + r % SN_OUT);
	return w_row(0, r);
}
#endif

void start_w(int i, uint k)
{
#if defined(DTYPE_BLOCKS)
	uint at = gl_LocalInvocationID.x + i * N_THREADS;
	uint r = at / (N_GROUPS * BLOCK) * 16;
	uint matrix = IS_SWIGLU ? r % SN / SN_OUT : 0;

	w_bases[i] = w_blocks(matrix);
	w_at[i] = get_block_quad(
		at, w_block(matrix, IS_SWIGLU ? r / SN * SN_OUT + r % SN_OUT : r), k);
#else
	if (!has_w(i))
		return;
	w_rows[i] = find_row(get_task(i).row);
	w_rows_8[i] = find_row(get_task(i).row + 8);
#endif
}

void start_x(int i, uint k)
{
	uint at = gl_LocalInvocationID.x + i * N_THREADS;

	x_at[i] = get_block_quad(at, x_row(at / (N_GROUPS * BLOCK) * 16) / 16, k);
}

/* k: numbers of a row, a multiple of BK. */
void start_tile(uint k)
{
	unit_magic = 0x64006400u + (k >> 31); /* a row is not that long */
#define START_W(i) start_w(i, k);
#define START_X(i) start_x(i, k);
	EACH_W(START_W)
	EACH_X(START_X)
	[[unroll]] for (int i = 0; i < N_I; i++)
		[[unroll]] for (int j = 0; j < N_J; j++)
			sums[i][j] = coopmat<float, gl_ScopeSubgroup, MAT_M, MAT_N,
				gl_MatrixUseAccumulator>(0.0);
}

void load_w(int i, uint s)
{
#if defined(DTYPE_BLOCKS)
	if (has_w(i))
		w_quads[i] = Quads(w_bases[i]).at[w_at[i] + s * (N_GROUPS * BLOCK)];
#else
	if (!has_w(i))
		return;
	unit_load(w_rows[i], s * W_UNITS, get_task(i).unit, w_raw[i]);
	unit_load(w_rows_8[i], s * W_UNITS, get_task(i).unit, w_raw_8[i]);
#endif
}

void load_x(int i, uvec2 x, uint s)
{
	if (has_x(i))
		x_raw[i] = Quads(x).at[x_at[i] + s * (N_GROUPS * BLOCK)];
}

/* A piece of row r, where rows are as they are. */
void put_piece(uint at, uint row, uint group, uint piece, uvec2 v)
{
	at += row * ROW + 2 * group + piece / 2;
	if (piece % 2 == 0)
		stage[at].xy = v;
	else
		stage[at].zw = v;
}

/* Unit i of step s, which is loaded, where all can read it. */
void store_w(int i, uint s, uint buffer_at)
{
	if (!has_w(i))
		return;
#if defined(DTYPE_BLOCKS)
	uint at = gl_LocalInvocationID.x + i * N_THREADS;
	if (HAS_ORDER) {
		stage[buffer_at + at] = w_quads[i];
		return;
	}
	uint row = at / (N_GROUPS * BLOCK) * 16 + at % BLOCK / 4, group = at / BLOCK % N_GROUPS;
	put_piece(buffer_at, row, group, at % 4, w_quads[i].xy);
	put_piece(buffer_at, row + 8, group, at % 4, w_quads[i].zw);
#else
	task t = get_task(i);
	uvec2 a[U_PIECES], b[U_PIECES];

	unit_decode(w_rows[i], s * W_UNITS, t.unit, w_raw[i], a);
	unit_decode(w_rows_8[i], s * W_UNITS, t.unit, w_raw_8[i], b);
	uint block_at = buffer_at + (t.row / 16 * N_GROUPS + t.group) * BLOCK + t.row % 16 * 4;
	[[unroll]] for (int q = 0; q < U_PIECES; q++) {
		if (HAS_ORDER) {
			stage[block_at + (t.piece + q ^ turn_w(t.row, t.group))] =
				uvec4(a[q], b[q]);
			continue;
		}
		put_piece(buffer_at, t.row, t.group, t.piece + q, a[q]);
		put_piece(buffer_at, t.row + 8, t.group, t.piece + q, b[q]);
	}
#endif
}

void store_x(int i, uint buffer_at)
{
	uint at = gl_LocalInvocationID.x + i * N_THREADS;

	if (!has_x(i))
		return;
	if (HAS_ORDER) {
		stage[buffer_at + W_SIZE + at] = x_raw[i];
		return;
	}
	uint row = at / (N_GROUPS * BLOCK) * 16 + at % BLOCK / 4, group = at / BLOCK % N_GROUPS;
	put_piece(buffer_at + W_SIZE, row, group, at % 4, x_raw[i].xz);
	put_piece(buffer_at + W_SIZE, row + 8, group, at % 4, x_raw[i].yw);
}

void load_step(uvec2 x, uint s)
{
#define LOAD_W(i) load_w(i, s);
#define LOAD_X(i) load_x(i, x, s);
	EACH_W(LOAD_W)
	EACH_X(LOAD_X)
}

void store_step(uint s, uint buffer_at)
{
#define STORE_W(i) store_w(i, s, buffer_at);
#define STORE_X(i) store_x(i, buffer_at);
	EACH_W(STORE_W)
	EACH_X(STORE_X)
}

/* Which pair of a lane's numbers is of its row g or g + 8, and of the lower or upper half of k. */
const int ORDER_X = ORDER & 0xff;
const int ORDER_W = ORDER >> 8 & 0xff;

#define SET(mat, word, v)                                \
	{                                                \
		f16vec2 both = unpackFloat2x16(v);       \
		(mat)[2 * (word)] = both.x;              \
		(mat)[2 * (word) + 1] = both.y;          \
	}

/* What the lane reads of a block of W, counted from its begin. */
uint lane_w(int group)
{
	return lane() ^ turn_w(lane() / 4, group);
}

/* Matrix j of W of a group, from a buffer; matrix i of x. */
void read_w(int set, int j, uint buffer_at, int group)
{
	if (HAS_ORDER) {
		w_words[set][j] = stage[buffer_at + (first_n() / 16 + j) * N_GROUPS * BLOCK +
					group * BLOCK + lane_w(group)];
		return;
	}
	[[unroll]] for (int k = 0; k < N_K; k++)
		coopMatLoad(ws[set][j][k], stage,
			buffer_at + (first_n() + j * MAT_N) * ROW + 2 * group + k * MAT_K / 8, ROW,
			gl_CooperativeMatrixLayoutColumnMajor);
}

void read_x(int set, int i, uint buffer_at, int group)
{
	if (HAS_ORDER) {
		x_words[set][i] = stage[buffer_at + W_SIZE +
					(first_m() / 16 + i) * N_GROUPS * BLOCK + group * BLOCK +
					lane()];
		return;
	}
	[[unroll]] for (int k = 0; k < N_K; k++)
		coopMatLoad(xs[set][i][k], stage,
			buffer_at + W_SIZE + (first_m() + i * MAT_M) * ROW + 2 * group +
				k * MAT_K / 8,
			ROW, gl_CooperativeMatrixLayoutRowMajor);
}

void multiply_words(int set, int i)
{
	coopmat<float16_t, gl_ScopeSubgroup, MAT_M, MAT_K, gl_MatrixUseA> x;
	uvec4 v = x_words[set][i];

	SET(x, ORDER_X & 3, v.x);
	SET(x, ORDER_X >> 4 & 3, v.y);
	SET(x, ORDER_X >> 2 & 3, v.z);
	SET(x, ORDER_X >> 6 & 3, v.w);
	[[unroll]] for (int j = 0; j < N_J; j++) {
		coopmat<float16_t, gl_ScopeSubgroup, MAT_K, MAT_N, gl_MatrixUseB> w;
		v = w_words[set][j];
		SET(w, ORDER_W & 3, v.x);
		SET(w, ORDER_W >> 2 & 3, v.y);
		SET(w, ORDER_W >> 4 & 3, v.z);
		SET(w, ORDER_W >> 6 & 3, v.w);
		sums[i][j] = coopMatMulAdd(x, w, sums[i][j]);
	}
}

void multiply(int set, int i)
{
	if (HAS_ORDER) {
		multiply_words(set, i);
		return;
	}
	[[unroll]] for (int k = 0; k < N_K; k++)
		[[unroll]] for (int j = 0; j < N_J; j++)
			sums[i][j] = coopMatMulAdd(xs[set][i][k], ws[set][j][k], sums[i][j]);
}

/* What goes on between multiplications, in N_I parts, of which this is the i-th. */
void read_part(int i, int set, uint buffer_at, int group)
{
	read_x(set, i, buffer_at, group);
	[[unroll]] for (int j = 0; j < N_J; j++)
		if (j * N_I / N_J == i)
			read_w(set, j, buffer_at, group);
}

void store_part(int part, int n_parts, uvec2 x, uint next, uint after, uint buffer_at)
{
#define PASS_W(i)                                        \
	if (i * n_parts / (N_W + N_X) == part) {         \
		store_w(i, next, buffer_at);             \
		load_w(i, after);                        \
	}
#define PASS_X(i)                                        \
	if ((N_W + i) * n_parts / (N_W + N_X) == part) { \
		store_x(i, buffer_at);                   \
		load_x(i, x, after);                     \
	}
	EACH_W(PASS_W)
	EACH_X(PASS_X)
}

/*
 * Where there is nothing to decode, operands of both groups of a step are read at its begin: with so
 * little else to do a compiler has all of it under way by itself.
 */
#if defined(DTYPE_BLOCKS)
const bool IS_AHEAD = N_GROUPS != 2;
#else
const bool IS_AHEAD = true;
#endif

void sum_step_whole(uvec2 x, uint next, uint after, const uint buffer_at, const uint other_at)
{
	barrier();
	[[unroll]] for (int g = 0; g < 2; g++)
		[[unroll]] for (int i = 0; i < N_I; i++)
			read_part(i, g, buffer_at, g);
	[[unroll]] for (int i = 0; i < N_I; i++)
		multiply(0, i);
	store_step(next, other_at);
	load_step(x, after);
	[[unroll]] for (int i = 0; i < N_I; i++)
		multiply(1, i);
}

/* Step s out of a buffer, and the next one into the other. */
void sum_step(uvec2 x, uint s, uint end, const uint buffer_at, const uint other_at)
{
	uint next = min(s + 1, end - 1), after = min(s + 2, end - 1);

	if (!IS_AHEAD) {
		sum_step_whole(x, next, after, buffer_at, other_at);
		return;
	}
	[[unroll]] for (int g = 0; g < N_GROUPS; g++) {
		bool is_last = g == N_GROUPS - 1;
		if (is_last)
			barrier();
		[[unroll]] for (int i = 0; i < N_I; i++) {
			read_part(i, (g + 1) % 2, is_last ? other_at : buffer_at,
				(g + 1) % N_GROUPS);
			multiply(g % 2, i);
			if (!is_last)
				store_part(g * N_I + i, (N_GROUPS - 1) * N_I, x, next, after,
					other_at);
		}
	}
}

/*
 * All steps of [first, end); x: the address of row 0; x_stride as above. Behind the end the last
 * step is loaded and stored again: no branch is in the way of either. All have read and written
 * shared memory for the last time.
 */
void sum_steps(uvec2 x, uint x_stride, uint first, uint end, uint n_live)
{
	load_step(x, first);
	store_step(first, 0);
	load_step(x, min(first + 1, end - 1));
	if (IS_AHEAD) {
		barrier();
		[[unroll]] for (int i = 0; i < N_I; i++)
			read_part(i, 0, 0, 0);
	}
	/* Two at a time, so that places in shared memory are the same in each round. */
	for (uint s = first; s < end; s += 2) {
		sum_step(x, s, end, 0, BUFFER);
		if (s + 1 == end)
			break;
		sum_step(x, s + 1, end, BUFFER, 0);
	}
	barrier();
}

#include "matrix-store.glsl"

void store_rows(uint i0, uint n_live, uint at)
{
	uint j0 = first_n() / SN * SN_OUT;

	for (uint e = lane(); e < MAT_M * SN_OUT; e += SUBGROUP) {
		uint i = e / SN_OUT, c = e % SN_OUT;
		uint from = 4 * (at + i * OUT_ROW) + c;
		if (i0 + i >= n_live)
			continue;
		float v = finished_output(from);
		store_output(i0 + i, j0 + c, v);
	}
}

#endif
