// wgmma: D[64, N] (+)= A[64, K] * B[N, K]^T by the four warps of a warpgroup, operands in shared memory,
// or A in registers.
//
// DEFINE_WGMMA(name, N, K, types) defines
//     template <bool A_IS_M_MAJOR, bool B_IS_N_MAJOR> void name(Accumulator (&d)[N / 2], u64 a, u64 b, bool accumulate)
// for one shape and one set of types (D.A.B, as in the instruction's name); K is 32 bytes of an operand. MN-major
// operands exist in 16-bit types only: other types are defined by DEFINE_WGMMA_K_MAJOR, without the template
// parameters.
//
// DEFINE_WGMMA_A_IN_REGISTERS(name, N, types) defines
//     template <bool B_IS_N_MAJOR> void name(f32 (&d)[N / 2], const u32 (&a)[4], u64 b, bool accumulate)
// for 16-bit types: a[i] of thread t is the two elements from row 16 * (t / 32) + t % 32 / 4 + 8 * (i % 2), column 2 *
// (t % 4) + 8 * (i / 2) on. `a` must not be written between the wgmma_fence before the instruction and its wgmma_wait.
// DEFINE_WGMMA_K_MAJOR_A_IN_REGISTERS(name, N, K, types) defines it for other types, without the template parameter.
// For fp8, a[i] is the four elements from column 4 * (t % 4) + 16 * (i / 2) on; for 32-bit types, the one in row 16 *
// (t / 32) + t % 32 / 4 + 8 * (i % 2), column t % 4 + 4 * (i / 2).
//
// d[i] of thread t is the element in row 16 * (t / 32) + t % 32 / 4 + 8 * (i / 2 % 2), column 8 * (i / 4) + 2 * (t % 4)
// + i % 2.
// The instruction is asynchronous: wgmma_fence comes before the first one after d was touched, wgmma_commit closes a
// group, wgmma_wait comes before d is read.
// Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions", target sm_90a.

#pragma once

#include "include/numeric.cuh"

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory");
}

// Keeps the compiler from moving operations on an accumulator's bits to before the wgmma_wait that precedes this call.
__device__ __forceinline__ void hold(f32& accumulator) { asm volatile("" : "+f"(accumulator)); }
__device__ __forceinline__ void hold(i32& accumulator) { asm volatile("" : "+r"(accumulator)); }

// The matrix descriptor of an operand in swizzled rows of ROW_BYTES (128 or 64) at a 1024-byte aligned address.
//
// K-major: rows run along k, and 8 rows make a group; the next K adds 32 bytes. MN-major: rows of 64 elements (128
// bytes) run along m or n, one for each k, and 8 rows make a group. Blocks of 64 elements lie `block_bytes` from one to
// the next; the next K (16 rows) adds 2048 bytes.
template <int ROW_BYTES = 128> __device__ __forceinline__ u64 swizzled_operand(u32 address, u32 block_bytes = 16) {
  static_assert(ROW_BYTES == 128 || ROW_BYTES == 64, "swizzles over 128 and 64 bytes");
  constexpr u64 SWIZZLE = 128 / ROW_BYTES;
  return u64(address >> 4 & 0x3fff) | u64(block_bytes >> 4) << 16 | u64(8 * ROW_BYTES >> 4) << 32 | SWIZZLE << 62;
}

#define WGMMA_STRING(...) WGMMA_STRING_(__VA_ARGS__)
#define WGMMA_STRING_(...) #__VA_ARGS__
#define WGMMA_PASTE(a, b) WGMMA_PASTE_(a, b)
#define WGMMA_PASTE_(a, b) a##b

#define DEFINE_WGMMA(NAME, N, K, TYPES)                                                                                \
  template <bool A_IS_M_MAJOR, bool B_IS_N_MAJOR>                                                                      \
  __device__ __forceinline__ void NAME(f32 (&d)[N / 2], u64 a, u64 b, bool accumulate) {                               \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " WGMMA_PASTE(WGMMA_INPUT_2_, N) ", 0;\n"                           \
                 WGMMA_NAME(N, K, TYPES) " {" WGMMA_PASTE(WGMMA_REGISTERS_, N) "}, "                                   \
                 WGMMA_PASTE(WGMMA_INPUT_0_, N) ", " WGMMA_PASTE(WGMMA_INPUT_1_, N) ", p, 1, 1, "                      \
                 WGMMA_PASTE(WGMMA_INPUT_3_, N) ", " WGMMA_PASTE(WGMMA_INPUT_4_, N) ";\n}"                             \
                 : WGMMA_PASTE(WGMMA_ACCUMULATORS_, N)("+f")                                                           \
                 : "l"(a), "l"(b), "r"(i32(accumulate)), "n"(i32(A_IS_M_MAJOR)), "n"(i32(B_IS_N_MAJOR)));              \
  }

