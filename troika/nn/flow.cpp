#include "troika/nn/flow.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "troika/base/error.h"

namespace troika::nn {

namespace {

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

// Whether a tensor that exists before block `next` is taken by it or a later one, or is an output.
bool is_needed(const std::vector<Block>& blocks, const std::string& name, size_t next) {
  for (; next < blocks.size(); ++next) {
    if (has(blocks[next].takes, name)) return true;
    if (has(blocks[next].gives, name)) return false;
  }
  return !blocks.empty() && has(blocks.back().gives, name);
}

// Whether one of the blocks [begin, end) gives the name; the nearest most likely does.
bool is_given(const std::vector<Block>& blocks, const std::string& name, size_t begin, size_t end) {
  for (size_t i = end; i > begin; --i) {
    if (has(blocks[i - 1].gives, name)) return true;
  }
  return false;
}

bool fits(const std::vector<std::string>& names, const Tensors& tensors) {
  return tensors.size() == names.size() &&
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
  if (!fits(names, inputs)) refuse("whoever calls the model", names, inputs);
}

void require_outputs(const Block& block, const std::vector<std::string>& names,
                     const Tensors& outputs) {
  if (!fits(names, outputs)) refuse("block " + block.name, names, outputs);
}

std::vector<std::string> names_into(const std::vector<Block>& blocks, size_t begin, size_t end) {
  std::vector<std::string> names;
  for (size_t i = begin; i < end; ++i) {
    for (const auto& name : blocks[i].takes) {
      if (!is_given(blocks, name, begin, i) && !has(names, name)) names.push_back(name);
    }
  }
  return names;
}

std::vector<std::string> names_out_of(const std::vector<Block>& blocks, size_t begin, size_t end) {
  std::vector<std::string> names;
  for (size_t i = begin; i < end; ++i) {
    for (const auto& name : blocks[i].gives) {
      std::erase(names, name);
      if (is_needed(blocks, name, end)) names.push_back(name);
    }
  }
  return names;
}

Flow::Flow(const std::vector<Block>& blocks, const std::vector<std::string>& names, Tensors tensors)
    : blocks_(blocks) {
  require_inputs(names, tensors);
  give(names, std::move(tensors));
}

Tensors Flow::take(const std::vector<std::string>& names, size_t next) {
  Tensors taken;
  taken.reserve(names.size());
  for (const auto& name : names) {
    const auto found = tensors_.find(name);
    TROIKA_CHECK(found != tensors_.end(), "no block gives " + name);
    taken.push_back(found->second);
    if (!is_needed(blocks_, name, next)) tensors_.erase(found);
  }
  return taken;
}

void Flow::give(const std::vector<std::string>& names, Tensors tensors) {
  TROIKA_CHECK(fits(names, tensors), "other tensors than names");
  for (size_t i = 0; i < names.size(); ++i) tensors_[names[i]] = std::move(tensors[i]);
}

}  // namespace troika::nn
