#include "exec/native/listing.h"

#include <bit>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

namespace tilevm::exec::native {
namespace {

// A constant's bits, and the number they most likely are.
template <class Bits, class Real, class Integer>
std::string value_text(Bits bits) {
  constexpr Integer kSmall = 1 << 20;  // as bits of a float such numbers are next to 0
  char text[64];
  const auto integer = static_cast<Integer>(bits);
  const bool small = integer > -kSmall && integer < kSmall;
  const int n = std::snprintf(text, sizeof text, "0x%0*llx = ", static_cast<int>(2 * sizeof(Bits)),
                              static_cast<unsigned long long>(bits));
  char* const from = text + n;
  char* const last = text + sizeof text;
  const auto end = small ? std::to_chars(from, last, integer)
                         : std::to_chars(from, last, std::bit_cast<Real>(bits));
  return {text, end.ptr};
}

std::string word_text(std::uint32_t bits) {
  return value_text<std::uint32_t, float, std::int32_t>(bits);
}
std::string quad_text(std::uint64_t bits) {
  return value_text<std::uint64_t, double, std::int64_t>(bits);
}

template <class T>
T read(std::string_view bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// "; 0x3f800000 = 1" for text with an operand among the constants, else nothing.
std::string constant_in(std::string_view text, std::string_view constants) {
  const auto found = text.find("[" + std::string(Listing::kConstants));
  if (found == std::string_view::npos) return {};
  const char* digits = text.data() + found + 1 + std::strlen(Listing::kConstants);
  const auto at = *digits == '+' ? static_cast<std::size_t>(std::atoi(digits + 1)) : 0;
  const auto mnemonic_has = [&](std::string_view what) {
    return text.substr(0, text.find(' ')).find(what) != std::string_view::npos;
  };
  const bool wide = text.find("qword ptr [") < found || mnemonic_has("pd") || mnemonic_has("q");
  if (wide && at + 8 <= constants.size())
    return "  ; " + quad_text(read<std::uint64_t>(constants, at));
  if (at + 4 <= constants.size()) return "  ; " + word_text(read<std::uint32_t>(constants, at));
  return {};
}

}  // namespace

Listing::Listing(asmjit::CodeHolder& holder) : holder_(holder) { holder.setLogger(this); }

void Listing::begin(const char* name, int number) {
  open_.push_back(number < 0 ? name : name + (" " + std::to_string(number)));
  lines_.push_back({Line::Kind::kBegin, -1, -1, open_.back()});
}

void Listing::end() {
  lines_.push_back({Line::Kind::kEnd, -1, -1, open_.back()});
  open_.pop_back();
}

void Listing::instruction(int i, int copy, const char* step) {
  std::string text = copy == 0 ? "" : "vector " + std::to_string(copy);
  if (*step != 0) text += (text.empty() ? "" : ", ") + std::string(step);
  lines_.push_back({Line::Kind::kInstruction, -1, i, std::move(text)});
}

int Listing::offset() const {
  return static_cast<int>(static_cast<asmjit::BaseAssembler*>(holder_.emitters()[0])->offset());
}

asmjit::Error Listing::_log(const char* data, std::size_t size) noexcept try {
  std::string_view text(data, size);
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  const bool directive = text.empty() || text.front() == '.' || text.starts_with("align ");
  if (!directive) lines_.push_back({Line::Kind::kHost, offset(), -1, std::string(text)});
  return asmjit::kErrorOk;
} catch (const std::bad_alloc&) {
  return asmjit::kErrorOutOfMemory;
}

void Listing::add_data() {
  const asmjit::Label label = holder_.labelByName(kConstants);
  if (!label.isValid() || !holder_.isLabelBound(label)) return;
  const auto& buffer = holder_.textSection()->buffer();
  const auto first = static_cast<std::size_t>(holder_.labelOffset(label));
  const std::string_view bytes(reinterpret_cast<const char*>(buffer.data()) + first,
                               buffer.size() - first);
  for (Line& line : lines_) line.text += constant_in(line.text, bytes);
  for (std::size_t i = 0; i + 4 <= bytes.size();) {
    const auto word = read<std::uint32_t>(bytes, i);
    std::size_t n = 1;
    while (i + 4 * n + 4 <= bytes.size() && read<std::uint32_t>(bytes, i + 4 * n) == word) ++n;
    const std::string times = n == 1 ? "" : ", " + std::to_string(n) + " times";
    lines_.push_back({Line::Kind::kData, static_cast<int>(first + i), -1, word_text(word) + times});
    i += 4 * n;
  }
}

std::vector<Line> Listing::take() {
  add_data();
  return std::move(lines_);
}

}  // namespace tilevm::exec::native