#define DEFINE_WGMMA_K_MAJOR(NAME, N, K, TYPES, D, CONSTRAINT, SIGNS)                                                  \
  __device__ __forceinline__ void NAME(D (&d)[N / 2], u64 a, u64 b, bool accumulate) {                                 \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " WGMMA_PASTE(WGMMA_INPUT_2_, N) ", 0;\n"                           \
                 WGMMA_NAME(N, K, TYPES) " {" WGMMA_PASTE(WGMMA_REGISTERS_, N) "}, "                                   \
                 WGMMA_PASTE(WGMMA_INPUT_0_, N) ", " WGMMA_PASTE(WGMMA_INPUT_1_, N) ", p" SIGNS ";\n}"                 \
                 : WGMMA_PASTE(WGMMA_ACCUMULATORS_, N)(CONSTRAINT)                                                     \
                 : "l"(a), "l"(b), "r"(i32(accumulate)));                                                              \
  }

#define DEFINE_WGMMA_A_IN_REGISTERS(NAME, N, TYPES)                                                                    \
  template <bool B_IS_N_MAJOR>                                                                                         \
  __device__ __forceinline__ void NAME(f32 (&d)[N / 2], const u32 (&a)[4], u64 b, bool accumulate) {                   \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " WGMMA_PASTE(WGMMA_INPUT_5_, N) ", 0;\n"                           \
                 WGMMA_NAME(N, 16, TYPES) " {" WGMMA_PASTE(WGMMA_REGISTERS_, N) "}, {"                                 \
                 WGMMA_PASTE(WGMMA_INPUT_0_, N) ", " WGMMA_PASTE(WGMMA_INPUT_1_, N) ", "                               \
                 WGMMA_PASTE(WGMMA_INPUT_2_, N) ", " WGMMA_PASTE(WGMMA_INPUT_3_, N) "}, "                              \
                 WGMMA_PASTE(WGMMA_INPUT_4_, N) ", p, 1, 1, " WGMMA_PASTE(WGMMA_INPUT_6_, N) ";\n}"                    \
                 : WGMMA_PASTE(WGMMA_ACCUMULATORS_, N)("+f")                                                           \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(i32(accumulate)),                           \
                   "n"(i32(B_IS_N_MAJOR)));                                                                            \
  }

#define DEFINE_WGMMA_K_MAJOR_A_IN_REGISTERS(NAME, N, K, TYPES)                                                         \
  __device__ __forceinline__ void NAME(f32 (&d)[N / 2], const u32 (&a)[4], u64 b, bool accumulate) {                   \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " WGMMA_PASTE(WGMMA_INPUT_5_, N) ", 0;\n"                           \
                 WGMMA_NAME(N, K, TYPES) " {" WGMMA_PASTE(WGMMA_REGISTERS_, N) "}, {"                                  \
                 WGMMA_PASTE(WGMMA_INPUT_0_, N) ", " WGMMA_PASTE(WGMMA_INPUT_1_, N) ", "                               \
                 WGMMA_PASTE(WGMMA_INPUT_2_, N) ", " WGMMA_PASTE(WGMMA_INPUT_3_, N) "}, "                              \
                 WGMMA_PASTE(WGMMA_INPUT_4_, N) ", p, 1, 1;\n}"                                                        \
                 : WGMMA_PASTE(WGMMA_ACCUMULATORS_, N)("+f")                                                           \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(i32(accumulate)));                          \
  }

#define WGMMA_NAME(N, K, TYPES)                                                                                        \
  "wgmma.mma_async.sync.aligned.m64n" WGMMA_STRING(N) "k" WGMMA_STRING(K) "." WGMMA_STRING(TYPES)

// ---- operand lists: registers 0 .. N / 2 - 1 are d, then come the inputs --------------------------------------------

