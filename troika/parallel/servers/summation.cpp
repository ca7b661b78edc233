#include "troika/parallel/servers/summation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/base/text.h"
#include "troika/compat/torch.h"
#include "troika/layout/lead_bytes.h"
#include "troika/parallel/servers/embedded_world.h"
#include "troika/parallel/servers/group_error.h"
#include "troika/parallel/servers/launched_world.h"
#include "troika/parallel/servers/measured_links.h"

namespace troika::parallel {

namespace {

constexpr std::string_view kMeasuredLinks = "measured";
constexpr const char* kRank = "rank";

std::string error_name(size_t bucket) {
  return fmt::format("bucket{}.error", bucket);
}

std::string mean_error_name(size_t bucket) {
  return fmt::format("bucket{}.mean_error", bucket);
}

// Whether it is a name in the state, for some bucket.
bool is_name(std::string_view name) {
  if (name == kRank) return true;
  constexpr std::string_view kBucket = "bucket";
  const auto dot = name.find('.');
  if (!name.starts_with(kBucket) || dot == std::string_view::npos) return false;
  const auto bucket = parse_int(name.substr(kBucket.size(), dot - kBucket.size()));
  const auto kind = name.substr(dot);
  return bucket && *bucket >= 0 && (kind == ".error" || kind == ".mean_error");
}

// Reads the bandwidths of links, those of spare machines first. Equal ones if there is no text.
std::vector<double> links_from(const std::string& text, int workers, int64_t spares) {
  const auto count = static_cast<size_t>(workers + spares);
  if (text.empty()) return std::vector<double>(count, 1);
  std::vector<double> rates;
  bool are_numbers = true;
  for (const auto& word : split(text, ',')) {
    const auto rate = parse_double(trim(word));
    are_numbers = are_numbers && rate;
    rates.push_back(rate.value_or(0));
  }
  if (are_numbers && rates.size() == count) return rates;
  throw Error("parallel", ErrorKind::usage,
              {.what = "bandwidths of links",
               .got = "`" + text + "`",
               .expected = fmt::format("{} numbers with commas: of {} spare machines, then of {} "
                                       "workers; or {}",
                                       count, spares, workers, kMeasuredLinks)});
}

layout::SummationSplit split_of(std::span<const double> links, int64_t spares) {
  return layout::split_sums(links.subspan(static_cast<size_t>(spares)),
                            links.first(static_cast<size_t>(spares)));
}

server::ValueType type_of(const at::Tensor& flat) {
  return flat.scalar_type() == at::kDouble ? server::ValueType::float64
                                           : server::ValueType::float32;
}

}  // namespace

SummationServers::SummationServers(const comm::Group& group, const SummationOptions& options)
    : SummationServers(group, options, launched_role()) {}

SummationServers::SummationServers(const comm::Group& group, const SummationOptions& options,
                                   const server::WorldOptions& role)
    : group_(group), options_(options) {
  const bool is_launched = role.role != server::WorldRole::alone;
  const int64_t spares = options_.servers.count;
  if (!is_launched && spares > 0) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "summation servers on spare machines are processes of their own",
                 .got = fmt::format("server.servers {}, and no launch of servers", spares),
                 .expected = "server.servers 0: one in each rank's process",
                 .hint = "troika launch --servers K --workers N starts them"});
  }
  const auto& links = options_.sums.links;
  const bool is_measured = links == kMeasuredLinks;
  shares_ = split_of(links_from(is_measured ? "" : links, group_.size(), spares), spares).shares();
  if (!is_launched && group_.size() == 1) return;
  server::WorldParts parts{.scheduler = scheduler_options(options_.servers),
                           .service = summation_service};
  parts.scheduler.takes_tables = true;  // there are none
  with_group_errors(group_, limit_of(options_.servers), [&] {
    if (is_launched) {
      auto own = role;
      own.has_server_beside = true;
      world_ = launched_world(group_, own, options_.servers, std::move(parts));
    } else {
      world_ = embedded_world(group_, options_.servers, std::move(parts));
    }
    auto& endpoint = world_->connected_endpoint(Deadline::after(group_.options().timeout));
    server::SummationClientOptions own{
        .rank = static_cast<uint32_t>(group_.rank()),
        .workers = static_cast<uint32_t>(group_.size()),
        .servers = {},
        .credit_bytes = static_cast<size_t>(options_.sums.credit_bytes),
        .coding = options_.coding};
    for (int64_t i = 0; i < spares + group_.size(); ++i) {
      own.servers.push_back(fmt::format("server-{}", i));
    }
    if (options_.sums.links == kMeasuredLinks) {
      link_rates_ = measure_links(group_, endpoint, own.servers);
      shares_ = split_of(link_rates_, spares).shares();
    }
    for (const double share : shares_) {
      // Workers whose updates are added at once do not keep together.
      if (options_.sums.asynchronous) break;
      own.lead_bytes.push_back(
          static_cast<size_t>(layout::lead_bytes(share, options_.sums.partition_bytes)));
    }
    client_ = std::make_unique<server::SummationClient>(endpoint, std::move(own));
  });
}

