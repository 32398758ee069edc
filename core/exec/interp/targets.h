// Which processors the handlers are compiled for. Include before any Highway header.
#pragma once

// Left: the scalar baseline, SSE4, AVX2 and AVX-512 on x86-64; NEON on AArch64. The low bits are
// those of newer Highways' refinements of AVX-512 (AVX3_ZEN4, AVX3_SPR, ...).
#define HWY_DISABLED_TARGETS \
  (0x7F | HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