#define WGMMA_REGISTERS_8 "%0, %1, %2, %3"
#define WGMMA_REGISTERS_16 WGMMA_REGISTERS_8 ", " "%4, %5, %6, %7"
#define WGMMA_REGISTERS_24 WGMMA_REGISTERS_16 ", " "%8, %9, %10, %11"
#define WGMMA_REGISTERS_32 WGMMA_REGISTERS_24 ", " "%12, %13, %14, %15"
#define WGMMA_REGISTERS_40 WGMMA_REGISTERS_32 ", " "%16, %17, %18, %19"
#define WGMMA_REGISTERS_48 WGMMA_REGISTERS_40 ", " "%20, %21, %22, %23"
#define WGMMA_REGISTERS_56 WGMMA_REGISTERS_48 ", " "%24, %25, %26, %27"
#define WGMMA_REGISTERS_64 WGMMA_REGISTERS_56 ", " "%28, %29, %30, %31"
#define WGMMA_REGISTERS_72 WGMMA_REGISTERS_64 ", " "%32, %33, %34, %35"
#define WGMMA_REGISTERS_80 WGMMA_REGISTERS_72 ", " "%36, %37, %38, %39"
#define WGMMA_REGISTERS_88 WGMMA_REGISTERS_80 ", " "%40, %41, %42, %43"
#define WGMMA_REGISTERS_96 WGMMA_REGISTERS_88 ", " "%44, %45, %46, %47"
#define WGMMA_REGISTERS_104 WGMMA_REGISTERS_96 ", " "%48, %49, %50, %51"
#define WGMMA_REGISTERS_112 WGMMA_REGISTERS_104 ", " "%52, %53, %54, %55"
#define WGMMA_REGISTERS_120 WGMMA_REGISTERS_112 ", " "%56, %57, %58, %59"
#define WGMMA_REGISTERS_128 WGMMA_REGISTERS_120 ", " "%60, %61, %62, %63"
#define WGMMA_REGISTERS_136 WGMMA_REGISTERS_128 ", " "%64, %65, %66, %67"
#define WGMMA_REGISTERS_144 WGMMA_REGISTERS_136 ", " "%68, %69, %70, %71"
#define WGMMA_REGISTERS_152 WGMMA_REGISTERS_144 ", " "%72, %73, %74, %75"
#define WGMMA_REGISTERS_160 WGMMA_REGISTERS_152 ", " "%76, %77, %78, %79"
#define WGMMA_REGISTERS_168 WGMMA_REGISTERS_160 ", " "%80, %81, %82, %83"
#define WGMMA_REGISTERS_176 WGMMA_REGISTERS_168 ", " "%84, %85, %86, %87"
#define WGMMA_REGISTERS_184 WGMMA_REGISTERS_176 ", " "%88, %89, %90, %91"
#define WGMMA_REGISTERS_192 WGMMA_REGISTERS_184 ", " "%92, %93, %94, %95"
#define WGMMA_REGISTERS_200 WGMMA_REGISTERS_192 ", " "%96, %97, %98, %99"
#define WGMMA_REGISTERS_208 WGMMA_REGISTERS_200 ", " "%100, %101, %102, %103"
#define WGMMA_REGISTERS_216 WGMMA_REGISTERS_208 ", " "%104, %105, %106, %107"
#define WGMMA_REGISTERS_224 WGMMA_REGISTERS_216 ", " "%108, %109, %110, %111"
#define WGMMA_REGISTERS_232 WGMMA_REGISTERS_224 ", " "%112, %113, %114, %115"
#define WGMMA_REGISTERS_240 WGMMA_REGISTERS_232 ", " "%116, %117, %118, %119"
#define WGMMA_REGISTERS_248 WGMMA_REGISTERS_240 ", " "%120, %121, %122, %123"
#define WGMMA_REGISTERS_256 WGMMA_REGISTERS_248 ", " "%124, %125, %126, %127"