SummationServers::~SummationServers() {
  client_.reset();
  // A rank that has failed does not wait for others.
  if (!world_ || std::uncaught_exceptions() > 0) return;
  try {
    world_->leave(Deadline::after(2 * limit_of(options_.servers)));
  } catch (const Error& error) {
    log::warn("the summation servers: {}", error.what());
  }
}

void SummationServers::lay_out(const std::vector<Bucket>& buckets) {
  std::vector<int64_t> bytes;
  for (const auto& bucket : buckets) {
    const auto& flat = bucket.gradient.flat;
    const auto type = flat.scalar_type();
    if (!flat.is_cpu() || (type != at::kFloat && type != at::kDouble)) {
      throw Error("parallel", ErrorKind::usage,
                  {.what = "gradients for summation servers",
                   .got = fmt::format("{} on {}", c10::toString(type), flat.device().str()),
                   .expected = "float32 or float64 on the CPU"});
    }
    bytes.push_back(static_cast<int64_t>(flat.nbytes()));
  }
  partitions_ = layout::partition_sums(bytes, options_.sums.partition_bytes, shares_);
  laid_.clear();
  size_t end = 0;
  for (size_t i = 0; i < buckets.size(); ++i) {
    const auto& flat = buckets[i].gradient.flat;
    const size_t first = end;
    while (end < partitions_.size() && partitions_[end].bucket == i) ++end;
    laid_.push_back({.count = flat.numel(), .type = type_of(flat), .first = first, .end = end});
  }
  layout_ ^= server::kLayoutBit;
  missing_ = std::make_shared<std::vector<size_t>>(buckets.size());
}

void SummationServers::start(const Bucket& bucket) {
  push(bucket, server::SummationAction::sum);
}

void SummationServers::exchange(const std::vector<Bucket>& buckets,
                                server::SummationAction action) {
  if (!client_) return;
  for (const auto& bucket : buckets) push(bucket, action);
  finish();
}

void SummationServers::push(const Bucket& bucket, server::SummationAction action) {
  const auto index = static_cast<size_t>(bucket.gradient.index);
  const auto& flat = bucket.gradient.flat;
  const auto& laid = laid_[index];
  (*missing_)[index] = laid.end - laid.first;  // no callback is under way for it
  const auto done = [missing = missing_, index, bytes = static_cast<int64_t>(flat.nbytes()),
                     begin = Clock::now(), trace = options_.trace] {
    if (--(*missing)[index] > 0 || !trace) return;
    trace->add({.track = "communication",
                .name = "bucket",
                .start = begin,
                .end = Clock::now(),
                .bucket = static_cast<int64_t>(index),
                .bytes = bytes});
  };
  push(index, static_cast<char*>(flat.data_ptr()), action, done);
}

