// Elements of 8 or 16 bits as they lie in memory: four or two times as many at once as there are
// lanes, where every bit of a result is made of the same or lower bits. Included by emitter.h.
#pragma once

#include "exec/native/emitter.h"

namespace tilevm::exec::native {

// The bytes of an element, if all of a program is of that kind; else 0.
template <class T>
int Emitter<T>::narrow_bytes() const {
  using bytecode::Storage;
  if (p_.header->fold != Fold::kNone || p_.header->n_registers > kNarrowRegisters) return 0;
  int bytes = 0;
  bool floats = false, integers = false;  // bits of floats are only moved
  for (const auto& operand : p_.operands) {
    const bool moves =
        operand.role == bytecode::Role::kInput || operand.role == bytecode::Role::kOutput;
    if (!moves || !over_x(operand.cls) || operand.contiguous == 0) return 0;
    const int size = bytecode::storage_bytes(operand.storage);
    if (size > 2 || (bytes != 0 && size != bytes)) return 0;
    bytes = size;
    const bool is_float = operand.storage == Storage::kF16 || operand.storage == Storage::kBF16;
    if (is_float && operand.storage != p_.operands[0].storage) return 0;
    (is_float ? floats : integers) = true;
  }
  for (const Instr& instr : p_.code) {
    switch (info(instr).cls) {
      case Class::kLoad:
      case Class::kStore:
      case Class::kMark:
        break;
      default:
        if (!is_narrow(static_cast<Op>(instr.op), bytes)) return 0;
        integers = true;
    }
  }
  return floats && integers ? 0 : bytes;
}

template <class T>
bool Emitter<T>::is_narrow(Op op, int bytes) {
  switch (op) {
    case Op::const_i32:
    case Op::add_i32:
    case Op::sub_i32:
    case Op::neg_i32:
    case Op::and_i32:
    case Op::or_i32:
    case Op::xor_i32:
    case Op::not_i32:
    case Op::and_b8:
    case Op::or_b8:
    case Op::xor_b8:
    case Op::not_b8:
      return true;
    case Op::wrap_u8:
    case Op::wrap_i8:
      return bytes == 1;
    case Op::wrap_i16:
      return bytes == 2;
    default:
      return false;
  }
}

// All of the program for such a vector.
template <class T>
void Emitter<T>::narrow() {
  const int bytes = narrow_;
  std::array<F, kNarrowRegisters> r;
  const auto all = [&](std::int64_t c) {  // in every element
    const auto low = static_cast<std::uint32_t>(c);
    return t_.i32(static_cast<std::int32_t>(bytes == 1 ? (low & 0xff) * 0x01010101U
                                                       : (low & 0xffff) * 0x00010001U));
  };
  const auto address = [&](int mem) {
    return t_.address(mem, /*over_x=*/true, bytes, 0);
  };
  t_.streaming = false;
  for (int i = 0; i < n_; ++i) {
    const Instr& instr = p_.code[at(i)];
    note(i);
    const auto op = static_cast<Op>(instr.op);
    const F x = info(instr).cls == Class::kMap || info(instr).cls == Class::kStore
                    ? r[at(instr.a)] : F();
    if (info(instr).cls == Class::kMark) continue;
    if (info(instr).cls == Class::kStore) {
      t_.store32(address(instr.mem), x);
      continue;
    }
    F& to = r[at(instr.dst)];
    if (info(instr).cls == Class::kLoad) {
      to = t_.load32(address(instr.mem));
      if (info(instr).storage == bytecode::Storage::kB8) to = t_.bools_of_bytes(to);
      continue;
    }
    switch (op) {
      case Op::const_i32:
        to = all(instr.imm);
        break;
      case Op::add_i32:
        to = t_.add_narrow(x, r[at(instr.b)], bytes);
        break;
      case Op::sub_i32:
        to = t_.sub_narrow(x, r[at(instr.b)], bytes);
        break;
      case Op::neg_i32:
        to = t_.sub_narrow(all(0), x, bytes);
        break;
      case Op::and_i32:
      case Op::and_b8:
        to = t_.iand(x, r[at(instr.b)]);
        break;
      case Op::or_i32:
      case Op::or_b8:
        to = t_.ior(x, r[at(instr.b)]);
        break;
      case Op::xor_i32:
      case Op::xor_b8:
        to = t_.ixor(x, r[at(instr.b)]);
        break;
      case Op::not_i32:
        to = t_.ixor(x, all(-1));
        break;
      case Op::not_b8:
        to = t_.ixor(x, all(1));
        break;
      default:  // wraps
        to = x;
    }
    check();
  }
}

}  // namespace tilevm::exec::native
