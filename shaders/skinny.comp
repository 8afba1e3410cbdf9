#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * y[i][j] = finish(sum over k of W[j][k] x[i][k]) of 2 to 64 rows x, on the device's matrices
 *
 *	finish: STORE v; ADD r[i][j] + v; GATE silu(r[i][j]) v; SWIGLU silu(v of w[0]) (v of w[1])
 *
 * W is much and x is little, so W goes from memory into the registers that the multiplication reads:
 * a lane loads what it needs of its rows of W and decodes it in place. That takes a driver that gives
 * the elements of matrices to lanes as workerd/ops/fragment.h says; which number of k an element is,
 * is free, and x lies as W falls out of its bits (skinny-order.glsl).
 *
 * A workgroup has GROUPS times FRAGMENTS matrices of rows of W, and SETS times eight rows of x, which
 * are all. SHARES subgroups have the same rows and each a share of k, and n_splits workgroups, too:
 * the one that ends last adds their sums, in the order of k.
 *
 * Shapes: w[p] [n[p]][k] in a block format, x [m][k] f16 as skinny-stage.comp leaves them, y and r
 * [m][y_stride] f32. The outputs of the parts lie one behind the other in a row of y; SWIGLU has two
 * parts of the same n and one output of that width.
 * Grid: x: n_splits for each tile, which are beside each other; tiles: ceil(n[p] / rows of a
 * workgroup) for each p, with SWIGLU ceil(n[0] / half of them).
 * Bindings: none; addresses in struct abi_skinny. Rows beyond *m are not stored. With NEXT what is
 * stored is the next op's x, in its order, instead of y; its counters are set to 0.
 */
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require

#include "common.glsl"

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Quads { uvec4 at[]; };

#include "skinny-dtype.glsl"

layout(constant_id = ABI_SKINNY_SPEC_FRAGMENTS) const int FRAGMENTS = 2;
layout(constant_id = ABI_SKINNY_SPEC_SETS) const int SETS = 1;
layout(constant_id = ABI_SKINNY_SPEC_GROUPS) const int GROUPS = 4;
layout(constant_id = ABI_SKINNY_SPEC_SHARES) const int SHARES = 1;
layout(constant_id = ABI_SKINNY_SPEC_M) const int MAT_M = 16;
layout(constant_id = ABI_SKINNY_SPEC_K) const int MAT_K = 16;
layout(constant_id = ABI_SKINNY_SPEC_LANES) const int LANES = 4; /* that share a row of W */
layout(constant_id = ABI_SKINNY_SPEC_FINISH) const uint FINISH = ABI_TILE_FINISH_STORE;
layout(constant_id = ABI_SKINNY_SPEC_STEP) const uint STEP = 0; /* lanes run in step, see sync */

layout(constant_id = ABI_SKINNY_SPEC_NEXT) const uint NEXT = 0; /* 1 + ABI_SKINNY_ORDER_* */

layout(push_constant, std430) uniform Push
{
	abi_skinny push;
};

layout(buffer_reference, std430, buffer_reference_align = 16) coherent buffer Partials
{
	float at[];
};
layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer Counters
{
	uint at[];
};

layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer QuadsOut
{
	uvec4 at[];
};

const uint ORDER = NEXT - 1;
#include "skinny-order.glsl"

const bool IS_SWIGLU = FINISH == ABI_TILE_FINISH_SWIGLU;
const int MAT_N = ABI_SKINNY_COLUMNS;
const int S = int(SUBGROUP);
const int ROWS = MAT_M * LANES / S;    /* of W of a lane, in a matrix */
const int COLUMNS = MAT_N * LANES / S; /* rows of x of a lane, in a set */
const int DEPTH = MAT_K / LANES;       /* numbers of k of a lane, in a matrix */
const int QUADS = 16 / LANES; /* units of eight numbers of a lane, in a chunk */
const int N_ROWS = FRAGMENTS * ROWS;

