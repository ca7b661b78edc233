// Named tensors, and which shard of a larger tensor each is: the format in which modules,
// optimizers, gradient exchanges and checkpoints exchange state.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "troika/layout/box.h"

namespace troika::state {

// A named tensor. With a box, it is a shard of one tensor that is distributed over all ranks; the
// box has the same name. A shard may be padded: it has extra elements behind the elements of a flat
// range, or beyond the box's size in any dimension. Without a box, the tensor is complete, and
// other ranks may have different values under the same name. Supports structured bindings to [name,
// tensor].
struct Entry : std::pair<std::string, at::Tensor> {
  using Pair = std::pair<std::string, at::Tensor>;
  using Pair::Pair;
  Entry(Pair named) : Pair(std::move(named)) {}
  Entry(std::string name, at::Tensor tensor, std::optional<layout::Box> part);

  std::optional<layout::Box> box;
};

// Entries in any order. Tensors share memory with the object whose state they are, unless that
// object says otherwise.
using StateDict = std::vector<Entry>;

// Appends the entries of `more`, with `prefix` before their names.
void append(StateDict& to, const std::string& prefix, const StateDict& more);

// Returns the elements of the entry's box, without padding: in the shape of the box or, with a flat
// range, [count]. Without a box, returns the whole tensor. Shares memory with the entry if
// possible.
at::Tensor stored_shard(const Entry& entry);

}  // namespace troika::state

template <>
struct std::tuple_size<troika::state::Entry> : std::integral_constant<size_t, 2> {};
template <size_t I>
struct std::tuple_element<I, troika::state::Entry>
    : std::tuple_element<I, troika::state::Entry::Pair> {};
