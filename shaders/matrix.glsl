/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_MATRIX_GLSL
#define SHADERS_MATRIX_GLSL

/*
 * A tile of a matrix product on the device's matrices of f16 into f32: a workgroup has BN rows of W
 * by BM rows of x, a subgroup of it SN by SM in its accumulators. A step of BK of both is decoded
 * into shared memory, while the words of the next one are on their way. With two buffers that is
 * done between the multiplications of the step before, and costs one barrier instead of two.
 *
 * The kernel says which rows they are, w_row() and x_row(), and takes the sums in store_output().
 * With SWIGLU half of each subgroup's rows of W are of the gate, half of the up matrix, in the same
 * order. Rows of x from n_live on are not stored; with RAGGED they are not multiplied either, as far
 * as whole matrices have none before. With DIRECT subgroups load x themselves, from rows that follow
 * x_row(0) and can be read up to BM. Included behind
 * matrix-dtype.glsl and matrix-spec.glsl.
 */
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require

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
const int BUFFER = (BN + (DIRECT != 0 ? 0 : BM)) * ROW;
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
const int N_X = DIRECT != 0 ? 1 : (BM * X_UNITS + N_THREADS - 1) / N_THREADS;
/* Short rows: eight lanes take eight rows, or they would meet in banks. */
const bool IS_BY_ROWS = BK < 64;

uvec2 w_rows[N_W];
uint w_raw[N_W][W_RAW];
uint x_at[N_X];
uvec4 x_raw[N_X];
coopmat<float, gl_ScopeSubgroup, MAT_M, MAT_N, gl_MatrixUseAccumulator> sums[N_I][N_J];

/* The kernel's: the address of row j of a matrix (0, or 1: SWIGLU's up) of the tile. */
uvec2 w_row(uint matrix, uint j);

/* The kernel's: which row of x is row i of the tile; something to read from n_live on too. */
uint x_row(uint i);

/*
 * The kernel's: v is of row i of the tile, i < n_live, and row j of the matrix, finished with SWIGLU;
 * j may be behind the matrix's last.
 */
void store_output(uint i, uint j, float v);

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
	return DIRECT == 0 && ((BM * X_UNITS) % N_THREADS == 0 ||
				      gl_LocalInvocationID.x + i * N_THREADS < BM * X_UNITS);
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

/* x_stride: f16s, a multiple of 8. */
void start_tile(uint x_stride)
{
	[[unroll]] for (int i = 0; i < N_W; i++) {
		uint r = place(i, W_UNITS).x;
		if (has_w(i) && IS_SWIGLU)
			w_rows[i] = w_row(r % SN / SN_OUT, r / SN * SN_OUT + r % SN_OUT);
		else if (has_w(i))
			w_rows[i] = w_row(0, r);
	}
	[[unroll]] for (int i = 0; i < N_X; i++) {
		uvec2 at = place(i, X_UNITS);
		if (has_x(i))
			x_at[i] = x_row(at.x) * (x_stride / 8) + at.y;
	}
	if (DIRECT != 0)
		x_at[0] = (x_row(0) + first_m()) * (x_stride / 8);
	[[unroll]] for (int i = 0; i < N_I; i++)
		[[unroll]] for (int j = 0; j < N_J; j++)
			sums[i][j] = coopmat<float, gl_ScopeSubgroup, MAT_M, MAT_N,
				gl_MatrixUseAccumulator>(0.0);
}

/* Asks for unit i of step s of W, of x. */
void load_w(int i, uint s)
{
	if (has_w(i))
		w_load(w_rows[i], s * W_UNITS + place(i, W_UNITS).y, w_raw[i]);
}

void load_x(int i, uvec2 x, uint s)
{
	if (has_x(i))
		x_raw[i] = Quads(x).at[x_at[i] + s * X_UNITS];
}

/* Puts unit i of step s, which is loaded, where all can read it. */
void store_w(int i, uint s, uint buffer_at)
{
	uvec2 at = place(i, W_UNITS);
	uvec4 quads[W_QUADS];

	if (!has_w(i))
		return;
	w_decode(w_rows[i], s * W_UNITS + at.y, w_raw[i], quads);
	[[unroll]] for (int q = 0; q < W_QUADS; q++)
		stage[buffer_at + at.x * ROW + at.y * W_QUADS + q] = quads[q];
}

void store_x(int i, uint buffer_at)
{
	uvec2 at = place(i, X_UNITS);

	if (has_x(i))
		stage[buffer_at + W_SIZE + at.x * ROW + at.y] = x_raw[i];
}

void load_step(uvec2 x, uint s)
{
	[[unroll]] for (int i = 0; i < N_W; i++)
		load_w(i, s);
	[[unroll]] for (int i = 0; i < N_X; i++)
		load_x(i, x, s);
}

