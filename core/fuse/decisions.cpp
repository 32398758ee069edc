#include "fuse/decisions.h"

#include "fuse/groups.h"

namespace tilevm::fuse {
namespace {

// "is S equal to 2*B? unknown"
std::string question(const Program& program, SizeId a, SizeId b) {
  constexpr const char* answers[] = {"no", "yes", "unknown"};
  return "is " + program.sizes.print(a) + " equal to " + program.sizes.print(b) + "? " +
         answers[static_cast<std::size_t>(program.sizes.equal(a, b))];
}

std::string limit(const Why& why, int most, const char* what) {
  return std::to_string(why.number) + " " + what + ", at most " + std::to_string(most);
}

}  // namespace

std::string reason(const Why& why) {
  switch (why.bar) {
    case Bar::kResult:
      return "result of the program";
    case Bar::kCallOut:
      return "operand of a call-out";
    case Bar::kFactor:
      return "a factor of a matrix product, which takes it from memory";
    case Bar::kTable:
      return "a table that is indexed at run time";
    case Bar::kIndices:
      return "indices of a gather, which takes them from memory";
    case Bar::kLayout:
      return "a reshape or another change of layout reads it next, which is a view, or a copy, of "
             "what lies in memory";
    case Bar::kPlace:
      return "stored straight into its part of a concatenation";
    case Bar::kOperators:
    case Bar::kLoads:
    case Bar::kAxes:
      return "one kernel would be too large";
    case Bar::kDisagree:
      return "the operands run the same dim along different axes";
    case Bar::kDiagonal:
      return "two dims would run along one axis";
    case Bar::kOtherAxis:
      return "its kernel has an axis that the reader does not have";
    case Bar::kOtherFold:
      return "a reduction over other axes than those that its producer's kernel can reduce";
    case Bar::kNoFold:
      return "its kernel folds an axis, and the reader's has none like it";
    case Bar::kPart:
      return "it varies over some of the kernel's axes only, and would be stored many times";
    case Bar::kPartOfFold:
      return "it varies over some of the folded axes only";
    case Bar::kAgainFold:
      return "a reduction would be made again at every point of a larger space";
    case Bar::kAgainCost:
      return "too dear to be computed again at every point of a larger space";
    case Bar::kAgainUsed:
      return "others need it too, so it is not computed again in a larger space";
    case Bar::kOrder:
      return "something else has to run between the two";
    case Bar::kAfter:
      return "the reader's kernel begins when this one has ended: it needs a value of it whole";
    case Bar::kReadElsewhere:
      return "not for some rows at a time: others read the product too";
    case Bar::kNotByRows:
      return "not for some rows at a time: the kernel does not go row by row";
    case Bar::kOtherRows:
      return "not for some rows at a time: the products have other rows or columns";
    case Bar::kTooEarly:
      return "not for some rows at a time: what the product makes besides is read before";
    case Bar::kOneFactor:
      return "a factor of a matrix product that has one right factor for all rows: two products "
             "are quicker one after the other";
    case Bar::kNone:
      break;
  }
  return "kernels that cannot share one loop";
}

std::string fact(const Program& program, const Why& why) {
  const auto print = [&](SizeId size) { return program.sizes.print(size); };
  if (why.a != shape::kNoSize && why.b != shape::kNoSize) {
    if (why.bar == Bar::kLayout && program.sizes.equal(why.a, why.b) == shape::Answer::kNo)
      return "a dim of " + print(why.a) + ", where the other has one of " + print(why.b);
    return question(program, why.a, why.b);
  }
  switch (why.bar) {
    case Bar::kOperators:
      return limit(why, kMaxGroupNodes, "operators");
    case Bar::kLoads:
      return limit(why, kMaxGroupLoads, "loads");
    case Bar::kAxes:
      return limit(why, kMaxAxes, "axes");
    case Bar::kAgainCost:
      return limit(why, kCheapCost, "operations an element") +
             (why.a == shape::kNoSize ? "" : ", again along " + print(why.a));
    default:
      break;
  }
  if (why.a != shape::kNoSize) return "axis " + print(why.a);
  if (why.node < 0) return {};
  const Node& node = program.nodes[at(why.node)];
  return "%" + std::to_string(node.out) + " = " + info(node.op).name +
         " needs what the first kernel makes, and the second one needs it";
}

}  // namespace tilevm::fuse