#define WGMMA_ACCUMULATORS_8(C) C(d[0]), C(d[1]), C(d[2]), C(d[3])
#define WGMMA_ACCUMULATORS_16(C) WGMMA_ACCUMULATORS_8(C), C(d[4]), C(d[5]), C(d[6]), C(d[7])
#define WGMMA_ACCUMULATORS_24(C) WGMMA_ACCUMULATORS_16(C), C(d[8]), C(d[9]), C(d[10]), C(d[11])
#define WGMMA_ACCUMULATORS_32(C) WGMMA_ACCUMULATORS_24(C), C(d[12]), C(d[13]), C(d[14]), C(d[15])
#define WGMMA_ACCUMULATORS_40(C) WGMMA_ACCUMULATORS_32(C), C(d[16]), C(d[17]), C(d[18]), C(d[19])
#define WGMMA_ACCUMULATORS_48(C) WGMMA_ACCUMULATORS_40(C), C(d[20]), C(d[21]), C(d[22]), C(d[23])
#define WGMMA_ACCUMULATORS_56(C) WGMMA_ACCUMULATORS_48(C), C(d[24]), C(d[25]), C(d[26]), C(d[27])
#define WGMMA_ACCUMULATORS_64(C) WGMMA_ACCUMULATORS_56(C), C(d[28]), C(d[29]), C(d[30]), C(d[31])
#define WGMMA_ACCUMULATORS_72(C) WGMMA_ACCUMULATORS_64(C), C(d[32]), C(d[33]), C(d[34]), C(d[35])
#define WGMMA_ACCUMULATORS_80(C) WGMMA_ACCUMULATORS_72(C), C(d[36]), C(d[37]), C(d[38]), C(d[39])
#define WGMMA_ACCUMULATORS_88(C) WGMMA_ACCUMULATORS_80(C), C(d[40]), C(d[41]), C(d[42]), C(d[43])
#define WGMMA_ACCUMULATORS_96(C) WGMMA_ACCUMULATORS_88(C), C(d[44]), C(d[45]), C(d[46]), C(d[47])
#define WGMMA_ACCUMULATORS_104(C) WGMMA_ACCUMULATORS_96(C), C(d[48]), C(d[49]), C(d[50]), C(d[51])
#define WGMMA_ACCUMULATORS_112(C) WGMMA_ACCUMULATORS_104(C), C(d[52]), C(d[53]), C(d[54]), C(d[55])
#define WGMMA_ACCUMULATORS_120(C) WGMMA_ACCUMULATORS_112(C), C(d[56]), C(d[57]), C(d[58]), C(d[59])
#define WGMMA_ACCUMULATORS_128(C) WGMMA_ACCUMULATORS_120(C), C(d[60]), C(d[61]), C(d[62]), C(d[63])
#define WGMMA_ACCUMULATORS_136(C) WGMMA_ACCUMULATORS_128(C), C(d[64]), C(d[65]), C(d[66]), C(d[67])
#define WGMMA_ACCUMULATORS_144(C) WGMMA_ACCUMULATORS_136(C), C(d[68]), C(d[69]), C(d[70]), C(d[71])
#define WGMMA_ACCUMULATORS_152(C) WGMMA_ACCUMULATORS_144(C), C(d[72]), C(d[73]), C(d[74]), C(d[75])
#define WGMMA_ACCUMULATORS_160(C) WGMMA_ACCUMULATORS_152(C), C(d[76]), C(d[77]), C(d[78]), C(d[79])
#define WGMMA_ACCUMULATORS_168(C) WGMMA_ACCUMULATORS_160(C), C(d[80]), C(d[81]), C(d[82]), C(d[83])
#define WGMMA_ACCUMULATORS_176(C) WGMMA_ACCUMULATORS_168(C), C(d[84]), C(d[85]), C(d[86]), C(d[87])
#define WGMMA_ACCUMULATORS_184(C) WGMMA_ACCUMULATORS_176(C), C(d[88]), C(d[89]), C(d[90]), C(d[91])
#define WGMMA_ACCUMULATORS_192(C) WGMMA_ACCUMULATORS_184(C), C(d[92]), C(d[93]), C(d[94]), C(d[95])
#define WGMMA_ACCUMULATORS_200(C) WGMMA_ACCUMULATORS_192(C), C(d[96]), C(d[97]), C(d[98]), C(d[99])
#define WGMMA_ACCUMULATORS_208(C) WGMMA_ACCUMULATORS_200(C), C(d[100]), C(d[101]), C(d[102]), C(d[103])
#define WGMMA_ACCUMULATORS_216(C) WGMMA_ACCUMULATORS_208(C), C(d[104]), C(d[105]), C(d[106]), C(d[107])
#define WGMMA_ACCUMULATORS_224(C) WGMMA_ACCUMULATORS_216(C), C(d[108]), C(d[109]), C(d[110]), C(d[111])
#define WGMMA_ACCUMULATORS_232(C) WGMMA_ACCUMULATORS_224(C), C(d[112]), C(d[113]), C(d[114]), C(d[115])
#define WGMMA_ACCUMULATORS_240(C) WGMMA_ACCUMULATORS_232(C), C(d[116]), C(d[117]), C(d[118]), C(d[119])
#define WGMMA_ACCUMULATORS_248(C) WGMMA_ACCUMULATORS_240(C), C(d[120]), C(d[121]), C(d[122]), C(d[123])
#define WGMMA_ACCUMULATORS_256(C) WGMMA_ACCUMULATORS_248(C), C(d[124]), C(d[125]), C(d[126]), C(d[127])

