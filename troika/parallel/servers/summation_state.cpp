// The part of summation servers in checkpoints.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/base/text.h"
#include "troika/compat/torch.h"
#include "troika/parallel/servers/embedded_world.h"
#include "troika/parallel/servers/summation.h"

namespace troika::parallel {

namespace {

constexpr const char* kRank = "rank";
constexpr const char* kRate = "rate";
constexpr const char* kMembers = "members";

std::string error_name(size_t bucket) {
  return fmt::format("bucket{}.error", bucket);
}

std::string mean_error_name(size_t bucket) {
  return fmt::format("bucket{}.mean_error", bucket);
}

// Whether it is a name in the state, for some bucket or parameter.
bool is_name(std::string_view name) {
  if (name == kRank || name == kRate || name == kMembers) return true;
  const auto is_number = [](std::string_view text) {
    const auto number = parse_int(text);
    return number && *number >= 0;
  };
  constexpr std::string_view kBucket = "bucket";
  if (name.starts_with(kMomentum)) return true;
  const auto dot = name.find('.');
  if (!name.starts_with(kBucket) || dot == std::string_view::npos) return false;
  const auto kind = name.substr(dot);
  return is_number(name.substr(kBucket.size(), dot - kBucket.size())) &&
         (kind == ".error" || kind == ".mean_error");
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
    result.emplace_back(error_name(bucket), own);
  }
  if (group_.rank() > 0) return result;
  try {
    act_alone([&] {
      for (size_t bucket = 0; bucket < laid_.size(); ++bucket) {
        const auto of_means = zeros_like_bucket(bucket);
        result.emplace_back(mean_error_name(bucket), of_means);
        push(bucket, static_cast<char*>(of_means.data_ptr()), server::SummationAction::left_out,
             {});
      }
    });
  } catch (const Error& error) {
    return lack(error.what());
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
  size_t errors = 0, mean_errors = 0;  // with the sizes of this run's
  for (size_t bucket = 0; options_.coding.error_feedback && bucket < laid_.size(); ++bucket) {
    const auto fits = [&](const std::string& name) {
      const auto found = tensors.find(name);
      return found != tensors.end() && found->second.numel() == laid_[bucket].count;
    };
    errors += fits(error_name(bucket)) ? 1 : 0;
    mean_errors += fits(mean_error_name(bucket)) ? 1 : 0;
  }
  const auto momenta = static_cast<size_t>(std::ranges::count_if(
      tensors, [](const auto& entry) { return entry.first.starts_with(kMomentum); }));
  // All or none of each kind, and no more. Errors count by the rate of their step.
  const auto is_whole = [](size_t found, size_t wanted) { return found == 0 || found == wanted; };
  const size_t known = errors + mean_errors + momenta + tensors.count(kRank) +
                       tensors.count(kRate) + tensors.count(kMembers);
  const bool lacks_rate = errors + mean_errors > 0 && !tensors.contains(kRate);
  if (!has_state() || lacks_rate || !is_whole(errors, laid_.size()) ||
      !is_whole(mean_errors, laid_.size()) || known != tensors.size() ||
      (momenta > 0 && options_.sums.momentum == 0)) {
    return log::warn(
        "[parallel] what codecs had left out of gradients is dropped: this run has other buckets, "
        "another momentum or no error feedback");
  }
  const auto rank = tensors.find(kRank);
  const bool is_own = rank != tensors.end() && rank->second.item<int64_t>() == group_.rank();
  if (const auto rate = tensors.find(kRate); rate != tensors.end()) {
    expect_rate(rate->second.item<double>());
    rate_of_errors_ = rate_;
  }
  const auto left = is_own ? momentum_.load(tensors) : std::vector<std::string>();
  if (!left.empty()) {
    log::warn(
        "[parallel] momentum of gradients is dropped, as this run trains no such parameters: {}",
        fmt::join(left, ", "));
  }
  // An error counts by the number of ranks that push.
  const auto members = tensors.find(kMembers);
  const double weight = members == tensors.end()
                            ? 1
                            : members_ / static_cast<double>(members->second.item<int64_t>());
  for (size_t bucket = 0; is_own && errors > 0 && bucket < laid_.size(); ++bucket) {
    const auto own = zeros_like_bucket(bucket).copy_(tensors.at(error_name(bucket))).mul_(weight);
    const auto* const bytes = static_cast<const char*>(own.data_ptr());
    for (size_t i = laid_[bucket].first; i < laid_[bucket].end; ++i) {
      const auto& partition = partitions_[i];
      client_->set_left_out(
          layout_ | i, {bytes + partition.offset, static_cast<size_t>(partition.bytes)}, rate_);
    }
  }
  if (group_.rank() > 0 || mean_errors == 0) return;
  std::vector<at::Tensor> of_means;  // until servers have them
  for (size_t bucket = 0; bucket < laid_.size(); ++bucket) {
    of_means.push_back(zeros_like_bucket(bucket).copy_(tensors.at(mean_error_name(bucket))));
  }
  act_alone([&] {
    for (size_t bucket = 0; bucket < laid_.size(); ++bucket) {
      push(bucket, static_cast<char*>(of_means[bucket].data_ptr()),
           server::SummationAction::set_left_out, {});
    }
  });
}

void SummationServers::act_alone(const std::function<void()>& pushes) {
  try {
    pushes();
    const auto limit = limit_of(options_.servers);
    client_->wait(Deadline::after(group_.options().timeout),
                  [&] { return world_->trouble(limit); });
  } catch (...) {
    client_->drop();
    throw;
  }
}

}  // namespace troika::parallel
