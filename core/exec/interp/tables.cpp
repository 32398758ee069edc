#include "exec/interp/tables.h"

#include "exec/interp/interp.h"

namespace tilevm::exec::interp {

const Tables& tables() {
  static const Tables chosen = [] {
    Tables t{};
    fill_map_float(t);
    fill_map_math(t);
    fill_map_math_f64(t);
    fill_map_int(t);
    fill_map_logic(t);
    fill_fold(t);
    fill_memory(t);
    return t;
  }();
  return chosen;
}

const char* target_name() { return tables().target; }

}  // namespace tilevm::exec::interp
