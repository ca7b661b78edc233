#include "troika/layout/profile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <queue>

#include "troika/base/text.h"
#include "troika/layout/block_rules.h"
#include "troika/layout/errors/refuse.h"
#include "troika/layout/located_json.h"
#include "troika/layout/precision_names.h"
#include "troika/layout/profile_cuts.h"

namespace troika::layout {

namespace {

struct BlockNumber {
  const char* key;
  double ProfiledBlock::*value;
  bool is_required;
  double most;
};

constexpr double kMostSpread = 1000;

constexpr std::array<BlockNumber, 8> kNumbers{
    {{"forward_seconds", &ProfiledBlock::forward, true, kMostSeconds},
     {"backward_input_seconds", &ProfiledBlock::backward_input, true, kMostSeconds},
     {"backward_weight_seconds", &ProfiledBlock::backward_weight, true, kMostSeconds},
     {"spread", &ProfiledBlock::spread, false, kMostSpread},
     {"output_bytes", &ProfiledBlock::output_bytes, true, kMostNumber},
     {"saved_bytes", &ProfiledBlock::saved_bytes, true, kMostNumber},
     {"parameter_bytes", &ProfiledBlock::parameter_bytes, true, kMostNumber},
     {"workspace_bytes", &ProfiledBlock::workspace_bytes, false, kMostNumber}}};

constexpr std::array<std::pair<const char*, double BlockInStage::*>, 10> kNumbersInStage{
    {{"fixed_bytes", &BlockInStage::fixed_bytes},
     {"borrowed_bytes", &BlockInStage::borrowed_bytes},
     {"recomputed_saved_bytes", &BlockInStage::recomputed_saved_bytes},
     {"sent_workspace_bytes", &BlockInStage::sent_workspace_bytes},
     {"weight_saved_share", &BlockInStage::weight_saved_share},
     {"weight_workspace_bytes", &BlockInStage::weight_workspace_bytes},
     {"weight_input_bytes", &BlockInStage::weight_input_bytes},
     {"weight_output_bytes", &BlockInStage::weight_output_bytes},
     {"weight_gradient_bytes", &BlockInStage::weight_gradient_bytes},
     {"input_workspace_bytes", &BlockInStage::input_workspace_bytes}}};

constexpr std::array<std::pair<const char*, double ProfiledBatches::*>, 3> kBatchNumbers{
    {{"bytes", &ProfiledBatches::bytes},
     {"placed_bytes", &ProfiledBatches::placed_bytes},
     {"prefetched", &ProfiledBatches::prefetched}}};

constexpr std::array<std::pair<const char*, MeasuredLink Profile::*>, 3> kMeasuredLinks{
    {{"group", &Profile::group}, {"host", &Profile::host}, {"network", &Profile::network}}};

// Returns a rate per second, or 0 if it is not known.
double read_rate(const JsonField& field) {
  const double rate = field.number(0);
  if (rate > 0 && rate < 1) field.fail(fmt::format("{:g}", rate), "at least 1, or 0: not known");
  return rate;
}
double read_rate_or_none(const JsonField& field, std::string_view key) {
  return field.has(key) ? read_rate(field.member(key)) : 0;
}

ProfiledBlock read_block(const JsonField& field) {
  std::vector<std::string> keys{"name", "layer", "has_output_layer", "tensor", "context"};
  for (const auto& number : kNumbers) keys.emplace_back(number.key);
  for (const auto& [key, member] : kNumbersInStage) keys.emplace_back(key);
  field.require_keys(keys);
  ProfiledBlock block{.name = field.text("name")};
  if (!is_block_name(block.name)) field.member("name").fail(block.name, kBlockNames);
  if (field.has("layer")) block.layer = field.text("layer");
  for (const auto& number : kNumbers) {
    if (number.is_required || field.has(number.key)) {
      block.*(number.value) = field.member(number.key).number(0, number.most);
    }
  }
  for (const auto& [key, member] : kNumbersInStage) {
    block.in_stage.*member = field.number_or(key, block.in_stage.*member);
  }
  require_saved_share(field, block.in_stage.weight_saved_share);
  if (field.has("has_output_layer")) {
    block.has_output_layer = field.member("has_output_layer").boolean();
  }
  if (field.has("tensor")) block.tensor = read_tensor_cut(field.member("tensor"));
  if (field.has("context")) block.context = read_context_cut(field.member("context"));
  return block;
}

ProfiledBatches read_batches(const JsonField& field) {
  std::vector<std::string> keys;
  for (const auto& [key, member] : kBatchNumbers) keys.emplace_back(key);
  field.require_keys(keys);
  ProfiledBatches batches;
  for (const auto& [key, member] : kBatchNumbers) batches.*member = field.number_or(key, 0);
  return batches;
}

std::string read_precision(const JsonField& field) {
  auto name = field.text();
  if (std::ranges::count(kPrecisionNames, name) > 0) return name;
  field.fail(name, fmt::format("one of {}", fmt::join(kPrecisionNames, ", ")),
             fmt::format("did you mean {}?",
                         nearest(name, {kPrecisionNames.begin(), kPrecisionNames.end()})));
}

// Reads a number of parameters, of 2 to 8 bytes each. The fixed bytes of blocks may contain
// parameters that are not trained, beside buffers.
int64_t read_parameters(const JsonField& field, const std::vector<ProfiledBlock>& blocks) {
  const double parameters = field.number(0);
  if (parameters != std::floor(parameters)) {
    field.fail(fmt::format("{:g}", parameters), "a whole number");
  }
  double trained = 0, fixed = 0;
  for (const auto& block : blocks) {
    trained += block.parameter_bytes;
    fixed += block.in_stage.fixed_bytes;
  }
  constexpr double kLeastSize = 2, kMostSize = 8, kMargin = 0.01;  // for numbers that are rounded
  const bool is_said = trained > 0 && parameters > 0;
  if (is_said && (trained > kMostSize * parameters * (1 + kMargin) ||
                  trained + fixed < kLeastSize * parameters * (1 - kMargin))) {
    field.fail(fmt::format("{:.0f}", parameters),
               fmt::format("a number of parameters of {:.0f} bytes, those of the blocks", trained));
  }
  return static_cast<int64_t>(parameters);
}

size_t index_of(const std::map<std::string, size_t>& names, const JsonField& field) {
  const auto found = names.find(field.text());
  if (found == names.end()) {
    std::vector<std::string> known;
    for (const auto& [name, index] : names) known.push_back(name);
    field.fail(field.text(), "the name of a block",
               fmt::format("did you mean {}?", nearest(field.text(), known)));
  }
  return found->second;
}

void read_links(Profile& profile, const JsonField& links) {
  links.require_keys({"group", "host", "network"});
  for (const auto& [key, member] : kMeasuredLinks) {
    if (!links.has(key)) continue;
    const auto field = links.member(key);
    field.require_keys({"latency", "bandwidth", "spread"});
    profile.*member = {
        .link = {.latency =
                     field.has("latency") ? field.member("latency").number(0, kMostSeconds) : 0,
                 .bandwidth = read_rate(field.member("bandwidth"))},
        .spread = field.number_or("spread", 0)};
  }
}

void read_edges(Profile& profile, const JsonField& file,
                const std::map<std::string, size_t>& names) {
  for (const auto& edge : file.items("edges")) {
    const auto ends = edge.items();
    if (ends.size() != 2) edge.fail(fmt::format("{} names", ends.size()), "two");
    profile.edges.emplace_back(index_of(names, ends[0]), index_of(names, ends[1]));
  }
}

nlohmann::ordered_json as_json(const ProfiledBlock& block) {
  nlohmann::ordered_json json{{"name", block.name}};
  if (!block.layer.empty()) json["layer"] = block.layer;
  for (const auto& number : kNumbers) json[number.key] = block.*(number.value);
  for (const auto& [key, member] : kNumbersInStage) json[key] = block.in_stage.*member;
  if (block.has_output_layer) json["has_output_layer"] = true;
  if (block.tensor) json["tensor"] = as_json(*block.tensor);
  if (block.context) json["context"] = as_json(*block.context);
  return json;
}

}  // namespace

Profile Profile::parse(std::string_view text, std::string_view name) {
  const auto first = trim(text);
  if (first.empty()) refuse(fmt::format("{}:1 is empty", name), "", "a profile");
  if (first.front() != '{') return parse_pipedream_graph(text, name);
  const auto json = parse_located_json(text, name);
  const JsonField file(json, name);
  file.require_keys({"model", "parameters", "device", "device_flops", "precision", "micro_batch",
                     "splits_backward", "optimizer_factor", "optimizer_bytes_per_second",
                     "gather_bytes_per_second", "overlap", "first_micro_batch_factor", "batches",
                     "links", "blocks", "edges"});
  Profile profile;
  if (file.has("model")) profile.model.name = file.text("model");
  if (file.has("device")) profile.device = file.text("device");
  if (file.has("precision")) profile.precision = read_precision(file.member("precision"));
  profile.device_flops = read_rate_or_none(file, "device_flops");
  profile.micro_batch = file.number_or("micro_batch", 1, 1);
  if (file.has("splits_backward")) {
    profile.splits_backward = file.member("splits_backward").boolean();
  }
  profile.optimizer_factor = file.number_or("optimizer_factor", 0);
  profile.optimizer_bytes_per_second = read_rate_or_none(file, "optimizer_bytes_per_second");
  profile.gather_bytes_per_second = read_rate_or_none(file, "gather_bytes_per_second");
  profile.in_step.overlap = file.number_or("overlap", 1, -1);
  if (profile.in_step.overlap > 1)
    file.member("overlap").fail(fmt::format("{}", profile.in_step.overlap), "at most 1");
  profile.in_step.first_micro_batch_factor = file.number_or("first_micro_batch_factor", 1, 1);
  if (file.has("batches")) profile.in_step.batches = read_batches(file.member("batches"));
  if (file.has("links")) read_links(profile, file.member("links"));
  std::map<std::string, size_t> names;
  for (const auto& field : file.items("blocks")) {
    profile.blocks.push_back(read_block(field));
    if (!names.emplace(profile.blocks.back().name, names.size()).second) {
      field.member("name").fail(profile.blocks.back().name, "a name that no other block has");
    }
  }
  if (profile.blocks.empty()) file.member("blocks").fail("none", "at least one block");
  if (!profile.takes_time()) {
    file.member("blocks").fail("0 seconds in all", "a block that takes time");
  }
  if (file.has("parameters")) {
    profile.model.parameters = read_parameters(file.member("parameters"), profile.blocks);
  }
  if (!file.has("edges")) return profile;
  read_edges(profile, file, names);
  if (profile.topological_order().size() < profile.blocks.size()) {
    file.member("edges").fail("a circle", "edges from blocks to blocks that come after them");
  }
  return profile;
}

bool Profile::takes_time() const {
  return std::ranges::any_of(blocks, [](const auto& block) { return block.seconds() > 0; });
}

std::string Profile::text() const {
  nlohmann::ordered_json json;
  if (!model.name.empty()) json["model"] = model.name;
  if (model.parameters > 0) json["parameters"] = model.parameters;
  if (!device.empty()) json["device"] = device;
  json["device_flops"] = device_flops;
  json["precision"] = precision;
  json["micro_batch"] = micro_batch;
  json["splits_backward"] = splits_backward;
  json["optimizer_factor"] = optimizer_factor;
  if (optimizer_bytes_per_second > 0) {
    json["optimizer_bytes_per_second"] = optimizer_bytes_per_second;
  }
  if (gather_bytes_per_second > 0) json["gather_bytes_per_second"] = gather_bytes_per_second;
  if (in_step.overlap < 1) json["overlap"] = in_step.overlap;
  if (in_step.first_micro_batch_factor > 1) {
    json["first_micro_batch_factor"] = in_step.first_micro_batch_factor;
  }
  if (in_step.batches != ProfiledBatches()) {
    for (const auto& [key, member] : kBatchNumbers) json["batches"][key] = in_step.batches.*member;
  }
  for (const auto& [key, member] : kMeasuredLinks) {
    const auto& [link, spread] = this->*member;
    if (link.bandwidth == 0) continue;
    json["links"][key] = {
        {"latency", link.latency}, {"bandwidth", link.bandwidth}, {"spread", spread}};
  }
  json["blocks"] = nlohmann::ordered_json::array();
  for (const auto& block : blocks) json["blocks"].push_back(as_json(block));
  for (const auto& [from, to] : edges)
    json["edges"].push_back({blocks[from].name, blocks[to].name});
  return json.dump(2) + "\n";
}

std::vector<std::vector<size_t>> Profile::readers() const {
  std::vector<std::vector<size_t>> readers(blocks.size());
  for (const auto& [from, to] : edges) readers[from].push_back(to);
  if (!edges.empty()) return readers;
  for (size_t i = 0; i + 1 < blocks.size(); ++i) readers[i].push_back(i + 1);
  return readers;
}

std::vector<size_t> Profile::topological_order() const {
  const auto after = readers();
  std::vector<size_t> inputs(blocks.size(), 0);
  for (const auto& row : after) {
    for (const size_t to : row) ++inputs[to];
  }
  std::priority_queue<size_t, std::vector<size_t>, std::greater<>> ready;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (inputs[i] == 0) ready.push(i);
  }
  std::vector<size_t> order;
  while (!ready.empty()) {
    order.push_back(ready.top());
    ready.pop();
    for (const size_t to : after[order.back()]) {
      if (--inputs[to] == 0) ready.push(to);
    }
  }
  return order;
}

}  // namespace troika::layout