const int N_BLOCKS = IS_SWIGLU ? FRAGMENTS / 2 : FRAGMENTS; /* matrices of rows of one matrix W */
const int GROUP_OUT = N_BLOCKS * MAT_M;                     /* outputs of a subgroup */
const int TILE_OUT = GROUPS * GROUP_OUT;

/*
 * Shared memory in quads: of each subgroup the slice of its rows, then the sums of one set on their
 * way to other subgroups and to y, [GROUPS][FRAGMENTS][MAT_N][MAT_M] f32.
 */
const int SUM_QUADS = MAT_N * MAT_M / 4;
const int N_SUM = GROUPS * FRAGMENTS * SUM_QUADS;
#if defined(W_DIRECT)
shared uvec4 stage[N_SUM];
#else
const int W_QUADS = FRAGMENTS * MAT_M * W_STRIDE;
/* A last word is read together with the one behind it. */
const int N_SLICES = GROUPS * SHARES * W_QUADS + 1;
shared uvec4 stage[N_SUM > N_SLICES ? N_SUM : N_SLICES];
#endif
shared bool is_last;

/* Of the workgroup: its first row j of W of part p, and its place in a row of y. */
struct tile {
	uint part;
	uint j;
	uint y_at;
};

tile t;
uint n_m; /* rows of x */
coopmat<float, gl_ScopeSubgroup, MAT_M, MAT_N, gl_MatrixUseAccumulator> sums[FRAGMENTS][SETS];

tile get_tile(uint i)
{
	uint y_at = 0;

	[[unroll]] for (uint p = 0; p < ABI_MATMUL_MAX_PARTS - 1; p++) {
		uint n_tiles = (push.n[p] + TILE_OUT - 1) / TILE_OUT;
		if (IS_SWIGLU || i < n_tiles)
			return tile(p, i * TILE_OUT, y_at + i * TILE_OUT);
		i -= n_tiles;
		y_at += push.n[p];
	}
	return tile(ABI_MATMUL_MAX_PARTS - 1, i * TILE_OUT, y_at + i * TILE_OUT);
}

/* Which rows of W the subgroup has, and which share of k. */
uint group()
{
	return gl_SubgroupID % GROUPS;
}

uint share()
{
	return gl_SubgroupID / GROUPS;
}

/* The matrix W of fragment f. */
uvec2 matrix_of(int f)
{
	uint part = t.part + (f < N_BLOCKS ? 0 : 1);

	return part == 0 ? push.w[0] : part == 1 ? push.w[1] : push.w[2];
}

/* The row of it that is row i of fragment f; those behind the last are the last one again. */
uint row_of(int f, uint i)
{
	return min(t.j + group() * GROUP_OUT + f % N_BLOCKS * MAT_M + i, push.n[t.part] - 1);
}

/*
 * Lanes of the subgroup see what they wrote. The software driver makes subgroupBarrier one of the
 * workgroup, which subgroups that come to it more often than others do not survive (Mesa 26.1); its
 * lanes run in step.
 */
void sync()
{
	if (STEP == 0)
		subgroupBarrier();
	else
		subgroupMemoryBarrierShared();
}

/* Of the four pieces of a chunk the lane's, and the first of its units in it. */
uint piece()
{
	return lane() % LANES * QUADS / W_PIECES;
}

uint unit()
{
	return QUADS == 4 ? 0 : lane() % LANES * QUADS % 4;
}

#if defined(W_DIRECT)
uint row_at[N_ROWS]; /* quads from the matrix's begin */
uvec4 w_raw[W_CHUNKS][N_ROWS][W_VECS];
#if defined(W_HEAD)
uvec4 w_head[N_ROWS]; /* of the next slice */
uint w_factors[N_ROWS][2][2];
#endif

void start_rows()
{
	[[unroll]] for (int i = 0; i < N_ROWS; i++)
		row_at[i] = row_of(i / ROWS, lane() / LANES + i % ROWS * (S / LANES)) *
			    (push.n_row_bytes / 16);
}

