#include "troika/parallel/tensor/parameter_cuts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/compat/torch.h"
#include "troika/nn/batch_norm.h"
#include "troika/nn/convolution.h"
#include "troika/nn/dense.h"
#include "troika/nn/dropout.h"
#include "troika/nn/linear.h"
#include "troika/nn/lora.h"

namespace troika::parallel {

namespace {

// Whether a module's name matches that of a rule, part by part.
bool matches(const std::string& rule, const std::string& name) {
  return std::ranges::equal(
      split(rule, '.'), split(name, '.'),
      [](const auto& pattern, const auto& part) { return pattern == "*" || pattern == part; });
}

// Returns "block B" for the block that owns a module or parameter; modules without parameters may
// be in none.
std::string owner_of(const nn::Model& model, const std::string& module) {
  for (const auto& block : model.blocks()) {
    const bool is_around = std::ranges::any_of(
        block.owns, [&](const std::string& owned) { return nn::is_within(module, owned); });
    if (is_around || nn::owns(block, module)) return "block " + block.name;
  }
  return "module " + module;
}

// The dimensions of inputs and outputs in the weight of a linear layer or convolution.
struct WeightDims {
  int64_t in, out;
};

WeightDims dims_of(const torch::nn::Module& module) {
  const bool is_conv1d = dynamic_cast<const nn::Conv1D*>(&module) != nullptr;
  return is_conv1d ? WeightDims{0, 1} : WeightDims{1, 0};
}

// Returns the number of groups of an nn::Conv2d; 0 for another module.
int64_t groups_of(const torch::nn::Module& module) {
  const auto* const convolution = dynamic_cast<const nn::Conv2dImpl*>(&module);
  return convolution ? convolution->options.groups() : 0;
}

bool is_linear(const torch::nn::Module& module) {
  return dynamic_cast<const nn::Linear*>(&module) || dynamic_cast<const nn::Conv1D*>(&module) ||
         groups_of(module) == 1;
}

// Returns the kind of module that a rule needs; empty if the module is of this kind.
std::string wanted_kind(const torch::nn::Module& module, Split split) {
  switch (split) {
    case Split::column:
    case Split::row:
      return is_linear(module) ? "" : "an nn::Linear, nn::Conv1D, or nn::Conv2d of one group";
    case Split::groups:
      return groups_of(module) > 1 ? "" : "an nn::Conv2d of several groups";
    case Split::norm_of_column:
      return dynamic_cast<const nn::BatchNormImpl*>(&module) ? "" : "an nn::BatchNorm";
    case Split::input:
      return dynamic_cast<const nn::Hooked*>(&module) ? "" : "an nn::Hooked";
    case Split::dropout_of_column:
      return dynamic_cast<const nn::Dropout*>(&module) ? "" : "an nn::Dropout";
    case Split::vocabulary: {
      const bool has_rows = dynamic_cast<const nn::Embedding*>(&module) ||
                            dynamic_cast<const torch::nn::LinearImpl*>(&module);
      return has_rows ? ""
                      : "an nn::Embedding, or a linear layer whose weight the output layer uses";
    }
    case Split::whole:
    case Split::tokens:
    case Split::summed:
      return "";
  }
  return "";
}

const SplitRule* find_rule(const SplitTable& table, const std::string& name) {
  const auto found = std::ranges::find_if(
      table, [&](const SplitRule& candidate) { return matches(candidate.module, name); });
  return found == table.end() ? nullptr : &*found;
}

// Returns the rule for a part of an adapter, from that of the adapted layer.
SplitRule rule_of_part(const nn::AdapterPart& of, const std::string& name, const SplitRule& layer) {
  SplitRule rule = layer;
  rule.module = name;
  const bool is_column = layer.split == Split::column, is_row = layer.split == Split::row;
  if (of.part == nn::kLoraB && is_column) return rule;
  if (of.part == nn::kLoraA && is_row) return rule;
  rule = {.module = name};
  if (layer.split == Split::tokens) {
    rule.split = Split::tokens;
  } else if (of.part != nn::kLoraDropout) {
    rule.split = is_column || is_row ? Split::summed : Split::whole;
  } else if (is_row) {
    rule.split = Split::dropout_of_column;
  }
  return rule;
}

// Returns the rule for a module, if there is one.
std::optional<SplitRule> rule_for(const SplitTable& table, const std::string& name) {
  if (const auto part = nn::adapter_part(name)) {
    const auto* const layer = find_rule(table, part->layer);
    if (layer) return rule_of_part(*part, name, *layer);
  }
  const auto* const rule = find_rule(table, name);
  return rule ? std::optional(*rule) : std::nullopt;
}

bool needs_rule(const torch::nn::Module& module) {
  return module.parameters(/*recurse=*/false).size() > 0 ||
         dynamic_cast<const nn::Dropout*>(&module) ||
         dynamic_cast<const nn::BatchNormImpl*>(&module);
}

[[noreturn]] void refuse_cut(const std::string& module, const std::string& what, int64_t count,
                             int ranks, const std::string& expected) {
  throw Error("parallel", ErrorKind::usage,
              {.what = fmt::format("{} cannot be cut over the tensor axis", module),
               .got = fmt::format("{} {}, {} ranks", count, what, ranks),
               .expected = expected});
}

// The words of errors for the outputs of a layer and for the units of its rule.
struct OutputWords {
  const char* outputs;
  const char* units;
};

OutputWords output_words(const RuledModule& of) {
  const bool has_channels = groups_of(*of.module) > 0 || of.rule.split == Split::norm_of_column;
  return has_channels ? OutputWords{"channels", "groups"} : OutputWords{"outputs", "heads"};
}

int64_t units_of_rule(const RuledModule& of) {
  return of.rule.split == Split::groups ? groups_of(*of.module) : of.rule.units;
}

// Cuts the outputs of a column layer, or the channels of a layer behind it.
void cut_columns(ParameterCut& cut, const RuledModule& of, int rank, int ranks) {
  const auto& rule = of.rule;
  const auto words = output_words(of);
  // Statistics of channels are one range on each rank.
  if (rule.parts != 1 && (rule.split != Split::column || groups_of(*of.module) > 0)) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "the rule of " + of.name + " for the tensor axis",
                 .got = fmt::format("{} parts", rule.parts),
                 .expected = "1 part: only linear layers have several"});
  }
  const int64_t outputs = cut.shape[static_cast<size_t>(cut.dim)], width = outputs / rule.parts;
  if (outputs % rule.parts != 0) {
    refuse_cut(of.name, words.outputs, outputs, ranks, fmt::format("a multiple of {}", rule.parts));
  }
  const int64_t given = units_of_rule(of), units = given == 0 ? width : given;
  if (width % units != 0) {
    refuse_cut(of.name, words.outputs, width, ranks,
               fmt::format("a multiple of {} {}", units, words.units));
  }
  const char* const what = given == 0 ? words.outputs : words.units;
  const bool shares =
      rule.split == Split::column && rule.shares_units && units < ranks && ranks % units == 0;
  if (!shares && units % ranks != 0) {
    refuse_cut(of.name, what, units, ranks,
               rule.shares_units ? "one number a multiple of the other"
                                 : fmt::format("a multiple of {} {}", ranks, what));
  }
  cut.copies = shares ? static_cast<int>(ranks / units) : 1;
  const int64_t count = shares ? 1 : units / ranks;
  const int64_t first = shares ? rank / cut.copies : rank * count;
  const int64_t size = width / units;
  for (int64_t part = 0; part < rule.parts; ++part) {
    const int64_t begin = part * width + first * size;
    cut.ranges.push_back({begin, begin + count * size});
  }
}

