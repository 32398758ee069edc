// A program made ready for one tier.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "exec/interp/interp.h"
#include "exec/native/native.h"

namespace tilevm::test {

// Emitted code leaves some launches to the interpreter.
class Ready {
 public:
  Ready(std::span<const std::byte> bytes, exec::native::Target target)
      : kernel_(bytes), code_(exec::native::Code::emit(bytes, target)) {}

  bool native(const exec::Launch& launch) const { return code_ && code_->can_run(launch); }
  exec::Status run(const exec::Launch& launch, exec::interp::Scratch& scratch) const {
    return native(launch) ? code_->run(launch, scratch) : kernel_.run(launch, scratch);
  }

 private:
  exec::interp::Kernel kernel_;
  std::unique_ptr<exec::native::Code> code_;
};

}  // namespace tilevm::test
