// The part of summation servers in checkpoints.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/compat/torch.h"
#include "troika/parallel/servers/embedded_world.h"
#include "troika/parallel/servers/summation.h"

namespace troika::parallel {

namespace {

constexpr const char* kRank = "rank";
constexpr const char* kRate = "rate";
constexpr const char* kMembers = "members";
// These precede names of parameters, as kMomentum does.
constexpr const char* kError = "error.";
constexpr const char* kMeanError = "mean_error.";

bool is_name(std::string_view name) {
  if (name == kRank || name == kRate || name == kMembers) return true;
  return name.starts_with(kError) || name.starts_with(kMeanError) || name.starts_with(kMomentum);
}

}  // namespace

bool SummationServers::has_state() const {
  return client_ && (options_.coding.error_feedback || options_.sums.momentum > 0);
}

state::StateDict SummationServers::state() {
  if (!has_state()) return {};
  const auto lack = [](std::string_view why) {
    log::warn("[parallel] a checkpoint lacks momentum and what codecs have left out: {}", why);
    return state::StateDict();
  };
  if (!client_->is_idle()) return lack("gradients are under way");
  auto result = momentum_.tensors();
  for (auto& [name, momentum] : result) momentum = momentum.clone();
  result.emplace_back(kRank, at::scalar_tensor(group_.rank(), at::kLong));
  if (!options_.coding.error_feedback) return result;
  result.emplace_back(kMembers, at::scalar_tensor(members_, at::kLong));
  result.emplace_back(kRate, at::scalar_tensor(rate_of_errors_.value_or(1), at::kDouble));
  for (size_t bucket = 0; bucket < laid_.size(); ++bucket) {
    const auto own = zeros_like_bucket(bucket);
    auto* const bytes = static_cast<char*>(own.data_ptr());
    for (size_t i = laid_[bucket].first; i < laid_[bucket].end; ++i) {
      std::ranges::copy(client_->left_out(layout_ | i), bytes + partitions_[i].offset);
    }
    save_parts(bucket, kError, own, result);
  }
  if (group_.rank() > 0) return result;
  std::vector<at::Tensor> of_means;
  for (size_t bucket = 0; bucket < laid_.size(); ++bucket) {
    of_means.push_back(zeros_like_bucket(bucket));
  }
  try {
    act_alone(of_means, server::SummationAction::left_out);
  } catch (const Error& error) {
    return lack(error.what());
  }
  for (size_t bucket = 0; bucket < laid_.size(); ++bucket) {
    save_parts(bucket, kMeanError, of_means[bucket], result);
  }
  return result;
}

void SummationServers::load_state(const state::StateDict& state) {
  const bool is_member = client_ || !world_;
  if (!is_member) return;
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, tensor] : state) {
    if (!is_name(name)) {
      throw Error("parallel", ErrorKind::usage,
                  {.what = "the state of summation servers",
                   .got = name,
                   .expected = "errors of codecs, and momentum"});
    }
    tensors.emplace(name, tensor);
  }
  momentum_.clear();
  if (state.empty()) return;
  const auto number = [&](const char* name) {
    const auto found = tensors.find(name);
    if (found == tensors.end()) return std::optional<double>();
    const double value = found->second.to(at::kDouble).item<double>();
    tensors.erase(found);
    return std::optional(value);
  };
  const auto rank = number(kRank), rate = number(kRate), members = number(kMembers);
  std::erase_if(tensors, [&](const auto& entry) {
    return entry.first.starts_with(kMeanError) ? group_.rank() > 0 : rank != group_.rank();
  });
  momentum_.take(tensors);
  // Errors count by the rate of their step, and those of ranks by the number of ranks that push.
  if (has_state() && options_.coding.error_feedback && rate) {
    expect_rate(*rate);
    rate_of_errors_ = rate_;
    const double weight = members ? members_ / *members : 1;
    std::vector<at::Tensor> of_means;
    for (size_t bucket = 0; bucket < laid_.size(); ++bucket) {
      if (const auto own = take_parts(bucket, kError, tensors); own.defined()) {
        set_left_out(bucket, own.mul_(weight));
      }
      of_means.push_back(take_parts(bucket, kMeanError, tensors));
    }
    if (std::ranges::any_of(of_means, &at::Tensor::defined)) {
      act_alone(of_means, server::SummationAction::set_left_out);
    }
  }
  if (tensors.empty()) return;
  log::warn(
      "[parallel] momentum and what codecs had left out of gradients is dropped for {} tensors, "
      "such as {}: this run has no such parameters, another momentum or no error feedback",
      tensors.size(), tensors.begin()->first);
}

void SummationServers::save_parts(size_t bucket, const std::string& kind, const at::Tensor& flat,
                                  state::StateDict& state) const {
  for (const auto& part : laid_[bucket].parts) {
    state.emplace_back(kind + part.name, part.of(flat).clone());
  }
}

at::Tensor SummationServers::take_parts(size_t bucket, const std::string& kind,
                                        std::map<std::string, at::Tensor>& tensors) const {
  at::Tensor flat;
  for (const auto& part : laid_[bucket].parts) {
    const auto found = tensors.find(kind + part.name);
    if (found == tensors.end() || found->second.sizes() != part.sizes) continue;
    if (!flat.defined()) flat = zeros_like_bucket(bucket);
    part.of(flat).copy_(found->second);
    tensors.erase(found);
  }
  return flat;
}

void SummationServers::set_left_out(size_t bucket, const at::Tensor& flat) {
  const auto* const bytes = static_cast<const char*>(flat.data_ptr());
  for (size_t i = laid_[bucket].first; i < laid_[bucket].end; ++i) {
    const auto& partition = partitions_[i];
    client_->set_left_out(layout_ | i,
                          {bytes + partition.offset, static_cast<size_t>(partition.bytes)}, rate_);
  }
}

void SummationServers::act_alone(const std::vector<at::Tensor>& buckets,
                                 server::SummationAction action) {
  try {
    for (size_t bucket = 0; bucket < buckets.size(); ++bucket) {
      if (!buckets[bucket].defined()) continue;
      push(bucket, static_cast<char*>(buckets[bucket].data_ptr()), action, {});
    }
    const auto limit = limit_of(options_.servers);
    client_->wait(Deadline::after(group_.options().timeout),
                  [&] { return world_->trouble(limit); });
  } catch (...) {
    client_->drop();
    throw;
  }
}

}  // namespace troika::parallel
