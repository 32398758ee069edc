// Parts of lower(), over whole programs.
#pragma once

#include <vector>

#include "program/program.h"

namespace tilevm {

// The node that defines v; null: v is an input.
const Node* defining(const Program& program, ValueId v);

// By node: whether an output or a call needs it.
std::vector<bool> live(const Program& program);

// Sizes of inputs that the program checks to be equal, or to be a number, become one in all that
// it computes: then nobody need ask. Inputs keep theirs, and the checks stay.
void unify_sizes(Program& program);

// No nodes yet: takes sizes, lines and checks of a program that is to be rewritten.
Program successor_of(Program& source);

// Appends a node with one result.
ValueId append(Program& program, Op op, Operands in, std::vector<Attr> attrs, const Type& type,
               std::int32_t line);

// Appends a node of `source`, whose operands are what `held` says by value; returns its first
// result, and tells `held` of all.
ValueId append_copy(Program& program, const Program& source, const Node& node,
                    std::vector<ValueId>& held);

// Drops nodes that are not.
void sweep(Program& program);

// A lowered program with convolutions, whose images have their channels last, with what surrounds
// them in the same order. Any other program as it is.
Program with_channels_last(Program lowered);

// A lowered program whose products read factors that are repeated along a batch axis as they are,
// and whose batch axes stay two where they are merged for products alone.
Program with_shared_factors(Program lowered);

// A lowered program whose gathers of one element a row come before the elementwise operators that
// make the rows.
Program with_gathers_first(Program lowered);

// A lowered program whose products of a softmax come before its divisions.
Program with_divisions_last(Program lowered);

// A lowered program whose concatenations come behind the elementwise operators that read them.
Program with_concats_last(Program lowered);

}  // namespace tilevm