void store_step(uint s, uint buffer_at)
{
	[[unroll]] for (int i = 0; i < N_W; i++)
		store_w(i, s, buffer_at);
	[[unroll]] for (int i = 0; i < N_X; i++)
		store_x(i, buffer_at);
}

/* What a step is multiplied out of. */
struct operands {
	uint w_at; /* of the subgroup, in shared memory */
	uint x_at;
	uvec2 x;   /* with DIRECT: its address and quads, from row 0 and from one row to the next */
	uint x_quad;
	uint x_stride;
	uint n_live;
};

/* MAT_K of k. */
void multiply(operands o, int k)
{
	coopmat<float16_t, gl_ScopeSubgroup, MAT_K, MAT_N, gl_MatrixUseB> w[N_J];

	[[unroll]] for (int j = 0; j < N_J; j++)
		coopMatLoad(w[j], stage, o.w_at + j * MAT_N * ROW + k * MAT_K / 8, ROW,
			gl_CooperativeMatrixLayoutColumnMajor);
	[[unroll]] for (int i = 0; i < N_I; i++) {
		coopmat<float16_t, gl_ScopeSubgroup, MAT_M, MAT_K, gl_MatrixUseA> x;
		if (RAGGED != 0 && first_m() + i * MAT_M >= o.n_live)
			continue;
		if (DIRECT != 0)
			coopMatLoad(x, Quads(o.x).at,
				o.x_quad + i * MAT_M * o.x_stride + k * MAT_K / 8, o.x_stride,
				gl_CooperativeMatrixLayoutRowMajor);
		else
			coopMatLoad(x, stage, o.x_at + i * MAT_M * ROW + k * MAT_K / 8, ROW,
				gl_CooperativeMatrixLayoutRowMajor);
		[[unroll]] for (int j = 0; j < N_J; j++)
			sums[i][j] = coopMatMulAdd(x, w[j], sums[i][j]);
	}
}

operands get_operands(uvec2 x, uint x_stride, uint s, uint buffer_at, uint n_live)
{
	return operands(buffer_at + first_n() * ROW, buffer_at + W_SIZE + first_m() * ROW, x,
		x_at[0] + s * X_UNITS, x_stride / 8, n_live);
}

/*
 * With two buffers: the units of the next step go into the other one between the multiplications of
 * this one, and those of the step after it are asked for in the same breath. Behind the end the last
 * step is loaded and stored again: no branch is in the way of either.
 */
void sum_steps_twofold(uvec2 x, uint x_stride, uint first, uint end, uint n_live)
{
	const int n_k = BK / MAT_K;
	uint buffer_at = 0;

	load_step(x, first);
	store_step(first, buffer_at);
	load_step(x, min(first + 1, end - 1));
	for (uint s = first; s < end; s++) {
		operands o = get_operands(x, x_stride, s, buffer_at, n_live);
		uint next = min(s + 1, end - 1), after = min(s + 2, end - 1);
		uint other_at = BUFFER - buffer_at;
		barrier();
		[[unroll]] for (int k = 0; k < n_k; k++) {
			multiply(o, k);
			/* Loops whose bounds a compiler must find out may keep arrays in memory. */
			[[unroll]] for (int i = 0; i < N_W; i++)
				if (i * n_k / N_W == k) {
					store_w(i, next, other_at);
					load_w(i, after);
				}
			[[unroll]] for (int i = 0; i < N_X; i++)
				if (i * n_k / N_X == k) {
					store_x(i, other_at);
					load_x(i, x, after);
				}
		}
		buffer_at = other_at;
	}
	barrier();
}

/*
 * All steps of [first, end); x: the address of row 0; x_stride as above. All have read and written
 * shared memory for the last time.
 */
void sum_steps(uvec2 x, uint x_stride, uint first, uint end, uint n_live)
{
	if (N_BUFFERS == 2) {
		sum_steps_twofold(x, x_stride, first, end, n_live);
		return;
	}
	load_step(x, first);
	for (uint s = first; s < end; s++) {
		operands o = get_operands(x, x_stride, s, 0, n_live);
		store_step(s, 0);
		if (s + 1 < end)
			load_step(x, s + 1);
		barrier();
		[[unroll]] for (int k = 0; k < BK / MAT_K; k++)
			multiply(o, k);
		barrier();
	}
}

#include "matrix-store.glsl"

void store_rows(uint i0, uint n_live, uint at)
{
	uint j0 = first_n() / SN * SN_OUT;

	[[unroll]] for (int e0 = 0; e0 < MAT_M * SN_OUT; e0 += int(SUBGROUP)) {
		uint e = e0 + lane();
		uint i = e / SN_OUT, c = e % SN_OUT;
		uint from = 4 * (at + i * OUT_ROW) + c;
		if (e >= MAT_M * SN_OUT || i0 + i >= n_live)
			continue;
		float v = finished_output(from);
		store_output(i0 + i, j0 + c, v);
	}
}

#endif