void load_chunk(uint slice, int c)
{
	[[unroll]] for (int i = 0; i < N_ROWS; i++)
		w_load(matrix_of(i / ROWS), row_at[i], slice, c, piece(), w_raw[c][i]);
}

void load_head(uint slice)
{
#if defined(W_HEAD)
	[[unroll]] for (int i = 0; i < N_ROWS; i++)
		w_head[i] = w_load_head(matrix_of(i / ROWS), row_at[i], slice);
#endif
}

void take_head()
{
#if defined(W_HEAD)
	[[unroll]] for (int i = 0; i < N_ROWS; i++)
		w_take_head(w_head[i], piece(), w_factors[i]);
#endif
}

void get_piece(uint slice, int c, int i, out uint raw[W_RAW])
{
	[[unroll]] for (int v = 0; v < W_VECS; v++)
		[[unroll]] for (int e = 0; e < 4; e++)
			raw[4 * v + e] = w_raw[c][i][v][e];
#if defined(W_HEAD)
	raw[4] = w_factors[i][c][0];
	raw[5] = w_factors[i][c][1];
#endif
}

#else

const int N_LOADS = (FRAGMENTS * MAT_M * W_ROW_VECS + S - 1) / S;

uvec4 w_raw[N_LOADS];

uint stage_word(uint at)
{
	return stage[at / 16][at / 4 % 4];
}

/* The lane's i-th quad of a slice: its row in the subgroup's, and its place in the row. */
uvec2 load_place(int i)
{
	uint at = i * S + lane();

	return uvec2(min(at / W_ROW_VECS, FRAGMENTS * MAT_M - 1), at % W_ROW_VECS);
}

bool has_load(int i)
{
	return (i + 1) * S <= FRAGMENTS * MAT_M * W_ROW_VECS ||
	       i * S + lane() < FRAGMENTS * MAT_M * W_ROW_VECS;
}

uint slice_begin(int f, uint row, uint slice)
{
	return row_of(f, row) * push.n_row_bytes + slice * W_BYTES;
}

/* What is behind the matrix's end is read from before it: nobody uses it. */
void load_slice(uint slice)
{
	uint last = push.n[t.part] * push.n_row_bytes / 16 - 1;

	[[unroll]] for (int i = 0; i < N_LOADS; i++) {
		uvec2 at = load_place(i);
		int f = int(at.x) / MAT_M;
		uint quad = slice_begin(f, at.x % MAT_M, slice) / 16 + at.y;
		if (has_load(i))
			w_raw[i] = Quads(matrix_of(f)).at[min(quad, last)];
	}
}

void store_slice()
{
	[[unroll]] for (int i = 0; i < N_LOADS; i++) {
		uvec2 at = load_place(i);
		if (has_load(i))
			stage[gl_SubgroupID * W_QUADS + at.x * W_STRIDE + at.y] = w_raw[i];
	}
}

void get_piece(uint slice, int c, int i, out uint raw[W_RAW])
{
	uint row = lane() / LANES + i % ROWS * (S / LANES);
	uint begin = slice_begin(i / ROWS, row, slice) % 16;
	uint at = gl_SubgroupID * W_QUADS + (i / ROWS * MAT_M + row) * W_STRIDE;

	w_piece(16 * at + begin, c, piece(), raw);
}

#endif

float16_t number(uvec4 v, int i)
{
	return halves(v[i / 2])[i % 2];
}

/* x of unit q of chunk `chunk` of the whole row: of each set and row that the lane has. */
void load_x(uint chunk, int q, out uvec4 x[SETS][COLUMNS])
{
	uint at = (chunk * SETS * QUADS + q) * COLUMNS * S + lane();

	[[unroll]] for (int s = 0; s < SETS; s++)
		[[unroll]] for (int j = 0; j < COLUMNS; j++)
			x[s][j] = Quads(push.x).at[at + (s * QUADS * COLUMNS + j) * S];
}