#define WGMMA_INPUT_0_8 "%4"
#define WGMMA_INPUT_0_16 "%8"
#define WGMMA_INPUT_0_24 "%12"
#define WGMMA_INPUT_0_32 "%16"
#define WGMMA_INPUT_0_40 "%20"
#define WGMMA_INPUT_0_48 "%24"
#define WGMMA_INPUT_0_56 "%28"
#define WGMMA_INPUT_0_64 "%32"
#define WGMMA_INPUT_0_72 "%36"
#define WGMMA_INPUT_0_80 "%40"
#define WGMMA_INPUT_0_88 "%44"
#define WGMMA_INPUT_0_96 "%48"
#define WGMMA_INPUT_0_104 "%52"
#define WGMMA_INPUT_0_112 "%56"
#define WGMMA_INPUT_0_120 "%60"
#define WGMMA_INPUT_0_128 "%64"
#define WGMMA_INPUT_0_136 "%68"
#define WGMMA_INPUT_0_144 "%72"
#define WGMMA_INPUT_0_152 "%76"
#define WGMMA_INPUT_0_160 "%80"
#define WGMMA_INPUT_0_168 "%84"
#define WGMMA_INPUT_0_176 "%88"
#define WGMMA_INPUT_0_184 "%92"
#define WGMMA_INPUT_0_192 "%96"
#define WGMMA_INPUT_0_200 "%100"
#define WGMMA_INPUT_0_208 "%104"
#define WGMMA_INPUT_0_216 "%108"
#define WGMMA_INPUT_0_224 "%112"
#define WGMMA_INPUT_0_232 "%116"
#define WGMMA_INPUT_0_240 "%120"
#define WGMMA_INPUT_0_248 "%124"
#define WGMMA_INPUT_0_256 "%128"

#define WGMMA_INPUT_1_8 "%5"
#define WGMMA_INPUT_1_16 "%9"
#define WGMMA_INPUT_1_24 "%13"
#define WGMMA_INPUT_1_32 "%17"
#define WGMMA_INPUT_1_40 "%21"
#define WGMMA_INPUT_1_48 "%25"
#define WGMMA_INPUT_1_56 "%29"
#define WGMMA_INPUT_1_64 "%33"
#define WGMMA_INPUT_1_72 "%37"
#define WGMMA_INPUT_1_80 "%41"
#define WGMMA_INPUT_1_88 "%45"
#define WGMMA_INPUT_1_96 "%49"
#define WGMMA_INPUT_1_104 "%53"
#define WGMMA_INPUT_1_112 "%57"
#define WGMMA_INPUT_1_120 "%61"
#define WGMMA_INPUT_1_128 "%65"
#define WGMMA_INPUT_1_136 "%69"
#define WGMMA_INPUT_1_144 "%73"
#define WGMMA_INPUT_1_152 "%77"
#define WGMMA_INPUT_1_160 "%81"
#define WGMMA_INPUT_1_168 "%85"
#define WGMMA_INPUT_1_176 "%89"
#define WGMMA_INPUT_1_184 "%93"
#define WGMMA_INPUT_1_192 "%97"
#define WGMMA_INPUT_1_200 "%101"
#define WGMMA_INPUT_1_208 "%105"
#define WGMMA_INPUT_1_216 "%109"
#define WGMMA_INPUT_1_224 "%113"
#define WGMMA_INPUT_1_232 "%117"
#define WGMMA_INPUT_1_240 "%121"
#define WGMMA_INPUT_1_248 "%125"
#define WGMMA_INPUT_1_256 "%129"

