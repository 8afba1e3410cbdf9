#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * y[i][j] = finish(sum over k of W[j][k] x[i][k]), on the device's matrices of f16 into f32
 *
 *	finish: STORE v; ADD r[i][j] + v; GATE silu(r[i][j]) v; SWIGLU silu(v of w[0]) (v of w[1])
 *	PARTIAL: y[s][i][j] = the sum over the s-th run of n_split_k of k, for matrix-sum.comp
 *
 * Shapes: w[p] [n[p]][k] in a block format, x [m][x_stride] f16 (stage.comp), y and r [m][y_stride]
 * f32. The outputs of the parts lie one behind the other in a row of y; SWIGLU has two parts of the
 * same n and one output of that width, with PARTIAL two.
 * Grid: x: ceil(m / BM), so that workgroups with the same rows of W run beside each other; y: tiles
 * of W times runs of k, tiles = sum over p of ceil(n[p] / BN), with SWIGLU ceil(n[0] / (BN / 2)).
 * Bindings: none; addresses in struct abi_matrix. Rows beyond *m are not stored.
 *
 * A workgroup has BN rows of W by BM rows of x, a subgroup of it SN by SM in its accumulators. A
 * step of BK of both is decoded into shared memory, while the words of the next one are on their
 * way; with two buffers a step costs one barrier instead of two. The order of a sum depends on k
 * and the tile's BK alone.
 */
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require

#include "common.glsl"
#include "matrix-dtype.glsl"

layout(constant_id = ABI_MATRIX_SPEC_BN) const int BN = 32;
layout(constant_id = ABI_MATRIX_SPEC_BM) const int BM = 32;
layout(constant_id = ABI_MATRIX_SPEC_BK) const int BK = 32;
layout(constant_id = ABI_MATRIX_SPEC_SN) const int SN = 32;
layout(constant_id = ABI_MATRIX_SPEC_SM) const int SM = 32;
layout(constant_id = ABI_MATRIX_SPEC_N) const int MAT_N = 16;
layout(constant_id = ABI_MATRIX_SPEC_M) const int MAT_M = 16;
layout(constant_id = ABI_MATRIX_SPEC_K) const int MAT_K = 16;
layout(constant_id = ABI_MATRIX_SPEC_BUFFERS) const int N_BUFFERS = 1;
layout(constant_id = ABI_MATRIX_SPEC_FINISH) const uint FINISH = ABI_TILE_FINISH_STORE;
layout(constant_id = ABI_MATRIX_SPEC_PARTIAL) const uint PARTIAL = 0;

layout(push_constant, std430) uniform Push
{
	abi_matrix push;
};

const bool IS_SWIGLU = FINISH == ABI_TILE_FINISH_SWIGLU;
const int BN_OUT = IS_SWIGLU ? BN / 2 : BN; /* rows of one matrix in a tile */
const int SN_OUT = IS_SWIGLU ? SN / 2 : SN;
const bool IS_FOLDED = IS_SWIGLU && PARTIAL == 0; /* gate and up become one output */
const int N_I = SM / MAT_M; /* accumulators of a subgroup */
const int N_J = SN / MAT_N;
const uint N_SUBGROUPS = uint((BN / SN) * (BM / SM));
const int N_THREADS = int(LOCAL_SIZE);

/*
 * Shared memory in quads of eight f16. One quad behind each row: rows that begin an odd number of
 * quads apart are read and written by eight lanes at once without meeting in a bank.
 */
const int ROW = BK / 8 + 1;
const int W_SIZE = BN * ROW;
const int BUFFER = (BN + BM) * ROW;
/* The results of a subgroup, MAT_M rows at a time, take the same memory when all is summed. */
const int OUT_ROW = SN / 4 + 2;
const int OUT_SIZE = MAT_M * OUT_ROW;
const int N_INPUT = N_BUFFERS * BUFFER;
const int N_OUTPUT = int(N_SUBGROUPS) * OUT_SIZE;
shared uvec4 stage[N_INPUT > N_OUTPUT ? N_INPUT : N_OUTPUT];

/* An invocation's share of a step. */
const int W_UNITS = BK / W_ELEMENTS; /* of a row */
const int N_W = (BN * W_UNITS + N_THREADS - 1) / N_THREADS;
const int X_UNITS = BK / 8;
const int N_X = (BM * X_UNITS + N_THREADS - 1) / N_THREADS;
/* Short rows: eight lanes take eight rows, or they would meet in banks. */
const bool IS_BY_ROWS = BK < 64;