/* Adds the products of the numbers from k on of a unit, as many as a matrix has of a lane. */
void multiply_unit(uvec4 x[SETS][COLUMNS], uvec4 w[N_ROWS], int k)
{
	coopmat<float16_t, gl_ScopeSubgroup, MAT_K, MAT_N, gl_MatrixUseB> b[SETS];

	[[unroll]] for (int s = 0; s < SETS; s++)
		[[unroll]] for (int e = 0; e < COLUMNS * DEPTH; e++)
			b[s][e] = number(x[s][e / DEPTH], k + e % DEPTH);
	[[unroll]] for (int f = 0; f < FRAGMENTS; f++) {
		coopmat<float16_t, gl_ScopeSubgroup, MAT_M, MAT_K, gl_MatrixUseA> a;

		[[unroll]] for (int e = 0; e < ROWS * DEPTH; e++)
			a[e] = number(w[f * ROWS + e / DEPTH], k + e % DEPTH);
		[[unroll]] for (int s = 0; s < SETS; s++)
			sums[f][s] = coopMatMulAdd(a, b[s], sums[f][s]);
	}
}

/*
 * Adds the products of chunk c of a slice. All of it is one piece of code but for the software
 * driver, which would compile it for minutes.
 */
void multiply(uint slice, int c)
{
	const int n_units = STEP == 0 ? QUADS : 1, n_numbers = STEP == 0 ? 8 : DEPTH;
	uint raw[N_ROWS][W_RAW];

	[[unroll]] for (int i = 0; i < N_ROWS; i++)
		get_piece(slice, c, i, raw[i]);
	for (int q0 = 0; q0 < QUADS; q0 += n_units) {
		[[unroll]] for (int q = 0; q < n_units; q++) {
			uvec4 x[SETS][COLUMNS], w[N_ROWS];

			load_x(slice * W_CHUNKS + c, q0 + q, x);
			[[unroll]] for (int i = 0; i < N_ROWS; i++)
				w[i] = w_decode(raw[i], unit() + q0 + q);
			for (int k0 = 0; k0 < 8; k0 += n_numbers)
				[[unroll]] for (int k = 0; k < n_numbers; k += DEPTH)
					multiply_unit(x, w, k0 + k);
		}
	}
}

const int N_CHUNKS = STEP == 0 ? int(W_CHUNKS) : 1; /* in one piece of code, as above */

/* The products of the slices [first, end). */
void sum_slices(uint first, uint end)
{
	[[unroll]] for (int f = 0; f < FRAGMENTS; f++)
		[[unroll]] for (int s = 0; s < SETS; s++)
			sums[f][s] = coopmat<float, gl_ScopeSubgroup, MAT_M, MAT_N,
				gl_MatrixUseAccumulator>(0.0);
	if (first == end)
		return;
#if defined(W_DIRECT)
	start_rows();
	load_head(first);
	[[unroll]] for (int c = 0; c < W_CHUNKS; c++)
		load_chunk(first, c);
	for (uint slice = first; slice < end; slice++) {
		/* Behind the end the last one again: no branch is in the way. */
		uint next = min(slice + 1, end - 1);
		take_head();
		load_head(next);
		for (int c0 = 0; c0 < W_CHUNKS; c0 += N_CHUNKS) {
			[[unroll]] for (int c = 0; c < N_CHUNKS; c++) {
				multiply(slice, c0 + c);
				load_chunk(next, c0 + c);
			}
		}
	}
#else
	load_slice(first);
	for (uint slice = first; slice < end; slice++) {
		sync();
		store_slice();
		load_slice(min(slice + 1, end - 1));
		sync();
		for (int c0 = 0; c0 < W_CHUNKS; c0 += N_CHUNKS)
			[[unroll]] for (int c = 0; c < N_CHUNKS; c++)
				multiply(slice, c0 + c);
	}
#endif
}

/* Where fragment f of one set of the subgroup's rows is in shared memory. */
uint sum_at(int f)
{
	return (group() * FRAGMENTS + f) * SUM_QUADS;
}