void cut_evenly(ParameterCut& cut, const RuledModule& of, int rank, int ranks) {
  const int64_t inputs = cut.shape[static_cast<size_t>(cut.dim)], count = inputs / ranks;
  if (inputs % ranks != 0) {
    const char* const what = groups_of(*of.module) > 0 ? "input channels" : "inputs";
    refuse_cut(of.name, what, inputs, ranks, fmt::format("a multiple of {} {}", ranks, what));
  }
  cut.ranges.push_back({rank * count, (rank + 1) * count});
}

ParameterCut cut_of(const RuledModule& of, const std::string& parameter, const at::Tensor& tensor,
                    int rank, int ranks) {
  ParameterCut cut{.name = of.name + "." + parameter,
                   .shape = tensor.sizes().vec(),
                   .ranges = {},
                   .split = of.rule.split};
  const bool is_weight = parameter == "weight";
  switch (of.rule.split) {
    case Split::groups:
    case Split::norm_of_column:
      cut_columns(cut, of, rank, ranks);
      return cut;
    case Split::column:
      cut.dim = is_weight ? dims_of(*of.module).out : 0;
      cut_columns(cut, of, rank, ranks);
      return cut;
    case Split::row:
      if (!is_weight) break;
      cut.dim = dims_of(*of.module).in;
      cut_evenly(cut, of, rank, ranks);
      return cut;
    case Split::vocabulary:
      if (cut.shape[0] < ranks) {
        refuse_cut(of.name, "rows", cut.shape[0], ranks, fmt::format("at least {} rows", ranks));
      }
      cut.ranges.push_back(vocabulary_rows(cut.shape[0], rank, ranks));
      return cut;
    default:
      break;
  }
  cut.copies = ranks;
  cut.ranges.push_back({0, cut.shape.empty() ? 1 : cut.shape[0]});
  return cut;
}

}  // namespace

bool ParameterCut::is_whole() const {
  return ranges.size() == 1 &&
         ranges[0] == layout::Range{0, shape.empty() ? 1 : shape[static_cast<size_t>(dim)]};
}

int64_t ParameterCut::size() const {
  int64_t size = 0;
  for (const auto& [begin, end] : ranges) size += end - begin;
  return size;
}

std::vector<layout::Box> ParameterCut::boxes() const {
  std::vector<layout::Box> boxes;
  for (const auto& [begin, end] : ranges) {
    auto& box = boxes.emplace_back(layout::Box::whole(name, shape));
    if (is_whole()) continue;
    box.offset[static_cast<size_t>(dim)] = begin;
    box.size[static_cast<size_t>(dim)] = end - begin;
  }
  return boxes;
}