void SummationServers::push(size_t bucket, char* values, server::SummationAction action,
                            const std::function<void()>& done) {
  std::vector<server::SummationPiece> pieces;
  for (size_t i = laid_[bucket].first; i < laid_[bucket].end; ++i) {
    const auto& partition = partitions_[i];
    // Gradients come in the reverse of the order in which the next forward pass uses parameters.
    pieces.push_back({.key = layout_ | i,
                      .server = partition.server,
                      .priority = options_.sums.priorities ? static_cast<int64_t>(i) : 0,
                      .type = laid_[bucket].type,
                      .action = action,
                      .values = {values + partition.offset, static_cast<size_t>(partition.bytes)},
                      .done = done});
  }
  client_->push(std::move(pieces));
}

at::Tensor SummationServers::zeros_like_bucket(size_t bucket) const {
  const bool is_double = laid_[bucket].type == server::ValueType::float64;
  return at::zeros({laid_[bucket].count}, is_double ? at::kDouble : at::kFloat);
}

state::StateDict SummationServers::state() {
  if (!client_ || !options_.coding.error_feedback) return {};
  const auto lack = [](std::string_view why) {
    log::warn("[parallel] a checkpoint lacks what codecs have left out: {}", why);
    return state::StateDict();
  };
  if (!client_->is_idle()) return lack("gradients are under way");
  state::StateDict result;
  result.emplace_back(kRank, at::scalar_tensor(group_.rank(), at::kLong));
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
  if (state.empty()) return;
  std::map<std::string, at::Tensor> tensors;
  size_t errors = 0, mean_errors = 0;  // with the sizes of these buckets
  for (const auto& [name, tensor] : state) {
    if (!is_name(name)) {
      throw Error("parallel", ErrorKind::usage,
                  {.what = "the state of summation servers",
                   .got = name,
                   .expected = "what codecs with error feedback have left out of buckets"});
    }
    tensors.emplace(name, tensor);
  }
  for (size_t bucket = 0; bucket < laid_.size(); ++bucket) {
    const auto fits = [&](const std::string& name) {
      const auto found = tensors.find(name);
      return found != tensors.end() && found->second.numel() == laid_[bucket].count;
    };
    errors += fits(error_name(bucket)) ? 1 : 0;
    mean_errors += fits(mean_error_name(bucket)) ? 1 : 0;
  }
  // All or none of each kind, and no more.
  const bool is_whole =
      (errors == 0 || errors == laid_.size()) && (mean_errors == 0 || mean_errors == laid_.size());
  const size_t known = errors + mean_errors + tensors.count(kRank);
  if (!client_ || !options_.coding.error_feedback || !is_whole || known != tensors.size()) {
    return log::warn(
        "[parallel] what codecs had left out of gradients is dropped: this run has other buckets "
        "or no error feedback");
  }
  const auto rank = tensors.find(kRank);
  const bool is_own = rank != tensors.end() && rank->second.item<int64_t>() == group_.rank();
  for (size_t bucket = 0; is_own && errors > 0 && bucket < laid_.size(); ++bucket) {
    const auto own = zeros_like_bucket(bucket).copy_(tensors.at(error_name(bucket)));
    const auto* const bytes = static_cast<const char*>(own.data_ptr());
    for (size_t i = laid_[bucket].first; i < laid_[bucket].end; ++i) {
      const auto& partition = partitions_[i];
      client_->set_left_out(layout_ | i,
                            {bytes + partition.offset, static_cast<size_t>(partition.bytes)});
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

void SummationServers::finish() {
  if (client_) wait({});
}

size_t SummationServers::finish_any(const std::vector<size_t>& buckets) {
  size_t first = buckets.size();
  wait([&] {
    const auto found =
        std::ranges::find_if(buckets, [&](size_t bucket) { return (*missing_)[bucket] == 0; });
    first = static_cast<size_t>(found - buckets.begin());
    return found != buckets.end();
  });
  return first;
}

void SummationServers::wait(const std::function<bool()>& is_enough) {
  const auto limit = limit_of(options_.servers);
  with_group_errors(group_, limit, [&] {
    client_->wait(
        Deadline::after(group_.options().timeout), [&] { return world_->trouble(limit); },
        is_enough);
  });
}

void SummationServers::drop() {
  if (client_) client_->drop();
}

server::SummationTraffic SummationServers::traffic() {
  return client_ ? client_->traffic() : server::SummationTraffic{};
}

}  // namespace troika::parallel