void store_set(int s)
{
	[[unroll]] for (int f = 0; f < FRAGMENTS; f++)
		coopMatStore(sums[f][s], stage, sum_at(f), MAT_M / 4,
			gl_CooperativeMatrixLayoutColumnMajor);
}

/* The sums of all shares of k, in the subgroups of the first. */
void add_shares()
{
	coopmat<float, gl_ScopeSubgroup, MAT_M, MAT_N, gl_MatrixUseAccumulator> other;

	[[unroll]] for (int s = 0; s < SETS; s++) {
		for (uint i = 1; i < SHARES; i++) {
			barrier();
			if (share() == i)
				store_set(s);
			barrier();
			if (share() != 0)
				continue;
			[[unroll]] for (int f = 0; f < FRAGMENTS; f++) {
				coopMatLoad(other, stage, sum_at(f), MAT_M / 4,
					gl_CooperativeMatrixLayoutColumnMajor);
				sums[f][s] += other;
			}
		}
	}
}

/* Where a workgroup's sums of the subgroup's rows begin: [FRAGMENTS][SETS][MAT_N][MAT_M]. */
uint partial_at(uint workgroup)
{
	return (workgroup * GROUPS + group()) * FRAGMENTS * SETS * MAT_N * MAT_M;
}

/*
 * The workgroup's sums are in memory. True in the workgroup of a tile that comes to this last: it
 * sees all of them.
 */
bool is_last_split(uint tile)
{
	memoryBarrierBuffer();
	barrier();
	if (gl_LocalInvocationIndex == 0)
		is_last = atomicAdd(Counters(push.counters).at[tile], 1) == push.n_splits - 1;
	barrier();
	memoryBarrierBuffer();
	return is_last;
}

/* The sums of all workgroups of a tile, in the one that ends last; false in others. */
bool add_splits(uint tile)
{
	Partials partials = Partials(push.partials);
	uint at = partial_at(gl_WorkGroupID.x);

	if (share() == 0)
		[[unroll]] for (int f = 0; f < FRAGMENTS; f++)
			[[unroll]] for (int s = 0; s < SETS; s++)
				coopMatStore(sums[f][s], partials.at,
					at + (f * SETS + s) * MAT_N * MAT_M, MAT_M,
					gl_CooperativeMatrixLayoutColumnMajor);
	if (!is_last_split(tile))
		return false;
	if (share() != 0)
		return true;
	[[unroll]] for (int f = 0; f < FRAGMENTS; f++)
		[[unroll]] for (int s = 0; s < SETS; s++)
			sums[f][s] = coopmat<float, gl_ScopeSubgroup, MAT_M, MAT_N,
				gl_MatrixUseAccumulator>(0.0);
	for (uint i = 0; i < push.n_splits; i++) {
		at = partial_at(tile * push.n_splits + i);
		[[unroll]] for (int f = 0; f < FRAGMENTS; f++) {
			[[unroll]] for (int s = 0; s < SETS; s++) {
				coopmat<float, gl_ScopeSubgroup, MAT_M, MAT_N,
					gl_MatrixUseAccumulator> other;
				coopMatLoad(other, partials.at,
					at + (f * SETS + s) * MAT_N * MAT_M, MAT_M,
					gl_CooperativeMatrixLayoutColumnMajor);
				sums[f][s] += other;
			}
		}
	}
	return true;
}

float staged_sum(uint f, uint column, uint row)
{
	uint at = (group() * FRAGMENTS + f) * SUM_QUADS + column * (MAT_M / 4) + row / 4;

	return uintBitsToFloat(stage[at][row % 4]);
}

/* Row `column` of x of a set, of the subgroup's output j, finished with SWIGLU. */
float get_output(uint column, uint j)
{
	float v = staged_sum(j / MAT_M, column, j % MAT_M);

	return IS_SWIGLU ? silu(v) * staged_sum(j / MAT_M + N_BLOCKS, column, j % MAT_M) : v;
}