#define WGMMA_INPUT_2_8 "%6"
#define WGMMA_INPUT_2_16 "%10"
#define WGMMA_INPUT_2_24 "%14"
#define WGMMA_INPUT_2_32 "%18"
#define WGMMA_INPUT_2_40 "%22"
#define WGMMA_INPUT_2_48 "%26"
#define WGMMA_INPUT_2_56 "%30"
#define WGMMA_INPUT_2_64 "%34"
#define WGMMA_INPUT_2_72 "%38"
#define WGMMA_INPUT_2_80 "%42"
#define WGMMA_INPUT_2_88 "%46"
#define WGMMA_INPUT_2_96 "%50"
#define WGMMA_INPUT_2_104 "%54"
#define WGMMA_INPUT_2_112 "%58"
#define WGMMA_INPUT_2_120 "%62"
#define WGMMA_INPUT_2_128 "%66"
#define WGMMA_INPUT_2_136 "%70"
#define WGMMA_INPUT_2_144 "%74"
#define WGMMA_INPUT_2_152 "%78"
#define WGMMA_INPUT_2_160 "%82"
#define WGMMA_INPUT_2_168 "%86"
#define WGMMA_INPUT_2_176 "%90"
#define WGMMA_INPUT_2_184 "%94"
#define WGMMA_INPUT_2_192 "%98"
#define WGMMA_INPUT_2_200 "%102"
#define WGMMA_INPUT_2_208 "%106"
#define WGMMA_INPUT_2_216 "%110"
#define WGMMA_INPUT_2_224 "%114"
#define WGMMA_INPUT_2_232 "%118"
#define WGMMA_INPUT_2_240 "%122"
#define WGMMA_INPUT_2_248 "%126"
#define WGMMA_INPUT_2_256 "%130"

#define WGMMA_INPUT_3_8 "%7"
#define WGMMA_INPUT_3_16 "%11"
#define WGMMA_INPUT_3_24 "%15"
#define WGMMA_INPUT_3_32 "%19"
#define WGMMA_INPUT_3_40 "%23"
#define WGMMA_INPUT_3_48 "%27"
#define WGMMA_INPUT_3_56 "%31"
#define WGMMA_INPUT_3_64 "%35"
#define WGMMA_INPUT_3_72 "%39"
#define WGMMA_INPUT_3_80 "%43"
#define WGMMA_INPUT_3_88 "%47"
#define WGMMA_INPUT_3_96 "%51"
#define WGMMA_INPUT_3_104 "%55"
#define WGMMA_INPUT_3_112 "%59"
#define WGMMA_INPUT_3_120 "%63"
#define WGMMA_INPUT_3_128 "%67"
#define WGMMA_INPUT_3_136 "%71"
#define WGMMA_INPUT_3_144 "%75"
#define WGMMA_INPUT_3_152 "%79"
#define WGMMA_INPUT_3_160 "%83"
#define WGMMA_INPUT_3_168 "%87"
#define WGMMA_INPUT_3_176 "%91"
#define WGMMA_INPUT_3_184 "%95"
#define WGMMA_INPUT_3_192 "%99"
#define WGMMA_INPUT_3_200 "%103"
#define WGMMA_INPUT_3_208 "%107"
#define WGMMA_INPUT_3_216 "%111"
#define WGMMA_INPUT_3_224 "%115"
#define WGMMA_INPUT_3_232 "%119"
#define WGMMA_INPUT_3_240 "%123"
#define WGMMA_INPUT_3_248 "%127"
#define WGMMA_INPUT_3_256 "%131"

#define WGMMA_INPUT_4_8 "%8"
#define WGMMA_INPUT_4_16 "%12"
#define WGMMA_INPUT_4_24 "%16"
#define WGMMA_INPUT_4_32 "%20"
#define WGMMA_INPUT_4_40 "%24"
#define WGMMA_INPUT_4_48 "%28"
#define WGMMA_INPUT_4_56 "%32"
#define WGMMA_INPUT_4_64 "%36"
#define WGMMA_INPUT_4_72 "%40"
#define WGMMA_INPUT_4_80 "%44"
#define WGMMA_INPUT_4_88 "%48"
#define WGMMA_INPUT_4_96 "%52"
#define WGMMA_INPUT_4_104 "%56"
#define WGMMA_INPUT_4_112 "%60"
#define WGMMA_INPUT_4_120 "%64"
#define WGMMA_INPUT_4_128 "%68"
#define WGMMA_INPUT_4_136 "%72"
#define WGMMA_INPUT_4_144 "%76"
#define WGMMA_INPUT_4_152 "%80"
#define WGMMA_INPUT_4_160 "%84"
#define WGMMA_INPUT_4_168 "%88"
#define WGMMA_INPUT_4_176 "%92"
#define WGMMA_INPUT_4_184 "%96"
#define WGMMA_INPUT_4_192 "%100"
#define WGMMA_INPUT_4_200 "%104"
#define WGMMA_INPUT_4_208 "%108"
#define WGMMA_INPUT_4_216 "%112"
#define WGMMA_INPUT_4_224 "%116"
#define WGMMA_INPUT_4_232 "%120"
#define WGMMA_INPUT_4_240 "%124"
#define WGMMA_INPUT_4_248 "%128"
#define WGMMA_INPUT_4_256 "%132"

