#include "troika/layout/profile_cuts.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace troika::layout {

namespace {

constexpr std::array<std::pair<const char*, double TensorCut::*>, 8> kCutNumbers{
    {{"time_share", &TensorCut::time_share},
     {"parameter_share", &TensorCut::parameter_share},
     {"saved_share", &TensorCut::saved_share},
     {"token_time_share", &TensorCut::token_time_share},
     {"token_saved_share", &TensorCut::token_saved_share},
     {"sum_bytes", &TensorCut::sum_bytes},
     {"weight_share_beside_sums", &TensorCut::weight_share_beside_sums},
     {"input_share_beside_gathers", &TensorCut::input_share_beside_gathers}}};

constexpr std::array<std::pair<const char*, int TensorCut::*>, 6> kCutCounts{
    {{"units", &TensorCut::units},
     {"tokens", &TensorCut::tokens},
     {"forward_sums", &TensorCut::forward_sums},
     {"backward_sums", &TensorCut::backward_sums},
     {"backward_gathers", &TensorCut::backward_gathers},
     {"counted_ranks", &TensorCut::counted_ranks}}};

constexpr std::array<std::pair<const char*, double ContextCut::*>, 7> kContextNumbers{
    {{"time_share", &ContextCut::time_share},
     {"workspace_share", &ContextCut::workspace_share},
     {"saved_bytes", &ContextCut::saved_bytes},
     {"attention_share", &ContextCut::attention_share},
     {"pair_bytes", &ContextCut::pair_bytes},
     {"pair_gradient_bytes", &ContextCut::pair_gradient_bytes},
     {"exchanged_bytes", &ContextCut::exchanged_bytes}}};

constexpr std::array<std::pair<const char*, int ContextCut::*>, 3> kContextCounts{
    {{"tokens", &ContextCut::tokens},
     {"heads", &ContextCut::heads},
     {"exchanges", &ContextCut::exchanges}}};

constexpr std::array<std::pair<const char*, double RankBytes::*>, 9> kRankBytes{
    {{"saved_bytes", &RankBytes::saved_bytes},
     {"workspace_bytes", &RankBytes::workspace_bytes},
     {"sent_workspace_bytes", &RankBytes::sent_workspace_bytes},
     {"weight_saved_share", &RankBytes::weight_saved_share},
     {"weight_workspace_bytes", &RankBytes::weight_workspace_bytes},
     {"weight_input_bytes", &RankBytes::weight_input_bytes},
     {"weight_output_bytes", &RankBytes::weight_output_bytes},
     {"weight_gradient_bytes", &RankBytes::weight_gradient_bytes},
     {"input_workspace_bytes", &RankBytes::input_workspace_bytes}}};

constexpr std::array<std::pair<const char*, RankBytes TensorCut::*>, 2> kCountedBytes{
    {{"of_rank", &TensorCut::of_rank}, {"of_rank_with_tokens", &TensorCut::of_rank_with_tokens}}};

int read_count(const JsonField& field, const char* key) {
  constexpr double kMost = 1e6;
  const double value = field.number_or(key, 0);
  if (value != std::floor(value) || value > kMost) {
    field.member(key).fail(fmt::format("{:g}", value), "a whole number from 0 to 10^6");
  }
  return static_cast<int>(value);
}

void require_share(const JsonField& field, const char* what, double sum) {
  constexpr double kRounding = 1e-9;
  if (sum <= 1 + kRounding) return;
  field.fail(fmt::format("{} {:g}", what, sum), "at most 1");
}

RankBytes read_bytes(const JsonField& field) {
  std::vector<std::string> keys;
  for (const auto& [key, member] : kRankBytes) keys.emplace_back(key);
  field.require_keys(keys);
  RankBytes bytes;
  for (const auto& [key, member] : kRankBytes) {
    bytes.*member = field.number_or(key, bytes.*member);
  }
  require_saved_share(field, bytes.weight_saved_share);
  return bytes;
}

}  // namespace

void require_saved_share(const JsonField& field, double share) {
  // A block may need much more after a pass's first part than it saved, if it saved next to
  // nothing.
  constexpr double kMost = 1e6;
  if (share <= kMost) return;
  field.member("weight_saved_share")
      .fail(fmt::format("{:g}", share), fmt::format("at most {:g}", kMost));
}

ContextCut read_context_cut(const JsonField& field) {
  std::vector<std::string> keys;
  for (const auto& [key, member] : kContextNumbers) keys.emplace_back(key);
  for (const auto& [key, member] : kContextCounts) keys.emplace_back(key);
  field.require_keys(keys);
  ContextCut cut;
  for (const auto& [key, member] : kContextNumbers) cut.*member = field.number_or(key, 0);
  for (const auto& [key, member] : kContextCounts) cut.*member = read_count(field, key);
  require_share(field, "time_share", cut.time_share);
  require_share(field, "workspace_share", cut.workspace_share);
  require_share(field, "attention_share", cut.attention_share);
  return cut;
}

TensorCut read_tensor_cut(const JsonField& field) {
  std::vector<std::string> keys{"cuts_output"};
  for (const auto& [key, member] : kCountedBytes) keys.emplace_back(key);
  for (const auto& [key, member] : kCutNumbers) keys.emplace_back(key);
  for (const auto& [key, member] : kCutCounts) keys.emplace_back(key);
  field.require_keys(keys);
  TensorCut cut;
  for (const auto& [key, member] : kCutNumbers) cut.*member = field.number_or(key, 0);
  for (const auto& [key, member] : kCutCounts) cut.*member = read_count(field, key);
  if (field.has("cuts_output")) cut.cuts_output = field.member("cuts_output").boolean();
  require_share(field, "time_share + token_time_share", cut.time_share + cut.token_time_share);
  require_share(field, "saved_share + token_saved_share", cut.saved_share + cut.token_saved_share);
  require_share(field, "parameter_share", cut.parameter_share);
  require_share(field, "weight_share_beside_sums", cut.weight_share_beside_sums);
  require_share(field, "input_share_beside_gathers", cut.input_share_beside_gathers);
  for (const auto& [key, member] : kCountedBytes) {
    if (cut.counted_ranks == 0 && !field.has(key)) continue;
    cut.*member = read_bytes(field.member(key));
    if (cut.counted_ranks > 1) continue;
    field.fail(fmt::format("{} of counted_ranks {}", key, cut.counted_ranks), "2 ranks or more");
  }
  return cut;
}

nlohmann::ordered_json as_json(const TensorCut& cut) {
  nlohmann::ordered_json json;
  for (const auto& [key, member] : kCutCounts) json[key] = cut.*member;
  for (const auto& [key, member] : kCutNumbers) json[key] = cut.*member;
  json["cuts_output"] = cut.cuts_output;
  if (cut.counted_ranks == 0) return json;
  for (const auto& [key, of] : kCountedBytes) {
    for (const auto& [name, member] : kRankBytes) json[key][name] = cut.*of.*member;
  }
  return json;
}

nlohmann::ordered_json as_json(const ContextCut& cut) {
  nlohmann::ordered_json json;
  for (const auto& [key, member] : kContextCounts) json[key] = cut.*member;
  for (const auto& [key, member] : kContextNumbers) json[key] = cut.*member;
  return json;
}

}  // namespace troika::layout