uvec2 w_rows[N_W];
uint w_raw[N_W][W_RAW];
uint x_at[N_X];
uvec4 x_raw[N_X];
coopmat<float, gl_ScopeSubgroup, MAT_M, MAT_N, gl_MatrixUseAccumulator> sums[N_I][N_J];

/* Which rows of which matrix: the tile's first row j of part p, and its place in a row of y. */
struct tile {
	uint part;
	uint j;
	uint y_at;
};

bool find_tile(uint i, out tile ret)
{
	uint y_at = 0;

	[[unroll]] for (uint p = 0; p < ABI_MATMUL_MAX_PARTS; p++) {
		if (IS_SWIGLU && p > 0)
			break;
		uint n_tiles = (push.n[p] + BN_OUT - 1) / BN_OUT;
		if (i < n_tiles) {
			ret = tile(p, i * BN_OUT, y_at + i * BN_OUT);
			return true;
		}
		i -= n_tiles;
		y_at += push.n[p];
	}
	return false;
}

/* Unit i of the invocation's share: its row in the tile and its place in the row. */
uvec2 place(int i, int n_units)
{
	uint at = gl_LocalInvocationID.x + i * N_THREADS;

	if (IS_BY_ROWS)
		return uvec2(at % 8 + at / (8 * n_units) * 8, at / 8 % n_units);
	return uvec2(at / n_units, at % n_units);
}

bool has_w(int i)
{
	return (BN * W_UNITS) % N_THREADS == 0 ||
	       gl_LocalInvocationID.x + i * N_THREADS < BN * W_UNITS;
}

bool has_x(int i)
{
	return (BM * X_UNITS) % N_THREADS == 0 ||
	       gl_LocalInvocationID.x + i * N_THREADS < BM * X_UNITS;
}

/*
 * The address of row r of the tile; each subgroup's rows are half of the gate, half of the up
 * matrix with SWIGLU. Rows behind the matrix's last are the last one again.
 */
uvec2 w_row(tile t, uint r)
{
	bool is_up = IS_SWIGLU && r % SN >= SN_OUT;
	uint part = is_up ? 1 : t.part;
	uvec2 base = part == 0 ? push.w[0] : part == 1 ? push.w[1] : push.w[2];
	uint j = IS_SWIGLU ? r / SN * SN_OUT + r % SN_OUT : r;

	return address_at(base, min(t.j + j, push.n[t.part] - 1), push.n_row_bytes);
}

void start_tile(tile t, uint i0, uint m)
{
	[[unroll]] for (int i = 0; i < N_W; i++)
		if (has_w(i))
			w_rows[i] = w_row(t, place(i, W_UNITS).x);
	[[unroll]] for (int i = 0; i < N_X; i++) {
		uvec2 at = place(i, X_UNITS);
		x_at[i] = min(i0 + at.x, m - 1) * push.x_stride / 8 + at.y;
	}
	[[unroll]] for (int i = 0; i < N_I; i++)
		[[unroll]] for (int j = 0; j < N_J; j++)
			sums[i][j] = coopmat<float, gl_ScopeSubgroup, MAT_M, MAT_N,
				gl_MatrixUseAccumulator>(0.0);
}

/* Asks for step s. */
void load_step(uint s)
{
	[[unroll]] for (int i = 0; i < N_W; i++)
		if (has_w(i))
			w_load(w_rows[i], s * W_UNITS + place(i, W_UNITS).y, w_raw[i]);
	[[unroll]] for (int i = 0; i < N_X; i++)
		if (has_x(i))
			x_raw[i] = Quads(push.x).at[x_at[i] + s * X_UNITS];
}