std::vector<FlatPart> ParameterCut::flat_parts(const layout::Range& flat) const {
  int64_t inner = 1;  // elements for each index along dim
  for (size_t d = static_cast<size_t>(dim) + 1; d < shape.size(); ++d) inner *= shape[d];
  const int64_t row = size() * inner;
  std::vector<FlatPart> parts;
  int64_t begin = 0;  // of the part in a row of the shard
  for (auto& box : boxes()) {
    const int64_t width = box.size.empty() ? 1 : box.size[static_cast<size_t>(dim)] * inner;
    // The number of elements of the part that come before an element of the shard.
    const auto before = [&](int64_t element) {
      return element / row * width + std::clamp<int64_t>(element % row - begin, 0, width);
    };
    box.flat = layout::Range{before(flat.begin), before(flat.end)};
    const auto numbers = at::arange(box.flat->begin, box.flat->end, at::kLong);
    const auto rows = numbers.div(width, "floor");
    parts.push_back({std::move(box), rows * (row - width) + numbers + (begin - flat.begin)});
    begin += width;
  }
  return parts;
}

std::vector<at::Tensor> ParameterCut::parts_of(const at::Tensor& whole) const {
  std::vector<at::Tensor> parts;
  for (const auto& [begin, end] : ranges) parts.push_back(whole.slice(dim, begin, end));
  return parts;
}

at::Tensor ParameterCut::shard_of(const at::Tensor& whole) const {
  return is_whole() ? whole : at::cat(parts_of(whole), dim);
}

void append_shard(state::StateDict& to, const state::Entry& shard, const ParameterCut& cut) {
  const auto& [name, tensor] = shard;
  int64_t begin = 0;
  for (auto& box : cut.boxes()) {
    const int64_t size = tensor.dim() == 0 ? 1 : box.size[static_cast<size_t>(cut.dim)];
    const auto part = cut.ranges.size() == 1 ? tensor : tensor.slice(cut.dim, begin, begin + size);
    to.emplace_back(name, part, std::move(box));
    begin += size;
  }
}

layout::Range vocabulary_rows(int64_t rows, int rank, int ranks) {
  return {rows * rank / ranks, rows * (rank + 1) / ranks};
}

int64_t cut_units(const RuledModule& of) {
  const auto parameters = of.module->named_parameters(/*recurse=*/false);
  const auto* const weight = parameters.find("weight");
  if (!weight) return 0;
  switch (of.rule.split) {
    case Split::column:
    case Split::groups:
    case Split::norm_of_column: {
      const int64_t units = units_of_rule(of);
      return units > 0 ? units : weight->size(dims_of(*of.module).out) / of.rule.parts;
    }
    case Split::row:
      return weight->size(dims_of(*of.module).in);
    default:
      return 0;
  }
}

std::vector<RuledModule> ruled_modules(const nn::Model& model, const SplitTable& table,
                                       std::string_view axis) {
  std::vector<RuledModule> found;
  for (const auto& entry : model.named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
    const auto& [name, module] = std::pair(entry.key(), entry.value());
    const auto rule = rule_for(table, name);
    if (!rule) {
      if (!needs_rule(*module)) continue;
      throw Error(
          "parallel", ErrorKind::usage,
          {.what = fmt::format("{} cannot be cut over the {} axis", owner_of(model, name), axis),
           .got = fmt::format("no rule for {}", name),
           .expected = "a rule in the table for each module with parameters or dropout"});
    }
    const auto wanted = wanted_kind(*module, rule->split);
    if (!wanted.empty()) {
      throw Error(
          "parallel", ErrorKind::usage,
          {.what = fmt::format("{} cannot be cut by the rule for {}", owner_of(model, name), name),
           .got = module->name(),
           .expected = wanted});
    }
    found.push_back({name, module, *rule});
  }
  return found;
}

std::vector<ParameterCut> parameter_cuts(const nn::Model& model,
                                         const std::vector<RuledModule>& modules, int rank,
                                         int ranks) {
  std::map<std::string, ParameterCut> by_name;
  for (const auto& of : modules) {
    for (const auto& parameter : of.module->named_parameters(/*recurse=*/false)) {
      auto cut = cut_of(of, parameter.key(), parameter.value(), rank, ranks);
      by_name.emplace(cut.name, std::move(cut));
    }
  }
  std::vector<ParameterCut> cuts;
  for (const auto& [name, tensor] : nn::named_parameters(model)) {
    const auto found = by_name.find(name);
    if (found == by_name.end()) {
      throw Error(
          "parallel", ErrorKind::usage,
          {.what = fmt::format("{} cannot be cut over the tensor axis", owner_of(model, name)),
           .got = fmt::format("no rule for parameter {} of the model itself", name),
           .expected = "parameters in modules"});
    }
    cuts.push_back(std::move(found->second));
  }
  return cuts;
}

}  // namespace troika::parallel
