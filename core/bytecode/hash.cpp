#include "bytecode/bytecode.h"

namespace tilevm::bytecode {
namespace {

__extension__ typedef unsigned __int128 Wide;

constexpr std::uint64_t kSeed = 0xa0761d6478bd642f;
constexpr std::uint64_t kStep = 0xe7037ed1a0b428db;

// Both halves of a product: the mixing step of wyhash (Wang Yi).
std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

}  // namespace

// The bytes as little-endian words of 16 bytes, the last one padded with zeros, then the length.
std::uint64_t hash(std::span<const std::byte> bytes) {
  std::uint64_t state = kSeed;
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  std::uint64_t word[2];
  for (; left >= sizeof(word); left -= sizeof(word), at += sizeof(word)) {
    std::memcpy(word, at, sizeof(word));
    state = mix(word[0] ^ kStep, word[1] ^ state);
  }
  if (left != 0) {
    word[0] = word[1] = 0;
    std::memcpy(word, at, left);
    state = mix(word[0] ^ kStep, word[1] ^ state);
  }
  return mix(state ^ kStep, bytes.size() ^ kSeed);
}

}  // namespace tilevm::bytecode