#define WGMMA_INPUT_5_8 "%9"
#define WGMMA_INPUT_5_16 "%13"
#define WGMMA_INPUT_5_24 "%17"
#define WGMMA_INPUT_5_32 "%21"
#define WGMMA_INPUT_5_40 "%25"
#define WGMMA_INPUT_5_48 "%29"
#define WGMMA_INPUT_5_56 "%33"
#define WGMMA_INPUT_5_64 "%37"
#define WGMMA_INPUT_5_72 "%41"
#define WGMMA_INPUT_5_80 "%45"
#define WGMMA_INPUT_5_88 "%49"
#define WGMMA_INPUT_5_96 "%53"
#define WGMMA_INPUT_5_104 "%57"
#define WGMMA_INPUT_5_112 "%61"
#define WGMMA_INPUT_5_120 "%65"
#define WGMMA_INPUT_5_128 "%69"
#define WGMMA_INPUT_5_136 "%73"
#define WGMMA_INPUT_5_144 "%77"
#define WGMMA_INPUT_5_152 "%81"
#define WGMMA_INPUT_5_160 "%85"
#define WGMMA_INPUT_5_168 "%89"
#define WGMMA_INPUT_5_176 "%93"
#define WGMMA_INPUT_5_184 "%97"
#define WGMMA_INPUT_5_192 "%101"
#define WGMMA_INPUT_5_200 "%105"
#define WGMMA_INPUT_5_208 "%109"
#define WGMMA_INPUT_5_216 "%113"
#define WGMMA_INPUT_5_224 "%117"
#define WGMMA_INPUT_5_232 "%121"
#define WGMMA_INPUT_5_240 "%125"
#define WGMMA_INPUT_5_248 "%129"
#define WGMMA_INPUT_5_256 "%133"

#define WGMMA_INPUT_6_8 "%10"
#define WGMMA_INPUT_6_16 "%14"
#define WGMMA_INPUT_6_24 "%18"
#define WGMMA_INPUT_6_32 "%22"
#define WGMMA_INPUT_6_40 "%26"
#define WGMMA_INPUT_6_48 "%30"
#define WGMMA_INPUT_6_56 "%34"
#define WGMMA_INPUT_6_64 "%38"
#define WGMMA_INPUT_6_72 "%42"
#define WGMMA_INPUT_6_80 "%46"
#define WGMMA_INPUT_6_88 "%50"
#define WGMMA_INPUT_6_96 "%54"
#define WGMMA_INPUT_6_104 "%58"
#define WGMMA_INPUT_6_112 "%62"
#define WGMMA_INPUT_6_120 "%66"
#define WGMMA_INPUT_6_128 "%70"
#define WGMMA_INPUT_6_136 "%74"
#define WGMMA_INPUT_6_144 "%78"
#define WGMMA_INPUT_6_152 "%82"
#define WGMMA_INPUT_6_160 "%86"
#define WGMMA_INPUT_6_168 "%90"
#define WGMMA_INPUT_6_176 "%94"
#define WGMMA_INPUT_6_184 "%98"
#define WGMMA_INPUT_6_192 "%102"
#define WGMMA_INPUT_6_200 "%106"
#define WGMMA_INPUT_6_208 "%110"
#define WGMMA_INPUT_6_216 "%114"
#define WGMMA_INPUT_6_224 "%118"
#define WGMMA_INPUT_6_232 "%122"
#define WGMMA_INPUT_6_240 "%126"
#define WGMMA_INPUT_6_248 "%130"
#define WGMMA_INPUT_6_256 "%134"
