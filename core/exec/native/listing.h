// What an emitter does, written down for people: a logger of asmjit that also hears which loop and
// which instruction of the bytecode it is at. It is attached for list() alone, so that all other
// emissions pay only for asking whether it is there.
#pragma once

#include <asmjit/core.h>

#include <cstddef>
#include <string>
#include <vector>

#include "exec/native/native.h"

namespace tilevm::exec::native {

class Listing final : public asmjit::Logger {
 public:
  // Attaches itself; `holder` has no emitter yet, and goes first.
  explicit Listing(asmjit::CodeHolder& holder);

  // The one that is attached, or null: there are no other loggers here.
  static Listing* of(const asmjit::CodeHolder& holder) {
    return static_cast<Listing*>(holder.logger());
  }

  // A loop or a section; `number` from 0 up if there are several. Ends in reverse order.
  void begin(const char* name, int number = -1);
  void end();
  // What follows is instruction i of the bytecode for the vector of columns number `copy`. `step`:
  // which part of it, if it is emitted in parts.
  void instruction(int i, int copy, const char* step);
  // Names for the labels of a code holder.
  static asmjit::Label label(asmjit::BaseEmitter& emitter, const char* name) {
    return emitter.logger() == nullptr ? emitter.newLabel() : emitter.newNamedLabel(name);
  }

  // Where emitters put their constants, by label().
  static constexpr const char* kConstants = "constants";

  // All lines, when emission is over, with the constants' values.
  std::vector<Line> take();

 private:
  asmjit::Error _log(const char* data, std::size_t size) noexcept override;
  int offset() const;
  void add_data();

  asmjit::CodeHolder& holder_;
  std::vector<Line> lines_;
  std::vector<std::string> open_;  // names of the loops around
};

}  // namespace tilevm::exec::native
