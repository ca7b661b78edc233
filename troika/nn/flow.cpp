#include "troika/nn/flow.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "troika/base/error.h"

namespace troika::nn {

namespace {

// Returns the first element of the sorted `blocks` that is >= `begin`, or `none`.
size_t first_from(const std::vector<size_t>& blocks, size_t begin, size_t none) {
  const auto found = std::ranges::lower_bound(blocks, begin);
  return found == blocks.end() ? none : *found;
}

bool fits(size_t count, const Tensors& tensors) {
  return tensors.size() == count &&
         std::ranges::all_of(tensors, [](const auto& tensor) { return tensor.defined(); });
}

[[noreturn]] void refuse(const std::string& who, const std::vector<std::string>& names,
                         const Tensors& tensors) {
  throw Error("nn", ErrorKind::usage,
              {.what = fmt::format("{} gives other tensors to blocks than are taken", who),
               .got = fmt::format("{}", tensors.size()),
               .expected = fmt::format("{}, all of them defined", fmt::join(names, ", "))});
}

}  // namespace

void require_inputs(const std::vector<std::string>& names, const Tensors& inputs) {
  if (!fits(names.size(), inputs)) refuse("the caller of the model", names, inputs);
}

void require_outputs(const Block& block, const std::vector<std::string>& names,
                     const Tensors& outputs) {
  if (!fits(names.size(), outputs)) refuse("block " + block.name, names, outputs);
}

Slot Wiring::slot_of(const std::string& name) {
  const auto [found, is_new] = by_name_.try_emplace(name, slots_.size());
  if (is_new) slots_.push_back({.name = name, .takers = {}, .givers = {}});
  return found->second;
}

void Wiring::add(const Block& block) {
  const size_t index = takes_.size();
  auto& takes = takes_.emplace_back();
  for (const auto& name : block.takes) {
    takes.push_back(slot_of(name));
    auto& uses = slots_[takes.back()];
    if (uses.takers.empty() && uses.givers.empty()) input_names_.push_back(name);
    uses.takers.push_back(index);
  }
  auto& gives = gives_.emplace_back();
  for (const auto& name : block.gives) {
    gives.push_back(slot_of(name));
    slots_[gives.back()].givers.push_back(index);
  }
}

std::vector<std::string> Wiring::names(const Slots& slots) const {
  std::vector<std::string> names;
  for (const Slot slot : slots) names.push_back(slots_[slot].name);
  return names;
}

bool Wiring::is_needed(Slot slot, size_t next) const {
  const auto& uses = slots_[slot];
  const size_t none = num_blocks();
  const size_t giver = first_from(uses.givers, next, none);
  if (giver < none) return first_from(uses.takers, next, none) <= giver;
  return first_from(uses.takers, next, none) < none ||
         (!uses.givers.empty() && uses.givers.back() + 1 == none);
}

bool Wiring::outlives(Slot slot, size_t begin, size_t end) const {
  return first_from(slots_[slot].givers, begin, end) >= end && is_needed(slot, end);
}

std::optional<size_t> Wiring::giver_before(Slot slot, size_t next) const {
  const auto& givers = slots_[slot].givers;
  const auto after = std::ranges::lower_bound(givers, next);
  if (after == givers.begin()) return std::nullopt;
  return *std::prev(after);
}

Slots Wiring::into(size_t begin, size_t end) const {
  Slots slots;
  for (size_t i = begin; i < end; ++i) {
    for (const Slot slot : takes_[i]) {
      const bool is_inner = first_from(slots_[slot].givers, begin, i) < i;
      if (!is_inner && std::ranges::find(slots, slot) == slots.end()) slots.push_back(slot);
    }
  }
  return slots;
}

Slots Wiring::out_of(size_t begin, size_t end) const {
  Slots slots;
  for (size_t i = begin; i < end; ++i) {
    for (const Slot slot : gives_[i]) {
      slots.erase(std::remove(slots.begin(), slots.end(), slot), slots.end());
      if (is_needed(slot, end)) slots.push_back(slot);
    }
  }
  return slots;
}

Flow::Flow(const Wiring& wiring, size_t begin, size_t end, Tensors inputs)
    : wiring_(wiring), begin_(begin), end_(end), tensors_(wiring.num_slots()) {
  const auto slots = wiring.into(begin, end);
  if (!fits(slots.size(), inputs)) require_inputs(wiring.names(slots), inputs);
  for (size_t i = 0; i < slots.size(); ++i) tensors_[slots[i]] = std::move(inputs[i]);
  spent_ = std::move(inputs);
}

Tensors Flow::take(size_t begin, size_t end) {
  return end == begin + 1 ? take(wiring_.taken_by(begin), begin, end)
                          : take(wiring_.into(begin, end), begin, end);
}

Tensors Flow::take(const Slots& slots, size_t begin, size_t end) {
  Tensors taken = std::exchange(spent_, {});
  taken.clear();
  taken.reserve(slots.size());
  for (const Slot slot : slots) {
    auto& tensor = tensors_[slot];
    TROIKA_CHECK(tensor.defined(), "no block gives " + wiring_.names({slot}).front());
    taken.push_back(wiring_.outlives(slot, begin, end) ? tensor : std::move(tensor));
  }
  return taken;
}

void Flow::give(size_t begin, size_t end, Tensors outputs) {
  if (end == wiring_.num_blocks() || (begin == begin_ && end == end_)) {
    outputs_ = std::move(outputs);
  } else if (end == begin + 1) {
    keep(wiring_.given_by(begin), std::move(outputs));
  } else {
    keep(wiring_.out_of(begin, end), std::move(outputs));
  }
}

void Flow::keep(const Slots& slots, Tensors tensors) {
  TROIKA_CHECK(fits(slots.size(), tensors), "other tensors than names");
  for (size_t i = 0; i < slots.size(); ++i) tensors_[slots[i]] = std::move(tensors[i]);
  spent_ = std::move(tensors);
}

Tensors Flow::outputs() {
  if (!outputs_.empty()) return std::move(outputs_);
  const size_t all = wiring_.num_blocks();
  return take(wiring_.out_of(begin_, end_), all, all);
}

}  // namespace troika::nn
