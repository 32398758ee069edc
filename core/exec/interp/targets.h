// Which processors the handlers are compiled for. Include before any Highway header.
#pragma once

// Left: the scalar baseline, SSE4, AVX2 and AVX-512 on x86-64; NEON on AArch64.
#define HWY_DISABLED_TARGETS \
    (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