/* As x of the next op: eight outputs of row i from j on, which are a unit of it. */
void put_unit(uint i, uint column, uint j)
{
	uint at = t.y_at + group() * GROUP_OUT + j;
	vec4 a, b;

	if (i >= n_m || t.j + group() * GROUP_OUT + j >= push.n[t.part])
		return;
	[[unroll]] for (uint e = 0; e < 4; e++) {
		a[e] = get_output(column, j + e);
		b[e] = get_output(column, j + 4 + e);
	}
	QuadsOut(push.next).at[order_place(i, at / 8, SETS)] = order_unit(a, b);
}

const bool HAS_R = FINISH == ABI_TILE_FINISH_ADD || FINISH == ABI_TILE_FINISH_GATE;
const int N_OUT = (MAT_N * GROUP_OUT + S - 1) / S; /* outputs of a lane in a set */
const int N_OUT_AT_ONCE = STEP == 0 ? N_OUT : 1; /* in one piece of code, as above */
float others[SETS][HAS_R ? N_OUT : 1];

float load_other(int s, int o)
{
	uint e = o * S + lane(), j = group() * GROUP_OUT + e % GROUP_OUT;
	uint i = min(s * MAT_N + e / GROUP_OUT, max(n_m, 1) - 1);
	uint at = t.y_at + min(j, push.n[t.part] - 1 - t.j);

	return Floats(address_at(push.r, i, 4 * push.y_stride)).at[at];
}

/* What the outputs are finished with; all asked for at once, memory is far away. */
void load_others()
{
	[[unroll]] for (int s = 0; s < SETS; s++)
		for (int o0 = 0; o0 < N_OUT; o0 += N_OUT_AT_ONCE)
			[[unroll]] for (int o = 0; o < N_OUT_AT_ONCE; o++)
				others[s][o0 + o] = load_other(s, o0 + o);
}

/* The lane's output o of a set. */
void put_output(int s, int o)
{
	uint e = o * S + lane(), column = e / GROUP_OUT, j = e % GROUP_OUT;
	uint i = s * MAT_N + column, in_tile = group() * GROUP_OUT + j;

	if (column >= MAT_N || i >= n_m || t.j + in_tile >= push.n[t.part])
		return;
	float v = get_output(column, j);
	if (HAS_R)
		v = FINISH == ABI_TILE_FINISH_ADD ? others[s][o] + v : silu(others[s][o]) * v;
	FloatsOut(address_at(push.y, i, 4 * push.y_stride)).at[t.y_at + in_tile] = v;
}

/* The sums of the subgroup, finished. */
void store_outputs()
{
	if (HAS_R)
		load_others();
	[[unroll]] for (int s = 0; s < SETS; s++) {
		sync();
		store_set(s);
		sync();
		if (NEXT != 0) {
			for (uint e = lane(); e < MAT_N * GROUP_OUT / 8; e += S) {
				uint column = e * 8 / GROUP_OUT;
				put_unit(s * MAT_N + column, column, e * 8 % GROUP_OUT);
			}
			continue;
		}
		for (int o0 = 0; o0 < N_OUT; o0 += N_OUT_AT_ONCE)
			[[unroll]] for (int o = 0; o < N_OUT_AT_ONCE; o++)
				put_output(s, o0 + o);
	}
}

void main()
{
	uint number = gl_WorkGroupID.x / push.n_splits, split = gl_WorkGroupID.x % push.n_splits;
	uint n_all = push.n_splits * SHARES, part = split * SHARES + share();

	if (NEXT != 0)
		for (uint i = gl_GlobalInvocationID.x; i < push.n_next_counters;
			i += LOCAL_SIZE * gl_NumWorkGroups.x)
			Counters(push.next_counters).at[i] = 0;
	n_m = Words(push.m).at[0];
	t = get_tile(number);
	sum_slices(part * push.n_slices / n_all, (part + 1) * push.n_slices / n_all);
	barrier(); /* shared memory has another use from here on */
	add_shares();
	if (push.n_splits > 1 && !add_splits(number))
		return;
	if (share() == 0)
		store_outputs();
}