/* Puts step s, which is loaded, where all can read it. */
void store_step(uint s, uint buffer_at)
{
	[[unroll]] for (int i = 0; i < N_W; i++) {
		uvec2 at = place(i, W_UNITS);
		uvec4 quads[W_QUADS];
		if (!has_w(i))
			continue;
		w_decode(w_rows[i], s * W_UNITS + at.y, w_raw[i], quads);
		[[unroll]] for (int q = 0; q < W_QUADS; q++)
			stage[buffer_at + at.x * ROW + at.y * W_QUADS + q] = quads[q];
	}
	[[unroll]] for (int i = 0; i < N_X; i++) {
		uvec2 at = place(i, X_UNITS);
		if (has_x(i))
			stage[buffer_at + W_SIZE + at.x * ROW + at.y] = x_raw[i];
	}
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

void multiply_step(uint buffer_at)
{
	uint w_at = buffer_at + first_n() * ROW;
	uint x_at = buffer_at + W_SIZE + first_m() * ROW;

	[[unroll]] for (int k = 0; k < BK / MAT_K; k++) {
		coopmat<float16_t, gl_ScopeSubgroup, MAT_K, MAT_N, gl_MatrixUseB> w[N_J];
		[[unroll]] for (int j = 0; j < N_J; j++)
			coopMatLoad(w[j], stage, w_at + j * MAT_N * ROW + k * MAT_K / 8, ROW,
				gl_CooperativeMatrixLayoutColumnMajor);
		[[unroll]] for (int i = 0; i < N_I; i++) {
			coopmat<float16_t, gl_ScopeSubgroup, MAT_M, MAT_K, gl_MatrixUseA> x;
			coopMatLoad(x, stage, x_at + i * MAT_M * ROW + k * MAT_K / 8, ROW,
				gl_CooperativeMatrixLayoutRowMajor);
			[[unroll]] for (int j = 0; j < N_J; j++)
				sums[i][j] = coopMatMulAdd(x, w[j], sums[i][j]);
		}
	}
}

void sum_steps(uint first, uint end)
{
	load_step(first);
	for (uint s = first; s < end; s++) {
		uint buffer_at = N_BUFFERS == 2 ? (s & 1) * BUFFER : 0;
		if (N_BUFFERS == 1)
			barrier();
		store_step(s, buffer_at);
		if (s + 1 < end)
			load_step(s + 1);
		barrier();
		multiply_step(buffer_at);
	}
}

float staged_output(uint at)
{
	return uintBitsToFloat(stage[at / 4][at % 4]);
}

/* Output v of row i in column j of the tile's matrix, which is column `at` of y. */
void store_output(uvec2 y, uvec2 r, uint i, uint at, float v)
{
	if (PARTIAL == 0 && (FINISH == ABI_TILE_FINISH_ADD || FINISH == ABI_TILE_FINISH_GATE)) {
		float before = Floats(address_at(r, i, 4 * push.y_stride)).at[at];
		v = FINISH == ABI_TILE_FINISH_ADD ? before + v : silu(before) * v;
	}
	FloatsOut(address_at(y, i, 4 * push.y_stride)).at[at] = v;
}

/* MAT_M rows of the subgroup's results, which begin at quad `at` of the shared memory. */
void store_rows(tile t, uint i0, uint m, uint at, uvec2 y)
{
	const int n_columns = IS_FOLDED ? SN_OUT : SN;
	uint column = first_n() / SN * SN_OUT; /* in the tile's matrix */

	[[unroll]] for (int e0 = 0; e0 < MAT_M * n_columns; e0 += int(SUBGROUP)) {
		uint e = e0 + lane();
		uint i = i0 + e / n_columns, c = e % n_columns;
		uint from = 4 * (at + e / n_columns * OUT_ROW) + c;
		bool is_up = IS_SWIGLU && c >= SN_OUT;
		uint j = column + (is_up ? c - SN_OUT : c);
		if (e >= MAT_M * n_columns || i >= m || t.j + j >= push.n[t.part])
			continue;
		float v = staged_output(from);
		if (IS_FOLDED)
			v = silu(v) * staged_output(from + SN_OUT);
		store_output(y, push.r, i, t.y_at + j + (is_up ? push.n[0] : 0), v);
	}
}

/* All sums, finished, where they lie in y. */
void store_tile(tile t, uint i0, uint m, uvec2 y)
{
	uint at = gl_SubgroupID * OUT_SIZE;

	barrier(); /* the last step's inputs are no longer read */
	[[unroll]] for (int i = 0; i < N_I; i++) {
		[[unroll]] for (int j = 0; j < N_J; j++)
			coopMatStore(sums[i][j], stage, at + j * MAT_N / 4, OUT_ROW,
				gl_CooperativeMatrixLayoutRowMajor);
		subgroupBarrier();
		store_rows(t, i0 + first_m() + i * MAT_M, m, at, y);
		subgroupBarrier();
	}
}

void main()
{
	uint m = Words(push.m).at[0];
	uint i0 = gl_WorkGroupID.x * BM;
	uint split = gl_WorkGroupID.y % push.n_splits;
	uint n_steps = push.k / BK;
	uint first = split * push.n_split_steps;
	uvec2 y = push.y;
	tile t;

	if (i0 >= m || !find_tile(gl_WorkGroupID.y / push.n_splits, t))
		return;
	if (PARTIAL != 0)
		y = address_at(y, split, push.n_split_bytes);
	start_tile(t, i0, m);
	sum_steps(first, min(first + push.n_split_steps, n_steps));
	store_tile(t, i0, m, y);
}
