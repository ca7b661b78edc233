// Named tensors, and which part of a whole each is: what modules, optimizers, exchanges of
// gradients and checkpoints give each other.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "troika/layout/box.h"

namespace troika::state {

// A tensor under its name. With a box, of that name, it is a part of one tensor that all ranks have
// between them, and may be padded: it holds more than the box, behind the elements of a flat range,
// or else beyond the box's size in any dimension. Without a box it is whole, and ranks may have
// other values under the same name. Binds to [name, tensor].
struct Entry : std::pair<std::string, at::Tensor> {
  using Pair = std::pair<std::string, at::Tensor>;
  using Pair::Pair;
  Entry(Pair named) : Pair(std::move(named)) {}
  Entry(std::string name, at::Tensor tensor, std::optional<layout::Box> part);

  std::optional<layout::Box> box;
};

// In any order. Tensors share memory with what they are the state of, unless it says otherwise.
using StateDict = std::vector<Entry>;

// Appends the entries of `more` under names with `prefix` before them.
void append(StateDict& to, const std::string& prefix, const StateDict& more);

// The elements of the entry's box, without padding: in the shape of the box or, with a flat range,
// [count]. The whole tensor without a box. Shares memory with the entry where it can.
at::Tensor stored_part(const Entry& entry);

}  // namespace troika::state

template <>
struct std::tuple_size<troika::state::Entry> : std::integral_constant<size_t, 2> {};
template <size_t I>
struct std::tuple_element<I, troika::state::Entry>
    : std::tuple_element<I, troika::state::Entry::Pair> {};
